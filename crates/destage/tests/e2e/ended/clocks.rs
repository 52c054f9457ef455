//! Clocks that differ.

use super::{SESSIONS, SETTINGS, count, insert, with};
use crate::harness::{Database, PATIENCE, Reply, Scratch, eventually};
use crate::mapped;

/// The clock that Destage asks PostgreSQL for, so many seconds behind the true one.
fn set_back(database: &Database, seconds: u32) {
    database.execute(&format!(
        "CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
         $$ SELECT pg_catalog.clock_timestamp() - interval '{seconds} seconds' $$"
    ));
}

#[test]
fn what_has_ended_by_this_clock_alone_is_not_seen_but_stays_at_the_origin_and_is_told_of() {
    let Some(database) = Database::postgres() else { return };
    let (scratch, database) = (Scratch::new(), with(database, SESSIONS));
    database.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$",
    );
    set_back(&database, 3_600);
    insert(&database, &["here".into()], -600);
    insert(&database, &["both".into()], -7_200);
    let server = mapped::launch(&scratch, &database, "data", SETTINGS).start();
    let log = server.log();
    assert!(log.contains("differ by so much") && log.contains("ahead_ms"), "{log}");
    let mut client = server.client();
    assert_eq!(client.run("HGET sessions:here data"), Reply::Nil);
    eventually("what has ended by both is deleted", PATIENCE, || {
        count(&database, "id = 'both'") == 0
    });
    assert_eq!(count(&database, "id = 'here'"), 1);
    let ahead = server.status()["ended"]["clock_ahead_seconds"].as_f64().expect("a number");
    assert!((3_500.0..3_700.0).contains(&ahead), "{ahead}");

    set_back(&database, 0);
    eventually("the other one goes", PATIENCE, || count(&database, "id = 'here'") == 0);
    let ahead = server.status()["ended"]["clock_ahead_seconds"].as_f64().expect("a number");
    assert!(ahead.abs() < 60.0, "{ahead}");
}
