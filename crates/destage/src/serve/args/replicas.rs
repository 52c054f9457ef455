//! The flags about the servers that hold the buffered writes.

use super::{COPIES, FAILOVER, JournalWord, REPLICA_LOG, RETAIN, ServeArgs};
use crate::error::CliError;
use destage_core::Span;
use destage_data::settings::{JournalKind, Places, ReplicaSettings};

/// So long the tokens of `DESTAGE ONCE` are kept at the least.
const TOKENS_MIN: Span = Span::from_secs(3_600);

impl ServeArgs {
    /// A flag that counts with servers for the log only, and says something. The settings file may name the servers, so only
    /// what both come to can be looked at.
    fn asks_for_replicas(&self) -> Option<&'static str> {
        let asks = [
            ("standby", self.standby),
            ("advertise", self.advertise.is_some()),
            ("copies", self.copies != COPIES),
            ("replica-log", self.replica_log != REPLICA_LOG),
            ("failover", self.failover.to_string() != FAILOVER),
        ];
        asks.into_iter().find(|(_, is_asked)| *is_asked).map(|(flag, _)| flag)
    }

    /// The servers that hold the buffered writes, if any do.
    pub(super) fn replicas(&self) -> Result<Option<ReplicaSettings>, CliError> {
        let urls = self.replicas.as_deref().filter(|urls| !urls.is_empty());
        let journal = match (urls.is_some(), self.journal) {
            (false, None | Some(JournalWord::Local)) => {
                return match self.asks_for_replicas() {
                    Some(flag) => Err(CliError::usage(format!(
                        "--{flag} is about the servers of --replicas, and there are none: name them, or leave it out"
                    ))),
                    None => Ok(None),
                };
            }
            (true, _) if self.journal_alone => {
                return Err(CliError::usage(
                    "--journal-alone goes on without the servers of --replicas: leave them out (--replicas '' where the settings \
                     file names them)",
                ));
            }
            (false, Some(_)) => {
                return Err(CliError::usage(
                    "--journal replicas and both need servers: --replicas redis://HOST:PORT,...",
                ));
            }
            (true, Some(JournalWord::Local)) => {
                return Err(CliError::usage(
                    "--journal local keeps nothing on the servers of --replicas: leave one of them out",
                ));
            }
            (true, None | Some(JournalWord::Replicas)) => JournalKind::Replicas,
            (true, Some(JournalWord::Both)) => JournalKind::Both,
        };
        let retain = self.retain.span();
        let is_given = retain != Span::ZERO && self.retain.to_string() != RETAIN;
        if journal == JournalKind::Replicas && is_given && retain <= TOKENS_MIN {
            return Err(CliError::usage(
                "--retain keeps destaged writes in a journal on this host's disk, and with --replicas there is none. Leave it out, \
                 choose --journal both, or name more than 1h: so long the tokens of DESTAGE ONCE are kept",
            ));
        }
        let places =
            Places::parse(urls.unwrap_or_default()).map_err(|e| CliError::usage(e.to_string()))?;
        let (copies, count) = (usize::from(self.copies), places.addresses().len());
        if copies > count {
            return Err(CliError::usage(format!(
                "--copies {copies} of {count} servers cannot be had: name more with --replicas"
            )));
        }
        Ok(Some(ReplicaSettings {
            places,
            copies,
            journal,
            name: self.replica_log.clone(),
            failover: self.failover.duration().expect("none is out of its range"),
            standby: self.standby,
            advertise: self.advertise.clone(),
        }))
    }
}
