//! Unique columns that are judged before the acknowledgement, by what is undecided here and by what the origin says.

use super::claims::Script;
use super::shop::{self, ITEM};
use crate::engine::Io;
use crate::origins::OriginError;
use crate::schema::{Schema, Unique};
use destage_core::Fault;
use destage_engine::Drive;
use destage_testkit::origin::Op;

fn asks(schema: &mut Schema) {
    let table = &mut schema.tables[ITEM];
    table.uniques = vec![Unique { name: "item_u".into(), columns: vec![3], is_whole: true }];
    table.asks_unique = true;
    schema.asks_unique = true;
}

impl Script {
    /// The origin answers the question that is on its way: this item has the value.
    #[track_caller]
    fn holds(&mut self, item: Option<i64>) -> String {
        self.fetch(0);
        let request = self.question().expect("it is asked");
        let key = item.map(|id| shop::key_cells(id).into());
        self.engine.holders_found(self.now, request, Ok(vec![key]));
        self.turn();
        self.settle();
        self.received().0
    }

    fn question(&mut self) -> Option<u64> {
        let at = self.ios.iter().position(|io| matches!(io, Io::Holders { .. }))?;
        let Io::Holders { request, questions } = self.ios.remove(at) else { return None };
        assert_eq!(questions.len(), 1);
        Some(request)
    }

    /// A write of a value that an item has by the origin's word.
    #[track_caller]
    fn told_with(&mut self, commands: &str, item: Option<i64>) -> String {
        self.send(commands);
        self.holds(item)
    }

    #[track_caller]
    fn taken(&mut self, commands: &str, by: &str) {
        let before = self.engine.last();
        let told = self.told(commands);
        let named =
            format!("would violate item_u UNIQUE (u): {by} already, so nothing was written");
        assert!(told.contains(&named), "{commands}: {told}");
        assert_eq!(self.engine.last(), before, "{commands}");
        assert_eq!(self.question(), None, "{commands}");
    }
}

#[test]
fn a_value_that_another_row_has_at_the_origin_is_refused() {
    let mut script = Script::serving(asks);
    let told = script.told_with("HSET item:0 u a", Some(5));
    let named =
        "-ERR item:0 would violate item_u UNIQUE (u): item:5 has a already, so nothing was written";
    assert!(told.starts_with(named), "{told}");
    let told = script.told_with("MULTI\nHSET item:1 n 5\nHSET item:0 u a\nEXEC", Some(5));
    assert!(told.contains("-EXECABORT") && told.contains("item:5 has a already"), "{told}");
    assert_eq!(script.engine.last().0, 0);
    // No row has it, or the row itself; and NULL equals nothing.
    assert_eq!(script.told_with("HSET item:0 u a", None), ":1\r\n");
    assert_eq!(script.told_with("HSET item:0 u b", Some(0)), ":0\r\n");
    assert_eq!(script.told("HSET item:0 u b"), ":0\r\n");
    assert_eq!(script.told("HDEL item:0 u\nHSET item:0 tag v"), ":1\r\n:0\r\n");
    assert_eq!(script.question(), None);
}

#[test]
fn a_value_that_an_undecided_write_has_set_is_refused_without_a_question() {
    let mut script = Script::serving(asks);
    assert_eq!(script.told_with("HSET item:7 u a", None), ":1\r\n");
    script.taken("HSET item:2 u a", "item:7 has a");
    script.taken("MULTI\nHSET item:2 u c\nHSET item:4 u c\nEXEC", "item:2 has c");
    // It has lost it again, as far as anybody sees here; so it may have in the transaction itself.
    assert_eq!(script.told_with("HSET item:7 u b", None), ":0\r\n");
    assert_eq!(script.told_with("HSET item:2 u a", None), ":1\r\n");
    let swap = "MULTI\nHDEL item:2 u\nHSET item:4 u a\nEXEC";
    assert!(script.told_with(swap, None).ends_with("*2\r\n:1\r\n:1\r\n"));
}

#[test]
fn a_deletion_frees_a_value_before_the_origin_knows_and_while_it_is_told() {
    for is_decided in [false, true] {
        let mut script = Script::serving(asks);
        assert_eq!(script.told("DEL item:4"), ":1\r\n");
        script.send("HSET item:2 u a");
        script.fetch(0);
        if is_decided {
            script.destage();
        }
        assert_eq!(script.holds(Some(4)), ":1\r\n", "decided meanwhile: {is_decided}");
    }
}

#[test]
fn a_value_that_is_set_and_destaged_while_a_question_is_answered_is_refused() {
    let mut script = Script::serving(asks);
    script.send("HSET item:0 u a");
    script.fetch(0);
    let asked = script.question().expect("it is asked");
    let other = script.engine.connect().expect("there is room");
    let first = std::mem::replace(&mut script.client, other);
    assert_eq!(script.told_with("HSET item:2 u a", None), ":1\r\n");
    script.destage();
    // The answer is from before all that.
    script.client = first;
    script.engine.holders_found(script.now, asked, Ok(vec![None]));
    script.turn();
    script.settle();
    let told = script.received().0;
    assert!(told.contains("item:2 has a already"), "{told}");
}

#[test]
fn nothing_is_written_where_the_origin_does_not_answer() {
    let mut script = Script::serving(asks);
    for commands in ["HSET item:0 u a", "MULTI\nHSET item:0 u a\nEXEC"] {
        script.send(commands);
        script.fetch(0);
        let request = script.question().expect("it is asked");
        let away = OriginError::new(Fault::Unavailable, "it is away");
        script.engine.holders_found(script.now, request, Err(away));
        script.turn();
        let told = script.received().0;
        assert!(told.contains("-UNAVAILABLE") && told.contains("it is away"), "{told}");
        assert_eq!(script.engine.last().0, 0);
    }
    assert_eq!(script.told_with("HSET item:0 u a", None), ":1\r\n", "nothing is left of it");
}

#[test]
fn nobody_asks_where_the_origins_own_word_is_waited_for() {
    let mut script = Script::serving(asks);
    script.write_through();
    script.send("HSET item:0 u a");
    script.fetch(0);
    assert_eq!(script.question(), None);
}

#[test]
fn a_deletion_of_what_was_deleted_and_made_again_frees_a_value_in_the_same_transaction() {
    for is_made_last in [false, true] {
        let mut script = Script::serving(asks);
        // Whether what is made again is left out of the group, or another change comes between.
        let between = if is_made_last { "" } else { "HSET item:0 n 1\n" };
        let again = format!("DEL item:4\nHSET item:4 tag v1\n{between}DEL item:4\n");
        let commands = format!("MULTI\n{again}HSET item:2 u a\nEXEC");
        let told = script.told_with(&commands, Some(4));
        assert!(!told.contains("EXECABORT") && told.ends_with(":1\r\n"), "{told}");
        let deletes = script.group(1).into_iter().filter(|change| change.op == Op::Delete);
        assert_eq!(deletes.count(), 1 + usize::from(!is_made_last));
    }
}
