//! What is told with a group: on what it builds besides the earlier changes of its own rows.

use super::claims::Script;
use crate::change::builds_on;
use destage_core::Lsn;

const NONE: [u64; 0] = [];

impl Script {
    /// What the newest group builds on, once these commands made it.
    #[track_caller]
    fn built(&mut self, commands: &str) -> Vec<u64> {
        let before = self.engine.core.next_lsn();
        self.send(commands);
        self.fetch(0);
        assert_eq!(self.engine.core.next_lsn(), before.next(), "one group: {commands}");
        let on = builds_on(&self.engine.overlay.get(before).expect("it is undecided").bytes);
        on.into_iter().map(|lsn| lsn.0).collect()
    }
}

#[test]
fn a_transaction_builds_on_what_it_watched_and_does_not_change() {
    let mut script = Script::new();
    assert_eq!(script.built("HSET item:0 tag a"), NONE);
    let watching = "WATCH item:0 item:1 item:4\nMULTI\nHSET item:2 tag b\nHGET item:0 tag\nEXEC";
    assert_eq!(script.built(watching), [1]);
    // Each key's newest change, those of the transaction's own rows left out.
    assert_eq!(script.built("HSET item:0 tag c"), NONE);
    let both = "WATCH item:0 item:2\nMULTI\nHSET item:4 tag d\nEXEC";
    assert_eq!(script.built(both), [2, 3]);
    assert_eq!(script.built("WATCH item:0\nMULTI\nHSET item:0 tag e\nEXEC"), NONE);
    // Not what was read without a condition, and not what was watched before.
    assert_eq!(script.built("MULTI\nHGET item:0 tag\nHSET item:1 tag f\nEXEC"), NONE);
    assert_eq!(script.built("HSET item:1 tag g"), NONE);
    // Nor is a command by itself bound by what is watched for a transaction that is yet to come.
    assert_eq!(script.built("WATCH item:2\nHSET item:30 tag h"), NONE);
    assert_eq!(script.built("MULTI\nHSET item:1 tag g\nEXEC"), [2]);
    let leased = "DESTAGE BEGIN 1000\nHGET item:0 tag\nHSET item:2 tag h\nEXEC";
    assert_eq!(script.built(leased), [5]);
    let number = script.engine.core.next_lsn().0 - 1;
    while script.engine.core.decided() < Lsn(number) {
        script.sync();
        script.destage();
    }
    assert_eq!(script.built("WATCH item:0\nMULTI\nHSET item:1 tag i\nEXEC"), NONE, "it is there");
}

#[test]
fn a_row_builds_on_the_new_row_to_which_it_refers() {
    let mut script = Script::new();
    assert_eq!(script.built("HSET parent:9 tag new"), NONE);
    assert_eq!(script.built("HSET child:7 parent 9 qty 1"), [1], "a new row");
    assert_eq!(script.built("HSET child:0 parent 9"), [1], "a value of the same length");
    assert_eq!(script.built("HSET child:0 tag w9"), NONE, "another column");
    assert_eq!(script.built("HSET child:8 parent 0 qty 1"), NONE, "the origin has it");
    assert_eq!(script.built("HSET parent:9 tag more"), NONE);
    assert_eq!(script.built("HSET child:1 parent 9"), [1], "what makes it, not what changes it");
    let own = "MULTI\nHSET parent:10 tag own\nHSET child:9 parent 10 qty 1\nEXEC";
    assert_eq!(script.built(own), NONE, "made by the same transaction");
    assert_eq!(script.built("MULTI\nHSET child:0 parent 9\nHSET child:1 parent 10\nEXEC"), [1, 8]);
}

#[test]
fn of_many_those_are_left_out_on_which_others_of_them_build() {
    let mut script = Script::new();
    let keys: Vec<String> = (20..40).map(|id| format!("item:{id}")).collect();
    for key in &keys {
        assert_eq!(script.built(&format!("HSET {key} tag a")), NONE);
    }
    let watch = format!("WATCH {}", keys.join(" "));
    let all: Vec<u64> = (1..=20).collect();
    assert_eq!(script.built(&format!("{watch}\nMULTI\nHSET item:0 tag b\nEXEC")), all);
    assert_eq!(script.built(&format!("HSET {} tag c", keys[3])), NONE);
    let again = format!("{watch} item:0\nMULTI\nHSET item:1 tag d\nEXEC");
    assert_eq!(script.built(&again), [21, 22], "the rest is known by the first of them");
    let few = format!("WATCH {} item:0\nMULTI\nHSET item:2 tag e\nEXEC", keys[..3].join(" "));
    assert_eq!(script.built(&few), [1, 2, 3, 21]);
}
