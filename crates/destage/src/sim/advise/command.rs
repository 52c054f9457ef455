//! The settings as commands: one that starts a server so, one that changes a server that runs.

use super::policy_name;
use destage_runtime::policy::{at_limit_name, when_text};
use destage_runtime::units::Bytes;
use destage_sim::advise::{Front, Wish};
use destage_sim::machine::{Settings, Tier, WritePolicy};

/// What puts the settings into service. Origin and cache are the user's to name.
pub(super) fn command(wish: &Wish, settings: &Settings) -> String {
    match wish.front {
        Front::Block { flash, .. } => command_of_volumes(flash, settings),
        Front::Data { ram, row } => command_of_rows(wish, [ram, row], settings),
    }
}

fn command_of_rows(wish: &Wish, [ram, row]: [u64; 2], settings: &Settings) -> String {
    let tier = &settings.flash;
    let block = settings.block.get();
    // What the candidates have is half; a limit is a number of rows in the simulation.
    let half = Tier::of_rows(ram / 2, ram / 2, row, block).dirty;
    let dirty = if tier.dirty == half { ram / 2 } else { dirty_bytes_of_rows(tier, block, row) };
    format!(
        "destage serve --origin postgres://USER@HOST/DATABASE --cache-size {} --dirty-limit {} --policy {} --commit {} \
         --staleness {} --when {} --at-limit {} --batch {} --linger {}{}",
        Bytes(ram - dirty),
        Bytes(dirty),
        policy_name(wish, tier.policy),
        tier.commit,
        tier.staleness,
        when_text(tier.when),
        at_limit_name(tier.at_limit),
        tier.batch_groups,
        tier.linger,
        if tier.read_priority { " --read-priority" } else { "" },
    )
}

fn command_of_volumes(flash: u64, settings: &Settings) -> String {
    let tier = &settings.flash;
    let (policy, order) = match tier.policy {
        WritePolicy::WriteAround => (WritePolicy::WriteThrough.name(), ""),
        WritePolicy::Ordered => (WritePolicy::Ordered.name(), " --order epoch"),
        WritePolicy::Strict => (WritePolicy::Ordered.name(), " --order strict"),
        named => (named.name(), ""),
    };
    let limits = tier
        .core_policy(tier.size.get() / settings.block.get(), settings.block.get(), false)
        .limits;
    format!(
        "destage block serve --origin nbd://STORAGE/VOLUME --cache /SSD/VOLUME --cache-size {} --log-size {} \
         --dirty-limit {} --policy {policy}{order} --commit {} --staleness {} --when {} --at-limit {} --batch-size {} \
         --linger {}{}",
        Bytes(flash),
        Bytes(flash - tier.size.get()),
        Bytes(limits.dirty_bytes_max),
        commit_word(tier),
        tier.staleness,
        when_text(tier.when),
        at_limit_name(tier.at_limit),
        tier.batch,
        tier.linger,
        if tier.read_priority { " --read-priority" } else { "" },
    )
}

/// `d` of a volume as the server takes it.
fn commit_word(tier: &Tier) -> String {
    let on_flush = destage_engine::commit_on_flush(tier.staleness.span());
    if tier.commit.span() == on_flush { "flush".into() } else { tier.commit.to_string() }
}

/// The change of a running server. What a cache's making has decided is not in it.
pub(super) fn online(wish: &Wish, settings: &Settings) -> String {
    let tier = &settings.flash;
    let block = settings.block.get();
    let limits = tier.core_policy(tier.size.get() / block, block, false).limits;
    let (staleness, linger) = (tier.staleness, tier.linger);
    let (when, at_limit) = (when_text(tier.when), at_limit_name(tier.at_limit));
    let reads_first = if tier.read_priority { " read-priority=on" } else { "" };
    match wish.front {
        Front::Block { .. } => {
            let policy = match tier.policy {
                WritePolicy::Ordered => "ordered order=epoch",
                WritePolicy::Strict => "ordered order=strict",
                WritePolicy::WriteAround => WritePolicy::WriteThrough.name(),
                named => named.name(),
            };
            format!(
                "destage block policy {policy} when={when} commit={} staleness={staleness} at-limit={at_limit} dirty-limit={} \
                 linger={linger}{reads_first}",
                commit_word(tier),
                Bytes(limits.dirty_bytes_max)
            )
        }
        Front::Data { ram, row } => {
            let dirty = dirty_bytes_of_rows(tier, block, row);
            format!(
                "destage policy {} when={when} commit={} staleness={staleness} at-limit={at_limit} dirty-limit={} cache-size={} \
                 batch={} linger={linger}{reads_first}",
                policy_name(wish, tier.policy),
                tier.commit,
                Bytes(dirty),
                Bytes(ram - dirty),
                tier.batch_groups
            )
        }
    }
}

/// The memory of buffered rows, which take one block each in the simulation.
fn dirty_bytes_of_rows(tier: &Tier, block: u64, row: u64) -> u64 {
    (tier.dirty.get() / block).saturating_mul(row).max(64 << 10)
}
