//! What a start would find, looked at without changing anything: for `destage check`.

use crate::ServeError;
use crate::sockets::{Listen, check_free};
use std::net::SocketAddr;

/// One finding after the other.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

/// What was looked at, and what came of it.
#[derive(Debug)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// What it is like, or why a start would be refused.
    pub result: Result<String, ServeError>,
}

impl Findings {
    /// Notes what came of a look at something; the value, if the start could go on with it.
    pub fn note<T>(
        &mut self,
        what: impl Into<String>,
        result: Result<T, impl Into<ServeError>>,
        is_like: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let (value, result) = match result {
            Ok(value) => {
                let text = is_like(&value);
                (Some(value), Ok(text))
            }
            Err(error) => (None, Err(error.into())),
        };
        self.0.push(Finding { what: what.into(), result });
        value
    }

    /// Looks whether the addresses can be listened on. With `is_running` they may be taken, by the server that uses the same files.
    pub fn addresses(&mut self, listen: &Listen, admin: Option<SocketAddr>, is_running: bool) {
        let admin = admin.map(Listen::Tcp);
        let places = [("--listen", Some(listen)), ("--admin", admin.as_ref())];
        for (flag, place) in places {
            let Some(place) = place else { continue };
            let free = match check_free(place, flag) {
                Ok(()) => Ok("free"),
                Err(_) if is_running => {
                    Ok("in use, and so are the files: by the server that runs now")
                }
                Err(error) => Err(error),
            };
            self.note(format!("{flag} {place}"), free, |&text| text.to_owned());
        }
    }

    /// All of them, in order.
    pub fn all(&self) -> &[Finding] {
        &self.0
    }

    /// The first reason why a start would be refused.
    pub fn first_refusal(&self) -> Option<&ServeError> {
        self.0.iter().find_map(|finding| finding.result.as_ref().err())
    }
}
