//! How the threads of the admin port ask the server's thread.

use super::{Caller, ControlError};
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

/// How long the server may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How often what takes as long as the origin needs is looked at, and whether someone waits for it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where an answer is to go.
#[derive(Debug)]
pub struct Answer<T>(SyncSender<T>);

impl<T> Answer<T> {
    /// Answers.
    pub fn give(self, answer: T) {
        // Whoever asked may have stopped waiting.
        let _ = self.0.send(answer);
    }
}

/// Has `question` carried to the server's thread with the place for its answer, and waits for that.
///
/// # Errors
/// The server does not answer, or has ended.
pub fn ask<T>(question: impl FnOnce(Answer<T>)) -> Result<T, ControlError> {
    let (answer, answered) = mpsc::sync_channel(1);
    question(Answer(answer));
    answered.recv_timeout(ANSWER_MAX).map_err(|_| ControlError::no_answer())
}

impl ControlError {
    /// The server's thread is busy or gone.
    pub fn no_answer() -> Self {
        Self::Unavailable("the server does not answer".into())
    }
}

impl Caller {
    /// Looks again and again whether something has come about, for as long as it takes or the caller waits.
    ///
    /// # Errors
    /// Those of `look`; or, once nobody waits any more, with what `look` says is missing.
    pub fn until<T>(
        &self,
        mut look: impl FnMut() -> Result<Result<T, String>, ControlError>,
    ) -> Result<T, ControlError> {
        loop {
            match look()? {
                Ok(reached) => return Ok(reached),
                Err(missing) => self.still_waits(|| missing)?,
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reaches_who_asked_and_a_server_that_is_gone_is_told() {
        assert_eq!(ask(|answer: Answer<u8>| answer.give(7)), Ok(7));
        assert_eq!(ask(|answer: Answer<u8>| drop(answer)), Err(ControlError::no_answer()));
    }

    #[test]
    fn a_wait_ends_with_what_it_is_for_or_with_its_time() {
        let mut rounds = 0;
        let look = || {
            rounds += 1;
            Ok(if rounds < 3 { Err("one is left".into()) } else { Ok(rounds) })
        };
        assert_eq!(Caller::patient().until(look), Ok(3));
        let never = || Ok(Err::<(), _>("one is left".into()));
        let late = Caller::within(Duration::ZERO).until(never);
        assert_eq!(late, Err(ControlError::TimedOut("one is left".into())));
        let failed = Caller::patient().until(|| Err::<Result<(), _>, _>(ControlError::no_answer()));
        assert_eq!(failed, Err(ControlError::no_answer()));
    }
}
