//! How the log stands, in words for whoever serves.

use destage_core::{Span, Time};
use destage_replicas::{Epoch, Owner, Position, Stage};

/// How the log stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// How far this process is.
    pub stage: Stage,
    /// Under which epoch.
    pub epoch: Epoch,
    /// k servers hold everything up to here.
    pub committed: Position,
    /// As many servers hold everything up to here as whoever takes over needs to find it: [`Owner::secured`].
    pub secured: Position,
    /// The newest entry that this process has.
    pub last: Position,
    /// Answers could be given when it was last looked.
    pub is_leased: bool,
    /// No server holds anything: there is no log yet, or all of them have forgotten it. See [`crate::Replicas::found`].
    pub is_blank: bool,
    /// What can be done, once it has been so for a while.
    pub reach: Reach,
}

/// What the servers that are reached allow an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Everything.
    #[default]
    Whole,
    /// Fewer than k take entries, but so many that whoever takes over finds them: what is written now can be acknowledged once
    /// the origin has it.
    Through,
    /// Fewer than that take entries: nothing that is written now can be acknowledged.
    Reads,
    /// Nor is it sure to own the log: nothing can be answered.
    Nothing,
}

/// How it stands now. `lacking` keeps since when servers, and the lease, have been lacking: less than `lacking_min` is not told.
pub(crate) fn said(
    owner: &Owner,
    now: Time,
    lacking: &mut [Option<Time>; 2],
    lacking_min: Span,
) -> Said {
    let is_leased = owner.may_answer(now);
    let (holders, copies) = owner.holders_now();
    // Whoever has taken over from an owner that showed itself waits before it answers, which is no lack.
    let lacks = [holders < copies, !is_leased && now >= owner.answers_from()];
    let mut lacks = lacks.into_iter().zip(lacking).map(|(lacks, since)| {
        *since = lacks.then(|| since.unwrap_or(now));
        since.is_some_and(|since| since + lacking_min <= now)
    });
    let reach = match (lacks.next(), lacks.next()) {
        (_, Some(true)) => Reach::Nothing,
        (Some(true), _) if owner.can_secure() => Reach::Through,
        (Some(true), _) => Reach::Reads,
        _ => Reach::Whole,
    };
    Said {
        stage: owner.stage().clone(),
        epoch: owner.epoch(),
        committed: owner.committed(),
        secured: owner.secured(),
        last: owner.last(),
        is_leased,
        is_blank: owner.is_blank(),
        reach,
    }
}
