//! Values that only the origin knows: the writes in front of them are destaged and the rows fetched, then the command is tried
//! again.

use super::Engine;
use super::asking::Answer;
use super::rows::Kind;
use super::session::{Session, Waiting};
use crate::cells::{Cell, Reader};
use crate::resp::{Code, ReplyError};
use destage_core::{ClientId, Intent, UnitId};

impl Engine {
    /// Values are needed that only the origin knows: has them destaged and fetched, then tries again.
    pub(super) fn settle(
        &mut self,
        client: ClientId,
        session: &mut Session,
        units: &[UnitId],
        raw: &[u8],
    ) {
        let unknown = |unit: &&UnitId| {
            let row = self.rows.get(**unit);
            row.kind == Kind::Row && Reader::new(row.cells).any(|cell| cell == Cell::Unknown)
        };
        let unsettled = units.iter().find(unknown);
        let is_parked = unsettled.is_some_and(|&unit| {
            let set = self.set_of_page(self.rows.get(unit).table, self.rows.key(unit));
            self.overlay.is_parked(set.unwrap_or(unit))
        });
        let was_settled = std::mem::take(&mut session.settled);
        let refusal = match unsettled {
            None => Some(ReplyError::err(
                "nothing was done: it asks for what the origin computes from its own changes; ask after EXEC",
            )),
            Some(_) if was_settled && is_parked => Some(ReplyError::new(
                Code::Parked,
                "the origin rejected changes of this row, so what only it computes is not known; see destage_parked, or ask \
                 for other columns",
            )),
            Some(_) => None,
        };
        if let Some(error) = refusal {
            if session.is_leased() {
                return self.fail(session, error);
            }
            self.end_multi(session);
            let error = if unsettled.is_none() {
                error.within(Code::ExecAbort, "Transaction discarded, ")
            } else {
                error
            };
            return self.fail(session, error);
        }
        let request = self.asking.request_id(client.0);
        match self.access(request, Intent::ReadSettled, units) {
            Answer::Refused(refusal) => {
                if !session.is_leased() {
                    self.end_multi(session);
                }
                self.refused(session, refusal);
            }
            // What the origin is known not to have is here at once: nobody comes back for the request.
            Answer::Now(..) => {
                session.settled = true;
                session.put_back(raw);
                session.asks_anew = true;
            }
            Answer::Later => {
                session.waiting = Some(Waiting::Settling { request, raw: raw.into() });
            }
        }
    }
}
