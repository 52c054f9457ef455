//! Single claims about rows that end.

use super::{ENDS, ITEM, START, TAG, World, encode, schema, shop};
use crate::cells::Reader;
use crate::engine::Io;
use crate::schema::TableId;
use destage_core::Span;
use destage_engine::Drive;

/// A row is prolonged by another program while what is to delete it is on its way.
fn prolonged(unsafe_ends_all: bool) -> World {
    let mut world = World::new(&[(1, "b", Some(START + 500))]);
    world.model.unsafe_ends_all = unsafe_ends_all;
    assert_eq!(world.told("HGET item:1 tag"), "$1 b");
    world.run(100);
    world.pass(2_000);
    assert_eq!(world.told("HGET item:1 tag"), "$-1");
    while !world.ios.iter().any(|io| matches!(io, Io::Ended { .. })) {
        world.pass(1_000);
    }
    world.origin_does();
    world.model.rows.get_mut(&1).unwrap()[ENDS] = Some((9 * START).to_string());
    world.run(5_000);
    assert_eq!(world.report().ended_total, 1);
    world
}

#[test]
fn a_deletion_that_does_not_look_at_the_row_again_is_noticed() {
    let mut world = prolonged(true);
    assert_eq!((world.model.deleted, world.told("HGET item:1 tag").as_str()), (1, "$-1"));
}

#[test]
fn a_row_that_was_prolonged_elsewhere_is_not_deleted_and_is_seen_again() {
    let mut world = prolonged(false);
    assert_eq!(world.model.deleted, 0);
    assert_eq!(world.told("HGET item:1 tag"), "$1 b", "its copy was dropped with the deletion");
}

#[test]
fn a_copy_is_read_anew_once_its_row_ends_and_now_and_then_after_that() {
    let mut world = World::new(&[(1, "b", Some(START + 500))]);
    assert_eq!(world.told("PTTL item:1"), ":500");
    world.model.rows.get_mut(&1).unwrap()[ENDS] = Some((START + 2_000).to_string());
    // What is cached is used until then.
    assert_eq!(world.told("PTTL item:1"), ":500");
    world.pass(600);
    assert_eq!(world.told("PTTL item:1"), ":1400");
    world.pass(1_500);
    assert_eq!(world.told("EXISTS item:1"), ":0");
    let ends = &mut world.model.rows.get_mut(&1).unwrap()[ENDS];
    *ends = None;
    assert_eq!(world.told("EXISTS item:1"), ":0", "what was read last counts for a while");
    world.pass(10_000);
    assert_eq!(world.told("EXISTS item:1"), ":1");
    // So it is with what a client has written here.
    world.told("PEXPIRE item:1 500");
    world.run(100);
    world.model.rows.get_mut(&1).unwrap()[ENDS] = None;
    world.pass(500);
    assert_eq!(world.told("TTL item:1"), ":-1");
}

#[test]
fn while_the_origin_is_away_what_has_ended_is_known_to_have() {
    let mut world = World::new(&[(1, "b", Some(START + 500))]);
    world.told("HGET item:1 tag");
    world.is_away = true;
    world.told("HSET item:2 tag c");
    world.run(200);
    world.pass(1_000);
    let away = !world.engine.has_fetches();
    world.engine.receive(world.now, world.client, &encode(&["EXISTS".into(), "item:1".into()]));
    world.turn();
    assert!(away && !world.engine.has_fetches(), "nobody waits for the origin");
    world.settle();
    let (ready, _) = world.engine.outgoing(world.client).unwrap();
    assert_eq!(String::from_utf8_lossy(ready), ":0\r\n");
}

#[test]
fn a_row_that_another_program_has_end_earlier_is_not_deleted_under_a_copy_that_is_seen() {
    let mut world = World::new(&[(1, "b", Some(9 * START))]);
    assert_eq!(world.told("HGET item:1 tag"), "$1 b");
    world.model.rows.get_mut(&1).unwrap()[ENDS] = Some((START / 2).to_string());
    while world.looked == 0 {
        world.run(1_000);
    }
    // The first look drops the copy alone.
    assert_eq!((world.report().ended_total, world.model.deleted), (0, 0));
    assert_eq!(world.told("HSET item:1 u x"), ":1", "it is read anew");
    world.run(30_000);
    assert_eq!(world.rejected, [""; 0]);
    assert_eq!(world.model.rows[&1][3].as_deref(), Some("x"));
}

#[test]
fn what_other_rows_may_refer_to_is_not_replaced_before_the_origin_has_let_it_go() {
    let mut schema = schema();
    schema.tables[shop::ITEM].referenced_by = vec![TableId(shop::CHILD as u16)];
    let mut world = World::with(schema, &[(1, "b", Some(START - 1)), (2, "c", None)]);
    let told = world.told("HSET item:1 tag new");
    assert!(told.starts_with("-ERR this row of item has ended"), "{told}");
    assert_eq!(world.told("EXISTS item:1"), ":0");
    assert_eq!(world.told("HSET item:2 tag new"), ":0");
    world.run(30_000);
    assert_eq!(world.told("HSET item:1 tag new"), ":1");
}

#[test]
fn a_row_that_ended_stays_away_whatever_expire_says_and_hset_makes_a_new_one() {
    let mut world = World::new(&[(1, "b", Some(START + 500))]);
    world.told("HGET item:1 tag");
    world.pass(600);
    for command in
        ["EXPIRE item:1 100", "PERSIST item:1", "DEL item:1", "HEXISTS item:1 tag", "HLEN item:1"]
    {
        assert_eq!(world.told(command), ":0", "{command}");
    }
    assert_eq!(world.told("TTL item:1"), ":-2");
    assert_eq!(world.told("TYPE item:1"), "+none");
    assert_eq!(world.told("HGETALL item:1"), "*0");
    assert_eq!(world.told("HSET item:1 u new"), ":1");
    assert_eq!(world.told("HMGET item:1 tag u note"), "*3 $-1 $3 new $-1");
    world.restart();
    assert_eq!(world.told("HMGET item:1 tag u note"), "*3 $-1 $3 new $-1");
    world.run(30_000);
    assert_eq!(world.rejected, [""; 0]);
    assert_eq!(world.model.rows[&1][3].as_deref(), Some("new"));
    assert_eq!((world.model.rows.len(), world.model.deleted), (1, 1));
}

#[test]
fn rows_that_cannot_be_deleted_are_counted_and_hold_up_nothing() {
    for hides_references in [false, true] {
        let rows: Vec<_> = (0..1_200).map(|key| (key, "x", Some(START - 1))).collect();
        let mut world = World::new(&rows);
        world.model.referenced = (0..1_200).filter(|key| key % 100 == 0).collect();
        world.model.hides_references = hides_references;
        world.told("HSET item:5000 tag v");
        world.run(25_000);
        assert_eq!(world.model.rows.len(), 13, "the twelve, and the new one");
        let report = world.report();
        if hides_references {
            assert!(report.refused_total >= 12 && world.model.kept >= 12, "{report:?}");
        } else {
            assert_eq!((report.kept, report.refused_total), (12, 0));
        }
        assert!(world.engine.report().halted.is_empty());
        assert_eq!(world.engine.report().destage.parked_groups, Some(0));
        // They are tried again.
        world.model.referenced.clear();
        world.run(25_000);
        assert_eq!(world.model.rows.keys().collect::<Vec<_>>(), [&5_000]);
        assert_eq!(world.report().kept, 0);
        assert_eq!(world.rejected, [""; 0]);
    }
}

#[test]
fn nothing_is_looked_for_while_the_origin_is_away_the_disk_full_or_the_server_ends() {
    type Hinder = fn(&mut World, bool);
    let away: Hinder = |world, on| world.is_away = on;
    let full: Hinder = |world, on| world.engine.journal_full(on);
    let paused: Hinder = |world, on| {
        let now = world.now;
        if on { world.engine.pause(now) } else { world.engine.resume(now) }
    };
    for hinder in [away, full, paused] {
        let mut world = World::new(&[(1, "b", Some(START + 500))]);
        world.run(200);
        hinder(&mut world, true);
        if world.is_away {
            // It is noticed by a write.
            world.told("HSET item:3 tag v");
        }
        world.run(20_000);
        let looked = world.looked;
        world.run(20_000);
        // One question in a while finds out whether the origin answers again.
        assert!(world.looked <= looked + 3, "{} {looked}", world.looked);
        assert_eq!((world.model.deleted, world.report().ended_total), (0, 0));
        hinder(&mut world, false);
        world.run(40_000);
        assert_eq!(world.model.deleted, 1);
    }
    let mut world = World::new(&[(1, "b", Some(START + 500))]);
    world.engine.stop_ending();
    world.run(30_000);
    assert_eq!(world.looked, 0);
}

#[test]
fn a_row_is_deleted_only_once_the_clock_of_the_origin_agrees() {
    let mut world = World::new(&[(1, "b", Some(START + 500))]);
    world.model.behind_ms = 30_000;
    world.run(20_000);
    assert_eq!((world.model.deleted, world.told("EXISTS item:1").as_str()), (0, ":0"));
    assert!(world.report().clock_ahead_seconds > 29.0);
    // Nor is a new row made in its place before.
    let told = world.told("HSET item:1 tag new");
    assert!(told.contains("by Destage's clock, but not by the origin's"), "{told}");
    world.run(30_000);
    assert_eq!((world.model.deleted, world.model.rows.len()), (1, 0));
    assert_eq!(world.told("HSET item:1 tag new"), ":1");
    world.run(1_000);
    assert_eq!(world.rejected, [""; 0]);
    assert_eq!(world.model.rows[&1][TAG].as_deref(), Some("new"));
}

/// A client writes a row that has ended by this clock alone, before the first question for what has ended is answered. Whether
/// the start compared the clocks.
fn overwritten(is_compared: bool) -> (World, String) {
    let mut world = World::new(&[(1, "b", Some(START + 500))]);
    world.model.behind_ms = 30_000;
    if is_compared {
        world.engine.clock_is_ahead(world.model.behind_ms);
    }
    assert_eq!(world.told("HGET item:1 tag"), "$1 b");
    world.pass(1_000);
    assert_eq!(world.told("EXISTS item:1"), ":0");
    let told = world.told("HSET item:1 u new");
    world.run(2_000);
    assert_eq!(world.rejected, [""; 0]);
    (world, told)
}

#[test]
fn a_write_by_a_clock_that_is_wrong_and_not_compared_is_noticed() {
    let (world, told) = overwritten(false);
    assert_eq!((told.as_str(), world.model.deleted), (":1", 1), "a row that lived at the origin");
    assert_ne!(world.model.rows[&1][TAG].as_deref(), Some("b"));
}

#[test]
fn a_write_replaces_a_row_only_once_the_clock_of_the_origin_agrees() {
    let (mut world, told) = overwritten(true);
    assert!(told.starts_with("-ERR") && told.contains("which is 30000 ms behind"), "{told}");
    assert_eq!((world.model.deleted, world.model.rows[&1][TAG].as_deref()), (0, Some("b")));
    // The origin's clock has passed its end, and it is not deleted yet.
    world.pass(27_500);
    assert_eq!(world.told("HSET item:1 u new"), ":1");
    world.run(2_000);
    assert_eq!(world.rejected, [""; 0]);
    assert_eq!(world.model.rows[&1][3].as_deref(), Some("new"));
    assert_eq!(world.model.deleted, 1);
    assert_ne!(world.model.rows[&1][TAG].as_deref(), Some("b"));
}

#[test]
fn deletions_that_a_kill_left_behind_come_once() {
    let mut world =
        World::new(&[(1, "b", Some(START - 1)), (2, "c", Some(START - 1)), (3, "d", None)]);
    while !world.ios.iter().any(|io| matches!(io, Io::Ended { .. })) {
        world.pass(1_000);
    }
    world.origin_does();
    assert_eq!(world.report().ended_total, 2);
    world.restart();
    world.run(30_000);
    assert_eq!((world.model.rows.len(), world.model.deleted), (1, 2));
}

#[test]
fn a_column_that_holds_no_such_time_is_told_and_nothing_is_done() {
    let mut world = World::new(&[(1, "b", None)]);
    assert_eq!(world.told("EXPIRE item:1 100"), ":1");
    assert_eq!(world.told("TTL item:1"), ":100");
    assert_eq!(world.told("HGET item:1 note"), "$13 1000000100000");
    assert_eq!(world.told("EXPIRE item:1 50 GT"), ":0");
    assert_eq!(world.told("EXPIREAT item:1 1"), ":1", "a time that has passed");
    assert_eq!(world.told("EXISTS item:1"), ":0");
    world.run(30_000);
    assert_eq!((world.model.rows.len(), world.model.deleted), (0, 1), "0 would last");
    assert_eq!(world.told("HSET item:2 tag x note 5000000000000"), ":2");
    assert_eq!(world.told("PEXPIRETIME item:2"), ":5000000000000");
    assert_eq!(world.told("HDEL item:2 note"), ":1");
    assert_eq!(world.told("TTL item:2"), ":-1");
    let keys = Reader::new(&shop::key_cells(2)).count();
    assert_eq!((keys, world.engine.schema().table(ITEM).key_len), (1, 1));
}

#[test]
fn numbers_that_are_no_times_last_here_and_at_the_origin() {
    let times = [i64::MIN, -1, 0, 1_769_866_620, START / 10 - 1, START / 10];
    let rows: Vec<_> = (0..).zip(times).map(|(key, ends)| (key, "x", Some(ends))).collect();
    let mut world = World::new(&rows);
    world.run(30_000);
    for key in 0..5 {
        assert_eq!(world.told(&format!("TTL item:{key}")), ":-1");
        assert_eq!(world.told(&format!("PERSIST item:{key}")), ":0");
        assert_eq!(world.told(&format!("HSET item:{key} tag y")), ":0");
    }
    world.run(30_000);
    assert_eq!((world.model.rows.len(), world.model.deleted), (5, 1));
    assert_eq!(world.rejected, [""; 0]);
}

#[test]
fn a_write_waits_for_the_clock_of_the_origin_if_that_agrees_soon() {
    let mut world = World::new(&[(1, "b", Some(START + 500)), (2, "c", Some(START + 500))]);
    world.model.behind_ms = 40;
    world.engine.clock_is_ahead(40);
    assert_eq!(world.told("HGET item:1 tag"), "$1 b");
    world.pass(510);
    assert_eq!(world.told("EXISTS item:1"), ":0");
    assert_eq!(world.told("HSET item:1 tag new"), "", "it waits");
    world.pass(29);
    assert_eq!(world.answer(), "");
    world.pass(2);
    assert_eq!(world.answer(), ":1");
    world.run(30_000);
    assert_eq!(world.rejected, [""; 0]);
    assert_eq!(world.model.rows[&1][TAG].as_deref(), Some("new"));
}

#[test]
fn transactions_wait_for_the_clock_of_the_origin_too() {
    for begin in ["MULTI", "DESTAGE BEGIN"] {
        let mut world = World::new(&[(1, "b", Some(START + 500))]);
        world.model.behind_ms = 40;
        world.engine.clock_is_ahead(40);
        world.pass(510);
        world.told(begin);
        let told = world.told("HSET item:1 tag new") + &world.told("EXEC");
        assert!(told.is_empty() || told == "+QUEUED", "{begin}: {told}");
        world.pass(40);
        let told = world.answer();
        assert!(told.ends_with("*1 :1"), "{begin}: {told}");
        world.run(30_000);
        assert_eq!(world.model.rows[&1][TAG].as_deref(), Some("new"), "{begin}");
    }
}

#[test]
fn rows_whose_deletion_is_swallowed_are_told_of_and_others_go_on() {
    let rows: Vec<_> = (0..1_200).map(|key| (key, "x", Some(START - 1))).collect();
    let mut world = World::new(&rows);
    world.model.swallowed = (0..600).collect();
    world.run(60_000);
    assert_eq!(world.model.rows.len(), 600);
    assert_eq!(world.report().undeleted, 600, "all of them are known");
    let before = world.model.sent;
    world.run(600_000);
    assert!(world.model.sent - before <= 5 * 600, "in 60 rounds: {}", world.model.sent - before);
    // One that ends later goes as ever, behind the others.
    world.model.rows.insert(5_000, super::row(5_000, "y", Some(START)));
    world.run(25_000);
    assert!(!world.model.rows.contains_key(&5_000));
    world.model.swallowed.clear();
    world.run(1_400_000);
    assert_eq!((world.model.rows.len(), world.report().undeleted), (0, 0));
}

#[test]
fn an_origin_that_takes_long_to_find_what_has_ended_is_asked_less_often() {
    let looked = |took| {
        let rows: Vec<_> = (0..10_000).map(|key| (key, "x", Some(START - 1))).collect();
        let mut world = World::new(&rows);
        for _ in 0..100 {
            world.pass(1);
            world.now = world.now + Span::from_millis(took);
            while world.origin_does() {}
        }
        world.looked
    };
    assert!(looked(200) > 20);
    assert!((5..=25).contains(&looked(2_000)), "{}", looked(2_000));
}

#[test]
fn a_new_row_that_is_merged_keeps_nothing_of_one_that_had_ended_whenever_it_is_read_anew() {
    for is_prolonged in [false, true] {
        let mut schema = schema();
        (schema.tables[shop::ITEM].merges_new, schema.merges_new) = (true, true);
        let mut world = World::with(schema, &[(1, "b", Some(START + 500))]);
        world.run(2_000);
        assert_eq!(world.told("HSET item:1 n 7"), ":1");
        assert_eq!(world.told("HGET item:1 tag"), "$-1");
        if is_prolonged {
            // By another program: the origin does not let it go.
            world.model.rows.get_mut(&1).unwrap()[ENDS] = Some((START + 100_000).to_string());
        }
        assert_eq!(world.model.deleted, 0, "what is written is on its way");
        world.restart();
        assert_eq!(world.told("HGET item:1 n"), "$1 7");
        let tag = if is_prolonged { "$1 b" } else { "$-1" };
        assert_eq!(world.told("HGET item:1 tag"), tag, "prolonged: {is_prolonged}");
        assert_eq!(world.told("HINCRBY item:1 n 1"), ":8");
    }
}

#[test]
fn what_has_a_row_under_watch_or_lease_notices_its_end() {
    for begin in ["WATCH item:1", "DESTAGE BEGIN 60000"] {
        // Read while it lives; its copy may leave before its end comes, and it may have been read before by others.
        for (ms, is_dropped, is_cached) in
            [(400, false, false), (600, false, false), (600, true, false), (600, false, true)]
        {
            let mut world = World::new(&[(1, "b", Some(START + 500)), (2, "c", None)]);
            if is_cached {
                world.told("HGET item:1 tag");
            }
            world.told(begin);
            assert_eq!(world.told("HGET item:1 tag"), "$1 b");
            if is_dropped {
                let policy = world.engine.policy().clone();
                let mut evicting = policy.clone();
                evicting.limits.cache_bytes_max = 0;
                world.engine.set_policy(world.now, &evicting).unwrap();
                world.pass(0);
                world.engine.set_policy(world.now, &policy).unwrap();
            }
            world.pass(ms);
            world.told("MULTI");
            world.told("HSET item:2 tag x");
            let expected = if ms < 500 { "*1 :0" } else { "*-1" };
            assert_eq!(world.told("EXEC"), expected, "{begin}, {ms} ms, {is_dropped}, {is_cached}");
            // Who looks at it from now on knows that it has ended.
            world.told(begin);
            world.told("HGET item:1 tag");
            world.told("MULTI");
            world.told("HSET item:2 tag x");
            assert_eq!(world.told("EXEC"), "*1 :0", "{begin}, {ms} ms, {is_dropped}, {is_cached}");
            assert!(world.engine.watchers.is_all_gone());
        }
    }
}

#[test]
fn the_ends_of_leased_rows_go_with_a_lease_that_a_change_ends() {
    let mut world = World::new(&[(1, "b", Some(START + 50_000)), (2, "c", None)]);
    world.told("DESTAGE BEGIN 60000");
    assert_eq!(world.told("HGET item:1 tag"), "$1 b");
    assert_eq!(world.told("HSET item:2 tag x"), ":0");
    let session = std::mem::replace(&mut world.client, world.engine.connect().unwrap());
    world.told("DESTAGE INVALIDATE item:2");
    world.client = session;
    assert!(world.told("EXEC").starts_with("*-1"));
    assert!(world.engine.watchers.is_all_gone());
}

#[test]
fn what_watches_a_row_notices_its_deletion() {
    for (watched, expected) in [("item:1", "*-1"), ("item:2", "*1 :0")] {
        let mut world = World::new(&[(1, "b", Some(START - 1)), (2, "c", None)]);
        assert_eq!(world.told(&format!("WATCH {watched}")), "+OK");
        world.run(30_000);
        assert_eq!(world.model.deleted, 1);
        world.told("MULTI");
        world.told("HSET item:2 tag x");
        assert_eq!(world.told("EXEC"), expected, "{watched}");
    }
}

#[test]
fn a_session_that_says_of_a_row_which_has_ended_that_it_is_absent_makes_it_anew() {
    let mut world = World::new(&[(1, "b", Some(START - 1))]);
    assert_eq!(world.told("HGET item:1 tag"), "$-1");
    for command in ["DESTAGE BEGIN 60000", "DESTAGE ABSENT item:1", "MULTI", "HSET item:1 tag c"] {
        assert!(world.told(command).starts_with('+'), "{command}");
    }
    assert_eq!(world.told("EXEC"), "*1 :1");
}
