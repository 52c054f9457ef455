//! Numbers of the origin's sequences that were reserved come, and those who wait for them go on: see [`super::given`].

use super::command::EXEC;
use super::given::ASK_AGAIN;
use super::session::Waiting;
use super::{Engine, Io};
use crate::origins::{NextKeys, OriginError};
use destage_core::RequestId;

impl Engine {
    /// Takes an answer of the origin that is for no NEXTID; gives it back if it is for one.
    pub(super) fn take_numbers(
        &mut self,
        request: RequestId,
        result: Result<NextKeys, OriginError>,
    ) -> Result<(), Result<NextKeys, OriginError>> {
        let Some(((table, column), pool)) = self.asked_pool(request) else { return Err(result) };
        let count = pool.block();
        if let Err(error) = &result
            && self.awaits_numbers(request)
        {
            let again = || Io::NextKeys { request: request.0, table, column, count };
            if self.put_off_question(request, table, error, again) {
                return Ok(());
            }
        }
        let not_before = self.now + ASK_AGAIN;
        let (error, numbers) = match result {
            Ok(numbers) => (None, Some(numbers.keys)),
            Err(error) => (Some(self.read_failed(table, &error)), None),
        };
        let pool = self.asked_pool(request).map(|(_, pool)| pool);
        let waiting = pool.map(|pool| pool.answered(numbers, not_before)).unwrap_or_default();
        for waits in waiting {
            // Whoever has given up or is gone waits no more.
            let Some((client, mut session)) = self.sessions.take_waiting(waits) else { continue };
            let Some(Waiting::Numbers { raw, .. }) = session.waiting.take() else {
                unreachable!("it waited for numbers")
            };
            match &error {
                None => {
                    session.put_back(&raw);
                    session.asks_anew = true;
                }
                Some(error) => {
                    if *raw == *EXEC {
                        self.end_multi(&mut session);
                    }
                    self.fail(&mut session, error.clone());
                }
            }
            self.sessions.restore_answered(client, session);
        }
        Ok(())
    }
}
