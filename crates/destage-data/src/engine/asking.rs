//! The requests that ask the core for their units.
//!
//! The core is asked in the middle of things: a request asks for the rows that it turned out to need, and reads the core's
//! effects until its own answer is among them. The effects that come before that are carried out on the way, and one of them
//! may let *another* request go on, which asks the core in turn, deeper on the stack, and may come upon the answer to the
//! one below. So those who ask are kept on a stack. An answer to one of them is laid down here, and no further effect is
//! read ([`Asking::is_answered`]) until the call returns to whom it belongs: what the core said, that the units are present
//! and locked, holds only as long as nothing else happens.

use destage_core::{Access, ClientId, Lsn, Refusal, RequestId, WaitFor};
use destage_record::{client_of, request_of};

/// Requests for rows that nobody waits for yet carry this client number.
pub(super) const PREFETCH_CLIENT: u32 = destage_record::PREFETCH_CLIENT.0;

/// Whether nobody waits for this request.
pub(super) fn is_prefetch(request: RequestId) -> bool {
    client_of(request).0 == PREFETCH_CLIENT
}

/// What became of an access.
#[derive(Debug)]
pub(super) enum Answer {
    /// Execute now.
    Now(Access, Lsn),
    /// Refused.
    Refused(Refusal),
    /// The core will say.
    Later,
}

/// A wait that a client asked for and the core has not been told of.
pub(super) type NewWait = (RequestId, Lsn, WaitFor);

/// Who asks the core, and what it has said.
#[derive(Debug, Default)]
pub(super) struct Asking {
    last_request: u64,
    /// Those whose answer is being looked for, the innermost last.
    stack: Vec<RequestId>,
    /// The answer to one of them.
    answered: Option<(RequestId, Answer)>,
    /// Told to the core once the sessions are in their places again, since the answer may come at once.
    waits: Vec<NewWait>,
}

impl Asking {
    /// A number for a request of this client.
    pub(super) fn request_id(&mut self, client: u32) -> RequestId {
        self.last_request = self.last_request.wrapping_add(1);
        request_of(ClientId(client), self.last_request)
    }

    /// A request asks, and carries out what comes before its answer.
    pub(super) fn begin(&mut self, request: RequestId) {
        debug_assert!(
            self.answered.is_none(),
            "nobody asks before an answer has got to whom it belongs"
        );
        self.stack.push(request);
    }

    /// It has carried that out; the answer if it was among what this led to.
    pub(super) fn end(&mut self, request: RequestId) -> Option<Answer> {
        let last = self.stack.pop();
        assert_eq!(last, Some(request), "who asks last is answered first, or asks no more");
        self.answered.take_if(|(answered, _)| *answered == request).map(|(_, answer)| answer)
    }

    /// Lays an answer down for a request on the stack; gives it back if it is for nobody there.
    pub(super) fn lay_down(&mut self, request: RequestId, answer: Answer) -> Result<(), Answer> {
        if !self.stack.contains(&request) {
            return Err(answer);
        }
        assert!(self.answered.is_none(), "no effect is read while an answer lies here");
        self.answered = Some((request, answer));
        Ok(())
    }

    /// Whether an answer lies here that its request has not come for: nothing else may happen before that.
    pub(super) fn is_answered(&self) -> bool {
        self.answered.is_some()
    }

    /// A client waits for a group from now on.
    pub(super) fn wait(&mut self, wait: NewWait) {
        self.waits.push(wait);
    }

    /// The waits of which the core is to be told now.
    pub(super) fn take_waits(&mut self) -> Vec<NewWait> {
        std::mem::take(&mut self.waits)
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.stack.is_empty() && self.answered.is_none() && self.waits.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_another_request_comes_upon_gets_to_whom_it_belongs() {
        let mut asking = Asking::default();
        let (outer, inner) = (asking.request_id(1), asking.request_id(2));
        asking.begin(outer);
        asking.begin(inner);
        let later = asking.request_id(3);
        assert!(asking.lay_down(later, Answer::Later).is_err(), "it waits in its session");
        assert!(asking.lay_down(outer, Answer::Refused(Refusal::Busy)).is_ok());
        assert!(asking.is_answered());
        assert!(asking.end(inner).is_none() && asking.is_answered());
        assert!(matches!(asking.end(outer), Some(Answer::Refused(Refusal::Busy))));
        assert!(asking.is_idle());
    }

    #[test]
    fn a_request_names_its_client() {
        let mut asking = Asking { last_request: 0xffff_fffe, ..Asking::default() };
        assert_eq!(asking.request_id(7), RequestId(7 << 32 | 0xffff_ffff));
        assert_eq!(asking.request_id(PREFETCH_CLIENT).0, u64::from(PREFETCH_CLIENT) << 32);
    }
}
