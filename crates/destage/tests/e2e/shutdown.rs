//! Signals end the server in order: everything is at the origin, or it says what is not.

use crate::harness::{
    Client, Database, Kind, Launch, OwnServer, PATIENCE, Scratch, eventually, shop,
};
use crate::load::{self, Load, Mix, Observed};
use rustix::process::Signal;

/// Writes `count` rows that the server keeps to itself.
fn write_rows(client: &mut Client, count: i64) {
    let commands: Vec<_> =
        (0..count).map(|n| format!("HSET customers:{} name c{n}", 5_000 + n)).collect();
    for reply in client.pipeline(&commands) {
        assert_eq!(reply.int(), 1);
    }
}

fn rows_arrived(database: &Database) -> i64 {
    database.number("SELECT count(*) FROM customers WHERE id >= 5000")
}

/// Destages nothing by itself.
const HELD_BACK: [&str; 4] = ["--when", "pressure", "--staleness", "1h"];

#[test]
fn sigterm_and_sigint_drain_and_exit_0() {
    let scratch = Scratch::new();
    for (number, signal) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        let databases = shop::each(&scratch.folder(&format!("{number}")));
        for (which, database) in databases.into_iter().enumerate() {
            let launch = Launch::before(&scratch, &database.url()).with(&HELD_BACK);
            let launch = launch.elsewhere(&scratch, &format!("data-{number}-{which}"));
            let server = launch.start();
            write_rows(&mut server.client(), 500);
            assert_eq!(rows_arrived(&database), 0, "not held back");
            server.end(signal, PATIENCE).says(0, &[]);
            assert_eq!(rows_arrived(&database), 500);
        }
    }
}

#[test]
fn clients_under_way_are_answered_or_cut_off_but_never_half_served_at_shutdown() {
    let scratch = Scratch::new();
    let database = load::tables(Database::sqlite(&scratch));
    let patient = ["--drain-timeout", "1m"];
    let server = Launch::before(&scratch, &database.url()).with(&patient).start();
    let load = Load::start(server.listen, 11, 4, 4, Mix::Full);
    eventually("the load runs", PATIENCE, || load.acks() > 200);
    server.terminate(PATIENCE).says(0, &[]);
    let histories = load.finish();
    let held = Observed::by_database(&database);
    let nothing_lost = crate::crash::observed::Allowed::Nothing;
    held.check(&histories, nothing_lost).expect("acknowledged writes are at the origin");
}

#[test]
fn without_the_origin_shutdown_exits_12_says_what_remains_and_the_next_start_takes_it_up() {
    for kind in [Kind::Postgres, Kind::Mariadb] {
        let Some(mut origin) = OwnServer::start(kind) else { return };
        let scratch = Scratch::new();
        let database = shop::filled(origin.database());
        let launch = Launch::before(&scratch, &database.url()).with(&HELD_BACK);
        let launch = launch.with(&["--drain-timeout", "1s"]);
        let server = launch.start();
        write_rows(&mut server.client(), 300);
        origin.stop();
        server.terminate(PATIENCE).says(12, &["300"]);
        origin.restart();
        assert_eq!(rows_arrived(&database), 0);
        let server = launch.start();
        assert_eq!(server.client().run("HGET customers:5299 name").text(), "c299");
        server.drain();
        assert_eq!(rows_arrived(&database), 300);
    }
}

#[test]
fn the_admin_port_and_the_command_drain_on_request() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url()).with(&HELD_BACK).start();
    write_rows(&mut server.client(), 100);
    assert_eq!(rows_arrived(&database), 0, "not held back");
    server.drain();
    assert_eq!(rows_arrived(&database), 100);
}
