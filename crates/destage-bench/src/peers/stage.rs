//! Who is put into trouble: a program with its servers, which can be killed, ended and started again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cli::Peer;
use super::program::{Programs, member};
use crate::Result;
use crate::servers::{
    Destage, DestageConfig, Fsync, Java, Postgres, Redis, Transport, free_address,
};

/// A side with what it is told for its safety.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// With this d.
    Destage(&'static str),
    Hazelcast {
        members: usize,
    },
    Redisson {
        /// Attempts of its writer; 0 leaves the setting alone.
        attempts: u32,
        fsync: Fsync,
    },
}

impl Who {
    pub(super) fn name(self) -> String {
        match self {
            Self::Destage(commit) => format!("Destage, d = {commit}"),
            Self::Hazelcast { members: 1 } => "Hazelcast".into(),
            Self::Hazelcast { members } => {
                format!("Hazelcast, {members} members, `backup-count` 1")
            }
            Self::Redisson { attempts: 0, fsync: Fsync::Off } => "Redisson".into(),
            Self::Redisson { attempts: 0, .. } => "Redisson, `appendfsync always`".into(),
            Self::Redisson { attempts, .. } => {
                format!("Redisson, `writeRetryAttempts` {attempts}, 500 ms apart")
            }
        }
    }

    pub(super) fn peer(self) -> Option<Peer> {
        match self {
            Self::Destage(_) => None,
            Self::Hazelcast { .. } => Some(Peer::Hazelcast),
            Self::Redisson { .. } => Some(Peer::Redisson),
        }
    }
}

/// The one who is put into trouble.
pub(super) struct Stage<'a> {
    programs: Programs<'a>,
    bin: PathBuf,
    extra: Vec<String>,
    table: String,
    who: Who,
    java: Option<Java>,
    /// The further member, which nothing happens to.
    other: Option<Java>,
    redis: Option<Redis>,
    destage: Option<Destage>,
}

impl<'a> Stage<'a> {
    pub(super) fn start(
        programs: Programs<'a>,
        bin: &Path,
        extra: &[String],
        origin: &Postgres,
        table: &str,
        who: Who,
    ) -> Result<Self> {
        let mut stage = Self {
            programs,
            bin: bin.to_owned(),
            extra: extra.to_vec(),
            table: table.to_owned(),
            who,
            java: None,
            other: None,
            redis: None,
            destage: None,
        };
        stage.put_up(origin)?;
        Ok(stage)
    }

    fn put_up(&mut self, origin: &Postgres) -> Result<()> {
        let programs = self.programs;
        let start = |name: &str, words: &[String]| programs.start(name, origin, &self.table, words);
        let java = match self.who {
            Who::Destage(_) => {
                let config = self.config(origin);
                let server = match self.destage.take() {
                    Some(killed) => killed.start_again(programs.dir, &config)?,
                    None => Destage::start(programs.dir, &config)?,
                };
                let words = [format!("server={}", server.address)];
                self.destage = Some(server);
                start("destage", &words)?
            }
            Who::Hazelcast { members: 1 } => start("hazelcast", &member(free_address()?, &[]))?,
            Who::Hazelcast { .. } => {
                let both = [free_address()?, free_address()?];
                let java = start("hazelcast", &member(both[0], &both))?;
                self.other = Some(start("hazelcast", &member(both[1], &both))?);
                java
            }
            Who::Redisson { attempts, fsync } => {
                if self.redis.is_none() {
                    self.redis = Some(Redis::start(programs.dir, fsync, Transport::Tcp)?);
                }
                let server = self.redis.as_ref().ok_or("it was just started")?;
                let words = [format!("server={}", server.address), format!("attempts={attempts}")];
                start("redisson", &words)?
            }
        };
        self.java = Some(java);
        Ok(())
    }

    fn config(&self, origin: &Postgres) -> DestageConfig {
        let commit = if let Who::Destage(commit) = self.who { commit } else { "0" };
        DestageConfig {
            bin: self.bin.clone(),
            origin: Postgres::url(origin.address),
            commit: commit.to_owned(),
            staleness: "30s".into(),
            transport: Transport::Tcp,
            extra: self.extra.clone(),
        }
    }

    pub(super) fn java(&mut self) -> Result<&mut Java> {
        self.java.as_mut().ok_or_else(|| "the program has ended".into())
    }

    /// Ends whoever holds what the database lacks without a chance to tidy up; whoever wrote to it ends, too.
    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(server) = &mut self.destage {
            server.kill_now()?;
        }
        self.java.take().map_or(Ok(()), Java::kill)
    }

    /// Ends it by SIGTERM, and waits for its end.
    pub(super) fn terminate(&mut self) -> Result<()> {
        if let Some(server) = &mut self.destage {
            server.terminate()?;
        }
        drop(self.java.take());
        Ok(())
    }

    /// Starts it over what it has left. A map that was in one process only is gone with it.
    pub(super) fn start_again(&mut self, origin: &Postgres) -> Result<()> {
        if matches!(self.who, Who::Hazelcast { .. }) { Ok(()) } else { self.put_up(origin) }
    }

    pub(super) fn crash_redis(&mut self) -> Result<()> {
        self.redis.as_mut().ok_or("there is no redis-server")?.crash()
    }

    /// Destage is told to; the others go on by themselves.
    pub(super) fn drain(&self) -> Result<()> {
        match &self.destage {
            Some(server) => server.control(&["DRAIN"]).map(drop),
            None => Ok(()),
        }
    }

    /// How long the database may stand still before what it lacks counts as lost. Hazelcast tries a batch three times, a
    /// second apart, and then each row of it three times.
    pub(super) fn patience(&self) -> Duration {
        match self.who {
            Who::Destage(_) => Duration::from_secs(1),
            Who::Hazelcast { .. } if self.java.is_none() && self.other.is_none() => Duration::ZERO,
            Who::Hazelcast { .. } => Duration::from_secs(10),
            Who::Redisson { .. } => Duration::from_secs(6),
        }
    }
}
