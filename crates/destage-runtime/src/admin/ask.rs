//! How the threads of the admin port ask the server's thread.

use super::{Caller, ControlError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

/// How long the server may take to turn to a question.
const BEGIN_MAX: Duration = Duration::from_secs(5);
/// How often what takes as long as the origin needs is looked at, and whether someone waits for it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where an answer is to go.
#[derive(Debug)]
pub struct Answer<T> {
    to: SyncSender<T>,
    /// The server has begun, or whoever asked has given up: what comes first counts.
    is_settled: Arc<AtomicBool>,
}

impl<T> Answer<T> {
    /// Answers with what the work comes to. It is not done if whoever asked has given up.
    pub fn give(self, work: impl FnOnce() -> T) {
        if self.is_settled.swap(true, Ordering::SeqCst) {
            return;
        }
        // Whoever asked may have ended.
        let _ = self.to.send(work());
    }
}

/// Has `question` carried to the server's thread with the place for its answer, and waits for that.
///
/// # Errors
/// The server has ended, or is too busy: what was asked is not done then, and will not be.
pub fn ask<T>(question: impl FnOnce(Answer<T>)) -> Result<T, ControlError> {
    ask_within(BEGIN_MAX, question)
}

fn ask_within<T>(limit: Duration, question: impl FnOnce(Answer<T>)) -> Result<T, ControlError> {
    let (to, answered) = mpsc::sync_channel(1);
    let is_settled = Arc::new(AtomicBool::new(false));
    question(Answer { to, is_settled: is_settled.clone() });
    let answer = match answered.recv_timeout(limit) {
        Ok(answer) => Some(answer),
        Err(RecvTimeoutError::Timeout) => late(&answered, &is_settled),
        Err(RecvTimeoutError::Disconnected) => None,
    };
    answer.ok_or_else(ControlError::no_answer)
}

/// Gives up, unless the server has begun: then what comes of it is waited for.
fn late<T>(answered: &Receiver<T>, is_settled: &AtomicBool) -> Option<T> {
    if is_settled.swap(true, Ordering::SeqCst) { answered.recv().ok() } else { None }
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
        assert_eq!(ask(|answer: Answer<u8>| answer.give(|| 7)), Ok(7));
        assert_eq!(ask(|answer: Answer<u8>| drop(answer)), Err(ControlError::no_answer()));
    }

    #[test]
    fn what_was_given_up_is_not_done_later() {
        let mut kept = None;
        let given_up = ask_within(Duration::ZERO, |answer: Answer<u8>| kept = Some(answer));
        assert_eq!(given_up, Err(ControlError::no_answer()));
        kept.unwrap().give(|| panic!("it is done although nobody waits for it"));
    }

    #[test]
    fn what_has_begun_is_waited_for() {
        let (to, answered) = mpsc::sync_channel(1);
        let is_settled = Arc::new(AtomicBool::new(false));
        let answer = Answer { to, is_settled: is_settled.clone() };
        let (begun, begins) = mpsc::channel();
        let server = std::thread::spawn(move || {
            answer.give(|| {
                begun.send(()).unwrap();
                7
            });
        });
        begins.recv().unwrap();
        assert_eq!(late(&answered, &is_settled), Some(7));
        server.join().unwrap();
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
