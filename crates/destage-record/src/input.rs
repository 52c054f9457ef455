//! Inputs of the core as bytes.

use crate::codec::{Bytes, put};
use destage_core::{
    Access, Ack, BatchId, ClientId, DomainId, Fault, Input, Intent, Lsn, Policy, RequestId, Time,
    UnitId, WaitFor,
};

/// Memory that a decoded input borrows.
#[derive(Debug, Default)]
pub struct Scratch {
    units: Vec<UnitId>,
    sizes: Vec<(UnitId, u32)>,
    domains: Vec<DomainId>,
    lsns: Vec<Lsn>,
    policy: Policy,
}

/// The first byte of each input. Never 0, which begins what is no input.
mod tag {
    pub(super) const ACCESS: u8 = 1;
    pub(super) const WRITE: u8 = 2;
    pub(super) const JOIN: u8 = 3;
    pub(super) const THROUGH: u8 = 4;
    pub(super) const RELEASE: u8 = 5;
    pub(super) const RESPOND: u8 = 6;
    pub(super) const WAIT: u8 = 7;
    pub(super) const CANCEL: u8 = 8;
    pub(super) const FETCHED: u8 = 9;
    pub(super) const RESTORED: u8 = 10;
    pub(super) const EVICTED: u8 = 11;
    pub(super) const INVALIDATE: u8 = 12;
    pub(super) const SYNCED: u8 = 13;
    pub(super) const DESTAGED: u8 = 14;
    pub(super) const PARKED: u8 = 15;
    pub(super) const RECOVERED: u8 = 16;
    pub(super) const RECOVERED_PARKED: u8 = 17;
    pub(super) const RECOVERED_UPTO: u8 = 18;
    pub(super) const SET_POLICY: u8 = 19;
    pub(super) const PAUSE: u8 = 20;
    pub(super) const RESUME: u8 = 21;
    pub(super) const DRAIN: u8 = 22;
    pub(super) const TICK: u8 = 23;
    pub(super) const HOLD_PARKED: u8 = 24;
    pub(super) const UNPARKED: u8 = 25;
    pub(super) const SPANS: u8 = 26;
    pub(super) const RELOAD: u8 = 27;
    pub(super) const COLLECTIVE: u8 = 28;
    pub(super) const RESUME_PARKING: u8 = 29;
    pub(super) const BUILDS_ON: u8 = 30;
    pub(super) const LACKING: u8 = 31;
    pub(super) const SHRUNK: u8 = 32;
}

/// Appends an input.
pub(crate) fn encode(out: &mut Vec<u8>, input: &Input<'_>) {
    match *input {
        Input::Access { request, intent, units } => {
            out.push(tag::ACCESS);
            put(out, request.0);
            put_intent(out, intent);
            put_units(out, units);
        }
        Input::Write { domain, units, bytes, journal_bytes, access } => {
            out.extend([tag::WRITE, access_code(access)]);
            put(out, domain.0.into());
            put(out, bytes.into());
            put(out, journal_bytes.into());
            put_sizes(out, units);
        }
        Input::Collective { units } => {
            out.push(tag::COLLECTIVE);
            put_units(out, units);
        }
        Input::Join { lsn } => one(out, tag::JOIN, lsn.0),
        Input::Spans { lsn, domains } => {
            one(out, tag::SPANS, lsn.0);
            put(out, domains.len() as u64);
            domains.iter().for_each(|domain| put(out, domain.0.into()));
        }
        Input::BuildsOn { lsn, on } => {
            one(out, tag::BUILDS_ON, lsn.0);
            put(out, on.len() as u64);
            on.iter().for_each(|lsn| put(out, lsn.0));
        }
        Input::Through { units, access, result } => {
            out.extend([tag::THROUGH, access_code(access), result_code(result)]);
            put_sizes(out, units);
        }
        Input::Release { units } => {
            out.push(tag::RELEASE);
            put_units(out, units);
        }
        Input::Respond { client, lsn, wrote } => {
            out.extend([tag::RESPOND, wrote.into()]);
            put(out, client.0.into());
            put(out, lsn.0);
        }
        Input::Wait { request, lsn, until } => {
            out.extend([tag::WAIT, until_code(until)]);
            put(out, request.0);
            put(out, lsn.0);
        }
        Input::Cancel { request } => one(out, tag::CANCEL, request.0),
        Input::Fetched { unit, result, identity } => {
            out.extend([tag::FETCHED, result_code(result.map(drop))]);
            put(out, unit.0.into());
            put(out, result.unwrap_or(0).into());
            out.extend(identity.to_le_bytes());
        }
        Input::Restored { units, bytes } => {
            out.push(tag::RESTORED);
            put(out, bytes.into());
            put_units(out, units);
        }
        Input::Evicted { identity } => {
            out.push(tag::EVICTED);
            out.extend(identity.to_le_bytes());
        }
        Input::Invalidate { unit } => one(out, tag::INVALIDATE, unit.0.into()),
        Input::Reload { unit } => one(out, tag::RELOAD, unit.0.into()),
        Input::Synced { upto, result } => ended(out, tag::SYNCED, upto.0, result),
        Input::Destaged { batch, result } => ended(out, tag::DESTAGED, batch.0, result),
        Input::Parked { lsn, result } => ended(out, tag::PARKED, lsn.0, result),
        Input::Recovered { lsn, stamp, domain, level, units, bytes, journal_bytes } => {
            one(out, tag::RECOVERED, lsn.0);
            for number in [stamp.0, domain.0.into(), level, bytes.into(), journal_bytes.into()] {
                put(out, number);
            }
            put_units(out, units);
        }
        Input::RecoveredParked { lsn, units } => {
            one(out, tag::RECOVERED_PARKED, lsn.0);
            put_units(out, units);
        }
        Input::RecoveredUpto { lsn } => one(out, tag::RECOVERED_UPTO, lsn.0),
        Input::Shrunk { lsn, bytes } => {
            one(out, tag::SHRUNK, lsn.0);
            put(out, bytes.into());
        }
        Input::HoldParked { held } => out.extend([tag::HOLD_PARKED, held.into()]),
        Input::Unparked { lsn, units } => {
            one(out, tag::UNPARKED, lsn.0);
            put_units(out, units);
        }
        Input::Lacking { secured } => {
            out.extend([tag::LACKING, secured.is_some().into()]);
            put(out, secured.unwrap_or(Lsn::ZERO).0);
        }
        Input::SetPolicy(policy) => {
            out.push(tag::SET_POLICY);
            let bytes = postcard::to_stdvec(policy).expect("a policy is plain numbers");
            put(out, bytes.len() as u64);
            out.extend(bytes);
        }
        Input::Pause => out.push(tag::PAUSE),
        Input::Resume => out.push(tag::RESUME),
        Input::ResumeParking => out.push(tag::RESUME_PARKING),
        Input::Drain => out.push(tag::DRAIN),
        Input::Tick => out.push(tag::TICK),
    }
}

/// Reads an input; `None` if it is damaged.
pub(crate) fn decode<'s>(bytes: &mut Bytes<'_>, scratch: &'s mut Scratch) -> Option<Input<'s>> {
    Some(match bytes.byte()? {
        tag::ACCESS => Input::Access {
            request: RequestId(bytes.number()?),
            intent: intent(bytes)?,
            units: units(bytes, &mut scratch.units)?,
        },
        tag::WRITE => Input::Write {
            access: access(bytes)?,
            domain: domain(bytes)?,
            bytes: bytes.number32()?,
            journal_bytes: bytes.number32()?,
            units: sizes(bytes, &mut scratch.sizes)?,
        },
        tag::JOIN => Input::Join { lsn: Lsn(bytes.number()?) },
        tag::SPANS => Input::Spans {
            lsn: Lsn(bytes.number()?),
            domains: domains(bytes, &mut scratch.domains)?,
        },
        tag::BUILDS_ON => {
            Input::BuildsOn { lsn: Lsn(bytes.number()?), on: lsns(bytes, &mut scratch.lsns)? }
        }
        tag::THROUGH => Input::Through {
            access: access(bytes)?,
            result: result(bytes)?,
            units: sizes(bytes, &mut scratch.sizes)?,
        },
        tag::RELEASE => Input::Release { units: units(bytes, &mut scratch.units)? },
        tag::COLLECTIVE => Input::Collective { units: units(bytes, &mut scratch.units)? },
        tag::RESPOND => Input::Respond {
            wrote: flag(bytes)?,
            client: ClientId(bytes.number32()?),
            lsn: Lsn(bytes.number()?),
        },
        tag::WAIT => Input::Wait {
            until: until(bytes)?,
            request: RequestId(bytes.number()?),
            lsn: Lsn(bytes.number()?),
        },
        tag::CANCEL => Input::Cancel { request: RequestId(bytes.number()?) },
        tag::FETCHED => {
            let result = result(bytes)?;
            let unit = UnitId(bytes.number32()?);
            let size = bytes.number32()?;
            Input::Fetched { unit, result: result.map(|()| size), identity: bytes.fixed64()? }
        }
        tag::RESTORED => {
            Input::Restored { bytes: bytes.number32()?, units: units(bytes, &mut scratch.units)? }
        }
        tag::EVICTED => Input::Evicted { identity: bytes.fixed64()? },
        tag::INVALIDATE => Input::Invalidate { unit: UnitId(bytes.number32()?) },
        tag::RELOAD => Input::Reload { unit: UnitId(bytes.number32()?) },
        tag::SYNCED => Input::Synced { result: result(bytes)?, upto: Lsn(bytes.number()?) },
        tag::DESTAGED => {
            Input::Destaged { result: result(bytes)?, batch: BatchId(bytes.number()?) }
        }
        tag::PARKED => Input::Parked { result: result(bytes)?, lsn: Lsn(bytes.number()?) },
        tag::RECOVERED => Input::Recovered {
            lsn: Lsn(bytes.number()?),
            stamp: Time(bytes.number()?),
            domain: domain(bytes)?,
            level: bytes.number()?,
            bytes: bytes.number32()?,
            journal_bytes: bytes.number32()?,
            units: units(bytes, &mut scratch.units)?,
        },
        tag::RECOVERED_PARKED => Input::RecoveredParked {
            lsn: Lsn(bytes.number()?),
            units: units(bytes, &mut scratch.units)?,
        },
        tag::RECOVERED_UPTO => Input::RecoveredUpto { lsn: Lsn(bytes.number()?) },
        tag::SHRUNK => Input::Shrunk { lsn: Lsn(bytes.number()?), bytes: bytes.number32()? },
        tag::HOLD_PARKED => Input::HoldParked { held: flag(bytes)? },
        tag::UNPARKED => {
            Input::Unparked { lsn: Lsn(bytes.number()?), units: units(bytes, &mut scratch.units)? }
        }
        tag::LACKING => {
            let is_lacking = flag(bytes)?;
            let secured = Lsn(bytes.number()?);
            Input::Lacking { secured: is_lacking.then_some(secured) }
        }
        tag::SET_POLICY => {
            let len = bytes.number()?.try_into().ok()?;
            let policy: Policy = postcard::from_bytes(bytes.take(len)?).ok()?;
            policy.validate().ok()?;
            scratch.policy = policy;
            Input::SetPolicy(&scratch.policy)
        }
        tag::PAUSE => Input::Pause,
        tag::RESUME => Input::Resume,
        tag::RESUME_PARKING => Input::ResumeParking,
        tag::DRAIN => Input::Drain,
        tag::TICK => Input::Tick,
        _ => return None,
    })
}

/// The highest number of a unit that an input names.
pub(crate) fn highest_unit(input: &Input<'_>) -> Option<u64> {
    let highest = match *input {
        Input::Access { units, .. }
        | Input::Release { units }
        | Input::Restored { units, .. }
        | Input::Recovered { units, .. }
        | Input::RecoveredParked { units, .. }
        | Input::Collective { units }
        | Input::Unparked { units, .. } => units.iter().copied().max(),
        Input::Write { units, .. } | Input::Through { units, .. } => {
            units.iter().map(|&(unit, _)| unit).max()
        }
        Input::Fetched { unit, .. } | Input::Invalidate { unit } | Input::Reload { unit } => {
            Some(unit)
        }
        Input::Join { .. }
        | Input::Spans { .. }
        | Input::BuildsOn { .. }
        | Input::Respond { .. }
        | Input::Wait { .. }
        | Input::Cancel { .. }
        | Input::Evicted { .. }
        | Input::Synced { .. }
        | Input::Destaged { .. }
        | Input::Parked { .. }
        | Input::RecoveredUpto { .. }
        | Input::Shrunk { .. }
        | Input::HoldParked { .. }
        | Input::Lacking { .. }
        | Input::SetPolicy(_)
        | Input::Pause
        | Input::Resume
        | Input::ResumeParking
        | Input::Drain
        | Input::Tick => None,
    };
    highest.map(|unit| unit.0.into())
}

fn one(out: &mut Vec<u8>, tag: u8, number: u64) {
    out.push(tag);
    put(out, number);
}

fn ended(out: &mut Vec<u8>, tag: u8, number: u64, result: Result<(), Fault>) {
    out.extend([tag, result_code(result)]);
    put(out, number);
}

fn put_units(out: &mut Vec<u8>, units: &[UnitId]) {
    put(out, units.len() as u64);
    units.iter().for_each(|unit| put(out, unit.0.into()));
}

fn put_sizes(out: &mut Vec<u8>, units: &[(UnitId, u32)]) {
    put(out, units.len() as u64);
    for &(unit, size) in units {
        put(out, unit.0.into());
        put(out, size.into());
    }
}

/// How many entries follow. Each takes a byte at the least, so that a damaged count cannot ask for much memory.
fn count(bytes: &mut Bytes<'_>) -> Option<usize> {
    let count = bytes.number()?.try_into().ok()?;
    (count <= bytes.0.len()).then_some(count)
}

fn units<'s>(bytes: &mut Bytes<'_>, units: &'s mut Vec<UnitId>) -> Option<&'s [UnitId]> {
    units.clear();
    for _ in 0..count(bytes)? {
        units.push(UnitId(bytes.number32()?));
    }
    Some(units)
}

fn sizes<'s>(
    bytes: &mut Bytes<'_>,
    sizes: &'s mut Vec<(UnitId, u32)>,
) -> Option<&'s [(UnitId, u32)]> {
    sizes.clear();
    for _ in 0..count(bytes)? {
        sizes.push((UnitId(bytes.number32()?), bytes.number32()?));
    }
    Some(sizes)
}

fn domains<'s>(bytes: &mut Bytes<'_>, domains: &'s mut Vec<DomainId>) -> Option<&'s [DomainId]> {
    domains.clear();
    for _ in 0..count(bytes)? {
        domains.push(domain(bytes)?);
    }
    Some(domains)
}

fn lsns<'s>(bytes: &mut Bytes<'_>, lsns: &'s mut Vec<Lsn>) -> Option<&'s [Lsn]> {
    lsns.clear();
    for _ in 0..count(bytes)? {
        lsns.push(Lsn(bytes.number()?));
    }
    Some(lsns)
}

fn until_code(until: WaitFor) -> u8 {
    match until {
        WaitFor::Committed => 0,
        WaitFor::Decided => 1,
        WaitFor::AllDecided => 2,
    }
}

fn until(bytes: &mut Bytes<'_>) -> Option<WaitFor> {
    let all = [WaitFor::Committed, WaitFor::Decided, WaitFor::AllDecided];
    all.get(usize::from(bytes.byte()?)).copied()
}

fn put_intent(out: &mut Vec<u8>, intent: Intent) {
    match intent {
        Intent::Read => out.push(0),
        Intent::ReadSettled => out.push(1),
        Intent::Write { bytes, ack, fetch } => {
            let ack = match ack {
                Ack::Policy => 0,
                Ack::Origin => 1,
                Ack::OriginInvalidate => 2,
            };
            out.push(2 + ack * 2 + u8::from(fetch));
            put(out, bytes.into());
        }
    }
}

fn intent(bytes: &mut Bytes<'_>) -> Option<Intent> {
    let code = bytes.byte()?;
    let ack = match code {
        0 => return Some(Intent::Read),
        1 => return Some(Intent::ReadSettled),
        2 | 3 => Ack::Policy,
        4 | 5 => Ack::Origin,
        6 | 7 => Ack::OriginInvalidate,
        _ => return None,
    };
    Some(Intent::Write { bytes: bytes.number32()?, ack, fetch: code % 2 == 1 })
}

fn domain(bytes: &mut Bytes<'_>) -> Option<DomainId> {
    bytes.number()?.try_into().ok().map(DomainId)
}

fn flag(bytes: &mut Bytes<'_>) -> Option<bool> {
    match bytes.byte()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn access_code(access: Access) -> u8 {
    match access {
        Access::Back => 0,
        Access::Through => 1,
        Access::Around => 2,
    }
}

fn access(bytes: &mut Bytes<'_>) -> Option<Access> {
    [Access::Back, Access::Through, Access::Around].get(usize::from(bytes.byte()?)).copied()
}

const FAULTS: [Fault; 6] = [
    Fault::Unavailable,
    Fault::Rejected,
    Fault::Denied,
    Fault::Fenced,
    Fault::Failed,
    Fault::JournalDamaged,
];

/// 0 for success, else the fault's place from 1.
fn result_code(result: Result<(), Fault>) -> u8 {
    result.err().map_or(0, |fault| match fault {
        Fault::Unavailable => 1,
        Fault::Rejected => 2,
        Fault::Denied => 3,
        Fault::Fenced => 4,
        Fault::Failed => 5,
        Fault::JournalDamaged => 6,
    })
}

fn result(bytes: &mut Bytes<'_>) -> Option<Result<(), Fault>> {
    match bytes.byte()? {
        0 => Some(Ok(())),
        code => FAULTS.get(usize::from(code) - 1).map(|&fault| Err(fault)),
    }
}

#[cfg(test)]
mod tests;
