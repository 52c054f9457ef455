//! What clients are told that wait for as long as they may, or that have gone meanwhile.

use super::claims::Script;
use super::command::encode;
use super::shop;
use crate::engine::Io;
use destage_core::{AtLimit, ClientId, Lsn, Policy, Span};
use destage_engine::Drive;
use destage_replicas_redis::Reach;

/// A row that is cached, and nothing else.
fn script() -> Script {
    let mut script = Script::new();
    script.told("HGET item:0 n\nHGET item:1 n");
    script
}

fn pass(script: &mut Script, ms: u64) {
    script.now = script.now + Span::from_millis(ms);
    script.turn();
}

/// As [`script`], with the origin further behind than D; one write of `item:0` is acknowledged.
fn past_d() -> Script {
    let mut script = script();
    script.engine.pause(script.now);
    let staleness = Span::from_secs(1);
    let policy = Policy { staleness, at_limit: AtLimit::Block, ..Policy::default() };
    script.engine.set_policy(script.now, &policy).unwrap();
    assert_eq!(script.told("HINCRBY item:0 n 1"), ":11\r\n");
    pass(&mut script, 2_000);
    script
}

fn others(script: &mut Script) -> ClientId {
    script.engine.connect().unwrap()
}

#[test]
fn a_write_that_waits_for_as_long_as_it_may_is_not_done() {
    let mut script = past_d();
    script.send("HINCRBY item:0 n 1\nHINCRBY item:1 n 1\nPING");
    pass(&mut script, 9_999);
    assert_eq!(script.received().0, "");
    pass(&mut script, 1);
    let told = script.received().0;
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    for line in &lines[..2] {
        assert!(line.starts_with("-UNAVAILABLE the oldest write"), "{told}");
        assert!(line.contains("nothing was done"), "{told}");
    }
    assert_eq!(lines[2], "+PONG");
    script.engine.resume(script.now);
    script.destage();
    assert_eq!(script.told("HGET item:0 n\nHGET item:1 n"), "$2\r\n11\r\n$1\r\n0\r\n");
    // The next one has a time of its own.
    assert_eq!(script.told("HINCRBY item:0 n 1"), ":12\r\n");
    pass(&mut script, 20_000);
    assert!(script.engine.sessions.next_timeout().is_none());
}

#[test]
fn what_comes_later_has_a_wait_of_its_own_though_the_client_sends_on_and_on() {
    let mut script = past_d();
    let requests = ["HINCRBY item:0 n 1"; 3].map(|line| encode(&words(line))).concat();
    // Each time the end of one request and the begin of the next, so that something is always there.
    let mut parts = requests.chunks(requests.len() / 3 + 1);
    let mut send = |script: &mut Script| {
        script.engine.receive(script.now, script.client, parts.next().unwrap());
        script.turn();
    };
    send(&mut script);
    pass(&mut script, 10_000);
    assert!(script.received().0.starts_with("-UNAVAILABLE"));
    send(&mut script);
    pass(&mut script, 9_999);
    assert_eq!(script.received().0, "", "given up before its time");
    pass(&mut script, 1);
    assert!(script.received().0.starts_with("-UNAVAILABLE"));
    send(&mut script);
    pass(&mut script, 1);
    assert_eq!(script.received().0, "", "given up before its time");
    assert!(script.engine.info(&[b"destage"]).contains("requests_given_up:2\r\n"));
    script.engine.resume(script.now);
    script.destage();
    assert_eq!(script.told("PING"), ":12\r\n+PONG\r\n");
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn keys_that_were_asked_for_too_long_may_be_taken() {
    let mut script = Script::serving(|schema| schema.tables[shop::ITEM].generated_key = Some(0));
    script.send("DESTAGE NEXTID item");
    pass(&mut script, 10_000);
    let told = script.received().0;
    assert!(told.starts_with("-UNAVAILABLE model has not answered within 10 s"), "{told}");
    assert!(told.contains("stay unused") && !told.contains("nothing was done"), "{told}");
}

#[test]
fn what_waits_is_not_done_for_a_client_that_sends_no_more() {
    for sent in [
        "HINCRBY item:0 n 1",
        "HINCRBY item:0 n 1\nHINCRBY item:1 n 1",
        "MULTI\nHINCRBY item:0 n 1\nEXEC",
    ] {
        let mut script = past_d();
        script.client = others(&mut script);
        script.send(sent);
        script.engine.hang_up(script.now, script.client);
        script.turn();
        let told = script.received().0;
        let last = told.lines().last().unwrap_or_default();
        assert!(last.starts_with("-UNAVAILABLE the other end"), "{told}");
        script.engine.resume(script.now);
        script.destage();
        script.client = others(&mut script);
        assert_eq!(
            script.told("HGET item:0 n\nHGET item:1 n"),
            "$2\r\n11\r\n$1\r\n0\r\n",
            "{sent}"
        );
    }
}

#[test]
fn what_need_not_wait_is_done_for_a_client_that_sends_no_more() {
    let mut script = script();
    script.engine.hang_up(script.now, script.client);
    assert_eq!(script.told("HINCRBY item:0 n 1"), ":11\r\n");
}

#[test]
fn replies_that_the_journal_holds_up_are_given_as_what_is_known() {
    let mut script = script();
    script.send("HINCRBY item:0 n 1\nHGET item:0 n");
    pass(&mut script, 10_000);
    let told = script.received().0;
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(told.lines().all(|line| line.starts_with("-PENDING its answer has to wait")), "{told}");
    // What tells of nothing that is not durable is told.
    script.send("HGET item:1 n\nPING");
    assert_eq!(script.received().0, "$1\r\n0\r\n+PONG\r\n");
    script.send("HGET item:0 n");
    assert_eq!(script.received().0, "");
    script.sync();
    assert_eq!(script.received().0, "$2\r\n11\r\n");
    assert_eq!(script.told("HINCRBY item:0 n 1"), ":12\r\n");
}

#[test]
fn a_write_that_the_origin_has_not_answered_is_told_to_be_kept() {
    let mut script = script();
    script.write_through();
    script.send("HINCRBY item:0 n 5");
    script.settle();
    pass(&mut script, 10_000);
    script.settle();
    let told = script.received().0;
    assert!(told.starts_with("-PENDING write 1 is in the journal and goes to model"), "{told}");
    script.destage();
    assert_eq!(script.told("HGET item:0 n"), "$2\r\n15\r\n");
}

#[test]
fn with_too_few_servers_of_the_log_commands_wait_or_fail_before_they_are_done() {
    let mut script = script();
    script.engine.reached(Reach::Reads);
    script.send("HINCRBY item:0 n 1");
    assert!(script.engine.journal().buffered_bytes() == 0);
    pass(&mut script, 10_000);
    let told = script.received().0;
    assert!(told.starts_with("-UNAVAILABLE too few servers of the log take writes"), "{told}");
    assert_eq!(script.told("HGET item:0 n"), "$2\r\n10\r\n");
    let report = script.engine.report();
    assert_eq!(report.mode, "too-few-copies");
    assert!(report.ready().is_err() && report.warnings.len() == 1, "{report:?}");

    script.engine.change_policy(&["at-limit=fail".to_owned()]).expect("a policy");
    let told = script.told("HINCRBY item:0 n 1");
    assert!(told.starts_with("-UNAVAILABLE") && told.contains("--at-limit fail"), "{told}");
    let told = script.told("MULTI\nHGET item:0 n\nHINCRBY item:0 n 1\nEXEC");
    assert!(told.starts_with("+OK\r\n+QUEUED\r\n+QUEUED\r\n-UNAVAILABLE"), "{told}");
    assert_eq!(script.told("HGET item:0 n"), "$2\r\n10\r\n");

    script.engine.reached(Reach::Nothing);
    let told = script.told("HGET item:0 n");
    assert!(told.starts_with("-UNAVAILABLE too few servers of the log answer"), "{told}");
    script.engine.change_policy(&["at-limit=throttle".to_owned()]).expect("a policy");
    script.send("HINCRBY item:0 n 1");
    assert_eq!(script.received().0, "", "it waits");
    script.engine.reached(Reach::Whole);
    script.turn();
    script.settle();
    assert_eq!(script.received().0, ":11\r\n");
}

/// The origin gets what is secured, and a client is told of nothing that the origin has not decided.
#[test]
fn with_too_few_servers_of_the_log_writes_go_through_if_the_policy_says_so() {
    let mut script = script();
    script.engine.reached(Reach::Through);
    script.send("HINCRBY item:0 n 1");
    assert!(script.engine.journal().buffered_bytes() == 0, "the policy says that they wait");
    script.engine.change_policy(&["at-limit=write-through".to_owned()]).expect("a policy");
    let secured = |script: &mut Script, upto| {
        script.engine.secured(script.now, Lsn(upto));
        script.turn();
    };
    let is_sent = |script: &mut Script| {
        pass(script, 50);
        script.ios.iter().any(|io| matches!(io, Io::Destage { .. }))
    };
    secured(&mut script, 0);
    assert_eq!(script.received().0, "");
    assert!(!is_sent(&mut script), "whoever takes over may not find it");
    let report = script.engine.report();
    assert_eq!(report.mode, "copies-fallback");
    assert!(report.ready().is_ok() && report.warnings.len() == 1, "{report:?}");

    secured(&mut script, 1);
    assert_eq!(script.received().0, "");
    assert!(is_sent(&mut script));
    script.destage();
    // What the origin has decided is as good as what k servers hold, which is what is told here.
    script.sync();
    assert_eq!(script.received().0, ":11\r\n");

    // With enough servers again nobody waits for the origin.
    script.engine.reached(Reach::Whole);
    secured(&mut script, 1);
    assert_eq!(script.told("HINCRBY item:0 n 1"), ":12\r\n");
    assert_eq!(script.engine.report().mode, "normal");
}

#[test]
fn without_space_for_the_journal_writes_wait_before_they_are_done() {
    let mut script = script();
    script.engine.journal_full(true);
    script.send("HINCRBY item:0 n 1\nMULTI\nHINCRBY item:0 n 1\nEXEC");
    assert!(script.engine.journal().buffered_bytes() == 0);
    pass(&mut script, 10_000);
    let told = script.received().0;
    assert!(told.starts_with("-UNAVAILABLE the journal's disk is full"), "{told}");
    script.send("HINCRBY item:0 n 1");
    assert_eq!(script.received().0, "");
    script.engine.journal_full(false);
    script.turn();
    script.settle();
    assert_eq!(script.received().0, ":11\r\n");
}

#[test]
fn a_transaction_that_was_not_done_is_not_told_to_be_kept() {
    for (version, nil, nothing) in [(2, "*-1\r\n", "$-1\r\n"), (3, "_\r\n", "_\r\n")] {
        let mut script = script();
        script.told(&format!("HELLO {version}"));
        let not_done = |script: &mut Script| {
            assert_eq!(script.told("WATCH item:0"), "+OK\r\n");
            let other = others(script);
            let own = std::mem::replace(&mut script.client, other);
            script.send("HINCRBY item:0 n 1");
            script.client = own;
            script.send("MULTI\nHSET item:0 n 2\nEXEC\nHGET item:99 n");
            assert_eq!(script.received().0, "", "told before what it tells of is durable");
            script.settle();
        };
        not_done(&mut script);
        script.engine.withhold_ready(script.client);
        let told = script.received().0;
        let told: Vec<&str> = told.lines().collect();
        assert_eq!((told.len(), &told[..2]), (4, &["+OK", "+QUEUED"][..]), "{told:?}");
        assert!(told[2].starts_with("-UNAVAILABLE ") && told[2].contains("nothing was done"));
        // Other commands may have written although they tell nil.
        assert!(told[3].starts_with("-PENDING "), "{told:?}");

        not_done(&mut script);
        let whole = format!("+OK\r\n+QUEUED\r\n{nil}{nothing}");
        assert_eq!(script.received().0, whole);
    }
}
