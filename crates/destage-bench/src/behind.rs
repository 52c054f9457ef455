//! The store behind, of a kind that the command line names: PostgreSQL, or MongoDB's protocol by FerretDB.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use destage_runtime::sockets::Listen;
use mongodb::Client;
use tokio::runtime::{Builder, Runtime};

use crate::Result;
use crate::figure::thousands;
use crate::servers::{Ferretdb, POSTGRES_SETTINGS, Postgres, Transport, postgres_version};

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// PostgreSQL
    Postgres,
    /// MongoDB's protocol, by FerretDB
    Mongodb,
}

/// What the command line says about it.
#[derive(Debug, Args)]
pub(crate) struct BehindArgs {
    /// The store behind
    #[arg(long, value_enum, default_value = "postgres")]
    pub(crate) origin: Kind,
    /// The program of the tests that serves MongoDB's protocol
    #[arg(long, env = "DESTAGE_TEST_FERRETDB", hide_env = true, value_name = "PATH")]
    pub(crate) ferretdb: Option<PathBuf>,
}

impl BehindArgs {
    pub(crate) fn is_sql(&self) -> bool {
        self.origin == Kind::Postgres
    }

    /// The markers' name of what a subcommand measures before it.
    pub(crate) fn front_end(&self, sql: &'static str, documents: &'static str) -> &'static str {
        if self.is_sql() { sql } else { documents }
    }

    /// Name and version for the report.
    pub(crate) fn version(&self) -> (String, String) {
        match self.origin {
            Kind::Postgres => ("PostgreSQL".into(), postgres_version()),
            Kind::Mongodb => ("MongoDB's protocol".into(), "FerretDB 1.24 on SQLite".into()),
        }
    }

    /// Its settings for the report, if it has any.
    pub(crate) fn settings(&self) -> Option<(String, String)> {
        let named: Vec<String> =
            POSTGRES_SETTINGS.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let text = format!("{}; otherwise defaults", named.join(", "));
        self.is_sql().then(|| ("PostgreSQL's settings".into(), text))
    }
}

/// A number for the report.
pub(crate) fn count(number: u64) -> String {
    thousands(number as f64)
}

/// A running one.
#[derive(Debug)]
pub(crate) enum Behind {
    Postgres(Postgres),
    Mongodb(Ferretdb),
}

impl Behind {
    /// Starts one with its data below `dir`.
    ///
    /// # Errors
    ///
    /// It does not start, or there is no program for it, or it cannot be reached like that.
    pub(crate) fn start(arguments: &BehindArgs, dir: &Path, transport: Transport) -> Result<Self> {
        if arguments.is_sql() {
            return Ok(Self::Postgres(Postgres::start(dir, transport)?));
        }
        if transport == Transport::Unix {
            return Err("--unix is for --origin postgres".into());
        }
        let named = arguments.ferretdb.as_deref();
        let program = named.filter(|path| !path.as_os_str().is_empty()).ok_or(
            "--origin mongodb takes the program of the tests, named by --ferretdb: `cargo xtask bench` builds it where there \
             is Go 1.22 or later",
        )?;
        Ok(Self::Mongodb(Ferretdb::start(program, dir)?))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Postgres(server) => server.address,
            Self::Mongodb(server) => server.address,
        }
    }

    /// As Destage takes it, through `via` if there is a proxy between; the database is the one at MongoDB.
    pub(crate) fn url(&self, via: SocketAddr, database: &str) -> String {
        match self {
            Self::Postgres(_) => Postgres::url(via),
            Self::Mongodb(_) => Ferretdb::url(via, database),
        }
    }

    /// Where clients of this machine connect.
    pub(crate) fn near(&self) -> Result<Listen> {
        match self {
            Self::Postgres(server) => server.near(),
            Self::Mongodb(server) => Ok(server.address.into()),
        }
    }

    /// As Destage takes it on this machine.
    pub(crate) fn near_url(&self, database: &str) -> String {
        match self {
            Self::Postgres(server) => server.near_url(),
            Self::Mongodb(server) => Ferretdb::url(server.address, database),
        }
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        match self {
            Self::Postgres(server) => server.cpu(),
            Self::Mongodb(server) => server.cpu(),
        }
    }
}

/// For one run's clients: all of them on the thread that asks.
///
/// # Errors
///
/// The system has no room for it.
pub(crate) fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// The driver's client at this address.
///
/// # Errors
///
/// The address is not understood.
pub(crate) async fn driver(address: SocketAddr) -> Result<Client> {
    let url = format!("mongodb://{address}/?directConnection=true&maxPoolSize=300");
    Ok(Client::with_uri_str(url).await?)
}
