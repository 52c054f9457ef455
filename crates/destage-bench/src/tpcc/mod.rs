//! `destage-bench tpcc`: TPC-C on the library, against the same transactions at PostgreSQL itself.
//!
//! All five transactions with the standard's mix and inputs, without keying and think times, and without the texts that no
//! transaction reads. So the figures compare the sides with each other, and with nobody's published results.
//!
//! *Source:* TPC Benchmark C, revision 5.11; Ghandeharizadeh and Nguyen, write-back with cache augmented data stores,
//! section 4.3.

mod check;
mod cli;
mod direct;
mod library;
mod load;
mod measure;
mod random;
mod sql;
mod warm;
mod worker;

pub(crate) use self::cli::TpccArgs;
use crate::Result;
use crate::cases::proxy;
use crate::figure::thousands;
use crate::machine::Machine;
use crate::place;
use crate::report::{Report, Table};
use crate::servers::{POSTGRES_SETTINGS, Postgres, Transport, postgres_version};
use destage_data::domains::DOMAINS_MAX;
use destage_data::settings::DomainSettings;
use destage_data::store::{Options, Store};
use measure::{Measured, measure};
use random::{Input, KINDS};
pub(crate) use sql::Sql;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

pub(crate) use worker::run as run_worker;

/// How large the database is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Warehouses.
    pub(crate) warehouses: i64,
    /// Items; the standard's number is 100,000.
    pub(crate) items: i64,
    /// Customers of a district; the standard's number is 3,000.
    pub(crate) customers: i64,
}

/// What a machine's stall may take without a session being tried again or given up.
const LEASE: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(600);

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Committed,
    /// As its input asks for.
    RolledBack,
}

/// Whoever performs transactions for one client.
pub(crate) trait Target {
    /// # Errors
    /// It was not performed.
    fn perform(&mut self, input: &Input) -> Result<Done>;
}

/// Who performs them.
struct Side {
    name: &'static str,
    /// The store's; `None` for the origin itself.
    policy: Option<&'static [&'static str]>,
    domains: Domains,
}

/// How the origin is divided into ordering domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domains {
    One,
    /// As far as there may be so many.
    OnePerWarehouse,
}

const DIRECTLY: Side = Side { name: "the origin directly", policy: None, domains: Domains::One };
const THROUGH: Side =
    Side { name: "write-through", policy: Some(&["policy=write-through"]), domains: Domains::One };
const DURABLE: Side = Side {
    name: "write-back, d = 0",
    policy: Some(&["policy=write-back", "commit=0"]),
    domains: Domains::One,
};
const LATER: Side = Side {
    name: "write-back, d = 1s",
    policy: Some(&["policy=write-back", "commit=1s"]),
    domains: Domains::One,
};
const DIVIDED: Side = Side {
    name: "write-back, d = 1s, a domain per warehouse",
    domains: Domains::OnePerWarehouse,
    ..LATER
};
const SIDES: [Side; 5] = [DIRECTLY, THROUGH, DURABLE, LATER, DIVIDED];
/// Those before an origin that is 1 ms away each way.
const FAR_SIDES: [Side; 3] = [DIRECTLY, DURABLE, LATER];

/// The tables of a warehouse, and how each calls it. The items are in no domain of a warehouse; nobody writes them.
const WAREHOUSES: [(&str, &str); 8] = [
    ("warehouse", "w_id"),
    ("district", "d_w_id"),
    ("customer", "c_w_id"),
    ("history", "h_w_id"),
    ("new_orders", "no_w_id"),
    ("orders", "o_w_id"),
    ("order_line", "ol_w_id"),
    ("stock", "s_w_id"),
];

/// A database server, or files.
enum Origin {
    Postgres(Postgres),
    Sqlite(PathBuf),
}

impl Origin {
    /// A new database like the first one; its address is returned.
    fn copy(&self, name: &str) -> Result<String> {
        match self {
            Self::Postgres(server) => {
                server.query()?.run(&format!("CREATE DATABASE {name} TEMPLATE tpcc"))?;
                Ok(postgres_url(server.address, name))
            }
            Self::Sqlite(folder) => {
                let file = folder.join(format!("{name}.db"));
                std::fs::copy(folder.join("tpcc.db"), &file)?;
                Ok(format!("sqlite:{}", file.display()))
            }
        }
    }

    /// The first database.
    fn first(&self) -> Result<String> {
        match self {
            Self::Postgres(server) => {
                server.query()?.run("CREATE DATABASE tpcc")?;
                Ok(postgres_url(server.address, "tpcc"))
            }
            Self::Sqlite(folder) => Ok(format!("sqlite:{}", folder.join("tpcc.db").display())),
        }
    }
}

/// Another program may have taken the port that was free a moment ago.
fn start_postgres(dir: &Path) -> Result<Postgres> {
    Postgres::start(dir, Transport::Tcp).or_else(|error| {
        eprintln!("once more, since it failed: {error}");
        Postgres::start(dir, Transport::Tcp)
    })
}

fn postgres_url(address: SocketAddr, name: &str) -> String {
    format!("postgres://bench@{address}/{name}")
}

/// Runs every side, checks the conditions after each, and kills the last one.
///
/// # Errors
/// A side could not be measured, or a condition is broken.
pub(crate) fn run(arguments: &TpccArgs) -> Result<()> {
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let path = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the origin's data and the journals are kept in {}", folder.keep().display());
    }
    let scale = scale(arguments)?;
    let seconds = arguments.seconds.unwrap_or(if arguments.quick { 1.0 } else { 20.0 });
    let time = Duration::try_from_secs_f64(seconds)?;
    let threads =
        arguments.threads.unwrap_or_else(|| usize::try_from(scale.warehouses).unwrap_or(1));
    if threads == 0 || time.is_zero() {
        return Err("--threads and --seconds must be above 0".into());
    }
    let origin = if arguments.sqlite {
        Origin::Sqlite(path.clone())
    } else {
        Origin::Postgres(start_postgres(&path)?)
    };
    let mut report = new_report(arguments, &scale, threads, seconds, &path)?;
    eprintln!("loading {} warehouses", scale.warehouses);
    let first = origin.first()?;
    let mut sql = Sql::open(&first)?;
    load::load(&mut sql, &scale, arguments.seed)?;
    check::check(&mut sql)?;
    drop(sql);
    let run = Run {
        origin: &origin,
        path: &path,
        load: Load { scale, threads, time, seed: arguments.seed },
    };
    let near = run.sides("near", &SIDES, None)?;
    let far = match &origin {
        Origin::Postgres(server) if !arguments.near => {
            let (_proxy, via) = proxy(server.address, "1ms")?;
            run.sides("far", &FAR_SIDES, Some(via))?
        }
        Origin::Postgres(_) | Origin::Sqlite(_) => Vec::new(),
    };
    let kills = if arguments.quick { 2 } else { 5 };
    let url = origin.copy("killed")?;
    let lost = worker::kill_and_check(&url, &path.join("killed"), arguments, &scale, kills)?;
    report.tables = tables(&near, &far, kills, lost);
    report.publish(arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

/// What all sides of a run share.
struct Run<'a> {
    origin: &'a Origin,
    path: &'a Path,
    load: Load,
}

impl Run<'_> {
    /// Measures these sides, each before a database of its own, which it reaches through `via` if that is given. The names of
    /// databases and journals begin with `place`.
    ///
    /// # Errors
    /// A side could not be measured, or a condition is broken when it is drained.
    fn sides(&self, place: &str, sides: &[Side], via: Option<SocketAddr>) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        for (index, side) in sides.iter().enumerate() {
            if side.policy.is_none() && matches!(self.origin, Origin::Sqlite(_)) {
                continue;
            }
            eprintln!("{place}: {}", side.name);
            let database = format!("{place}{index}");
            let url = self.origin.copy(&database)?;
            let way = via.map_or_else(|| url.clone(), |via| postgres_url(via, &database));
            let data = self.path.join(format!("journal-{database}"));
            let measured = match side.policy {
                None => at_origin(&way, &self.load)?,
                Some(policy) => through_store(&way, &url, &data, policy, side.domains, &self.load)?,
            };
            let checked = check::check(&mut Sql::open(&url)?);
            checked.map_err(|error| format!("{place}, {}, drained: {error}", side.name))?;
            found.push((side.name, measured));
        }
        Ok(found)
    }
}

/// A side and what it did.
type Found = (&'static str, Measured);

/// What a side has to do.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    scale: Scale,
    threads: usize,
    time: Duration,
    seed: u64,
}

fn scale(arguments: &TpccArgs) -> Result<Scale> {
    let quick = arguments.quick;
    let scale = Scale {
        warehouses: arguments.warehouses.unwrap_or(if quick { 1 } else { 2 }),
        items: arguments.items.unwrap_or(if quick { 1_000 } else { 100_000 }),
        customers: arguments.customers.unwrap_or(if quick { 100 } else { 3_000 }),
    };
    let fits = (1..=10_000).contains(&scale.warehouses)
        && (20..=100_000).contains(&scale.items)
        && (10..=3_000).contains(&scale.customers);
    if fits {
        Ok(scale)
    } else {
        Err("--warehouses takes 1 to 10000, --items 20 to 100000, --customers 10 to 3000".into())
    }
}

fn at_origin(url: &str, load: &Load) -> Result<Measured> {
    let first = Sql::open(url)?.numbers("SELECT max(h_id) + 1 FROM history")?;
    let history = Arc::new(AtomicI64::new(first[0][0]));
    let target = |_| direct::Direct::new(url, history.clone());
    measure(load, target, || Ok(()))
}

/// Through a store whose origin is at `way`; the cache is warmed by what is read at `url`, which is the same.
fn through_store(
    way: &str,
    url: &str,
    data: &Path,
    policy: &[&str],
    domains: Domains,
    load: &Load,
) -> Result<Measured> {
    let store = open(way, data, policy, domains, &load.scale)?;
    let shared = library::Shared::new(&store, url)?;
    warm::warm(&shared, url)?;
    let measured = measure(load, |_| Ok(&shared), || Ok(store.drain()?))?;
    let parked = store.status()?.destage.parked_groups.unwrap_or(0);
    if parked > 0 {
        return Err(format!("the origin rejected {parked} sessions").into());
    }
    drop(shared);
    store.close()?;
    Ok(measured)
}

/// A store for the benchmark: room for everything, so that only the policy tells the sides apart.
fn open(url: &str, data: &Path, policy: &[&str], domains: Domains, scale: &Scale) -> Result<Store> {
    let room = ["cache-size=4G", "dirty-limit=2G", "journal-size=8G"];
    let mut options = Options::new(url, data).lease(LEASE).retry_timeout(PATIENCE);
    if domains == Domains::OnePerWarehouse {
        let count = u16::try_from(scale.warehouses).unwrap_or(u16::MAX).min(DOMAINS_MAX - 1);
        options = options.domain(DomainSettings::by_columns("warehouse", WAREHOUSES, count));
    }
    let options = policy.iter().chain(&room).fold(options, |options, part| options.policy(*part));
    Ok(options.open()?)
}

fn new_report(
    arguments: &TpccArgs,
    scale: &Scale,
    threads: usize,
    seconds: f64,
    dir: &Path,
) -> Result<Report> {
    let mut machine = Machine::look(dir)?;
    let version = if arguments.sqlite {
        ("SQLite", rusqlite::version().to_owned())
    } else {
        ("PostgreSQL", postgres_version())
    };
    machine.versions.push((version.0.into(), version.1));
    let postgres: Vec<String> =
        POSTGRES_SETTINGS.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let settings = [
        (
            "scale",
            format!(
                "{} warehouses, {} items, {} customers per district",
                scale.warehouses, scale.items, scale.customers
            ),
        ),
        ("clients", format!("{threads}, without keying and think times")),
        ("PostgreSQL's settings", format!("{}; otherwise defaults", postgres.join(", "))),
    ];
    Ok(Report {
        front_end: "tpcc",
        command: place::command_line(),
        seed: arguments.seed,
        seconds,
        pairs: 1,
        machine,
        settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Report::default()
    })
}

fn tables(near: &[Found], far: &[Found], kills: u32, lost: i64) -> Vec<Table> {
    let killed = format!(
        "Conditions 1 to 12 of the standard hold at the origin after the load, after each drain, and, with write-back \
         and d = 0, after each of {kills} kills: at once, and again after the next start has drained. Of the new orders \
         acknowledged before a kill, {lost} were missing."
    );
    let means = "Means, and the time within which 99 % are done; at the end the mean of the whole mix. The paper's are \
                 MySQL's, with one warehouse; it has one write-back, and no `d`.";
    let near_times = times("TPC-C: response times, ms", means, near, true);
    let mut tables = vec![rates("TPC-C: rates", killed, near), near_times];
    if !far.is_empty() {
        let note = "A transaction at the origin itself takes a round trip of 2 ms for most of its statements.";
        tables.push(rates("TPC-C: rates, the origin 1 ms away each way", note.into(), far));
        let title = "TPC-C: response times, ms, the origin 1 ms away each way";
        tables.push(times(title, "", far, false));
    }
    tables
}

fn rates(title: &str, note: String, found: &[Found]) -> Table {
    let against = |measured: &Measured| {
        let first = &found[0].1;
        format!("{:.2}x", measured.tpmc(measured.drained) / first.tpmc(first.drained))
    };
    let rows = vec![
        row("tpmC, to the end of the drain", found, &|measured| {
            thousands(measured.tpmc(measured.drained))
        }),
        row(&format!("the same against {}", found[0].0), found, &against),
        row("tpmC, while the clients run", found, &|measured| {
            thousands(measured.tpmc(measured.ran))
        }),
        row("transactions", found, &|measured| thousands(measured.transactions() as f64)),
    ];
    Table { title: title.into(), note, columns: columns("", found), rows }
}

/// Table 8 of the paper, by transaction: MySQL itself, write-through, write-back. At last the mean of the mix, which for
/// write-through follows from the shares of the transactions.
const PAPER: [[&str; 3]; KINDS.len() + 1] = [
    ["8.06", "10.99", "5.18"],
    ["2.09", "3.29", "1.27"],
    ["1.59", "0.71", "0.71"],
    ["22.36", "24.09", "3.56"],
    ["2.00", "1.35", "1.35"],
    ["5.56", "7.41", "3.10"],
];

/// The paper's figures for the sides.
fn paper(name: &str, found: &[Found], [direct, through, back]: [&str; 3]) -> Vec<String> {
    let cell = |side: &str| match side {
        _ if side == DIRECTLY.name => direct,
        _ if side == THROUGH.name => through,
        _ => back,
    };
    Table::paper(name, found.iter().map(|(side, _)| cell(side)))
}

fn times(title: &str, note: &str, found: &[Found], with_paper: bool) -> Table {
    let mut rows = Vec::new();
    let add_paper = |rows: &mut Vec<Vec<String>>, name: &str, kind: usize| {
        if with_paper {
            rows.push(paper(name, found, PAPER[kind]));
        }
    };
    for (kind, name) in KINDS.iter().enumerate() {
        rows.push(row(name, found, &|measured| measured.mean_ms(kind)));
        rows.push(row(&format!("{name}, p99"), found, &|measured| measured.p99_ms(kind)));
        add_paper(&mut rows, name, kind);
    }
    rows.push(row("all of them", found, &Measured::mix_ms));
    add_paper(&mut rows, "all of them", KINDS.len());
    Table { title: title.into(), note: note.into(), columns: columns("transaction", found), rows }
}

fn columns(first: &str, found: &[Found]) -> Vec<String> {
    std::iter::once(first).chain(found.iter().map(|(name, _)| *name)).map(str::to_owned).collect()
}

fn row(name: &str, found: &[Found], cell: &dyn Fn(&Measured) -> String) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(found.iter().map(|(_, it)| cell(it))).collect()
}
