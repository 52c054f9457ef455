//! Raw SQL is shown to the origin once before it is acknowledged for the first time.

use super::{Dml, Error, ErrorKind};
use crate::dml;
use crate::origins::{Origin, OriginError, Reader};
use crate::schema::Schema;
use destage_core::Fault;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Texts of SQL that are known to be good; past it all are shown again.
const KNOWN_MAX: usize = 1_024;

/// Shows raw SQL to the origin.
pub(super) struct Checker {
    origin: Arc<dyn Origin>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reader: Option<Box<dyn Reader>>,
    /// What a text with so many parameters writes, as far as the origin tells.
    known: HashMap<(String, usize), Option<Vec<String>>>,
}

impl Checker {
    pub(super) fn new(origin: Arc<dyn Origin>) -> Self {
        Self { origin, state: Mutex::default() }
    }

    /// The tables that it writes; `None` if the origin does not tell.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: the origin does not take it. [`ErrorKind::Unavailable`]: it is not known yet, and the origin
    /// cannot be asked.
    pub(super) fn check(&self, schema: &Schema, dml: &Dml) -> Result<Option<Vec<String>>, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let text = (dml.sql().to_owned(), dml.parameter_count());
        if let Some(writes) = state.known.get(&text) {
            return Ok(writes.clone());
        }
        let was_open = state.reader.is_some();
        let mut asked = self.ask(&mut state, schema, dml);
        if was_open && asked.as_ref().is_err_and(|error| error.fault == Fault::Unavailable) {
            // The connection may have been idle for long.
            asked = self.ask(&mut state, schema, dml);
        }
        let writes = asked.map_err(|error| {
            let kind = match error.fault {
                Fault::Denied | Fault::Rejected => ErrorKind::Invalid,
                _ => ErrorKind::Unavailable,
            };
            Error::new(kind, format!("the raw SQL was not taken, nothing was done: {error}"))
        })?;
        if state.known.len() >= KNOWN_MAX {
            state.known.clear();
        }
        state.known.insert(text, writes.clone());
        Ok(writes)
    }

    fn ask(
        &self,
        state: &mut State,
        schema: &Schema,
        dml: &Dml,
    ) -> Result<Option<Vec<String>>, OriginError> {
        let statement = dml::checked(dml.sql(), dml.parameter_count())
            .map_err(|why| OriginError::new(Fault::Denied, why))?;
        let mut reader = match state.reader.take() {
            Some(reader) => reader,
            None => self.origin.reader()?,
        };
        let asked = reader.check_dml(&statement, schema);
        if asked.is_ok() {
            state.reader = Some(reader);
        }
        asked
    }
}
