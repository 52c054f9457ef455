//! Carrying parts of several volumes to their origins, all or none.

use super::Context;
use super::destage::{Failure, Part, Sent, runs, sent_block};
use super::payload::PartBytes;
use crate::origin::InTurn;
use crate::redo::{AtomicGroup, RedoStore, Share, apply_groups};
use destage_core::Fault;
use std::sync::{MutexGuard, PoisonError};

/// Sends everything and makes it durable. `parts` are in the order of `contexts`.
pub(in super::super) fn send_group(
    contexts: &[&Context],
    parts: &[Part],
    coordinator: usize,
    uuid: [u8; 16],
) -> Result<Vec<Vec<Sent>>, Failure> {
    let groups: Vec<AtomicGroup> = parts
        .iter()
        .map(|part| AtomicGroup { from: part.from, to: part.upto, runs: runs(&part.targets) })
        .collect();
    let payloads: Vec<PartBytes<'_>> = parts
        .iter()
        .zip(contexts)
        .map(|(part, context)| PartBytes::of(part, &context.cache))
        .collect();
    let origins: Vec<InTurn> = contexts.iter().map(|context| context.origin_in_turn()).collect();
    let mut stores = lock_all(contexts)?;
    let mut shares: Vec<Share<'_>> = stores
        .iter_mut()
        .zip(&origins)
        .zip(groups.iter().zip(&payloads))
        .map(|((store, origin), (group, payload))| Share { store, origin, group, payload })
        .collect();
    apply_groups(&mut shares, coordinator, uuid).map_err(|error| {
        let unread = payloads.iter().find(|bytes| bytes.is_unread());
        unread.unwrap_or(&payloads[coordinator]).why(error)
    })?;
    Ok(parts.iter().map(|part| part.targets.iter().map(sent_block).collect()).collect())
}

/// Everybody locks them in the same order, or one alone.
fn lock_all<'a>(contexts: &[&'a Context]) -> Result<Vec<MutexGuard<'a, RedoStore>>, Failure> {
    let lock = |context: &&'a Context| {
        let store = context.redo.as_ref().ok_or_else(|| Failure {
            fault: Fault::Denied,
            message: "a volume of a consistency group has no redo store".into(),
        })?;
        // A panic elsewhere leaves the store as a crash would: it settles that itself.
        Ok(store.lock().unwrap_or_else(PoisonError::into_inner))
    };
    contexts.iter().map(lock).collect()
}
