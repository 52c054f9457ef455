//! Whether a report is one of a server that serves.

use super::Report;
use crate::policy;

impl Report {
    /// Whether clients are served as the policy says.
    ///
    /// # Errors
    /// Why they are not: stopped, the staleness bound is exceeded, or the journal's disk is full.
    pub fn ready(&self) -> Result<(), &'static str> {
        match self.mode.as_str() {
            "standby" => Err("a standby: another server owns the log"),
            "stopped" => Err("stopped: fenced by another owner, or the journal failed"),
            "staleness-exceeded" => {
                Err("the staleness bound D is exceeded: no write is acknowledged")
            }
            policy::DISK_FULL => Err("the journal's disk is full: no write is acknowledged"),
            _ => Ok(()),
        }
    }
}
