//! Buffered writes on other servers, a standby, and the loss of either: the real program, real servers, clients that keep books.

mod books;
#[path = "../e2e/harness/certificates.rs"]
mod certificates;
mod clients;
mod example;
mod gate;
#[path = "../e2e/harness/rounds.rs"]
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
mod harness;
mod library;
mod rounds;
mod secure;
mod servers;
mod soak;
mod through;
mod world;

use std::os::unix::net::UnixDatagram;
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
    let known = owner.replace(':', " ");
    let until = Instant::now() + Duration::from_secs(60);
    // It has to look at the servers first.
    while asking.ask(&["SENTINEL", "get-master-addr-by-name", "destage"]) != known {
        assert!(Instant::now() < until, "the standby does not know the owner");
        std::thread::sleep(Duration::from_millis(20));
    }
    let refusal = asking.ask(&["HGET", "t:1", "n"]);
    assert!(refusal.starts_with("-READONLY") && refusal.contains(&owner), "{refusal}");
    assert!(asking.ask(&["INFO", "replication"]).contains("role:slave"));
    assert!(client.ask(&["ROLE"]).starts_with("master"));
    assert_eq!((first.ready(), standby.ready()), (200, 503));
    // It is not ready for good, which is no alarm: by its mode alerts tell it from a server that fails.
    let (_, metrics) = standby.get("/metrics");
    assert!(metrics.contains("destage_mode{mode=\"standby\"} 1\n"), "{metrics}");
    // Longer than the lease.
    first.pause();
    standby.await_owner();
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
    standby.end();
    assert_eq!(world.origin_rows(), [(1, 2)]);
}

/// What systemd is told next that contains this.
fn told(socket: &UnixDatagram, part: &str) -> String {
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{part}: {error}"));
        let message = String::from_utf8_lossy(&buffer[..length]);
        if message.contains(part) {
            return message.into_owned();
        }
    }
}

#[test]
fn a_standby_counts_as_started_shows_that_it_lives_and_no_hangup_ends_it() {
    let mut world = World::new(3, &[]);
    let mut owner = world.start(&["--failover", "1s"]);
    let path = world.disk();
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(120))).expect("it can be set");
    world.environment = vec![
        ("NOTIFY_SOCKET".to_owned(), path.display().to_string()),
        ("WATCHDOG_USEC".to_owned(), "400000".to_owned()),
    ];
    let mut standby = world.start_standby(&["--failover", "1s"]);
    let ready = told(&socket, "READY=1");
    assert!(ready.contains("STATUS=destage standby:"), "{ready}");
    standby.hang_up();
    (0..3).for_each(|_| drop(told(&socket, "WATCHDOG=1")));
    owner.kill();
    told(&socket, "STATUS=destage ready:");
    standby.await_owner();
    standby.end();
}

#[test]
fn an_owner_whose_servers_are_all_lost_still_brings_what_it_has_acknowledged_to_the_origin() {
    let mut world = World::new(3, &[]);
    let mut owner = world.start(&["--when", "periodic:2s"]);
    let mut client = owner.client();
    for row in 1..=50 {
        assert_eq!(client.ask(&["HINCRBY", &format!("t:{row}"), "n", "1"]), ":1");
    }
    (0..3).for_each(|server| world.servers.kill(server));
    world.await_status(&owner, |status| status["writes"]["decided_lsn"] == 50);
    owner.kill();
    assert_eq!(world.origin_rows(), (1..=50).map(|row| (row, 1)).collect::<Vec<_>>());
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
fn an_added_server_that_is_not_reached_keeps_no_other_from_being_filled_again() {
    let mut world = World::new(4, &[]);
    world.named = 3;
    let mut owner = world.start(&[]);
    let mut client = owner.client();
    assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    world.servers.kill(3);
    let address = world.servers.address(3);
    let url = format!("redis://{address}");
    owner.command(&["replicas", "add", &url]);
    world.servers.restart_empty(0);
    world.await_copies(&owner, 3);
    assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":2");
    // It is given up, and added again once it is there.
    owner.command(&["replicas", "remove", &address]);
    world.servers.restart(3);
    owner.command(&["replicas", "add", &url]);
    world.await_copies(&owner, 4);
    assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":3");
    owner.end();
    assert_eq!(world.origin_rows(), [(1, 3)]);
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

/// > With fewer than k servers a write that the origin has not decided is never acknowledged.
#[test]
fn with_fewer_servers_than_copies_writes_wait_or_fail_as_said_and_all_of_it_is_shown() {
    let wait = Duration::from_secs(2);
    let cases = [
        ("block", "(--client-wait)", "writes wait (--at-limit block)"),
        ("fail", "(--at-limit fail)", "writes are refused (--at-limit fail)"),
        ("write-through", "(--client-wait)", "more than half of the servers have to take them"),
    ];
    for (limit, part, shown) in cases {
        let mut world = World::new(3, &[]);
        let flags = ["--failover", "600ms", "--at-limit", limit, "--client-wait", "2s"];
        let mut owner = world.start(&flags);
        let mut client = owner.client();
        assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
        (1..3).for_each(|server| world.servers.cut(server));
        world.await_status(&owner, |status| status["mode"] == "too-few-copies");
        assert_eq!(owner.ready(), 503);
        let status = owner.status();
        let warning = status["warnings"][0].as_str().expect("a warning").to_owned();
        assert!(warning.contains(shown), "{status:#}");
        assert_eq!(status["replicas"]["servers_ready"], 1, "{status:#}");
        let (_, metrics) = owner.get("/metrics");
        for (server, is_there) in [(0, 1), (1, 0), (2, 0)] {
            let address = world.servers.address(server);
            let line = format!("destage_replica_reachable{{server=\"{address}\"}} {is_there}\n");
            assert!(metrics.contains(&line), "{line} in {metrics}");
        }
        assert!(metrics.contains("destage_mode{mode=\"too-few-copies\"} 1\n"), "{metrics}");
        for command in [&["HINCRBY", "t:1", "n", "1"][..], &["HGET", "t:1", "n"]] {
            let began = Instant::now();
            let answer = client.ask(command);
            assert!(answer.starts_with("-UNAVAILABLE too few"), "{answer}");
            assert!(answer.contains(part), "{answer}");
            assert_eq!(began.elapsed() >= wait, limit != "fail", "{answer}");
        }
        world.servers.heal();
        world.await_copies(&owner, 3);
        world.await_status(&owner, |status| status["mode"] == "normal");
        assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":2");
        owner.end();
        assert_eq!(world.origin_rows(), [(1, 2)]);
    }
}

/// > With fewer than k servers reads go on while more than half of the servers answer.
#[test]
fn with_as_many_copies_as_servers_reads_go_on_without_one_and_writes_wait() {
    let mut world = World::new(3, &[]);
    let lasting = Duration::from_secs(3);
    let mut owner = world.start(&["--copies", "3", "--failover", "3s", "--client-wait", "100s"]);
    let (mut reader, mut writer) = (owner.client(), owner.client());
    assert_eq!(writer.ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    assert_eq!(writer.ask(&["DESTAGE", "WAIT", "60000"]), ":1");
    world.servers.cut(2);
    world.await_status(&owner, |status| status["mode"] == "too-few-copies");
    assert!(writer.send(&["HINCRBY", "t:1", "n", "1"]));
    // The lease on all three servers would have ended meanwhile.
    let until = Instant::now() + lasting;
    while Instant::now() < until {
        assert_eq!(reader.ask(&["HGET", "t:1", "n"]), "1");
    }
    assert_eq!(owner.status()["mode"], "too-few-copies");
    assert_eq!(world.origin_rows(), [(1, 1)]);
    world.servers.heal();
    world.await_copies(&owner, 3);
    assert_eq!(writer.receive().as_deref(), Some(":2"));
    owner.end();
    assert_eq!(world.origin_rows(), [(1, 2)]);
}

/// > Servers that have all forgotten the log are never taken for a new one: the start is refused with 13.
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

/// > What it has acknowledged goes to the origin as ever.
#[test]
fn no_standby_begins_another_log_while_the_owner_of_a_forgotten_one_lives() {
    let mut world = World::new(3, &[]);
    let flags = ["--failover", "600ms", "--when", "periodic:10s", "--staleness", "none"];
    let mut owner = world.start(&flags);
    let standby = world.start_standby(&flags);
    let mut client = owner.client();
    for row in 1..=50 {
        assert_eq!(client.ask(&["HINCRBY", &format!("t:{row}"), "n", "1"]), ":1");
    }
    (0..3).for_each(|server| world.servers.restart(server));
    let late = world.start_standby(&flags);
    let (code, text) = world.refused(&flags);
    assert_eq!(code, Some(JOURNAL_UNUSABLE), "{text}");
    assert!(text.contains("forgotten") && text.contains("--adopt"), "{text}");
    world.await_status(&owner, |status| status["writes"]["decided_lsn"] == 50);
    assert_eq!((owner.ready(), standby.ready(), late.ready()), (503, 503, 503));
    assert_eq!(world.origin_rows(), (1..=50).map(|row| (row, 1)).collect::<Vec<_>>());
    owner.end();
    let mut next = world.start(&["--failover", "600ms", "--adopt"]);
    assert_eq!(next.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":2");
    next.end();
    assert_eq!(world.origin_rows()[0], (1, 2));
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
    assert!(text.contains("forgotten") && text.contains("--journal-alone"), "{text}");
    let names = world.names(&owner);
    assert!(!names.iter().any(|name| name.starts_with("journal.")), "{names:?}");
}

/// What a former owner answers that was asked while it stood still, and another one had written since.
fn answer_of_a_former_owner(flags: &[&str]) -> Option<String> {
    let mut world = World::new(3, &[]);
    let mut first = world.start(&[&["--failover", "600ms"], flags].concat());
    let mut standby = world.start_standby(&["--failover", "600ms"]);
    let mut client = first.client();
    assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    first.pause();
    standby.await_owner();
    assert_eq!(standby.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":2");
    client.send(&["HGET", "t:1", "n"]);
    first.go_on();
    let answer = client.receive();
    assert_eq!(first.await_end(), Some(FENCED));
    standby.end();
    assert_eq!(world.origin_rows(), [(1, 2)]);
    answer
}

/// > Once another owner has acknowledged anything, the former one never acknowledges a write and never shows an old value.
#[test]
fn a_former_owner_shows_no_old_value() {
    assert_eq!(answer_of_a_former_owner(&[]), None);
    // One that does not look whether it may answer must be caught, unless it hears of its successor before it reads.
    let shows = || answer_of_a_former_owner(&["--unsafe-no-log-lease"]);
    assert!((0..12).any(|_| shows().is_some_and(|answer| answer == "1")), "it is noticed");
}

/// > With d = T and `--replicas`, what is lost with a host is always a suffix, of at most the last T.
#[test]
fn with_a_commit_interval_the_end_is_lost_at_most_and_never_more_than_it() {
    let mut world = World::new(3, &[]);
    let flags = ["--commit", "300ms", "--when", "periodic:1h", "--staleness", "none"];
    let mut owner = world.start(&flags);
    let mut client = owner.client();
    for row in 1..=20 {
        assert_eq!(client.ask(&["HINCRBY", &format!("t:{row}"), "n", "1"]), ":1");
    }
    // More than the interval, and what a commit takes on a busy machine.
    std::thread::sleep(Duration::from_secs(2));
    for row in 21..=200 {
        assert_eq!(client.ask(&["HINCRBY", &format!("t:{row}"), "n", "1"]), ":1");
    }
    owner.kill();
    world.lose_disk(owner);
    let mut next = world.start(&[]);
    next.end();
    let rows = world.origin_rows();
    assert!(rows.len() >= 20, "what was older than the interval is there: {rows:?}");
    assert_eq!(rows, (1..=rows.len() as i64).map(|row| (row, 1)).collect::<Vec<_>>());
}

/// > A journal of `--journal both` that has gone on alone (`--journal-alone`) never goes back to the servers.
#[test]
fn a_copy_on_the_disk_goes_on_alone_only_where_it_is_told_to_and_does_not_go_back() {
    let mut world = World::new(3, &[]);
    let both = ["--journal", "both", "--when", "periodic:1h", "--staleness", "none"];
    let mut owner = world.start(&both);
    assert_eq!(owner.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    owner.kill();
    (0..3).for_each(|server| world.servers.kill(server));
    let (code, text) = world.refused_alone(&owner, &[]);
    assert_eq!(code, Some(JOURNAL_UNUSABLE), "{text}");
    assert!(text.contains("--journal-alone") && text.contains("up to D"), "{text}");
    let mut alone = world
        .restart_alone(owner, &["--journal-alone", "--when", "periodic:1h", "--staleness", "none"]);
    assert_eq!(alone.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":2");
    alone.kill();
    // What it has acknowledged is not taken for a tail that nobody was told of.
    (0..3).for_each(|server| world.servers.restart(server));
    let (code, text) = world.refused_again(&alone, &both);
    assert_eq!(code, Some(JOURNAL_UNUSABLE), "{text}");
    let mut alone = world.restart_alone(alone, &["--journal-alone"]);
    assert_eq!(alone.client().ask(&["HGET", "t:1", "n"]), "2");
    alone.end();
    assert_eq!(world.origin_rows(), [(1, 2)]);
}

/// The old log is refused, whatever is said.
#[test]
fn a_log_that_a_copy_of_it_has_left_behind_is_not_taken_up_again() {
    let mut world = World::new(3, &[]);
    let both = ["--journal", "both", "--when", "periodic:1h", "--staleness", "none"];
    let mut owner = world.start(&both);
    assert_eq!(owner.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    owner.kill();
    // The servers still hold what the origin lacks, and what comes now is behind it.
    let mut alone = world.restart_alone(owner, &["--journal-alone"]);
    assert_eq!(alone.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":2");
    alone.end();
    assert_eq!(world.origin_rows(), [(1, 2)]);
    for flags in [&[][..], &["--adopt"], &["--adopt", "--take-over"]] {
        let (code, text) = world.refused(flags);
        assert_eq!(code, Some(JOURNAL_UNUSABLE), "{text}");
        assert!(text.contains("--replica-log NAME"), "{text}");
    }
    let mut next = world.start(&["--replica-log", "next", "--adopt"]);
    assert_eq!(next.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":3");
    next.end();
    assert_eq!(world.origin_rows(), [(1, 3)]);
}

/// The disk is older than what the servers were given since.
#[test]
fn a_journal_that_the_servers_have_outrun_does_not_go_on_alone() {
    let mut world = World::new(3, &[]);
    let never = ["--when", "periodic:1h", "--staleness", "none"];
    let mut owner = world.start(&[&["--journal", "both"][..], &never].concat());
    assert_eq!(owner.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    owner.kill();
    let mut owner = world.restart(owner, &never);
    assert_eq!(owner.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":2");
    owner.kill();
    let (code, text) = world.refused_alone(&owner, &["--journal-alone"]);
    assert_eq!(code, Some(JOURNAL_UNUSABLE), "{text}");
    assert!(text.contains("may lack writes"), "{text}");
}
