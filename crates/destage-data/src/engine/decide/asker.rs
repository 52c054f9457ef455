//! What is asked about parked groups, and by whom.

use crate::resp::ReplyError;
use destage_core::{Lsn, RequestId};
use serde_json::Value;

/// What someone wants of the parked groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParkedCommand {
    /// All of them, in short.
    List,
    /// One of them, with its changes.
    Show(Lsn),
    /// Apply one and what builds on it, or with `None` all, as far as the origin takes them.
    Retry(Option<Lsn>),
    /// Apply these changes in the place of one, and what builds on it.
    Edit(Lsn, String),
    /// Give one up.
    Skip(Lsn),
}

/// What is told: JSON, or an error.
pub type ParkedAnswer = Result<Value, ReplyError>;

/// Who is told.
pub struct Asker(pub(super) Who);

pub(super) enum Who {
    Client(RequestId),
    Other(Box<dyn FnOnce(ParkedAnswer) + Send>),
}

impl ParkedCommand {
    /// As it is logged: changes may be many megabytes, and are nobody's business there.
    pub(super) fn in_short(&self) -> String {
        match self {
            Self::Edit(lsn, changes) => format!("Edit({}, {} bytes)", lsn.0, changes.len()),
            other => format!("{other:?}"),
        }
    }

    /// Reads the words behind `DESTAGE PARKED`.
    ///
    /// # Errors
    /// What is expected instead.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let id = |text: &str| -> Result<Lsn, String> {
            let number = text.parse().map_err(|_| {
                format!("'{text}' is no number of a parked write; PARKED LIST shows them")
            })?;
            Ok(Lsn(number))
        };
        let texts: Vec<&str> = args.iter().map(String::as_str).collect();
        let word = texts.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        match (word.as_str(), &texts[texts.len().min(1)..]) {
            ("list", []) => Ok(Self::List),
            ("show", [one]) => Ok(Self::Show(id(one)?)),
            ("retry", [all]) if all.eq_ignore_ascii_case("all") => Ok(Self::Retry(None)),
            ("retry", [one]) => Ok(Self::Retry(Some(id(one)?))),
            ("edit", [one, changes]) => Ok(Self::Edit(id(one)?, (*changes).to_owned())),
            ("skip", [one]) => Ok(Self::Skip(id(one)?)),
            _ => Err("use PARKED LIST | SHOW id | RETRY id|ALL | EDIT id changes | SKIP id".into()),
        }
    }
}

impl Asker {
    /// Tells a function, once.
    pub fn new(tell: impl FnOnce(ParkedAnswer) + Send + 'static) -> Self {
        Self(Who::Other(Box::new(tell)))
    }
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Who::Client(request) => write!(f, "Client({request:?})"),
            Who::Other(_) => f.write_str("Other"),
        }
    }
}
