//! Keys that were handed out here: rows of them are answered and made without the origin until somebody may have written them.

use super::claims::Script;
use super::shop::{self, ITEM};
use crate::engine::Io;
use crate::origins::NextKeys;
use crate::schema::TableId;
use destage_core::Lsn;

const ITEMS: TableId = TableId(ITEM as u16);

fn script() -> Script {
    Script::serving(|schema| schema.tables[ITEM].generated_key = Some(0))
}

impl Script {
    /// Asks for keys of the items; the request.
    fn ask_keys(&mut self, count: usize) -> u64 {
        self.send(&format!("DESTAGE NEXTID item {count}"));
        let at = self.ios.iter().position(|io| matches!(io, Io::NextKeys { .. })).unwrap();
        let Io::NextKeys { request, .. } = self.ios.remove(at) else { unreachable!() };
        request
    }

    fn give_keys(&mut self, request: u64, keys: &[i64], are_new: bool) {
        let next = NextKeys { keys: keys.to_vec(), are_new };
        self.engine.keys_reserved(self.now, request, Ok(next));
        self.turn();
        self.received();
    }

    fn hand_out(&mut self, keys: &[i64]) {
        let request = self.ask_keys(keys.len());
        self.give_keys(request, keys, true);
    }

    fn knows(&self, key: i64) -> bool {
        self.engine.absent.is_absent(ITEMS, &shop::key_cells(key))
    }
}

#[test]
fn rows_of_keys_that_were_handed_out_are_answered_and_made_without_the_origin() {
    let mut script = script();
    assert!(script.engine.report_absent().is_none(), "nothing is kept before");
    script.hand_out(&[100, 101, 102, 103]);
    assert_eq!(script.without_origin("EXISTS item:100\nHGETALL item:101"), ":0 *0");
    assert_eq!(script.without_origin("HSET item:100 n 1\nHSETNX item:101 n 2"), ":1 :1");
    assert!(!script.knows(100) && !script.knows(101) && script.knows(102) && !script.knows(104));
    let report = script.engine.report_absent().unwrap();
    assert_eq!((report.handed, report.answered_total), (2, 2));
    script.destage();
    assert_eq!(script.without_origin("DEL item:100"), ":1");
    assert!(!script.knows(100), "its deletion may be undone by what is parked");
    script.send("EXISTS item:104");
    assert!(script.engine.has_fetches(), "it was not handed out");
}

#[test]
fn keys_that_rows_may_have_are_asked_for() {
    let mut script = script();
    // The table has greater ones, or somebody else is handed the same.
    let request = script.ask_keys(1);
    script.give_keys(request, &[100], false);
    assert!(!script.knows(100));
    // A row of that number is made by a client that chose it, and lands before the answer comes.
    let request = script.ask_keys(2);
    let asking = script.client;
    script.client = script.engine.connect().unwrap();
    script.send("HSET item:101 n 1");
    script.fetch(0);
    script.sync();
    script.destage();
    script.client = asking;
    script.give_keys(request, &[101, 102], true);
    assert!(!script.knows(101) && script.knows(102));
    script.hand_out(&[103]);
    script.engine.changed_at_origin(ITEMS, Some(&[shop::key_cells(102).into()]));
    assert!(!script.knows(102) && script.knows(103), "somebody else has made it");
    script.engine.changed_at_origin(ITEMS, None);
    assert!(!script.knows(103));
}

#[test]
fn what_was_undecided_when_keys_were_first_asked_for_has_them_asked_for() {
    let mut script = script();
    script.send("HSET item:100 n 1");
    script.fetch(0);
    script.sync();
    let request = script.ask_keys(2);
    script.destage();
    script.give_keys(request, &[100, 101], true);
    assert!(!script.knows(100) && !script.knows(101));
    script.hand_out(&[102]);
    assert!(script.knows(102), "it is decided");
}

/// Of what was handed out nothing is kept: after a crash, what the journal holds is there, and everything else is asked for.
#[test]
fn after_a_crash_nothing_is_believed_that_is_not_in_the_journal() {
    for seed in 0..20 {
        let mut script = script();
        script.hand_out(&[100, 101, 102]);
        assert_eq!(script.without_origin("HSET item:100 n 7"), ":1");
        // Not yet durable, and not acknowledged.
        script.send("HSET item:101 n 8");
        script.crash(seed);
        assert!((100..103).all(|key| !script.knows(key)), "seed {seed}");
        for key in 100..103 {
            script.send(&format!("HGET item:{key} n"));
            assert!(script.engine.has_fetches(), "seed {seed}: {key} is not asked for");
            script.fetch(0);
        }
        script.sync();
        let told = script.received().0;
        let unsure = ["$-1\r\n", "$1\r\n8\r\n"].map(|second| format!("$1\r\n7\r\n{second}$-1\r\n"));
        assert!(unsure.contains(&told), "seed {seed}: {told}");
        // The next one is not believed before what was left is decided.
        let request = script.ask_keys(1);
        script.give_keys(request, &[103], true);
        assert!(!script.knows(103), "seed {seed}");
        assert!(script.engine.core.decided() < Lsn(1));
        script.destage();
        script.hand_out(&[104]);
        assert!(script.knows(104), "seed {seed}");
    }
}
