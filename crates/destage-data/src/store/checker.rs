//! Raw SQL is shown to the origin once before it is acknowledged for the first time.

use super::{Dml, Error, ErrorKind};
use crate::dml;
use crate::origins::{Origin, OriginError, Reader};
use crate::schema::Schema;
use destage_core::Fault;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Texts of SQL that are known to be good; past it all are shown again.
const KNOWN_MAX: usize = 1_024;

/// A text with so many parameters.
type Text = (String, usize);

/// Shows raw SQL to the origin.
pub(super) struct Checker {
    origin: Arc<dyn Origin>,
    /// What each text writes, as far as the origin tells. Held for no longer than it takes to look: what is known is taken at
    /// once, whoever asks the origin meanwhile.
    known: Mutex<HashMap<Text, Option<Vec<String>>>>,
    /// Asks the origin, for one at a time.
    reader: Mutex<Option<Box<dyn Reader>>>,
}

impl Checker {
    pub(super) fn new(origin: Arc<dyn Origin>) -> Self {
        Self { origin, known: Mutex::default(), reader: Mutex::default() }
    }

    /// The tables that it writes; `None` if the origin does not tell.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: the origin does not take it. [`ErrorKind::Unavailable`]: it is not known yet, and the origin
    /// cannot be asked.
    pub(super) fn check(&self, schema: &Schema, dml: &Dml) -> Result<Option<Vec<String>>, Error> {
        let text = (dml.sql().to_owned(), dml.parameter_count());
        if let Some(writes) = self.known().get(&text) {
            return Ok(writes.clone());
        }
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have asked until now.
        if let Some(writes) = self.known().get(&text) {
            return Ok(writes.clone());
        }
        let was_open = reader.is_some();
        let mut asked = self.ask(&mut reader, schema, dml);
        if was_open && asked.as_ref().is_err_and(|error| error.fault == Fault::Unavailable) {
            // The connection may have been idle for long.
            asked = self.ask(&mut reader, schema, dml);
        }
        let writes = asked.map_err(|error| {
            let kind = match error.fault {
                Fault::Denied | Fault::Rejected => ErrorKind::Invalid,
                _ => ErrorKind::Unavailable,
            };
            Error::new(kind, format!("the raw SQL was not taken, nothing was done: {error}"))
        })?;
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(text, writes.clone());
        Ok(writes)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Text, Option<Vec<String>>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(
        &self,
        open: &mut Option<Box<dyn Reader>>,
        schema: &Schema,
        dml: &Dml,
    ) -> Result<Option<Vec<String>>, OriginError> {
        let statement = dml::checked(dml.sql(), dml.parameter_count())
            .map_err(|why| OriginError::new(Fault::Denied, why))?;
        let mut reader = match open.take() {
            Some(reader) => reader,
            None => self.origin.reader()?,
        };
        let asked = reader.check_dml(&statement, schema);
        if asked.is_ok() {
            *open = Some(reader);
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::super::Declared;
    use super::super::dml::Covered;
    use super::*;
    use crate::origins::{Keys, NextKeys, Snapshot, Watermarks, Writer};
    use crate::schema::Table;
    use destage_origins::derived::Statement;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::thread;
    use std::time::Duration;

    /// Tells that it is asked, and answers once it is let.
    struct Slow(Mutex<Option<Asked>>);

    struct Asked {
        told: Sender<()>,
        may_answer: Receiver<()>,
    }

    impl Origin for Slow {
        fn describe(&self) -> String {
            "slow".into()
        }

        fn schema(&self) -> Result<Schema, OriginError> {
            Ok(Schema::default())
        }

        fn reader(&self) -> Result<Box<dyn Reader>, OriginError> {
            Ok(Box::new(self.0.lock().unwrap().take().expect("one connection is enough")))
        }

        fn writer(&self) -> Result<Box<dyn Writer>, OriginError> {
            unreachable!("nothing is written")
        }
    }

    impl Reader for Asked {
        fn fetch(&mut self, _: &Table, _: &[&[u8]]) -> Result<Snapshot, OriginError> {
            unreachable!("nothing is read")
        }

        fn scan(
            &mut self,
            _: &Table,
            _: Option<&[u8]>,
            _: usize,
        ) -> Result<(Keys, Watermarks), OriginError> {
            unreachable!("nothing is read")
        }

        fn next_keys(&mut self, _: &Table, _: u32) -> Result<NextKeys, OriginError> {
            unreachable!("nothing is numbered")
        }

        fn check_dml(
            &mut self,
            _: &Statement,
            _: &Schema,
        ) -> Result<Option<Vec<String>>, OriginError> {
            self.told.send(()).unwrap();
            // Whoever waits for this one in vain lets nobody answer: the test fails then, and does not hang.
            match self.may_answer.recv_timeout(Duration::from_secs(60)) {
                Ok(()) => Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    Err(OriginError::new(Fault::Denied, "nobody let it answer"))
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("the test holds the other end"),
            }
        }
    }

    fn raw_sql(schema: &Schema, sql: &str) -> Dml {
        let declared = [Declared::table("t")];
        Covered::default().add(schema, sql, &[], &declared).unwrap()
    }

    #[test]
    fn a_known_text_is_taken_while_the_origin_is_asked_for_another() {
        let schema = Schema::new(vec![Table::named("t".into(), "t".into())], vec![]);
        let (told, asked) = channel();
        let (answer, may_answer) = channel();
        let checker = Checker::new(Arc::new(Slow(Mutex::new(Some(Asked { told, may_answer })))));
        let known = raw_sql(&schema, "UPDATE t SET a = 1");
        let unknown = raw_sql(&schema, "UPDATE t SET a = 2");
        answer.send(()).unwrap();
        assert_eq!(checker.check(&schema, &known).unwrap(), None);
        asked.recv().unwrap();
        thread::scope(|scope| {
            let other = scope.spawn(|| checker.check(&schema, &unknown));
            asked.recv().unwrap();
            assert_eq!(checker.check(&schema, &known).unwrap(), None);
            answer.send(()).unwrap();
            other.join().unwrap().unwrap();
        });
    }
}
