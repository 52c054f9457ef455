//! Users whose rights change while they wait, and the times that they leave behind.

use super::claims::Script;
use super::derived::queries;
use crate::users::Users;
use destage_core::{ClientId, Span};
use std::sync::Arc;

const HASH: &str =
    "$pbkdf2-sha256$i=600000$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// The users of a file, with `HASH` for the hash of a password.
pub(super) fn users(text: &str) -> Arc<Users> {
    Arc::new(Users::parse(&text.replace("HASH", HASH), false).unwrap())
}

/// An engine with these users, and derived keys whose answers take 10 s at most.
fn script(text: &str) -> Script {
    let mut script = Script::over(
        |_| {},
        |mut engine| {
            engine.derive(queries(Span::from_secs(10)));
            engine
        },
    );
    script.engine.set_users(script.now, users(text), [7; 32]);
    script
}

/// One more connection, of this user.
fn log_in(script: &mut Script, name: &str) -> ClientId {
    script.client = script.engine.connect().unwrap();
    script.engine.let_in(script.client, name);
    script.client
}

fn pass(script: &mut Script, ms: u64) {
    script.now = script.now + Span::from_millis(ms);
    script.turn();
}

#[test]
fn whoever_is_turned_away_leaves_no_time_behind_for_the_next_one_with_its_number() {
    let both = "user ada on admin HASH\nuser bob on read ~* HASH";
    let mut script = script(both);
    log_in(&mut script, "bob");
    script.send("PING");
    let gone =
        ["WAITAOF 1 0 5000", "DESTAGE DRAIN 5000", "DESTAGE FLUSH 5000", "GET all"].map(|wait| {
            let client = log_in(&mut script, "ada");
            script.send("HGET item:0 n");
            script.fetch(0);
            script.send("HINCRBY item:0 n 1");
            script.send(wait);
            client
        });
    assert!(!script.engine.sessions.is_free_of_deadlines(), "they wait");
    assert_eq!(
        script.engine.set_users(script.now, users("user bob on read ~* HASH"), [7; 32]),
        gone.len()
    );
    assert!(script.engine.sessions.is_free_of_deadlines());
    script.turn();
    script.sync();
    gone.iter().for_each(|&client| script.engine.disconnect(script.now, client));
    // Their numbers are given away again, and what waits then is no concern of theirs.
    let next = gone.map(|_| {
        let client = log_in(&mut script, "bob");
        script.send("HGET item:1 n");
        client
    });
    assert!(gone.iter().any(|client| next.contains(client)), "{gone:?} {next:?}");
    pass(&mut script, 6_000);
    script.fetch(0);
    for client in next {
        script.client = client;
        assert_eq!(script.received().0, "$1\r\n0\r\n");
    }
}

#[test]
fn who_may_only_read_leaves_no_tokens_behind() {
    let mut script = script("user bob on read ~* HASH\nuser eve on write ~* HASH");
    for name in ["bob", "eve"] {
        log_in(&mut script, name);
        script.send("HGET item:0 n");
        script.fetch(0);
        script.received();
        script.send("MULTI\nHGET item:0 n\nDESTAGE ONCE t EXEC");
        let has_written = script.engine.journal().buffered_bytes() > 0;
        assert_eq!(has_written, name == "eve", "{name}");
        let told = script.received().0;
        assert_eq!(
            told.contains("-NOPERM User bob has no permissions to run the 'destage|once'"),
            name == "bob",
            "{told}"
        );
    }
}

#[test]
fn a_scan_with_an_endless_pattern_is_refused() {
    let mut script = script("user ada on admin HASH");
    log_in(&mut script, "ada");
    for pattern in ["*".repeat(4_097), format!("item:{}", "a*".repeat(3_000))] {
        script.send(&format!("SCAN 0 MATCH {pattern}"));
        let told = script.received().0;
        assert!(told.starts_with("-ERR the pattern behind MATCH has "), "{told}");
    }
    script.send(&format!("SCAN 0 MATCH {}", "*".repeat(4_096)));
    assert_eq!(script.received().0, "", "it is looked for");
}

#[test]
fn a_time_that_was_left_behind_ends_nothing() {
    for wait in ["HGET item:1 n", "DESTAGE DRAIN 5000", "DESTAGE DRAIN", "GET all"] {
        let mut script = script("user ada on admin HASH");
        let client = log_in(&mut script, "ada");
        script.send("HGET item:0 n");
        script.fetch(0);
        script.send("HINCRBY item:0 n 1");
        script.sync();
        script.received();
        script.send(wait);
        script.engine.sessions.set_deadline(client, script.now + Span::from_millis(1));
        pass(&mut script, 2);
        assert_eq!(script.received().0, "", "{wait}");
        let session = script.engine.sessions.get(client).unwrap();
        assert!(session.waiting.is_some(), "{wait}");
        if wait == "DESTAGE DRAIN 5000" || wait == "GET all" {
            pass(&mut script, 10_000);
            assert!(script.received().0.starts_with("-TIMEOUT "), "its own time counts: {wait}");
        }
    }
}
