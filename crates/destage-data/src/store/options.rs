//! How a store is opened.

use super::{Embedded, Error, ErrorKind, Store};
use crate::settings::{DomainSettings, Settings};
use destage_runtime::policy;
use destage_runtime::sockets::Listen;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long a session's leases last, unless given; least and most.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(1);
/// The shortest lifetime of leases.
pub const LEASE_MIN: Duration = Duration::from_millis(10);
/// The longest lifetime of leases.
pub const LEASE_MAX: Duration = Duration::from_secs(60);
/// How long a session that is tried again keeps being tried, unless given.
pub const RETRY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// How a store is opened: [`Options::new`], changes, [`Options::open`].
#[derive(Clone)]
pub struct Options {
    settings: Settings,
    listens: bool,
    pub(super) lease: Duration,
    pub(super) retry_timeout: Duration,
    changes: Vec<String>,
}

impl Options {
    /// Before the origin at this address (as `destage serve --origin` takes it), with the journal in the folder `data`.
    pub fn new(origin: impl Into<String>, data: impl Into<PathBuf>) -> Self {
        let settings = Settings {
            origin: Some(origin.into()),
            data: data.into(),
            admin: None,
            ..Settings::default()
        };
        Self {
            settings,
            listens: false,
            lease: LEASE_DEFAULT,
            retry_timeout: RETRY_TIMEOUT_DEFAULT,
            changes: Vec::new(),
        }
    }

    /// Changes the policy, in the words of `destage policy`: `commit=1s`, `staleness=10s`, `policy=write-through` and so on.
    #[must_use]
    pub fn policy(mut self, change: impl Into<String>) -> Self {
        self.changes.push(change.into());
        self
    }

    /// How long a session's leases last, and with them the session. *Units:* [`LEASE_MIN`] to [`LEASE_MAX`], by default
    /// [`LEASE_DEFAULT`]. A session that takes longer is fenced, and tried again.
    #[must_use]
    pub fn lease(mut self, lifetime: Duration) -> Self {
        self.lease = lifetime;
        self
    }

    /// How long a session is tried again before its conflict is returned; [`RETRY_TIMEOUT_DEFAULT`] unless given.
    #[must_use]
    pub fn retry_timeout(mut self, retry_timeout: Duration) -> Self {
        self.retry_timeout = retry_timeout;
        self
    }

    /// Most sessions at once, Redis clients included; 10,000 unless given.
    #[must_use]
    pub fn sessions_max(mut self, count: usize) -> Self {
        self.settings.clients_max = count;
        self
    }

    /// Serves Redis clients beside the library, at this address; port 0 chooses one. Anyone who reaches the address may
    /// write unless a password is given.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr, password: Option<String>) -> Self {
        self.settings.listen = Listen::Tcp(address);
        self.settings.password = password;
        self.listens = true;
        self
    }

    /// Divides the origin into ordering domains, as a `[[domain]]` section of the settings file does; may be repeated.
    #[must_use]
    pub fn domain(mut self, domain: DomainSettings) -> Self {
        self.settings.domains.push(domain);
        self
    }

    /// Changes any other setting.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Opens the store. What a store or a server before it left in the journal of the same folder is destaged first.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a setting that does not fit; [`ErrorKind::Closed`] where the origin cannot be reached,
    /// belongs to somebody else, or does not fit the journal: the message says what to do.
    pub fn open(mut self) -> Result<Store, Error> {
        let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease) {
            return Err(invalid(format!(
                "leases last {LEASE_MIN:?} to {LEASE_MAX:?}, not {:?}",
                self.lease
            )));
        }
        if !self.changes.is_empty() {
            let changed = policy::change(&self.settings.policy, &self.changes);
            self.settings.policy = changed.map_err(|error| invalid(error.to_string()))?;
        }
        let manager = Embedded::start(self.settings, self.listens)?;
        Ok(Store::over(manager, self.lease, self.retry_timeout))
    }
}
