//! Concurrent sessions of several keys while the gateway, and in some rounds the origin, is killed again and again: whatever
//! the clients were told, one order of all sessions explains it, and what the origin holds at any moment is a state of that
//! order.
//!
//! Clients move money between accounts after looking at both, change one account after looking at two, look at all accounts
//! at once, and write and read single registers. Each change leaves a number of its own in the row, so that what a reader
//! finds tells who wrote it.

mod client;

use crate::harness::rounds::hold;
use crate::harness::{
    Client, Database, Kind, Launch, OwnServer, PATIENCE, Random, Scratch, Server, eventually,
    millis,
};
use client::{Customer, Shared, Told};
use destage_testkit::history::{register, sessions};
use std::collections::BTreeMap;
use std::thread;

/// Accounts, each with this balance at first.
const ACCOUNTS: u64 = 5;
const BALANCE: i64 = 100;
const REGISTERS: u64 = 2;
const TABLES: &str = "
CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL, version BIGINT NOT NULL);
CREATE TABLE registers (id INTEGER PRIMARY KEY, value BIGINT NOT NULL);
";

/// What a round is about.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// The name that a `reproduce:` line gives.
    pub(crate) name: &'static str,
    origin: Origin,
    /// Clients watch what they have looked at.
    watches: bool,
    arguments: &'static [&'static str],
}

/// A round's database.
#[derive(Clone, Copy)]
enum Origin {
    /// One that stays; `None` (after saying so) where that is missing.
    Lasting(fn(&Scratch) -> Option<Database>),
    /// One in a server of its own, which crashes once while each gateway is there.
    Crashing(Kind),
}

/// Before a small file.
pub(crate) const SQLITE: Case = Case {
    name: "sessions-sqlite",
    origin: Origin::Lasting(|scratch| Some(Database::sqlite(scratch))),
    watches: true,
    arguments: &[],
};
/// Before a database server.
pub(crate) const POSTGRES: Case =
    Case { name: "sessions-postgres", origin: Origin::Lasting(|_| Database::postgres()), ..SQLITE };
/// Before another one.
pub(crate) const MARIADB: Case =
    Case { name: "sessions-mariadb", origin: Origin::Lasting(|_| Database::mariadb()), ..SQLITE };
/// Before one that crashes, too.
pub(crate) const POSTGRES_CRASHES: Case =
    Case { name: "sessions-postgres-crashes", origin: Origin::Crashing(Kind::Postgres), ..SQLITE };
/// Before another one that crashes.
pub(crate) const MARIADB_CRASHES: Case =
    Case { name: "sessions-mariadb-crashes", origin: Origin::Crashing(Kind::Mariadb), ..SQLITE };

/// Other ways through the gateway; one is chosen by the seed.
const VARIANTS: [&[&str]; 7] = [
    &[],
    &["--batch", "1"],
    &["--cache-size", "0"],
    &["--cache-size", "0", "--batch", "7"],
    &["--when", "periodic:50ms"],
    &["--policy", "write-through"],
    &["--policy", "write-around"],
];
const KILLS: u64 = 3;
/// What the clients do at least before each kill.
const DONE_MIN: u64 = 15;

/// The accounts as they are somewhere: balances and versions.
type Accounts = BTreeMap<u64, (i64, u64)>;

fn accounts_of(database: &Database) -> Accounts {
    let number = |text: &str| text.parse().expect("a number");
    let rows = database.rows("SELECT id, balance, version FROM accounts");
    rows.iter()
        .map(|row| (number(&row[0]) as u64, (number(&row[1]), number(&row[2]) as u64)))
        .collect()
}

fn versions(accounts: &Accounts) -> BTreeMap<u64, u64> {
    accounts.iter().map(|(&id, &(_, version))| (id, version)).collect()
}

/// Money is moved, never made.
fn check_sum(accounts: &Accounts, place: &str) -> Result<(), String> {
    let sum: i64 = accounts.values().map(|(balance, _)| balance).sum();
    if sum == BALANCE * ACCOUNTS as i64 {
        Ok(())
    } else {
        Err(format!("{place} the accounts sum up to {sum}: {accounts:?}"))
    }
}

/// One seeded round: load, kills, checks. The number of sessions that took effect, or what does not fit; `None` where the
/// database is missing.
pub(crate) fn round(case: &Case, seed: u64) -> Option<Result<i64, String>> {
    let scratch = Scratch::new();
    let (mut own, database) = match case.origin {
        Origin::Lasting(database) => (None, database(&scratch)?),
        Origin::Crashing(kind) => {
            let server = OwnServer::start(kind)?;
            let database = server.database();
            (Some(server), database)
        }
    };
    let ids = |count: u64, row: &str| {
        let rows: Vec<_> = (0..count).map(|id| format!("({id}, {row})")).collect();
        rows.join(", ")
    };
    let database = database.with(&format!(
        "{TABLES} INSERT INTO accounts VALUES {}; INSERT INTO registers VALUES {};",
        ids(ACCOUNTS, &format!("{BALANCE}, 0")),
        ids(REGISTERS, "0"),
    ));
    let mut random = Random::new(seed, 0);
    let variant = *random.pick(&VARIANTS);
    let launch = Launch::before(&scratch, &database.url()).with(variant).with(case.arguments);
    Some(
        load(case, &launch, &database, own.as_mut(), &mut random, seed)
            .map_err(|what| format!("{}, seed {seed}, {variant:?}: {what}", case.name)),
    )
}

fn load(
    case: &Case,
    launch: &Launch,
    database: &Database,
    mut own: Option<&mut OwnServer>,
    random: &mut Random,
    seed: u64,
) -> Result<i64, String> {
    let shared = Shared::new(case.watches, own.is_some());
    let count = random.between(2, 7);
    let mut seen_at_origin = Vec::new();
    let (told, last) = thread::scope(|scope| {
        let customers: Vec<_> = (0..count)
            .map(|number| {
                let random = Random::new(seed, number + 1);
                let customer = Customer::new(number, random, &shared);
                scope.spawn(|| customer.run())
            })
            .collect();
        for _ in 0..KILLS {
            let server = launch.start();
            let done = shared.done();
            shared.open(server.listen);
            thread::sleep(millis(random.between(20, 250)));
            // On a slow machine it takes longer.
            let enough = || shared.done() >= done + DONE_MIN || shared.is_refused();
            eventually("the clients get something done", PATIENCE, enough);
            crash(server, own.as_deref_mut(), &shared, random);
            seen_at_origin.push(accounts_of(database));
        }
        shared.end();
        let server = launch.start();
        let last = read_all(&mut server.client());
        server.drain();
        let told: Vec<Told> =
            customers.into_iter().map(|c| c.join().expect("a client panicked")).collect();
        (told, last)
    });
    let (accounts, registers) = last;
    check_sum(&accounts, "at the first read")?;
    let drained = accounts_of(database);
    if drained != accounts {
        return Err(format!("drained: {drained:?}\nfirst read: {accounts:?}"));
    }
    judge(told, &accounts, &registers, &seen_at_origin)
}

/// Kills the gateway; an origin that may crash does before, and comes back behind that, or with time to go on.
fn crash(server: Server, origin: Option<&mut OwnServer>, shared: &Shared, random: &mut Random) {
    let kill = |server: Server| {
        shared.close();
        server.kill();
    };
    let Some(origin) = origin else { return kill(server) };
    origin.stop();
    thread::sleep(millis(random.between(0, 250)));
    if random.between(0, 2) == 0 {
        kill(server);
        origin.restart();
    } else {
        origin.restart();
        thread::sleep(millis(random.between(0, 250)));
        kill(server);
    }
}

fn read_all(client: &mut Client) -> (Accounts, BTreeMap<u64, u64>) {
    let mut number = |command: &str| client.run(command).int();
    let accounts = (0..ACCOUNTS).map(|id| {
        let balance = number(&format!("HGET accounts:{id} balance"));
        (id, (balance, number(&format!("HGET accounts:{id} version")).cast_unsigned()))
    });
    let accounts = accounts.collect();
    let registers = (0..REGISTERS)
        .map(|id| (id, number(&format!("HGET registers:{id} value")).cast_unsigned()));
    (accounts, registers.collect())
}

/// Whether one order explains everything; the number of sessions.
fn judge(
    told: Vec<Told>,
    accounts: &Accounts,
    registers: &BTreeMap<u64, u64>,
    seen_at_origin: &[Accounts],
) -> Result<i64, String> {
    let mut all = Vec::new();
    let mut operations = vec![Vec::new(); REGISTERS as usize];
    for one in told {
        if let Some(refusal) = one.refusal {
            return Err(format!("a client was refused: {refusal}"));
        }
        all.extend(one.sessions);
        for (register, operation) in one.operations {
            operations[register as usize].push(operation);
        }
    }
    // The last reads come after everything.
    let (begun, ended) = (u64::MAX - 1, Some(u64::MAX));
    for (operations, &value) in operations.iter_mut().zip(registers.values()) {
        operations.push(register::Operation { begun, ended, is_write: false, value });
        register::check(operations)?;
    }
    // What the origin held is a state that existed at some time, whenever that was.
    for state in seen_at_origin {
        check_sum(state, "at the origin after a kill")?;
        let (begun, ended, writes) = (0, Some(u64::MAX), BTreeMap::new());
        all.push(sessions::Session { begun, ended, reads: versions(state), writes });
    }
    let summary = sessions::check(&all, &versions(accounts))?;
    Ok((summary.sessions - seen_at_origin.len()) as i64)
}

#[track_caller]
fn holds(case: &Case, seeds: u64) {
    if let Some(sessions) = hold(case.name, seeds, |seed| round(case, seed)) {
        assert!(sessions > seeds.cast_signed() * 10, "{sessions} sessions prove little");
    }
}

#[test]
fn sessions_are_serial_and_whole_through_kill_9_before_sqlite() {
    holds(&SQLITE, 20);
}

#[test]
fn sessions_are_serial_and_whole_through_kill_9_before_postgres() {
    holds(&POSTGRES, 8);
}

#[test]
fn sessions_are_serial_and_whole_through_kill_9_before_mariadb() {
    holds(&MARIADB, 6);
}

#[test]
fn sessions_are_serial_and_whole_through_crashes_of_postgres_too() {
    holds(&POSTGRES_CRASHES, 8);
}

#[test]
fn sessions_are_serial_and_whole_through_crashes_of_mariadb_too() {
    holds(&MARIADB_CRASHES, 6);
}

/// The first failure within 50 seeds; `None` (after saying so) where the database is missing.
#[track_caller]
fn caught(case: &Case) -> Option<String> {
    for seed in 0..50 {
        if let Err(what) = round(case, seed)? {
            return Some(what);
        }
    }
    panic!("{}: 50 seeds passed: the tests prove nothing", case.name)
}

/// What is noticed is that sessions build on what is no more.
#[track_caller]
fn caught_out_of_order(case: &Case) {
    let Some(what) = caught(case) else { return };
    assert!(["lost update", "no order", "sum up"].iter().any(|word| what.contains(word)), "{what}");
}

#[test]
fn clients_that_do_not_watch_what_they_look_at_are_noticed() {
    caught_out_of_order(&Case { name: "unwatched", watches: false, ..SQLITE });
}

#[test]
fn clients_that_do_not_watch_are_noticed_through_crashes_of_the_origin_too() {
    let name = "unwatched-crashes";
    caught_out_of_order(&Case { name, watches: false, ..POSTGRES_CRASHES });
    caught_out_of_order(&Case { name, watches: false, ..MARIADB_CRASHES });
}

#[test]
fn leases_that_stop_nobody_are_noticed() {
    let arguments = &["--unsafe-no-leases"];
    caught_out_of_order(&Case { name: "unleased", arguments, ..SQLITE });
}

#[test]
fn sessions_that_are_journaled_command_by_command_are_noticed() {
    caught(&Case { name: "split", arguments: &["--unsafe-split-sessions"], ..SQLITE });
}

/// Waits for a server that is there, for as long as it takes; `None` once there will be none.
fn connect(shared: &Shared) -> Option<Client> {
    let deadline = std::time::Instant::now() + PATIENCE * 2;
    while std::time::Instant::now() < deadline {
        let client = shared.server()?.and_then(|address| Client::try_connect(address).ok());
        if client.is_some() {
            return client;
        }
        thread::sleep(millis(2));
    }
    panic!("no server within {:?}", PATIENCE * 2)
}
