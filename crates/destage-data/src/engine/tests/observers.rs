//! What those are told who follow every change: each group as a whole, once, and none that is visible to nobody.

use super::claims::Script;
use super::raw_sql::World;
use super::shop::{self, ITEM};
use crate::change::Change;
use crate::engine::Observer;
use crate::schema::{Schema, TableId};
use destage_core::{DomainId, Lsn};
use std::sync::{Arc, Mutex};

/// What an observer was told: a group with so many changes, or that a group holds raw SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Changed(u64, usize),
    RawSql(u64),
}
use Told::{Changed, RawSql};

#[derive(Debug, Default)]
struct Listener(Mutex<Vec<Told>>);

impl Observer for Listener {
    fn changed(&self, _: &Schema, lsn: Lsn, changes: &[Change<'_>]) -> Option<Vec<String>> {
        self.0.lock().unwrap().push(Changed(lsn.0, changes.len()));
        Some(Vec::new())
    }

    fn raw_sql(&self, lsn: Lsn, _: DomainId) {
        self.0.lock().unwrap().push(RawSql(lsn.0));
    }

    fn unsure(&self, _: &[TableId]) {}

    fn decided(&self, _: Lsn) {}
}

impl Listener {
    /// Told of everything from now on.
    fn of(script: &mut Script) -> Arc<Self> {
        let listener = Arc::new(Self::default());
        script.engine.observe(listener.clone());
        listener
    }

    fn told(&self) -> Vec<Told> {
        self.0.lock().unwrap().clone()
    }
}

#[test]
fn an_observer_is_told_of_a_group_as_a_whole() {
    let mut script = Script::new();
    let early = Listener::of(&mut script);
    script.told("MULTI\nHINCRBY item:0 n -5\nHINCRBY item:1 n 5\nEXEC\nHSET item:2 tag v1");
    let late = Listener::of(&mut script);
    for listener in [early, late] {
        assert_eq!(listener.told(), [Changed(1, 2), Changed(2, 1)]);
    }
    script.destage();
    let behind = Listener::of(&mut script);
    assert_eq!(behind.told(), [], "the origin has decided them");
}

#[test]
fn an_observer_that_comes_while_a_write_waits_for_the_origin_is_told_once_it_is_applied() {
    for is_applied in [true, false] {
        let mut script = Script::new();
        assert_eq!(script.told("HSET item:0 tag v1"), ":0\r\n");
        script.destage();
        script.write_through();
        script.send("HSET item:0 tag v2");
        script.settle();
        let listener = Listener::of(&mut script);
        assert_eq!(listener.told(), [], "nobody sees it yet");
        if is_applied {
            script.destage();
        } else {
            script.reject();
        }
        let late = Listener::of(&mut script);
        let told: &[Told] = if is_applied { &[Changed(2, 1)] } else { &[] };
        assert_eq!((&*listener.told(), &*late.told()), (told, &[][..]));
    }
}

#[test]
fn an_observer_is_told_of_raw_sql_before_the_rest_of_its_group_is_visible() {
    let mut world = World::new();
    assert_eq!(world.told("HGET item:1 n"), "$1 0");
    let early = Listener::of(&mut world.script);
    let declared = (TableId(ITEM as u16), Some(&*shop::key_cells(0)));
    let told = world.raw_behind(&["HINCRBY", "item:1", "n", "5"], &[declared]);
    assert_eq!(told, "+OK +QUEUED +QUEUED *2 :5 +OK");
    let late = Listener::of(&mut world.script);
    for listener in [early, late] {
        assert_eq!(listener.told(), [RawSql(1), Changed(1, 1)]);
    }
}
