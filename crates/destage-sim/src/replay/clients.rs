//! What each request of rows followed.
//!
//! A request's number tells whose it is (see [`client_of`]), and a client that asks one thing after the other asks the next one
//! because the last one was answered. One that sends several at once sends each because it has sent the one before.

use super::causes::{Cause, Moment};
use destage_core::{Access, ClientId, Core, Effect, Input, Lsn, RequestId, Time, UnitId};
use destage_record::{PREFETCH_CLIENT, client_of};
use hashbrown::HashMap;

/// Finds what they followed while a recording of rows is read.
#[derive(Clone, Debug, Default)]
pub(super) struct Clients {
    /// Whether the recording is of rows: of nothing else a request's number is made in this way.
    is_of_rows: bool,
    newest: HashMap<ClientId, Newest>,
    /// Requests that are not executed yet, with their first unit.
    waiting: HashMap<RequestId, (u32, Option<UnitId>)>,
    /// Requests that write through, by their first unit, and by their group once they have one.
    through: HashMap<UnitId, (ClientId, u32)>,
    settling: HashMap<Lsn, (ClientId, u32)>,
}

/// A client's newest arrival, what has become of it last, and when.
#[derive(Clone, Copy, Debug)]
struct Newest {
    arrival: u32,
    moment: Moment,
    at: Time,
}

impl Clients {
    /// Those of a recording that is of rows, or of something else.
    pub(super) fn of(is_of_rows: bool) -> Self {
        Self { is_of_rows, ..Self::default() }
    }

    /// A request comes as this arrival; what it followed. What nobody waits for comes when it came.
    pub(super) fn asks(
        &mut self,
        now: Time,
        request: RequestId,
        arrival: u32,
        units: &[UnitId],
    ) -> Option<Cause> {
        if !self.is_of_rows || client_of(request) == PREFETCH_CLIENT {
            return None;
        }
        self.waiting.insert(request, (arrival, units.first().copied()));
        let newest = Newest { arrival, moment: Moment::Told, at: now };
        let before = self.newest.insert(client_of(request), newest)?;
        Some(Cause { arrival: before.arrival, moment: before.moment, gap: now.since(before.at) })
    }

    /// Something became of a client's arrival. Only of the newest one it counts.
    fn becomes(&mut self, now: Time, (client, arrival): (ClientId, u32), moment: Moment) {
        let newest = self.newest.get_mut(&client).filter(|newest| newest.arrival == arrival);
        if let Some(newest) = newest {
            (newest.moment, newest.at) = (moment, now);
        }
    }

    pub(super) fn input(&mut self, now: Time, input: &Input<'_>, core: &Core) {
        match *input {
            Input::Write { units, access: Access::Through | Access::Around, .. } => {
                let whose = units.first().and_then(|(unit, _)| self.through.remove(unit));
                self.settling.extend(whose.map(|whose| (core.next_lsn(), whose)));
            }
            Input::Through { units, .. } => {
                let whose = units.first().and_then(|(unit, _)| self.through.remove(unit));
                whose.into_iter().for_each(|whose| self.becomes(now, whose, Moment::Answered));
            }
            Input::Release { units } => units.iter().for_each(|unit| {
                self.through.remove(unit);
            }),
            _ => {}
        }
    }

    pub(super) fn effect(&mut self, now: Time, effect: &Effect) {
        match *effect {
            Effect::Execute { request, access, .. } => {
                let Some((arrival, unit)) = self.waiting.remove(&request) else { return };
                let whose = (client_of(request), arrival);
                self.becomes(now, whose, Moment::Executed);
                if access != Access::Back {
                    self.through.extend(unit.map(|unit| (unit, whose)));
                }
            }
            Effect::Refuse { request, .. } => {
                let Some((arrival, _)) = self.waiting.remove(&request) else { return };
                self.becomes(now, (client_of(request), arrival), Moment::Answered);
            }
            Effect::Send { client } => {
                // One that still waits is not what this answers.
                let newest = self.newest.get_mut(&client);
                if let Some(newest) = newest.filter(|it| it.moment == Moment::Executed) {
                    (newest.moment, newest.at) = (Moment::Answered, now);
                }
            }
            Effect::Settled { lsn, .. } => {
                let whose = self.settling.remove(&lsn);
                whose.into_iter().for_each(|whose| self.becomes(now, whose, Moment::Answered));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_core::Span;
    use destage_record::request_of;

    #[test]
    fn a_request_follows_the_answer_to_its_clients_last_one_or_what_it_was_sent_with() {
        let at = |ms| Time::from_secs(1) + Span::from_millis(ms);
        let mut clients = Clients::of(true);
        let request = |client, number| request_of(ClientId(client), number);
        let followed = |cause: Option<Cause>| {
            cause.map(|cause| (cause.arrival, cause.moment, cause.gap.0 / 1_000_000))
        };
        let executes = |client, number| Effect::Execute {
            request: request(client, number),
            access: Access::Back,
            observed: Lsn::ZERO,
        };
        let sent = |client| Effect::Send { client: ClientId(client) };
        let asks = |clients: &mut Clients, ms, client, number, arrival| {
            followed(clients.asks(at(ms), request(client, number), arrival, &[UnitId(1)]))
        };
        assert_eq!(asks(&mut clients, 0, 1, 1, 0), None);
        assert_eq!(asks(&mut clients, 1, 2, 2, 1), None, "another client");
        // The first waits for the log; the second client sends a further one before it is answered.
        clients.effect(at(2), &executes(1, 1));
        clients.effect(at(5), &sent(1));
        assert_eq!(asks(&mut clients, 6, 1, 3, 2), Some((0, Moment::Answered, 1)));
        assert_eq!(asks(&mut clients, 7, 2, 4, 3), Some((1, Moment::Told, 6)));
        clients.effect(at(8), &executes(2, 2));
        clients.effect(at(9), &sent(2));
        assert_eq!(asks(&mut clients, 10, 2, 5, 4), Some((3, Moment::Told, 3)), "not its answer");
        clients.effect(at(11), &executes(1, 3));
        assert_eq!(asks(&mut clients, 13, 1, 6, 5), Some((2, Moment::Executed, 2)));
        let nobody = PREFETCH_CLIENT.0;
        assert_eq!(asks(&mut clients, 14, nobody, 7, 6), None);
        assert_eq!(asks(&mut clients, 15, nobody, 8, 7), None);
        let mut others = Clients::of(false);
        assert_eq!((asks(&mut others, 1, 1, 1, 0), asks(&mut others, 2, 1, 2, 1)), (None, None));
    }

    #[test]
    fn what_goes_through_is_answered_once_the_origin_has_it() {
        let at = |ms| Time::from_secs(1) + Span::from_millis(ms);
        let mut clients = Clients::of(true);
        let mut core = Core::new(at(0), destage_core::Policy::default());
        core.handle(at(0), Input::Tick);
        let access = Access::Through;
        let mut number = 0;
        let mut asks = |clients: &mut Clients, ms| {
            number += 1;
            let cause = clients.asks(at(ms), RequestId(number), number as u32, &[UnitId(7)]);
            let request = RequestId(number);
            clients.effect(at(ms), &Effect::Execute { request, access, observed: Lsn::ZERO });
            cause.map(|cause| (cause.moment, cause.gap.0 / 1_000_000))
        };
        assert_eq!(asks(&mut clients, 1), None);
        let units = &[(UnitId(7), 10)];
        clients.input(at(9), &Input::Through { units, access, result: Ok(()) }, &core);
        assert_eq!(asks(&mut clients, 11), Some((Moment::Answered, 2)));
        let lsn = core.next_lsn();
        let (domain, bytes, journal_bytes) = (destage_core::DomainId(0), 10, 10);
        let write = Input::Write { domain, units, bytes, journal_bytes, access };
        clients.input(at(12), &write, &core);
        clients.effect(at(20), &Effect::Settled { lsn, applied: true });
        assert_eq!(asks(&mut clients, 23), Some((Moment::Answered, 3)));
    }
}
