//! DESTAGE ONCE: however often a command is sent, it is carried out once, and answered as the first time.

use crate::harness::{
    Client, Database, Launch, PATIENCE, Reply, Scratch, Server, eventually, millis, output,
    prepared, shop,
};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

const STOCK: &str = "SELECT stock FROM products WHERE id = 1";
/// What is sent, again and again.
const INCREMENT: &str = "DESTAGE ONCE a-token HINCRBY products:1 stock 1";

struct Setup {
    database: Database,
    launch: Launch,
    _scratch: Scratch,
}

impl Setup {
    fn new(arguments: &[&str]) -> Self {
        let scratch = Scratch::new();
        let database = shop::sqlite(&scratch);
        Self::before(scratch, database, arguments)
    }

    fn before(scratch: Scratch, database: Database, arguments: &[&str]) -> Self {
        let launch = Launch::before(&scratch, &database.url()).with(arguments);
        Self { database, launch, _scratch: scratch }
    }

    fn locked(&self) -> rusqlite::Connection {
        let lock = self.database.connect();
        lock.execute_batch("BEGIN IMMEDIATE").expect("the file can be locked");
        lock
    }
}

fn free(lock: &rusqlite::Connection) {
    lock.execute_batch("ROLLBACK").expect("the lock goes");
}

fn stock(server: &Server) -> i64 {
    server.client().run("HGET products:1 stock").text().parse().expect("a number")
}

#[test]
fn a_command_that_is_sent_again_is_done_once_and_answered_as_the_first_time() {
    let scratch = Scratch::new();
    for database in shop::each(&scratch) {
        let launch = Launch::before(&scratch, &database.url()).at(Scratch::new().join("data"));
        let server = launch.start();
        let mut client = server.client();
        assert_eq!(client.run(INCREMENT).int(), 11);
        client.run("HINCRBY products:1 stock 5");
        assert_eq!(client.run(INCREMENT).int(), 11);
        assert_eq!(
            server.client().run("destage once a-token hincrby products:1 stock 1").int(),
            11
        );
        assert_eq!(client.run("DESTAGE ONCE another HINCRBY products:1 stock 1").int(), 17);
        // Through a kill, and a start that finds it undecided or decided.
        server.kill();
        let server = launch.start();
        assert_eq!(server.client().run(INCREMENT).int(), 11);
        server.drain();
        assert_eq!(database.number(STOCK), 17);
        assert_eq!(server.client().run(INCREMENT).int(), 11);
        server.terminate(PATIENCE);
        let server = launch.start();
        assert_eq!(server.client().run(INCREMENT).int(), 11);
        server.drain();
        assert_eq!(database.number(STOCK), 17);
        let once = &server.status()["once"];
        assert_eq!((once["tokens"].as_u64(), once["replayed_total"].as_u64()), (Some(2), Some(1)));
    }
}

#[test]
fn the_answer_is_the_first_one_in_both_protocols() {
    let setup = Setup::new(&[]);
    let server = setup.launch.start();
    let mut two = server.client();
    let mut three = server.client();
    three.run("HELLO 3");
    for (first, second) in [(true, "a"), (false, "b")] {
        let commands = [
            vec!["HGETALL labels:x:y"],
            vec!["HSET labels:x:y note text", "HGET customers:2 email", "HGETALL products:2"],
        ];
        for (at, commands) in commands.iter().enumerate() {
            let token = format!("{second}{at}");
            let mut told = Vec::new();
            let mut exec = |client: &mut Client| {
                client.run("MULTI").ok();
                commands.iter().for_each(|command| drop(client.run(command)));
                told.push(client.call(&["DESTAGE", "ONCE", &token, "EXEC"]));
            };
            if first {
                (exec(&mut two), exec(&mut three), exec(&mut two))
            } else {
                (exec(&mut three), exec(&mut two), exec(&mut three))
            };
            assert_eq!(told[0], told[2]);
            let last = |reply: &Reply| reply.array().last().cloned();
            let (of_two, of_three) =
                if first { (&told[0], &told[1]) } else { (&told[1], &told[0]) };
            assert!(matches!(last(of_two), Some(Reply::Array(_))), "{of_two:?}");
            assert!(matches!(last(of_three), Some(Reply::Map(_))), "{of_three:?}");
            assert_eq!(of_two.array().len(), commands.len());
        }
    }
}

#[test]
fn a_token_is_for_one_command_and_one_that_was_refused_leaves_none() {
    let setup = Setup::new(&["--client-wait", "500ms"]);
    let server = setup.launch.start();
    let mut client = server.client();
    assert_eq!(client.run(INCREMENT).int(), 11);
    for other in [
        "DESTAGE ONCE a-token HINCRBY products:1 stock 2",
        "DESTAGE ONCE a-token HINCRBY products:2 stock 1",
        "DESTAGE ONCE a-token DEL products:1",
    ] {
        let told = client.run(other);
        assert!(told.error().contains("used for another command, nothing was done"), "{told:?}");
    }
    // Each of these is refused, and its token is free.
    for refused in [
        "DESTAGE ONCE t SADD products:1 x",
        "DESTAGE ONCE t HSET products:1 nothing 1",
        "DESTAGE ONCE t HSET products:1 stock much",
        "DESTAGE ONCE t HINCRBY products:9 stock 1",
        "DESTAGE ONCE t HGET products:1 stock",
        "DESTAGE ONCE t EXEC",
        "DESTAGE ONCE t DESTAGE ONCE t HINCRBY products:1 stock 1",
        "DESTAGE ONCE t",
        "DESTAGE ONCE",
        "DESTAGE ONCE t EXPIRE products:1 10",
    ] {
        assert!(client.run(refused).is_error(), "{refused}");
    }
    let long = "x".repeat(129);
    assert!(client.call(&["DESTAGE", "ONCE", &long, "DEL", "products:1"]).is_error());
    assert!(client.call(&["DESTAGE", "ONCE", "", "DEL", "products:1"]).is_error());
    assert_eq!(client.run("DESTAGE ONCE t HINCRBY products:1 stock 1").int(), 12);
    // Its row cannot be read in time, so nothing was done; then it can.
    let lock = setup.database.connect();
    lock.execute_batch("BEGIN EXCLUSIVE").expect("the file can be locked");
    let visit = "DESTAGE ONCE u HINCRBY customers:1 visits 1";
    let told = client.run(visit);
    assert!(told.error().starts_with("UNAVAILABLE"), "{told:?}");
    free(&lock);
    assert_eq!(client.run(visit).int(), 4);
    assert_eq!(client.run(visit).int(), 4);
    assert_eq!(server.status()["once"]["tokens"], 3);
}

#[test]
fn what_changed_nothing_is_done_once_too() {
    let setup = Setup::new(&[]);
    let server = setup.launch.start();
    let mut client = server.client();
    let first = "DESTAGE ONCE t HSETNX customers:1 email new@example.org";
    assert_eq!(client.run(first).int(), 0);
    assert_eq!(client.run("HDEL customers:1 email").int(), 1);
    assert_eq!(client.run(first).int(), 0);
    server.kill();
    let server = setup.launch.start();
    assert_eq!(server.client().run(first).int(), 0);
    server.drain();
    assert_eq!(setup.database.number("SELECT count(email) FROM customers WHERE id = 1"), 0);
}

#[test]
fn many_connections_with_the_same_token_get_one_answer() {
    for arguments in [&[][..], &["--policy", "write-through"], &["--cache-size", "0"]] {
        let setup = Setup::new(arguments);
        let server = setup.launch.start();
        let answers: Vec<i64> = thread::scope(|scope| {
            let ask = || server.client().run(INCREMENT).int();
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
        });
        assert_eq!(answers, vec![11; 16]);
        server.drain();
        assert_eq!(setup.database.number(STOCK), 11);
    }
}

#[test]
fn a_transaction_is_done_once_as_a_whole() {
    let setup = Setup::new(&[]);
    let server = setup.launch.start();
    let exec = |client: &mut Client, by: &str| {
        client.run("MULTI").ok();
        client.call(&["HINCRBY", "products:1", "stock", by]);
        client.run("HINCRBY customers:1 visits 1");
        client.run("DESTAGE ONCE t EXEC")
    };
    let mut client = server.client();
    let first = exec(&mut client, "1");
    assert_eq!(first, Reply::Array(vec![Reply::Int(11), Reply::Int(4)]));
    client.run("HINCRBY products:1 stock 5");
    assert_eq!(exec(&mut client, "1"), first);
    assert_eq!(exec(&mut server.client(), "1"), first);
    assert!(exec(&mut client, "2").error().contains("another command"));
    // What it watched has changed since, by itself.
    client.run("WATCH products:1").ok();
    server.client().run("HINCRBY products:1 stock 5");
    assert_eq!(exec(&mut client, "1"), first);
    // Not done is not done: no token.
    let other = |client: &mut Client| {
        client.run("MULTI").ok();
        client.run("HINCRBY products:1 stock 1");
        client.run("DESTAGE ONCE u EXEC")
    };
    client.run("WATCH products:1").ok();
    server.client().run("HINCRBY products:1 stock 5");
    assert_eq!(other(&mut client), Reply::Nil);
    assert_eq!(other(&mut client), Reply::Array(vec![Reply::Int(27)]));
    client.run("MULTI").ok();
    let inside = client.run(INCREMENT);
    assert!(inside.error().contains("DESTAGE ONCE token EXEC"), "{inside:?}");
    assert!(client.run("EXEC").error().starts_with("EXECABORT"));
    // A session under leases.
    let session = |client: &mut Client| {
        client.run("DESTAGE BEGIN").ok();
        client.run("HINCRBY products:2 stock 1");
        client.run("DESTAGE ONCE v EXEC")
    };
    let first = session(&mut client);
    assert_eq!(session(&mut client), first);
    assert_eq!(stock(&server), 27);
    server.kill();
    let server = setup.launch.start();
    assert_eq!(session(&mut server.client()), first);
    server.drain();
    assert_eq!(setup.database.number("SELECT stock FROM products WHERE id = 2"), 5);
    assert_eq!(setup.database.number("SELECT visits FROM customers WHERE id = 1"), 4);
}

#[test]
fn after_pending_the_same_token_gets_what_became_of_it() {
    let setup = Setup::new(&["--policy", "write-through", "--client-wait", "500ms"]);
    let server = setup.launch.start();
    let mut client = server.client();
    client.run("HGETALL products:1");
    let lock = setup.locked();
    let told = client.run(INCREMENT);
    assert!(told.error().starts_with("PENDING write 1 is in the journal"), "{told:?}");
    assert!(told.error().contains("do not repeat it, unless by DESTAGE ONCE"), "{told:?}");
    let told = client.run(INCREMENT);
    assert!(told.error().starts_with("PENDING write 1 is in the journal"), "{told:?}");
    let mut other = server.client();
    other.send(&INCREMENT.split(' ').collect::<Vec<_>>()).expect("the server takes it");
    free(&lock);
    assert_eq!(other.receive().expect("an answer").int(), 11);
    assert_eq!(client.run(INCREMENT).int(), 11);
    server.drain();
    assert_eq!(setup.database.number(STOCK), 11);
}

#[test]
fn what_the_origin_rejected_while_its_client_waited_leaves_no_token() {
    let setup = Setup::new(&["--policy", "write-through"]);
    let server = setup.launch.start();
    let order = "DESTAGE ONCE t HSET orders:7 customer_id 99";
    let mut client = server.client();
    assert!(client.run(order).error().starts_with("REJECTED"));
    assert!(client.run(order).error().starts_with("REJECTED"));
    server.kill();
    let server = setup.launch.start();
    let mut client = server.client();
    assert!(client.run(order).error().starts_with("REJECTED"));
    client.run("HSET customers:99 name Barbara");
    assert_eq!(client.run(order).int(), 1);
    client.run("DEL orders:7");
    assert_eq!(client.run(order).int(), 1);
    server.drain();
    assert_eq!(setup.database.number("SELECT count(*) FROM orders WHERE id = 7"), 0);
}

#[test]
fn a_write_that_waited_for_the_origin_when_the_server_was_killed_is_answered_as_the_origin_says() {
    for (command, answer) in [
        (INCREMENT, Some(11)),
        // The origin rejects it, and nobody waits by then.
        ("DESTAGE ONCE a-token HSET orders:7 customer_id 99", None),
    ] {
        let setup = Setup::new(&["--policy", "write-through", "--client-wait", "1s"]);
        let server = setup.launch.start();
        server.client().run("HGETALL products:1");
        server.client().run("HGETALL orders:7");
        let lock = setup.locked();
        let mut client = server.client();
        client.send(&command.split(' ').collect::<Vec<_>>()).expect("the server takes it");
        eventually("it is in the journal", PATIENCE, || {
            server.status()["writes"]["committed_lsn"] == 1
        });
        server.kill();
        free(&lock);
        for _ in 0..2 {
            let server = setup.launch.start();
            let told = server.client().run(command);
            match answer {
                Some(answer) => assert_eq!(told.int(), answer),
                None => assert!(told.error().starts_with("PARKED"), "{told:?}"),
            }
            server.drain();
            server.kill();
        }
        let expected = if answer.is_some() { 11 } else { 10 };
        assert_eq!(setup.database.number(STOCK), expected);
    }
}

#[test]
fn a_token_outlives_the_segment_of_its_write() {
    let setup = Setup::new(&["--journal-size", "1M", "--retain", "0"]);
    let mut server = setup.launch.start();
    assert_eq!(server.client().run(INCREMENT).int(), 11);
    let note = "x".repeat(20_000);
    let first = setup.launch.data().join("journal/segment-0000000001");
    for round in 0..4 {
        let mut client = server.client();
        for n in 0..100 {
            client.call(&["HSET", "customers:1", "note", &format!("{n} {note}")]);
        }
        server.drain();
        eventually("the first segment is gone", PATIENCE, || {
            // What is to be kept is written with the next turn, and leaves with the next decision.
            client.call(&["HSET", "customers:1", "note", &note]);
            !first.exists()
        });
        assert_eq!(client.run(INCREMENT).int(), 11, "round {round}");
        server.kill();
        server = setup.launch.start();
        assert_eq!(server.client().run(INCREMENT).int(), 11, "round {round}");
    }
    server.drain();
    assert_eq!(setup.database.number(STOCK), 11);
    let bytes = server.status()["journal"]["bytes"].as_u64().expect("it is told");
    assert!(bytes < 2 << 20, "{bytes}");
}

#[test]
fn a_full_table_refuses_new_tokens_and_forgets_none() {
    let setup = Setup::new(&[]);
    let server = setup.launch.with(&["--once-tokens", "2"]).start();
    let mut client = server.client();
    let run = |client: &mut Client, token: &str| {
        client.call(&["DESTAGE", "ONCE", token, "HINCRBY", "products:1", "stock", "1"])
    };
    assert_eq!(run(&mut client, "a").int(), 11);
    assert_eq!(run(&mut client, "b").int(), 12);
    for _ in 0..3 {
        let told = run(&mut client, "c");
        assert!(told.error().starts_with("FULL DESTAGE ONCE keeps 2 tokens"), "{told:?}");
        assert!(told.error().contains("nothing was done"), "{told:?}");
    }
    assert_eq!((run(&mut client, "a").int(), run(&mut client, "b").int()), (11, 12));
    assert_eq!(server.metric("destage_once_tokens"), 2.0);
    assert_eq!(server.metric("destage_once_refused_total"), 3.0);
    assert_eq!(stock(&server), 12);
    // By their bytes.
    server.terminate(PATIENCE);
    let server = setup.launch.with(&["--once-limit", "600"]).start();
    let mut client = server.client();
    assert_eq!((run(&mut client, "a").int(), run(&mut client, "b").int()), (11, 12));
    assert!(run(&mut client, "c").error().starts_with("FULL "));
}

/// Increments once, by a client with its defaults but for a shorter time-out.
const IMPATIENT: &str = "
import sys, redis
client = redis.Redis(port=int(sys.argv[1]), socket_timeout=0.5)
print(client.execute_command(*sys.argv[2].split()))
";

/// What redis-py's retries leave where the origin is away for longer than its time-out.
fn by_redis_py(python: &str, command: &str) -> (String, i64) {
    let setup = Setup::new(&["--policy", "write-through", "--client-wait", "10m"]);
    let server = setup.launch.start();
    server.client().run("HGETALL products:1");
    let lock = setup.locked();
    let said = thread::scope(|scope| {
        let port = server.port();
        let client = scope
            .spawn(move || output(Command::new(python).args(["-c", IMPATIENT, &port, command])));
        thread::sleep(millis(1_800));
        free(&lock);
        client.join().expect("it ends")
    });
    server.drain();
    (said.trim().to_owned(), setup.database.number(STOCK))
}

#[test]
fn redis_py_increments_once_through_an_outage_by_a_token_and_more_often_without() {
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    assert_eq!(by_redis_py(&python, INCREMENT), ("11".to_owned(), 11));
    let (_, without) = by_redis_py(&python, "HINCRBY products:1 stock 1");
    assert!(without > 11, "the control has counted once, too");
}

/// Sends a command for each number until it is answered; each first time nobody waits for the answer.
fn retry(address: &Mutex<SocketAddr>, name: usize, count: usize, once: bool) {
    for n in 0..count {
        let token = format!("{name}-{n}");
        let command = if once {
            vec!["DESTAGE", "ONCE", &token, "HINCRBY", "products:1", "stock", "1"]
        } else {
            vec!["HINCRBY", "products:1", "stock", "1"]
        };
        let connect = || Client::try_connect(*address.lock().expect("nobody panics"));
        if let Ok(mut client) = connect() {
            drop(client.send(&command));
            thread::sleep(millis(2));
        }
        let is_answered = || {
            let mut client = connect().ok()?;
            client.try_call(&command).ok().filter(|reply| !reply.is_error())
        };
        while is_answered().is_none() {
            thread::sleep(millis(5));
        }
    }
}

/// The stock after clients have sent 400 increments until they were answered, while the server was killed several times.
fn after_kills(setup: &Setup, once: bool) -> i64 {
    let server = setup.launch.start();
    let address = Mutex::new(server.listen);
    let mut server = Some(server);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|name| {
                scope.spawn({
                    let address = &address;
                    move || retry(address, name, 50, once)
                })
            })
            .collect();
        for round in 0..6 {
            thread::sleep(millis(40 + 60 * round));
            server.take().expect("it runs").kill();
            let next = setup.launch.start();
            *address.lock().expect("nobody panics") = next.listen;
            server = Some(next);
        }
        threads.into_iter().for_each(|thread| thread.join().expect("all are answered"));
    });
    let server = server.expect("it runs");
    server.drain();
    setup.database.number(STOCK) - 10
}

/// > A command that is sent again by `DESTAGE ONCE` with its token is never carried out twice within the hour: see [Carried out
/// > once](CLIENTS.md#carried-out-once).
#[test]
fn through_kills_as_much_is_done_as_there_are_tokens() {
    for arguments in
        [&[][..], &["--policy", "write-through"], &["--journal-size", "1M", "--retain", "0"]]
    {
        assert_eq!(after_kills(&Setup::new(arguments), true), 400, "{arguments:?}");
    }
    for database in [shop::postgres(), shop::mariadb()].into_iter().flatten() {
        let setup = Setup::before(Scratch::new(), database, &[]);
        assert_eq!(after_kills(&setup, true), 400, "{}", setup.database.url());
    }
    assert!(after_kills(&Setup::new(&[]), false) > 400, "the control has done nothing twice");
}
