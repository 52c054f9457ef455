//! The clients' side: requests, what they read and write, and what they are told.

use super::{Driver, Event};
use crate::virtual_time::client::{Change, Wish};
use crate::virtual_time::log::{Entry, Fate};
use crate::virtual_time::setup::Sabotage;
use destage_core::{
    Access, ClientId, DomainId, Input, Intent, Lsn, Outcome, RequestId, Span, UnitId, WaitFor,
};
use destage_engine::Append;

impl Driver<'_> {
    pub(super) fn owner(&mut self, request: RequestId) -> Result<usize, String> {
        let owner = self.owners.remove(&request.0);
        owner.ok_or_else(|| format!("{request:?} was answered twice, or was never asked"))
    }

    /// The client's request is over: it thinks, then goes on.
    pub(super) fn finish(&mut self, client: usize) {
        let think = self.world.options.think_us;
        let this = &mut self.clients[client];
        this.request = None;
        let pause = Span::from_micros(this.rng.below(think + 1));
        self.after(pause, Event::Step(client));
    }

    pub(super) fn step(&mut self, client: usize) {
        let options = &self.world.options;
        let this = &mut self.clients[client];
        if this.request.is_some() || this.steps == 0 {
            return;
        }
        this.steps -= 1;
        if this.steps == 0 {
            return;
        }
        // The first thing that anyone does is to look at everything.
        let wish = if this.steps + 1 == options.steps && client == 0 {
            Wish::Access {
                keys: (0..options.keys).collect(),
                intent: Intent::Read,
                change: Change::Nothing,
            }
        } else {
            this.wish(options)
        };
        let id = self.next_request;
        self.next_request += 1;
        this.request = Some((id, wish.clone()));
        let (request, lsn) = (RequestId(id), this.last_write);
        self.owners.insert(id, client);
        if self.world.chance.chance(options.cancel_percent) {
            let delay = Span::from_micros(self.world.chance.below(options.origin_us * 2));
            self.after(delay, Event::Cancel(client, id));
        }
        let now = self.world.now;
        match wish {
            Wish::WaitCommitted => {
                self.core.handle(now, Input::Wait { request, lsn, until: WaitFor::Committed });
            }
            Wish::WaitDecided => {
                self.core.handle(now, Input::Wait { request, lsn, until: WaitFor::Decided });
            }
            Wish::Access { keys, intent, .. } => {
                let units: Vec<UnitId> = keys.iter().map(|&key| self.unit(key)).collect();
                self.core.handle(now, Input::Access { request, intent, units: &units });
            }
        }
    }

    pub(super) fn perform(
        &mut self,
        request: RequestId,
        access: Access,
        observed: Lsn,
    ) -> Result<(), String> {
        let client = self.owner(request)?;
        let Some((_, Wish::Access { keys, intent, change })) = self.clients[client].request.clone()
        else {
            return Err(format!("{request:?} is no access"));
        };
        let units: Vec<UnitId> = keys.iter().map(|&key| self.unit(key)).collect();
        let is_blind = matches!(intent, Intent::Write { fetch: false, .. });
        if !is_blind {
            self.check_rows(&keys, &units, intent)?;
        }
        let newest = keys.iter().map(|&key| self.world.log.newest[key as usize]);
        let this = &mut self.clients[client];
        this.seen = if is_blind { Vec::new() } else { newest.collect() };
        this.observed = observed;
        let Change::Write(ops) = change else {
            if access != Access::Back {
                self.core.handle(self.world.now, Input::Release { units: &units });
            }
            return self.respond(client, observed, false);
        };
        let poison = self.world.chance.chance(self.world.options.poison_percent);
        let domain = keys[0] as u16 % self.world.options.domains;
        let builds_on = self.world.log.read_before(self.core.next_lsn());
        let entry = Entry {
            stamp: self.world.now,
            domain,
            ops: keys.iter().copied().zip(ops.iter().copied()).collect(),
            builds_on: builds_on.clone(),
            poison,
            fate: Fate::Undecided,
            acked: None,
            exposed: false,
            hidden: access != Access::Back,
        };
        let sizes: Vec<(UnitId, u32)> = units.iter().map(|&unit| (unit, 100)).collect();
        let group = Append {
            domains: &[DomainId(domain)],
            units: &sizes,
            bytes: 4_000,
            journal_bytes: 4_100,
            access,
            continues: false,
            builds_on: self.known_builds_on(&builds_on),
        };
        let (now, entries) = (self.world.now, &mut self.world.log.entries);
        let lsn = destage_engine::write(&mut self.core, now, &group, |_| entries.push(entry));
        if lsn != self.world.log.last() {
            return Err(format!("group numbers are not dense: {lsn:?}"));
        }
        self.clients[client].wrote = Some(lsn);
        self.clients[client].last_write = lsn;
        if access != Access::Back {
            self.settling.insert(lsn, (client, access));
            return Ok(());
        }
        for (&unit, op) in units.iter().zip(&ops) {
            if let Some((value, _)) = &mut self.slots[unit.0 as usize].row {
                op.apply(value);
            }
        }
        self.world.log.show(lsn);
        self.respond(client, lsn.max(observed), true)
    }

    /// What the core is told of what a group builds on.
    pub(super) fn known_builds_on<'a>(&self, on: &'a [Lsn]) -> &'a [Lsn] {
        if self.world.sabotage == Sabotage::BuildsOn { &[] } else { on }
    }

    pub(super) fn check_rows(
        &self,
        keys: &[u32],
        units: &[UnitId],
        intent: Intent,
    ) -> Result<(), String> {
        let log = &self.world.log;
        for (&key, unit) in keys.iter().zip(units) {
            let Some((value, snapshot)) = &self.slots[unit.0 as usize].row else {
                return Err(format!("executed without key {key}"));
            };
            let expected = log.view[key as usize];
            if *value != expected {
                return Err(format!("a reader saw key {key} = {value}, not {expected}"));
            }
            if intent != Intent::ReadSettled {
                continue;
            }
            if log.undecided().any(|(_, entry)| entry.touches(key))
                || snapshot.version != log.versions[key as usize]
            {
                return Err(format!("a settled read saw what the origin had not computed: {key}"));
            }
        }
        Ok(())
    }

    pub(super) fn settled(&mut self, lsn: Lsn, applied: bool) {
        let entry = self.world.log.entry(lsn).clone();
        let (client, access) =
            self.settling.remove(&lsn).expect("only groups that wait for the origin settle");
        if applied {
            self.world.log.show(lsn);
        }
        for (key, op) in entry.ops {
            let Some(&unit) = self.units.get(&key) else { continue };
            let row = &mut self.slots[unit.0 as usize].row;
            if (!applied || access == Access::Around) && !self.core.is_present(unit) {
                *row = None;
            }
            if applied
                && let Some((value, snapshot)) = row
                && !snapshot.decided.contains(&lsn)
            {
                op.apply(value);
            }
        }
        let observed = self.clients[client].observed;
        let result = self.respond(client, observed.max(lsn), applied);
        debug_assert!(result.is_ok());
    }

    pub(super) fn respond(&mut self, client: usize, lsn: Lsn, wrote: bool) -> Result<(), String> {
        let this = &mut self.clients[client];
        if !wrote {
            this.wrote = None;
        }
        this.responding = true;
        if self.world.sabotage == Sabotage::ReadGate && !wrote {
            return self.send(client);
        }
        let id = ClientId(client as u32);
        self.core.handle(self.world.now, Input::Respond { client: id, lsn, wrote });
        Ok(())
    }

    pub(super) fn send(&mut self, client: usize) -> Result<(), String> {
        let now = self.world.now;
        let this = &mut self.clients[client];
        if !core::mem::take(&mut this.responding) {
            return Err(format!("client {client} was sent to twice"));
        }
        let wrote = this.wrote.take();
        for lsn in core::mem::take(&mut this.seen) {
            if lsn > Lsn::ZERO {
                self.world.log.entry_mut(lsn).exposed = true;
            }
        }
        if let Some(lsn) = wrote {
            self.world.log.entry_mut(lsn).acked = Some(now);
            self.world.report.acked += 1;
            self.check_staleness()?;
        }
        self.finish(client);
        Ok(())
    }

    pub(super) fn check_staleness(&self) -> Result<(), String> {
        let bound = self.world.options.policy.staleness;
        match self.world.log.undecided().map(|(_, entry)| entry.stamp).min() {
            Some(oldest) if self.world.now.since(oldest) >= bound => {
                let age = self.world.now.since(oldest);
                Err(format!("acknowledged a write {age:?} behind with D = {bound:?}"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn waited(&mut self, request: RequestId, outcome: Outcome) -> Result<(), String> {
        let client = self.owner(request)?;
        let this = &self.clients[client];
        let (lsn, wish) = (this.last_write, &this.request);
        if lsn > Lsn::ZERO {
            let log = &self.world.log;
            let is_true = match wish {
                Some((_, Wish::WaitCommitted)) => {
                    lsn.0 as usize <= log.durable || self.world.sabotage == Sabotage::Sync
                }
                _ => {
                    let fate = log.entry(lsn).fate;
                    fate != Fate::Undecided
                        && (outcome == Outcome::Parked) == (fate == Fate::Parked)
                }
            };
            if !is_true {
                return Err(format!("client {client} was told {outcome:?} of {wish:?} too early"));
            }
        }
        self.finish(client);
        Ok(())
    }
}
