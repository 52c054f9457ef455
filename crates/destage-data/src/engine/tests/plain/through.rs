//! Plain keys in transactions that wait for the origin.

use super::{number, script};
use destage_core::Span;

#[test]
fn plain_keys_follow_the_fate_of_a_transaction_that_waits_for_the_origin() {
    let transaction = "MULTI\nSET a new\nDEL b\nHINCRBY item:0 n 1\nEXEC";
    for is_rejected in [false, true] {
        let mut script = script();
        script.told("SET a old\nSET b old");
        script.write_through();
        assert_eq!(script.told(transaction), "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
        // Plain keys by themselves wait for nothing; these are locked.
        assert_eq!(script.others_are_told("SET c 1\nGET c\nGET a"), "+OK\r\n$1\r\n1\r\n");
        let expected = if is_rejected {
            script.reject();
            assert!(script.received().0.starts_with("-REJECTED"));
            "$3\r\nold\r\n$3\r\nold\r\n"
        } else {
            script.destage();
            assert_eq!(script.received().0, "*3\r\n+OK\r\n:1\r\n:11\r\n");
            "$3\r\nnew\r\n$-1\r\n"
        };
        assert_eq!(script.told("GET a\nGET b"), expected);
        assert_eq!(script.told("SET b again\nGET b"), "+OK\r\n$5\r\nagain\r\n");
    }
}

#[test]
fn a_key_whose_deadline_a_transaction_sets_waits_with_it_for_the_origin() {
    let transaction = "MULTI\nEXPIRE a 100\nEXPIRE item:1 100\nHINCRBY item:0 n 1\nEXEC";
    for is_rejected in [false, true] {
        let mut script = script();
        script.told("SET a 1\nHGET item:1 n");
        script.write_through();
        assert_eq!(script.told(transaction), "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
        let first = script.client;
        let others = ["DEL a", "HGET item:1 n"].map(|command| {
            script.client = script.engine.connect().unwrap();
            assert_eq!(script.told(command), "", "it waits: {command}");
            script.client
        });
        if is_rejected {
            script.reject()
        } else {
            script.destage()
        }
        for (client, expected) in others.into_iter().zip([":1\r\n", "$1\r\n0\r\n"]) {
            script.client = client;
            assert_eq!(script.received().0, expected);
        }
        script.client = first;
        let told = script.received().0;
        let (reply, left) =
            if is_rejected { ("-REJECTED", -1) } else { ("*3\r\n:1\r\n:1\r\n:11\r\n", 100) };
        assert!(told.starts_with(reply), "{told}");
        assert_eq!(script.told("TTL a\nTTL item:1"), number(-2) + &number(left));
    }
}

/// Of those that wait for a key, one that changes it at once must not free it for who comes behind the next one, which has
/// locked it by then.
#[test]
fn a_key_that_is_changed_at_once_stays_locked_for_the_transaction_behind() {
    let mut script = script();
    script.told("SET a 1\nHGET item:0 n\nHGET item:1 n");
    script.write_through();
    let mut begin = |commands: &str| {
        script.client = script.engine.connect().unwrap();
        (script.client, script.told(commands))
    };
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n";
    let (first, told) = begin("MULTI\nHINCRBY item:0 n 1\nINCR a\nEXEC");
    assert_eq!(told, queued);
    let (second, told) = begin("SET a 5");
    assert_eq!(told, "");
    let (third, told) = begin("MULTI\nHINCRBY item:1 n 1\nINCR a\nEXEC");
    assert_eq!(told, queued);
    script.destage();
    for (client, expected) in [(first, "*2\r\n:11\r\n:2\r\n"), (second, "+OK\r\n")] {
        script.client = client;
        assert_eq!(script.received().0, expected);
    }
    script.client = script.engine.connect().unwrap();
    assert_eq!(script.told("DEL a"), "", "the third transaction has locked it");
    let last = script.client;
    script.destage();
    script.client = third;
    assert_eq!(script.received().0, "*2\r\n:1\r\n:6\r\n");
    script.client = last;
    assert_eq!(script.received().0, ":1\r\n");
    assert_eq!(script.told("GET a"), "$-1\r\n");
}

#[test]
fn a_key_that_goes_while_its_new_deadline_waits_for_the_origin_leaves_that_to_no_other() {
    let mut script = script();
    script.told("SET a 1 PX 5");
    script.write_through();
    script.told("MULTI\nEXPIRE a 100\nHINCRBY item:0 n 1\nEXEC");
    script.pass(Span::from_millis(10));
    script.turn();
    assert_eq!(script.others_are_told("SET z 1\nTTL z"), "+OK\r\n:-1\r\n");
    script.destage();
    assert_eq!(script.received().0, "*2\r\n:1\r\n:11\r\n");
    assert_eq!(script.told("TTL z\nGET a\nSET b 1\nTTL b"), ":-1\r\n$-1\r\n+OK\r\n:-1\r\n");
}

#[test]
fn a_key_that_changes_keeps_a_deadline_that_is_reached_while_the_origin_is_waited_for() {
    for (ms, left) in [(60, "$-1\r\n:-2\r\n"), (0, "$1\r\n6\r\n:50\r\n")] {
        let mut script = script();
        script.told("SET a 5 PX 100\nSET b 5 PX 100\nSET c 5 PX 100\nSET d 5 PX 100");
        script.write_through();
        script.told("MULTI\nINCR a\nPERSIST b\nINCR b\nSET c 6\nINCR d\nEXPIRE d 10");
        assert_eq!(script.told("HINCRBY item:0 n 1\nEXEC"), "+QUEUED\r\n");
        script.pass(Span::from_millis(ms));
        script.turn();
        script.destage();
        assert!(script.received().0.starts_with("*7\r\n:6\r\n:1\r\n:6\r\n+OK\r\n:6\r\n:1\r\n"));
        assert_eq!(script.told("GET a\nPTTL a"), left);
        let others = script.told("GET b\nTTL b\nGET c\nTTL c\nGET d\nTTL d");
        assert_eq!(others, "$1\r\n6\r\n:-1\r\n$1\r\n6\r\n:-1\r\n$1\r\n6\r\n:10\r\n");
    }
}
