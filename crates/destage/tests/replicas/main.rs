//! Buffered writes on other servers, a standby, and the loss of either: the real program, real servers, clients that keep books.

mod books;
mod example;
mod world;

use books::Books;
use std::time::{Duration, Instant};
use world::World;

const FENCED: i32 = 11;
const JOURNAL_UNUSABLE: i32 = 13;

#[test]
fn a_write_outlives_its_host_and_its_disk_and_reaches_the_origin_once() {
    let mut world = World::new(3, &[]);
    let mut first = world.start(&["--copies", "2", "--when", "periodic:1h", "--staleness", "none"]);
    let mut client = first.client();
    for row in 1..=50 {
        assert_eq!(client.ask(&["HINCRBY", &format!("t:{row}"), "n", "1"]), ":1");
    }
    first.kill();
    world.lose_disk(first);
    // Another one on an empty disk, with one server gone that had no log file.
    world.servers.kill(0);
    let mut second = world.start(&["--copies", "2"]);
    let mut client = second.client();
    for row in 1..=50 {
        assert_eq!(client.ask(&["HGET", &format!("t:{row}"), "n"]), "1");
    }
    assert_eq!(client.ask(&["DESTAGE", "WAIT", "10000"]), ":1");
    second.end();
    assert_eq!(world.origin_rows(), (1..=50).map(|row| (row, 1)).collect::<Vec<_>>());
}

#[test]
fn a_standby_takes_over_and_the_former_owner_stops_with_11() {
    let mut world = World::new(3, &[]);
    let mut first = world.start(&["--failover", "1s"]);
    let mut standby = world.start_standby(&["--failover", "1s"]);
    let mut client = first.client();
    assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    // Until it is the owner, a standby says who is.
    let mut asking = standby.client();
    let owner = first.address();
    let found = asking.ask(&["SENTINEL", "get-master-addr-by-name", "destage"]);
    assert_eq!(found, owner.replace(':', " "));
    let refusal = asking.ask(&["HGET", "t:1", "n"]);
    assert!(refusal.starts_with("-READONLY") && refusal.contains(&owner), "{refusal}");
    assert!(asking.ask(&["INFO", "replication"]).contains("role:slave"));
    assert!(client.ask(&["ROLE"]).starts_with("master"));
    assert_eq!((first.ready(), standby.ready()), (200, 503));
    // Longer than the lease.
    first.pause();
    let began = Instant::now();
    standby.await_owner();
    let took = began.elapsed();
    let mut new = standby.client();
    assert_eq!(new.ask(&["HINCRBY", "t:1", "n", "1"]), ":2");
    first.go_on();
    let answer = client.try_ask(&["HGET", "t:1", "n"]);
    assert!(answer.is_none(), "a deposed owner answered {answer:?}");
    assert_eq!(first.await_end(), Some(FENCED));
    assert_eq!(
        new.ask(&["SENTINEL", "get-master-addr-by-name", "destage"]),
        standby.address().replace(':', " ")
    );
    assert!(took < Duration::from_secs(20), "{took:?}");
    standby.end();
    assert_eq!(world.origin_rows(), [(1, 2)]);
}

#[test]
fn rounds_of_losses_lose_and_double_nothing() {
    let rounds = std::env::var("DESTAGE_REPLICA_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(12);
    let mut world = World::new(3, &[]);
    let books = Books::default();
    let mut owner = world.start(&["--failover", "600ms"]);
    let mut standby = world.start_standby(&["--failover", "600ms"]);
    for round in 0..rounds {
        let (addresses, books) = ([owner.address(), standby.address()], &books);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| books.write(&addresses, Duration::from_secs(4))))
                .collect();
            std::thread::sleep(Duration::from_millis(300));
            match round % 4 {
                0 => owner.kill(),
                1 => {
                    world.servers.restart((round as usize / 4) % 3);
                    std::thread::sleep(Duration::from_millis(700));
                    owner.kill();
                }
                2 => {
                    owner.pause();
                    standby.await_owner();
                    owner.go_on();
                }
                _ => {
                    world.servers.cut((round as usize / 4) % 3);
                    std::thread::sleep(Duration::from_millis(300));
                    owner.kill();
                }
            }
            standby.await_owner();
            world.servers.heal();
            for writer in writers {
                writer.join().expect("a writer");
            }
        });
        let code = owner.await_end();
        assert!(matches!(code, None | Some(FENCED)), "round {round}: {code:?}");
        world.lose_disk(owner);
        owner = standby;
        standby = world.start_standby(&["--failover", "600ms"]);
        world.await_copies(&owner, 3);
    }
    let mut client = owner.client();
    assert_eq!(client.ask(&["DESTAGE", "WAIT", "20000"]), ":1");
    standby.kill();
    owner.end();
    let (acknowledged, unknown) = books.check(&world.origin_rows());
    println!("{rounds} rounds: {acknowledged} acknowledged, {unknown} unknown");
    assert!(acknowledged > 100 * rounds, "{acknowledged}");
}

#[test]
fn servers_with_log_files_may_all_be_restarted() {
    let mut world = World::new(3, &["--appendonly", "yes", "--appendfsync", "always"]);
    let mut owner = world.start(&["--when", "periodic:1h", "--staleness", "none"]);
    let mut client = owner.client();
    assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "7"]), ":7");
    owner.kill();
    world.lose_disk(owner);
    (0..3).for_each(|server| world.servers.restart(server));
    let mut owner = world.start(&[]);
    assert_eq!(owner.client().ask(&["HGET", "t:1", "n"]), "7");
    owner.end();
    assert_eq!(world.origin_rows(), [(1, 7)]);
}

#[test]
fn the_journal_and_the_servers_both_hold_what_is_acknowledged() {
    let mut world = World::new(3, &[]);
    let flags = ["--journal", "both", "--when", "periodic:1h", "--staleness", "none"];
    let mut owner = world.start(&flags);
    assert_eq!(owner.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    owner.kill();
    let mut again = world.restart(owner, &flags);
    let mut client = again.client();
    assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":2");
    again.kill();
    world.lose_disk(again);
    let mut elsewhere = world.start(&flags);
    assert_eq!(elsewhere.client().ask(&["HGET", "t:1", "n"]), "2");
    elsewhere.end();
    assert_eq!(world.origin_rows(), [(1, 2)]);
}

#[test]
fn servers_are_added_and_removed_while_clients_write() {
    let mut world = World::new(4, &[]);
    world.named = 3;
    let mut owner = world.start(&[]);
    let mut client = owner.client();
    let url = format!("redis://{}", world.servers.address(3));
    owner.command(&["replicas", "add", &url]);
    let removed = world.servers.address(0);
    for row in 1..=200 {
        assert_eq!(client.ask(&["HINCRBY", &format!("t:{row}"), "n", "1"]), ":1");
        if row == 100 {
            world.await_copies(&owner, 4);
            owner.command(&["replicas", "remove", &removed]);
        }
    }
    world.await_copies(&owner, 3);
    owner.kill();
    world.lose_disk(owner);
    // The list that the next one is given is an old one.
    world.servers.kill(0);
    let mut next = world.start(&[]);
    assert_eq!(next.client().ask(&["HGET", "t:200", "n"]), "1");
    next.end();
    assert_eq!(world.origin_rows().len(), 200);
}

#[test]
fn a_second_owner_and_too_few_servers_are_refused_with_what_to_do() {
    let mut world = World::new(3, &[]);
    let mut owner = world.start(&["--failover", "1s"]);
    let (code, text) = world.refused(&["--failover", "1s"]);
    assert_eq!(code, Some(FENCED));
    assert!(text.contains("--standby") && text.contains(&owner.address()), "{text}");
    let (code, text) = world.refused(&["--copies", "4"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("--copies 4 of 3"), "{text}");
    owner.end();
}

#[test]
fn servers_that_have_forgotten_the_log_are_not_taken_for_new_ones() {
    let mut world = World::new(3, &[]);
    // The origin has decided nothing, so that its watermark does not tell.
    let mut owner = world.start(&["--when", "periodic:1h", "--staleness", "none"]);
    assert_eq!(owner.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    owner.kill();
    world.lose_disk(owner);
    (0..3).for_each(|server| world.servers.restart(server));
    // A refusal changes nothing: the next start is refused as well.
    for _ in 0..2 {
        let (code, text) = world.refused(&[]);
        assert_eq!(code, Some(JOURNAL_UNUSABLE), "{text}");
        assert!(text.contains("forgotten") && text.contains("--adopt"), "{text}");
    }
    let mut next = world.start(&["--adopt", "--take-over"]);
    assert_eq!(next.client().ask(&["HINCRBY", "t:2", "n", "1"]), ":1");
    next.end();
    assert_eq!(world.origin_rows(), [(2, 1)]);
}

#[test]
fn a_journal_on_the_disk_is_kept_when_all_servers_have_forgotten_the_log() {
    let mut world = World::new(3, &[]);
    let flags = ["--journal", "both", "--when", "periodic:1h", "--staleness", "none"];
    let mut owner = world.start(&flags);
    assert_eq!(owner.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    owner.kill();
    (0..3).for_each(|server| world.servers.restart(server));
    let (code, text) = world.refused_again(&owner, &flags);
    assert_eq!(code, Some(JOURNAL_UNUSABLE), "{text}");
    assert!(text.contains("forgotten") && text.contains("--journal local"), "{text}");
    let names = world.names(&owner);
    assert!(!names.iter().any(|name| name.starts_with("journal.")), "{names:?}");
}
