//! Whether a report is one of a server that serves.

use super::Report;
use crate::policy;

impl Report {
    /// Whether clients are served as the policy says.
    ///
    /// # Errors
    /// Why they are not: stopped, the staleness bound is exceeded, the journal's disk is full, the cache of a volume is
    /// lost, or too few servers of the log on other servers answer.
    pub fn ready(&self) -> Result<(), &'static str> {
        match self.mode.as_str() {
            "standby" => Err("a standby: another server owns the log"),
            "stopped" => Err("stopped: fenced by another owner, or the journal failed"),
            "staleness-exceeded" => {
                Err("the staleness bound D is exceeded: no write is acknowledged")
            }
            policy::DISK_FULL => Err("the journal's disk is full: no write is acknowledged"),
            policy::CACHE_LOST => Err("the cache of a volume is lost: it acknowledges no write"),
            policy::TOO_FEW_COPIES => {
                Err("too few servers of the log can be used: no write is acknowledged")
            }
            _ if self.replicas.as_ref().is_some_and(|replicas| !replicas.answers) => {
                Err("too few servers of the log have answered lately: nothing is answered")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::ReplicasReport;

    #[test]
    fn an_owner_whose_servers_are_silent_is_not_ready() {
        let report = |answers| Report {
            replicas: Some(ReplicasReport { owned_here: true, answers, ..Default::default() }),
            ..Report::default()
        };
        assert_eq!(report(true).ready(), Ok(()));
        assert!(report(false).ready().unwrap_err().contains("too few servers"));
    }
}
