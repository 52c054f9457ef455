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
        Front::Data { .. } => command_of_rows(wish, settings),
    }
}

fn command_of_rows(wish: &Wish, settings: &Settings) -> String {
    let tier = &settings.flash;
    let limits = wish.live_policy(settings).limits;
    format!(
        "destage serve --origin postgres://USER@HOST/DATABASE --cache-size {} --dirty-limit {} --policy {} --commit {} \
         --staleness {} --when {} --at-limit {} --batch {} --linger {}{}",
        Bytes(limits.cache_bytes_max),
        Bytes(limits.dirty_bytes_max),
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
    format!(
        "destage block serve --origin nbd://STORAGE/VOLUME --cache /SSD/VOLUME --cache-size {} --log-size {} \
         --dirty-limit {} --policy {policy}{order} --commit {} --staleness {} --when {} --at-limit {} --batch-size {} \
         --linger {}{}",
        Bytes(flash),
        Bytes(flash - tier.size.get()),
        tier.dirty,
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
                tier.dirty
            )
        }
        Front::Data { .. } => {
            let limits = wish.live_policy(settings).limits;
            format!(
                "destage policy {} when={when} commit={} staleness={staleness} at-limit={at_limit} dirty-limit={} cache-size={} \
                 batch={} linger={linger}{reads_first}",
                policy_name(wish, tier.policy),
                tier.commit,
                Bytes(limits.dirty_bytes_max),
                Bytes(limits.cache_bytes_max),
                tier.batch_groups
            )
        }
    }
}
