//! How the log stands, for the status.

use destage_replicas::Stage;
use destage_replicas_redis::Replicas;
use destage_runtime::status::{ReplicaReport, ReplicasReport};

/// How the log stands, for people.
pub(in crate::serve) fn report(log: &Replicas, name: &str) -> ReplicasReport {
    let said = log.said();
    let config = log.config();
    let (copies, count, promises) = config.as_ref().map_or((0, 0, 0), |config| {
        (config.now.copies, config.now.members.len(), config.now.promises())
    });
    let servers: Vec<ReplicaReport> = log
        .servers()
        .into_iter()
        .map(|server| {
            let standing = &server.standing;
            let state = match &server.trouble {
                Some(trouble) => trouble.to_string(),
                None if !standing.is_reachable => "not reachable".into(),
                None if !standing.is_member => "not in use".into(),
                None if !standing.counts => "without its memory: it is filled again".into(),
                None if standing.is_full => "its memory is full".into(),
                None => "in use".into(),
            };
            ReplicaReport {
                address: standing.address.to_string(),
                state,
                counts: standing.counts && standing.is_reachable && !standing.is_full,
                reachable: standing.is_reachable,
                durable: standing.is_durable,
                behind_entries: standing.behind,
                held_bytes: standing.bytes,
            }
        })
        .collect();
    let ready = servers.iter().filter(|server| server.counts).count();
    let owner = log.owner_seen().map(|(_, place, _)| place.to_string()).unwrap_or_default();
    let (seen, held) = log.followed();
    ReplicasReport {
        log: name.to_owned(),
        owner,
        owned_here: said.stage == Stage::Open,
        answers: log.may_answer(),
        copies: copies as u64,
        servers_ready: ready as u64,
        loss: loss(copies, count, promises),
        behind_entries: seen.0.saturating_sub(held.0),
        undecided_bytes: log.bytes(),
        servers,
    }
}

/// What a loss of servers loses, in words.
fn loss(copies: usize, count: usize, promises: usize) -> String {
    if count == 0 {
        return "nothing is known of the log yet".into();
    }
    let survives = (copies - 1).min(count - promises);
    let several = |number: usize| match number {
        0 => "host and disk".to_owned(),
        number => format!("host, disk and the memory of {number} of {count} servers"),
    };
    let mut text = format!("{} lost: nothing", several(survives));
    if survives + 1 < copies {
        text.push_str(&format!(
            "; {} lost: nothing, but only a person can bring it back",
            several(copies - 1)
        ));
    }
    text.push_str(&format!("; {} lost: up to D", several(copies)));
    text
}
