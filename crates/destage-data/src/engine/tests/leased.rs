//! Sessions under leases, and reads that wait for the origin's word on a write.

use super::claims::Script;
use destage_core::{ClientId, Span};
use destage_engine::Drive;

/// Two sessions under leases, and one without.
struct Leased {
    script: Script,
    clients: [ClientId; 3],
}

impl Leased {
    fn new() -> Self {
        let mut script = Script::new();
        script.told("HGET item:0 n\nHGET item:1 n\nHGET item:2 n");
        let clients =
            [script.client, script.engine.connect().unwrap(), script.engine.connect().unwrap()];
        Self { script, clients }
    }

    /// What that client is told.
    fn told(&mut self, client: usize, commands: &str) -> String {
        self.script.client = self.clients[client];
        self.script.told(commands).replace("\r\n", " ").trim_end().to_owned()
    }

    fn pass(&mut self, ms: u64) {
        self.script.now = self.script.now + Span::from_millis(ms);
        self.script.turn();
        self.script.settle();
    }
}

#[test]
fn a_leased_session_sees_its_writes_and_nobody_else_does_before_exec() {
    let mut world = Leased::new();
    assert_eq!(world.told(0, "DESTAGE BEGIN"), "+OK");
    assert_eq!(world.told(0, "HINCRBY item:0 n 5\nHINCRBY item:0 n 5"), ":15 :20");
    assert_eq!(world.told(0, "HGET item:0 n\nHSET item:99 tag v1\nEXISTS item:99"), "$2 20 :1 :1");
    assert_eq!(world.told(2, "HGET item:0 n\nEXISTS item:99"), "$2 10 :0");
    assert_eq!(world.told(0, "EXEC"), "*3 :15 :20 :1", "for its writes");
    assert_eq!(world.told(2, "HGET item:0 n\nEXISTS item:99"), "$2 20 :1");
    assert_eq!(world.script.group(1).len(), 2, "one group, one change of each row");
    assert_eq!(world.told(0, "DESTAGE BEGIN\nHINCRBY item:0 n 1\nDISCARD"), "+OK :21 +OK");
    assert_eq!(world.told(0, "HGET item:0 n"), "$2 20");
    assert!(world.script.engine.watchers.is_empty());
}

#[test]
fn what_writes_under_leases_come_to_is_kept_until_a_row_is_dropped() {
    let mut world = Leased::new();
    let is_kept = |world: &mut Leased| {
        let client = world.clients[0];
        let session = world.script.engine.sessions.get_mut(client).unwrap();
        session.multi.as_ref().unwrap().ahead.is_some()
    };
    assert_eq!(world.told(0, "DESTAGE BEGIN 60000\nHINCRBY item:0 n 5"), "+OK :15");
    assert!(is_kept(&mut world));
    let mut evicting = world.script.engine.policy().clone();
    let policy = evicting.clone();
    evicting.limits.cache_bytes_max = 0;
    for n in 0..4 {
        // All rows lose their numbers; others get them.
        world.script.engine.set_policy(world.script.now, &evicting).unwrap();
        world.pass(0);
        world.script.engine.set_policy(world.script.now, &policy).unwrap();
        assert_eq!(world.told(2, "HGET item:2 n\nHGET item:1 n"), "$1 5 $1 0");
        let seen = 15 + 2 * n;
        assert_eq!(world.told(0, "HGET item:1 n\nHGET item:0 n"), format!("$1 0 $2 {seen}"));
        let after = format!(":{} :{}", seen + 1, seen + 2);
        assert_eq!(world.told(0, "HINCRBY item:0 n 1\nHINCRBY item:0 n 1"), after);
        assert!(is_kept(&mut world));
    }
    // What is refused leaves nothing.
    assert!(world.told(0, "HINCRBY item:0 n 9223372036854775807").starts_with('-'));
    assert!(!is_kept(&mut world));
    assert!(world.told(0, "EXEC").starts_with("-EXECABORT"));
    assert_eq!(world.told(0, "DESTAGE BEGIN\nHINCRBY item:0 n 5\nEXEC"), "+OK :15 *1 :15");
}

#[test]
fn a_refused_command_aborts_a_leased_session() {
    for refused in [
        "HSET item:0 n many",
        "HSET item:1 nothing 1",
        "HSET nothing:1 n 1",
        "HGET item:0",
        "NOTHING",
        "GET item:0",
        "SCAN 0",
        "DESTAGE EXCLUDE nothing:1",
        "DESTAGE ABSENT",
        "HINCRBY item:0 n 9223372036854775807",
    ] {
        let mut world = Leased::new();
        assert_eq!(world.told(0, "DESTAGE BEGIN\nHINCRBY item:0 n 1"), "+OK :11");
        assert_eq!(world.told(1, "HINCRBY item:0 n 100"), "", "it waits for the lease");
        assert!(world.told(0, refused).starts_with('-'), "{refused}");
        assert_eq!(world.told(1, ""), ":110", "the lease has ended: {refused}");
        for further in ["HINCRBY item:0 n 1", "HGET item:0 n", "DESTAGE EXCLUDE item:2"] {
            assert!(world.told(0, further).starts_with("-EXECABORT"), "{refused}: {further}");
        }
        assert_eq!(world.told(0, "PING"), "+PONG");
        assert!(world.told(0, "EXEC").starts_with("-EXECABORT"), "{refused}");
        assert_eq!(world.told(2, "HGET item:0 n"), "$3 110", "nothing of it was done: {refused}");
        assert!(world.script.engine.watchers.is_empty(), "{refused}");
        // The same connection begins anew.
        let anew = "DESTAGE BEGIN\nHINCRBY item:0 n 1\nHGET item:0 n\nEXEC";
        assert_eq!(world.told(0, anew), "+OK :111 $3 111 *1 :111");
    }
}

#[test]
fn a_leased_session_with_too_many_writes_does_none_of_them() {
    let mut world = Leased::new();
    assert_eq!(world.told(0, "DESTAGE BEGIN 60000"), "+OK");
    for n in 1..=1_000 {
        assert_eq!(world.told(0, "HINCRBY item:0 n 1"), format!(":{}", 10 + n));
    }
    assert_eq!(world.told(0, "HGET item:0 n"), "$4 1010", "reads do not count");
    assert!(world.told(0, "HINCRBY item:0 n 1").starts_with("-ERR a session under leases takes"));
    assert!(world.told(0, "EXEC").starts_with("-EXECABORT"));
    assert_eq!(world.told(2, "HGET item:0 n"), "$2 10");
}

#[test]
fn a_leased_session_has_leases_on_a_bounded_number_of_keys() {
    let named = |command: &str, name: &str, range: std::ops::Range<u32>| {
        range.fold(command.to_owned(), |all, key| format!("{all} {name}:{key}"))
    };
    for (command, name) in
        [("DESTAGE EXCLUDE", "item"), ("DESTAGE SHARE", "entry"), ("EXISTS", "item")]
    {
        let mut world = Leased::new();
        assert_eq!(world.told(0, "DESTAGE BEGIN 60000\nHINCRBY item:0 n 1"), "+OK :11");
        let told = world.told(0, &named(command, name, 1..10_000));
        assert!(!told.starts_with('-'), "{command}: {told}");
        // The same keys once more are no more than before.
        let told = world.told(0, &named(command, name, 1..3));
        assert!(!told.starts_with('-'), "{command}: {told}");
        let told = world.told(0, &named(command, name, 10_000..10_001));
        assert!(told.starts_with("-ERR a session has leases on at most 10000 keys"), "{told}");
        assert!(world.script.engine.watchers.is_empty(), "{command}");
        assert!(world.told(0, "EXEC").starts_with("-EXECABORT"), "{command}");
    }
}

#[test]
fn a_refused_command_behind_multi_in_a_leased_session_ends_its_leases() {
    let mut world = Leased::new();
    assert_eq!(world.told(0, "DESTAGE BEGIN\nHINCRBY item:0 n 1\nMULTI"), "+OK :11 +OK");
    assert_eq!(world.told(1, "HINCRBY item:0 n 100"), "");
    assert!(world.told(0, "HSET item:1 nothing 1").starts_with("-ERR"));
    assert_eq!(world.told(1, ""), ":110");
    assert!(world.told(0, "HSET item:1 n 1\nEXEC").starts_with("+QUEUED -EXECABORT"));
    assert_eq!(world.told(2, "HGET item:0 n\nHGET item:1 n"), "$3 110 $1 0");
}

#[test]
fn a_write_of_a_leased_session_voids_what_others_have_read() {
    let mut world = Leased::new();
    assert_eq!(world.told(0, "DESTAGE BEGIN\nHGET item:0 n"), "+OK $2 10");
    assert_eq!(world.told(1, "DESTAGE BEGIN\nHINCRBY item:0 n 1"), "+OK :11");
    assert!(world.told(0, "HGET item:1 n").starts_with("-RETRY"));
    assert!(world.told(0, "HINCRBY item:1 n 1").starts_with("-RETRY"), "and again");
    assert_eq!(world.told(0, "EXEC"), "*-1");
    assert!(world.told(0, "DESTAGE BEGIN\nHGET item:0 n").starts_with("+OK -RETRY"), "S beside X");
    assert_eq!(world.told(0, "EXEC"), "*-1");
    assert_eq!(world.told(1, "EXEC"), "*1 :11");
    // Single commands void them too.
    assert_eq!(world.told(0, "DESTAGE BEGIN\nHGET item:0 n"), "+OK $2 11");
    assert_eq!(world.told(2, "HINCRBY item:0 n 1"), ":12");
    assert_eq!(world.told(0, "EXEC"), "*-1");
}

#[test]
fn writes_wait_for_a_leased_session_until_it_ends_or_its_time_is_up() {
    for end in ["EXEC", "DISCARD", "expiry", "disconnect"] {
        let mut world = Leased::new();
        assert_eq!(world.told(0, "DESTAGE BEGIN 100\nHINCRBY item:0 n 100"), "+OK :110", "{end}");
        assert_eq!(world.told(1, "HINCRBY item:0 n 1\nPING"), "", "{end}");
        assert_eq!(world.told(2, "MULTI\nHINCRBY item:0 n 1\nEXEC"), "+OK +QUEUED", "{end}");
        world.pass(99);
        assert_eq!(world.told(1, ""), "", "{end}");
        match end {
            "expiry" => world.pass(1),
            "disconnect" => world.script.engine.disconnect(world.script.now, world.clients[0]),
            end => _ = world.told(0, end),
        }
        world.script.turn();
        let first = if end == "EXEC" { 111 } else { 11 };
        assert_eq!(world.told(1, ""), format!(":{first} +PONG"), "{end}");
        assert_eq!(world.told(2, ""), format!("*1 :{}", first + 1), "{end}");
    }
}

#[test]
fn a_leased_session_that_comes_late_is_fenced() {
    let mut world = Leased::new();
    assert_eq!(world.told(0, "DESTAGE BEGIN 100\nHINCRBY item:0 n 100"), "+OK :110");
    world.pass(100);
    assert_eq!(world.told(1, "HINCRBY item:0 n 1"), ":11");
    assert_eq!(world.told(0, "EXEC"), "*-1");
    assert_eq!(world.told(2, "HGET item:0 n"), "$2 11");
    for wrong in ["DESTAGE BEGIN 9", "DESTAGE BEGIN 60001", "WATCH item:0\nDESTAGE BEGIN"] {
        assert!(world.told(0, wrong).contains("-ERR DESTAGE BEGIN"), "{wrong}");
    }
    assert!(
        world.told(1, "DESTAGE BEGIN\nSCAN 0\nMULTI\nMULTI\nWATCH item:0").matches("-ERR").count()
            == 3
    );
}

/// One client's write of `item:0` waits for the origin, under write-through.
fn with_a_write_under_way() -> Leased {
    let mut world = Leased::new();
    world.script.write_through();
    assert_eq!(world.told(0, "HINCRBY item:0 n 5"), "");
    world
}

#[test]
fn a_read_behind_a_write_that_the_origin_does_not_answer_gives_up() {
    for (read, before) in [
        ("HGET item:0 n", ""),
        ("HGETALL item:0", ""),
        ("EXISTS item:1 item:0", ""),
        ("HGET item:0 n", "MULTI"),
    ] {
        let mut world = with_a_write_under_way();
        let exec = if before.is_empty() { "" } else { "\nEXEC" };
        world.told(1, before);
        world.told(1, &format!("{read}{exec}\nPING"));
        assert!(
            world.script.engine.next_timeout().unwrap() <= world.script.now + Span::from_secs(10)
        );
        world.pass(9_999);
        assert_eq!(world.told(1, ""), "", "{read}");
        world.pass(1);
        let told = world.told(1, "");
        assert!(
            told.starts_with("-UNAVAILABLE model has not answered a write of item:0"),
            "{told}"
        );
        assert!(told.ends_with(" +PONG"), "{told}");
        assert_eq!(world.told(1, "HGET item:1 n"), "$1 0", "others are read");
        world.told(1, "HGET item:0 n");
        world.script.destage();
        assert_eq!(world.told(1, ""), "$2 15");
        let told = world.told(0, "");
        assert!(told.starts_with("-PENDING write 1 is in the journal"), "{told}");
        assert_eq!(world.told(2, "HGET item:0 n"), "$2 15");
        world.pass(10_000);
        assert_eq!(world.told(1, ""), "", "what was answered is answered once");
        let timeout = world.script.engine.sessions.next_timeout();
        assert_eq!(timeout, None, "no timer outlives what waited");
    }
}

#[test]
fn a_read_that_waited_for_the_origin_first_waits_no_longer_in_all() {
    let mut world = Leased::new();
    world.script.write_through();
    world.script.client = world.clients[0];
    world.script.send("HINCRBY item:3 n 5");
    world.script.client = world.clients[1];
    world.script.send("HGET item:3 n");
    for _ in 0..9 {
        world.script.now = world.script.now + Span::from_secs(1);
        world.script.turn();
    }
    assert_eq!(world.script.received().0, "");
    world.script.settle();
    world.pass(1_000);
    let told = world.told(1, "");
    assert!(told.starts_with("-UNAVAILABLE"), "{told}");
}

#[test]
fn a_leased_session_waits_for_no_lock_past_its_time() {
    for command in ["HGET item:0 n", "HINCRBY item:0 n 1"] {
        let mut world = with_a_write_under_way();
        assert_eq!(world.told(1, "DESTAGE BEGIN 500"), "+OK");
        assert_eq!(world.told(1, command), "", "{command}");
        world.pass(499);
        assert_eq!(world.told(1, ""), "", "{command}");
        world.pass(1);
        assert!(world.told(1, "").starts_with("-RETRY"), "{command}");
        assert_eq!(world.told(1, "EXEC"), "*-1");
        // One that lives longer gives up as others do.
        assert_eq!(world.told(1, "DESTAGE BEGIN 60000"), "+OK");
        world.told(1, command);
        world.pass(10_000);
        assert!(world.told(1, "").starts_with("-UNAVAILABLE"), "{command}");
        assert!(world.told(1, "EXEC").starts_with("-EXECABORT"));
        world.script.destage();
        assert_eq!(world.told(2, "HGET item:0 n"), "$2 15", "{command}");
    }
}
