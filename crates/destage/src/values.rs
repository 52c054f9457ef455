//! The forms of values on the command line, with their errors.

use crate::error::CliError;
use destage_data::settings::{DEPTH_MAX, OnAway, Unmapped};
use destage_runtime::sockets::Listen;
use destage_runtime::units::{Bytes, Interval, Size};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// The admin port, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admin(pub(crate) Option<SocketAddr>);

/// `unix:/path` or an address with a port.
pub(crate) fn listen(text: &str) -> Result<Listen, String> {
    match text.strip_prefix("unix:") {
        Some("") => Err("'unix:' names no path".into()),
        Some(path) => Ok(Listen::Unix(path.into())),
        None => address(text).map(Listen::Tcp),
    }
}

/// `127.0.0.1:6380`, or `localhost` with a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    if let Some(port) = local {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| {
        format!(
            "'{text}' is not an address with a port: use 127.0.0.1:6380, [::1]:6380 or unix:/path"
        )
    })
}

/// What a client can send, or nothing where none was given. Looked at here and not while flags are read, since what is wrong
/// with a flag is told with its value.
pub(crate) fn password(text: Option<String>) -> Result<Option<String>, CliError> {
    match text.filter(|text| !text.is_empty()) {
        Some(text) if !text.bytes().all(|byte| byte.is_ascii_graphic()) => Err(CliError::usage(
            "the password (--password, DESTAGE_PASSWORD or the settings file) is not printable ASCII without blanks",
        )),
        other => Ok(other),
    }
}

/// An amount of time within bounds.
pub(crate) fn interval(text: &str, low: &str, high: &str) -> Result<Interval, String> {
    let value = text.parse::<Interval>().map_err(|e| e.to_string())?;
    within(value, low, high)
}

/// D: a time within its bounds, or `none`.
pub(crate) fn staleness(text: &str) -> Result<Interval, String> {
    let value = text.parse::<Interval>().map_err(|e| e.to_string())?;
    if value == Interval::NONE {
        return Ok(value);
    }
    within(value, "100ms", "1d").map_err(|error| format!("{error}, or none"))
}

/// A size within bounds.
pub(crate) fn bytes(text: &str, low: &str, high: &str) -> Result<Bytes, String> {
    let value = text.parse::<Bytes>().map_err(|e| e.to_string())?;
    within(value, low, high)
}

/// A size within bounds, or a share of a whole.
pub(crate) fn size(text: &str, low: &str, high: &str) -> Result<Size, String> {
    let value = text.parse::<Size>().map_err(|e| e.to_string())?;
    match value {
        Size::Bytes(bytes) => within(bytes, low, high).map(Size::Bytes),
        Size::Share(_) => Ok(value),
    }
}

fn within<T>(value: T, low: &str, high: &str) -> Result<T, String>
where
    T: FromStr<Err: fmt::Debug> + PartialOrd,
{
    let bound = |text: &str| text.parse::<T>().expect("the bounds are constants that parse");
    if value >= bound(low) && value <= bound(high) {
        Ok(value)
    } else {
        Err(format!("out of range: {low} to {high}"))
    }
}

/// `--journal-depth`: so many, or as measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalDepth(pub(crate) Option<usize>);

impl FromStr for JournalDepth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self(None));
        }
        let depth = text.parse().ok().filter(|depth| *depth <= DEPTH_MAX);
        depth.map(|depth| Self(Some(depth))).ok_or_else(|| format!("auto, or 0 to {DEPTH_MAX}"))
    }
}

impl fmt::Display for JournalDepth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("auto"),
            Some(depth) => depth.fmt(f),
        }
    }
}

/// `--absent-filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum AbsentFilter {
    /// Nothing is known of rows that are not there.
    None,
    /// The keys of all tables are.
    Keys,
}

/// `--on-away`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum AwayChoice {
    /// Commands that need the origin are refused at once.
    Fail,
    /// They wait for it.
    Wait,
}

impl From<AwayChoice> for OnAway {
    fn from(choice: AwayChoice) -> Self {
        match choice {
            AwayChoice::Fail => Self::Fail,
            AwayChoice::Wait => Self::Wait,
        }
    }
}

/// One word of `--unmapped`.
#[derive(Clone, Debug)]
pub(crate) enum UnmappedWord {
    Reject,
    Cache,
    Prefix(String),
}

/// What becomes of keys that name no row, or of those that begin in one way.
pub(crate) fn unmapped(text: &str) -> Result<UnmappedWord, String> {
    const WORDS: &str = "reject or cache, or how keys begin with * behind it, such as sess:*";
    match text {
        "reject" => return Ok(UnmappedWord::Reject),
        "cache" => return Ok(UnmappedWord::Cache),
        "*" => return Err("for all keys that name no row, write cache".into()),
        _ => {}
    }
    let prefix = text.strip_suffix('*').ok_or(WORDS)?;
    if prefix.contains(['*', '?', '[', ']', '\\']) {
        return Err(format!("a pattern has one *, at its end; {WORDS}"));
    }
    Ok(UnmappedWord::Prefix(prefix.into()))
}

/// What all words of `--unmapped` say together.
pub(crate) fn all_unmapped(words: Vec<UnmappedWord>) -> Result<Unmapped, CliError> {
    const PREFIXES_MAX: usize = 1_000;
    let mut prefixes = Vec::with_capacity(words.len());
    let only = words.len() == 1;
    for word in words {
        match word {
            UnmappedWord::Reject if only => return Ok(Unmapped::Reject),
            UnmappedWord::Cache if only => return Ok(Unmapped::Cache),
            UnmappedWord::Prefix(prefix) => prefixes.push(prefix),
            _ => {
                return Err(CliError::usage(
                    "--unmapped takes reject, or cache, or patterns such as sess:*,lock:*; reject and cache stand alone",
                ));
            }
        }
    }
    if prefixes.len() > PREFIXES_MAX {
        return Err(CliError::usage(format!(
            "--unmapped names {} patterns, more than {PREFIXES_MAX}: give the keys a common beginning",
            prefixes.len()
        )));
    }
    Ok(Unmapped::Prefixes(prefixes))
}

/// `none`, or where the admin port listens.
pub(crate) fn admin(text: &str) -> Result<Admin, String> {
    match text {
        "none" => Ok(Admin(None)),
        _ => address(text).map(|addr| Admin(Some(addr))),
    }
}
