//! Rows that a session takes for absent: nobody else does, and nobody does once it has ended.

use super::claims::Script;
use destage_core::{AtLimit, ClientId, Span};
use destage_engine::Drive;
use destage_testkit::origin::Op;

/// A session under leases, and another client.
struct World {
    script: Script,
    session: ClientId,
    other: ClientId,
}

impl World {
    fn new() -> Self {
        let mut script = Script::new();
        let (session, other) = (script.client, script.engine.connect().unwrap());
        Self { script, session, other }
    }

    fn told(&mut self, commands: &str) -> String {
        self.script.client = self.session;
        self.script.told(commands).replace("\r\n", " ").trim_end().to_owned()
    }

    fn other_told(&mut self, commands: &str) -> String {
        self.script.client = self.other;
        self.script.told(commands).replace("\r\n", " ").trim_end().to_owned()
    }

    /// The session says that a row is absent, and finds it so without the origin.
    fn assume(&mut self, key: &str) {
        self.script.client = self.session;
        let commands = format!("DESTAGE BEGIN 1000\nDESTAGE ABSENT {key}\nHGET {key} n");
        assert_eq!(self.script.without_origin(&commands), "+OK +OK $-1");
    }

    fn pass(&mut self, ms: u64) {
        self.script.now = self.script.now + Span::from_millis(ms);
        self.script.turn();
        self.script.settle();
    }
}

#[test]
fn a_row_that_a_session_takes_for_absent_is_there_for_all_others() {
    // While it goes on, and however it ends.
    for end in ["", "DISCARD", "EXEC", "HSET item:4 n many", "disconnect", "expiry"] {
        let mut world = World::new();
        world.assume("item:4");
        match end {
            "disconnect" => world.script.engine.disconnect(world.script.now, world.session),
            "expiry" => world.pass(1_000),
            _ => drop(world.told(end)),
        }
        // What writes it knows of it, too.
        assert_eq!(world.other_told("HSET item:4 tag v1"), ":0", "{end}");
        assert_eq!(world.script.group(1)[0].op, Op::Update, "{end}");
        assert_eq!(world.other_told("HGET item:4 n\nEXISTS item:4"), "$1 5 :1", "{end}");
        if end.is_empty() {
            assert!(world.told("HGET item:4 n").starts_with("-RETRY"), "it was changed");
            world.told("EXEC");
        }
        if end != "disconnect" {
            world.told("DISCARD");
            assert_eq!(world.told("HGET item:4 n"), "$1 5", "{end}");
        }
        assert!(world.script.engine.watchers.is_all_gone(), "{end}");
    }
}

#[test]
fn a_session_of_which_a_row_is_there_after_all_reads_what_others_have_read() {
    let mut world = World::new();
    world.assume("item:4");
    assert_eq!(world.other_told("HGET item:4 n"), "$1 5");
    assert_eq!(world.told("HGET item:4 n\nHSET item:4 tag v1"), "$1 5 :0");
    assert!(world.told("EXEC").starts_with("-EXISTS item:4 is there"));
    assert_eq!(world.other_told("HGET item:4 tag"), "$2 v0");
}

#[test]
fn a_session_that_says_of_a_row_that_it_is_absent_does_nothing_if_it_changes_one_that_is_there() {
    for since in ["cached", "said", "read", "made"] {
        for is_deferred in [true, false] {
            let mut world = World::new();
            let key = if since == "made" { "item:9" } else { "item:4" };
            match since {
                "cached" => assert_eq!(world.other_told("HGET item:4 n"), "$1 5"),
                // By a session whose word keeps the origin from being asked for it alone.
                "said" => {
                    let told = world.other_told("DESTAGE BEGIN 60000\nDESTAGE ABSENT item:4");
                    assert_eq!(told, "+OK +OK");
                }
                _ => {}
            }
            world.told(&format!("DESTAGE BEGIN 60000\nDESTAGE ABSENT {key}"));
            if is_deferred {
                assert_eq!(world.told("MULTI"), "+OK");
            }
            match since {
                "read" => assert_eq!(world.other_told("HGET item:4 n"), "$1 5"),
                "made" => assert_eq!(world.other_told("HSET item:9 n 5"), ":1"),
                _ => {}
            }
            let told = world.told(&format!("HSET {key} n 7\nHSET item:8 n 7\nEXEC"));
            assert!(told.contains(&format!(" -EXISTS {key} is there")), "{since}: {told}");
            if since == "said" {
                assert_eq!(world.other_told("DISCARD"), "+OK");
            }
            let seen = world.other_told(&format!("HGET {key} n\nEXISTS item:8"));
            assert_eq!(seen, "$1 5 :0", "{since}");
            assert!(world.script.engine.watchers.is_all_gone(), "{since}");
            // It changes others, and looks at that one.
            let told = world.told(&format!(
                "DESTAGE BEGIN\nDESTAGE ABSENT {key}\nMULTI\nHGET {key} n\nHSET item:8 n 7\nEXEC"
            ));
            assert!(told.ends_with("*2 $1 5 :1"), "{since}: {told}");
        }
    }
}

#[test]
fn a_row_that_was_made_or_told_of_since_is_not_taken_for_absent() {
    for since in ["HSET item:9 n 1", "DESTAGE INVALIDATE item:9", "DESTAGE INVALIDATE item:*"] {
        let mut world = World::new();
        assert_eq!(world.told("DESTAGE BEGIN 60000\nDESTAGE ABSENT item:9"), "+OK +OK");
        world.other_told(since);
        if since.starts_with("HSET") {
            world.script.destage();
        }
        world.other_told("DESTAGE INVALIDATE item:9");
        for client in [world.other, world.session] {
            world.script.client = client;
            world.script.send("HGET item:9 n");
            assert!(world.script.engine.has_fetches(), "{since}");
            world.other_told("DESTAGE INVALIDATE item:9");
            world.told("");
        }
    }
}

#[test]
fn a_session_makes_a_row_that_it_takes_for_absent_without_the_origin() {
    for is_deferred in [true, false] {
        let mut world = World::new();
        world.script.client = world.session;
        let begin = if is_deferred { "MULTI" } else { "PING" };
        let commands =
            format!("DESTAGE BEGIN\nDESTAGE ABSENT item:9\n{begin}\nHSET item:9 n 1\nEXEC");
        let told = world.script.without_origin(&commands);
        assert!(told.ends_with("*1 :1"), "{told}");
        assert_eq!(world.script.group(1)[0].op, Op::Insert);
        world.script.client = world.other;
        assert_eq!(world.script.without_origin("HGET item:9 n"), "$1 1");
        assert!(world.script.engine.watchers.is_all_gone());
    }
}

#[test]
fn a_row_for_which_others_wait_is_looked_for() {
    let mut world = World::new();
    let mut policy = world.script.engine.policy().clone();
    let room = policy.limits.dirty_bytes_max;
    policy.at_limit = AtLimit::Block;
    (policy.limits.dirty_bytes_max, policy.limits.dirty_bytes_low) = (65_536, 50_000);
    world.script.engine.set_policy(world.script.now, &policy).unwrap();
    let note = "n".repeat(10_000);
    for _ in 0..5 {
        assert_eq!(world.other_told(&format!("HSET item:0 note {note}")), ":0");
    }
    // It waits for room, and has not asked for the row.
    assert_eq!(world.other_told(&format!("HSET item:4 note {note}{note}")), "");
    world.script.client = world.session;
    world.script.send("DESTAGE BEGIN\nDESTAGE ABSENT item:4\nHGET item:4 n");
    assert!(world.script.engine.has_fetches());
    assert_eq!(world.told(""), "+OK +OK $1 5");
    policy.limits.dirty_bytes_max = room;
    world.script.engine.set_policy(world.script.now, &policy).unwrap();
    assert_eq!(world.other_told(""), ":0");
}

#[test]
fn a_session_whose_time_is_up_says_nothing_of_rows_and_none_says_too_much() {
    let mut world = World::new();
    assert_eq!(world.told("DESTAGE BEGIN 10"), "+OK");
    world.pass(10);
    assert!(world.told("DESTAGE ABSENT item:4").starts_with("-RETRY"));
    assert_eq!(world.told("EXEC"), "*-1");
    assert_eq!(world.told("DESTAGE BEGIN 60000"), "+OK");
    let named =
        |range: std::ops::Range<u32>| range.map(|id| format!(" item:{id}")).collect::<String>();
    for from in (0..100_000).step_by(10_000) {
        assert_eq!(world.told(&format!("DESTAGE ABSENT{}", named(from..from + 10_000))), "+OK");
    }
    let told = world.told("DESTAGE ABSENT item:100000");
    assert!(told.starts_with("-ERR a session says of at most 100000 rows"), "{told}");
    assert!(world.told("EXEC").starts_with("-EXECABORT"));
    assert!(world.script.engine.watchers.is_all_gone());
}
