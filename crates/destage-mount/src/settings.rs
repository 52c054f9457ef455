//! What `destage mount` is told, parsed and checked: flags and files are read elsewhere.

use crate::tokens::TokenSettings;
use destage_core::{Policy, Span};
use destage_record::RecordSettings;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Everything that the file front end needs to start.
///
/// Not `Debug`: it holds a password.
#[derive(Clone)]
pub struct Settings {
    /// The folder that is cached.
    pub origin: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The journal's folder.
    pub journal: PathBuf,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// An fsync is answered by the origin, not by the journal.
    pub fsync_origin: bool,
    /// The same for files below these folders of the mount's, by their names from its top on.
    pub fsync_origin_below: Vec<PathBuf>,
    /// The policy, with what follows from the journal's size.
    pub policy: Policy,
    /// How long the kernel may remember names and attributes, and what others change beneath goes unseen.
    pub origin_check: Span,
    /// Threads that read requests; 1 to 16.
    pub threads: usize,
    /// The admin port; `None` for none.
    pub admin: Option<SocketAddr>,
    /// Names by which the admin port may be asked, besides addresses and `localhost`.
    pub admin_hosts: Vec<String>,
    /// What the admin port's commands need.
    pub password: Option<String>,
    /// Where what the policy is told goes, if anywhere.
    pub record: Option<RecordSettings>,
    /// How long a shutdown may destage.
    pub drain_timeout: Span,
    /// A command to run with `$mountpoint` set; the server ends with it.
    pub run: Option<String>,
    /// Where several hosts share the origin.
    pub tokens: Option<TokenSettings>,
    /// The origin was made as an example.
    pub is_example: bool,
}

impl Settings {
    /// How long it may go unseen what others do to names and attributes. With tokens what another host changes is seen at once.
    pub(crate) fn names_unseen(&self) -> Span {
        if self.tokens.is_some() { Span::ZERO } else { self.origin_check }
    }

    /// How much of that the kernel may remember that a name is nobody's. What it was told of by then may be from a listing that is
    /// as old as the rest.
    pub(crate) fn nobodys_unseen(&self) -> Span {
        Span(self.names_unseen().0 / 3 * 2)
    }
}
