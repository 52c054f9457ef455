//! Groups on their way to the core: the order in which a group is appended and told of cannot be written down wrongly.
//!
//! The core must learn of a group after the journal's buffer holds it, and of whatever ties it to other groups before it
//! learns of the next one. Otherwise a batch could leave with a part of a request, or a number could be acknowledged that
//! the journal never got.

use crate::decide::Decide;
use destage_core::{Access, DomainId, Input, Lsn, Time, UnitId};

/// A group that has no number yet.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// Its ordering domains, ascending, each once. It is ordered by the first.
    pub domains: &'a [DomainId],
    /// Every unit that it changes, once, with the unit's new size in bytes.
    pub units: &'a [(UnitId, u32)],
    /// Memory that it holds until it is decided, bytes.
    pub bytes: u32,
    /// Bytes of its journal record.
    pub journal_bytes: u32,
    /// As the core said when it let the write go on.
    pub access: Access,
    /// Whether the next group is another part of the same request: a batch holds both or neither.
    pub continues: bool,
    /// Groups that its client had read, ascending, each once: it shares their fate if they are parked.
    pub builds_on: &'a [Lsn],
}

/// A group that the journal held at a start.
#[derive(Clone, Copy, Debug)]
pub struct Recovered<'a> {
    /// Its number.
    pub lsn: Lsn,
    /// When it was written.
    pub stamp: Time,
    /// As in [`Append`].
    pub domains: &'a [DomainId],
    /// Its level, 0 where levels are not kept.
    pub level: u64,
    /// The units that it changed.
    pub units: &'a [UnitId],
    /// As in [`Append`].
    pub bytes: u32,
    /// As in [`Append`].
    pub journal_bytes: u32,
    /// The group before it is another part of the same request. Not that the next one is: it may never have been written.
    pub is_continued: bool,
    /// As in [`Append`].
    pub builds_on: &'a [Lsn],
}

/// Writes a group: `append` puts it into the journal's buffer under the number it is given, and keeps whatever the front end
/// needs of it until it is decided; then the core is told. Returns the number.
///
/// # Panics
/// If the group has no domain.
#[inline]
pub fn write(
    core: &mut impl Decide,
    now: Time,
    group: &Append<'_>,
    append: impl FnOnce(Lsn),
) -> Lsn {
    let lsn = core.core().next_lsn();
    append(lsn);
    let &Append { domains, units, bytes, journal_bytes, access, continues, builds_on } = group;
    let domain = first(domains);
    core.handle(now, Input::Write { domain, units, bytes, journal_bytes, access });
    if continues {
        core.handle(now, Input::Join { lsn });
    }
    tie(core, now, lsn, domains, builds_on);
    lsn
}

/// Tells the core of a group that the journal held at a start. In order, oldest first.
///
/// # Panics
/// If the group has no domain.
pub(crate) fn recovered(core: &mut impl Decide, now: Time, group: &Recovered<'_>) {
    let &Recovered { lsn, stamp, domains, level, units, bytes, journal_bytes, .. } = group;
    let domain = first(domains);
    let input = Input::Recovered { lsn, stamp, domain, level, units, bytes, journal_bytes };
    if group.is_continued {
        core.handle(now, Input::Join { lsn: Lsn(lsn.0 - 1) });
    }
    core.handle(now, input);
    tie(core, now, lsn, domains, group.builds_on);
}

/// What ties the newest group to others.
fn tie(core: &mut impl Decide, now: Time, lsn: Lsn, domains: &[DomainId], builds_on: &[Lsn]) {
    if domains.len() > 1 {
        core.handle(now, Input::Spans { lsn, domains });
    }
    if !builds_on.is_empty() {
        core.handle(now, Input::BuildsOn { lsn, on: builds_on });
    }
}

fn first(domains: &[DomainId]) -> DomainId {
    *domains.first().expect("a group belongs to a domain")
}
