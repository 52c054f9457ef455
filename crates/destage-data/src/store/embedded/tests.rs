//! What a program meets when the engine closes a conversation, has no place for one, or fails.

use super::Embedded;
use crate::schema::Schema;
use crate::store::{
    CacheManager, CacheSession, Error, ErrorKind, Key, LEASE_MAX, Options, Row, Store,
};
use destage_engine::Drive;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// One account with a balance of 100, and a table of names; its folder is removed at the end.
fn bank() -> (TempDir, Options) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bank.db");
    let script =
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, note TEXT);
                  INSERT INTO accounts VALUES (1, 100, NULL);
                  CREATE TABLE names (name TEXT PRIMARY KEY);";
    rusqlite::Connection::open(&file).unwrap().execute_batch(script).unwrap();
    let options = Options::new(format!("sqlite:{}", file.display()), folder.path().join("data"));
    (folder, options.lease(LEASE_MAX))
}

fn pay<M: CacheManager>(store: &Store<M>) -> Result<(), Error> {
    store.session(|s| s.inc(("accounts", 1), "balance", 1))
}

#[test]
fn a_request_that_ends_its_conversation_says_why_and_ends_no_later_session() {
    let (_folder, options) = bank();
    let store = options.with(|settings| settings.request_bytes_max = 4_096).open().unwrap();
    let long = "x".repeat(5_000);
    for _ in 0..2 {
        let written = store.session(|s| s.set(("accounts", 1), [("note", long.as_str().into())]));
        let read = store.session(|s| s.read(format!("names:{long}")).map(drop));
        let looked = store.read(format!("names:{long}")).map(drop);
        // Whoever does not look at the first error is told the same at the next request, and at the end.
        let read_on = store.session(|s| {
            let _ = s.read(format!("names:{long}"));
            s.row(("accounts", 1)).map(drop)
        });
        let gone_on = store.session(|s| {
            let _ = s.read(format!("names:{long}"));
            s.inc(("accounts", 1), "balance", 1)
        });
        for refused in [written, read, looked, read_on, gone_on] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("more than 4096 bytes"), "{error}");
            pay(&store).unwrap();
        }
    }
    let balance: i64 = store.read(("accounts", 1)).unwrap().unwrap().get("balance").unwrap();
    assert_eq!(balance, 110);
    store.close().unwrap();
}

#[test]
fn a_burst_of_sessions_leaves_places_for_redis_clients() {
    /// So many sessions, one inside the other.
    fn burst(store: &Store, count: u32) -> Result<(), Error> {
        store.session(|s| {
            s.row(("accounts", 1))?;
            if count > 1 { burst(store, count - 1) } else { Ok(()) }
        })
    }
    let (_folder, options) = bank();
    let store = options.sessions_max(8).listen(([127, 0, 0, 1], 0).into(), None).open().unwrap();
    burst(&store, 8).unwrap();
    // Asked behind what has told the engine of their ends.
    store.status().unwrap();
    let connect = |_| {
        let mut client = TcpStream::connect(store.address().unwrap()).unwrap();
        client.write_all(b"PING\r\n").unwrap();
        let mut reply = [0; 7];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(reply, *b"+PONG\r\n");
        client
    };
    let clients: Vec<TcpStream> = (0..6).map(connect).collect();
    pay(&store).unwrap();
    drop(clients);
    store.close().unwrap();
}

#[test]
fn of_a_session_under_way_as_the_engine_fails_nothing_is_known_and_later_ones_are_not_done() {
    let (_folder, options) = bank();
    let store = options.policy("policy=write-through").open().unwrap();
    let server = &store.manager.server;
    store.pause().unwrap();
    thread::scope(|scope| {
        let session = scope.spawn(|| pay(&store));
        while server.run(|engine| engine.undecided()).unwrap() == 0 {
            thread::yield_now();
        }
        assert!(server.run::<()>(|_| panic!("as a defect would")).is_err());
        let error = session.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    });
    for failed in [pay(&store), store.read(("accounts", 1)).map(drop)] {
        let error = failed.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    let error = store.close().unwrap_err();
    assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Closed, "its thread panicked"));
}

/// A manager that has no place for the first sessions.
struct Crowded {
    manager: Embedded,
    refuses: AtomicU32,
}

impl CacheManager for Crowded {
    fn schema(&self) -> &Arc<Schema> {
        self.manager.schema()
    }

    fn begin(&self, lifetime: Duration) -> Result<Box<dyn CacheSession + '_>, Error> {
        let fewer = |left: u32| left.checked_sub(1);
        match self.refuses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer) {
            Ok(_) => Err(Error::new(ErrorKind::Busy, "too many sessions")),
            Err(_) => self.manager.begin(lifetime),
        }
    }

    fn look(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, Error> {
        self.manager.look(keys)
    }
}

#[test]
fn a_session_for_which_there_is_no_place_is_tried_again_for_as_long_as_it_is_told() {
    let (_folder, options) = bank();
    let manager = options.open().unwrap().manager;
    let crowded = Crowded { manager, refuses: AtomicU32::new(2) };
    let store = Store::over(crowded, LEASE_MAX, Duration::MAX);
    pay(&store).unwrap();
    let crowded = Crowded { manager: store.manager.manager, refuses: AtomicU32::new(1) };
    let store = Store::over(crowded, LEASE_MAX, Duration::ZERO);
    assert_eq!(pay(&store).unwrap_err().kind(), ErrorKind::Busy);
    pay(&store).unwrap();
}
