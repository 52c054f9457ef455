//! Safe by default: who may connect, how much they may ask for, and what their values cannot do.

use crate::harness::server::binary;
use crate::harness::{Client, Database, Launch, PATIENCE, Reply, Scratch, seconds, shop};
use std::io::Read;
use std::net::TcpStream;

#[test]
fn without_the_password_nothing_is_answered() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--password", "open-sesame"]).start();
    let mut client = server.client();
    for command in ["HGETALL customers:1", "PING", "DESTAGE STATUS", "INFO", "MULTI"] {
        assert!(client.run(command).error().starts_with("NOAUTH"), "{command}");
    }
    assert!(client.call(&["AUTH", "open-says-me"]).error().starts_with("WRONGPASS"));
    assert!(client.run("PING").error().starts_with("NOAUTH"));
    client.call(&["AUTH", "open-sesame"]).ok();
    assert_eq!(client.run("PING").text(), "PONG");
    let mut other = server.client();
    let hello = other.call(&["HELLO", "3", "AUTH", "default", "open-sesame"]);
    assert!(matches!(hello, Reply::Map(_)), "{hello:?}");
    assert!(server.post("policy", &["write-through"]).to_lowercase().contains("password"));
    assert_eq!(server.status()["policy"]["acknowledge"], "write-back");
}

/// A flood of bytes before AUTH costs the server a few of them.
#[test]
fn before_the_password_little_is_taken() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--password", "open-sesame"]).start();
    let long = "x".repeat(16_000);
    for (bytes, why) in [
        ("*2\r\n$3\r\nGET\r\n$60000000\r\n".to_owned(), "a request of more than 16384 bytes"),
        ("*11\r\n".to_owned(), "more than 10 arguments"),
        (format!("*2\r\n$16000\r\n{long}\r\n$1000\r\n"), "a request of more than 16384 bytes"),
        ("x".repeat(16_384), "too big inline request"),
    ] {
        let mut client = server.client();
        client.send_raw(bytes.as_bytes()).unwrap();
        let reply = client.receive().unwrap();
        assert!(reply.error().contains(why), "{reply:?}");
        assert!(reply.error().ends_with("before AUTH"), "{reply:?}");
        assert!(client.receive().is_err(), "the connection is closed");
    }
    // Who knows the password may send as much as any, in the same breath and after a RESET.
    let mut client = server.client();
    let value = "v".repeat(100_000);
    client.send(&["AUTH", "open-sesame"]).unwrap();
    client.send(&["PING", &value]).unwrap();
    client.receive().unwrap().ok();
    assert_eq!(client.receive().unwrap().text(), value);
    assert_eq!(client.run("RESET").text(), "RESET");
    assert!(client.call(&["PING", &value]).error().starts_with("NOAUTH"));
    client.call(&["AUTH", "open-sesame"]).ok();
}

/// Replies to a client that does not read them, and has not sent the password.
#[test]
fn before_the_password_few_replies_wait() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--password", "open-sesame"]).start();
    let mut client = server.client();
    let pings = "PING\r\n".repeat(10_000);
    // It is closed before it has sent them all.
    while client.send_raw(pings.as_bytes()).is_ok() {}
    assert_eq!(server.status()["memory"]["clients_bytes"], 0);
}

#[test]
fn clients_log_in_with_the_password() {
    let Some(python) = crate::harness::prepared("DESTAGE_TEST_PYTHON") else { return };
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url()).with(&["--password", "secret"]).start();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/clients/python/client.py");
    let arguments = ["-B", program, &server.port(), "3", "rows", "secret"];
    crate::harness::output(std::process::Command::new(python).args(arguments));
}

#[test]
fn other_hosts_are_kept_out_unless_there_is_a_password() {
    let scratch = Scratch::new();
    let exit = Launch::example(&scratch).listening("0.0.0.0:0").refused();
    exit.says(2, &["--password"]);
    let exit = Launch::example(&scratch).administered("0.0.0.0:0").refused();
    exit.says(2, &["--password"]);
    Launch::example(&scratch).with(&["--password", "secret"]).listening("0.0.0.0:0").start();
}

/// They have no origin: whoever is let through ends for want of that.
#[test]
fn other_hosts_command_no_volume_and_no_mount_unless_there_is_a_password() {
    let scratch = Scratch::new();
    let origin = scratch.join("absent").display().to_string();
    let (disk, place) = (format!("file:{origin}"), scratch.join("place").display().to_string());
    for front_end in [
        &["block", "serve", "--origin", &disk, "--cache", &place][..],
        &["mount", &origin, &place, "--journal", &place],
    ] {
        let said = |more: &[&str]| {
            let mut command = std::process::Command::new(binary());
            command.args(front_end).args(["--admin", "0.0.0.0:0"]).args(more);
            let output = command.env_remove("DESTAGE_PASSWORD").output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{said}");
            said.contains("--admin 0.0.0.0:0 can be reached from other machines")
        };
        assert!(said(&[]), "{front_end:?}");
        assert!(!said(&["--password", "secret"]) && !said(&["--no-auth"]), "{front_end:?}");
    }
}

#[test]
fn a_database_of_ones_own_needs_a_password_or_the_word_that_it_does_not() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = Launch::example(&scratch).with(&["--origin", &database.url()]);
    launch.refused().says(2, &["--password", "--no-auth"]);
    launch.with(&["--password", "secret"]).start();
}

#[test]
fn more_clients_than_allowed_are_turned_away() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--max-clients", "5"]).start();
    let mut clients: Vec<Client> = (0..5).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.run("PING").text(), "PONG");
    }
    let mut surplus = server.client();
    surplus.patience(seconds(5));
    match surplus.try_call(&["PING"]) {
        Ok(Reply::Error(message)) => assert!(message.contains("clients"), "{message}"),
        Ok(other) => panic!("served: {other:?}"),
        Err(_) => {}
    }
    drop(clients.pop());
    crate::harness::eventually("a place is free again", PATIENCE, || {
        let mut next = server.client();
        matches!(next.try_call(&["PING"]), Ok(Reply::Status(_)))
    });
}

#[test]
fn requests_beyond_the_limit_are_refused_before_they_take_memory() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--max-request", "64K"]).start();
    let mut client = server.client();
    let fits = client.call(&["ECHO", &"x".repeat(60_000)]);
    assert_eq!(fits.text().len(), 60_000);
    // Announced, not sent: the announcement alone must be refused.
    client.send_raw(b"*2\r\n$4\r\nECHO\r\n$1000000000\r\n").expect("the server listens");
    let message = client.receive().expect("it is answered");
    assert!(message.error().to_lowercase().contains("protocol"), "{message:?}");
    assert!(client.receive().is_err(), "the connection stays open");
    for garbage in [&b"*1000000000\r\n"[..], b"*-5\r\n$x\r\n", b"$6\r\nnosuch\r\n", &[0xff; 70_000]]
    {
        let mut client = server.client();
        client.patience(seconds(5));
        // Either end may come first.
        let _ = client.send_raw(garbage);
        while let Ok(reply) = client.receive() {
            assert!(reply.is_error(), "{reply:?}");
        }
    }
    assert_eq!(server.client().run("PING").text(), "PONG");
    assert!(server.metric("destage_memory_resident_bytes") < 300e6);
}

#[test]
fn a_deep_pipeline_is_answered_whole_within_bounded_memory() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--max-pipeline", "100"]).start();
    let mut client = server.client();
    let commands: Vec<_> = (0..20_000).map(|n| format!("ECHO {n}")).collect();
    for (n, reply) in client.pipeline(&commands).into_iter().enumerate() {
        assert_eq!(reply.text(), n.to_string());
    }
}

#[test]
fn a_client_that_does_not_read_its_replies_is_cut_off() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--output-limit", "1M"]).start();
    let mut deaf = TcpStream::connect(server.listen).expect("the server listens");
    deaf.set_write_timeout(Some(seconds(2))).expect("not zero");
    deaf.set_read_timeout(Some(seconds(10))).expect("not zero");
    let mut request = Vec::new();
    crate::harness::resp::encode(&mut request, &["ECHO", &"x".repeat(50_000)]);
    for _ in 0..2_000 {
        // Back-pressure is as good as being cut off: memory is what counts.
        if std::io::Write::write_all(&mut deaf, &request).is_err() {
            break;
        }
    }
    assert!(server.metric("destage_memory_resident_bytes") < 200e6);
    assert_eq!(server.client().run("PING").text(), "PONG");
    let mut read = Vec::new();
    let _ = deaf.take(1 << 20).read_to_end(&mut read);
}

/// Most memory that a process has taken so far, in bytes.
pub(crate) fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is said");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

#[test]
fn one_command_cannot_ask_for_more_than_the_output_limit() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--output-limit", "4M"]).start();
    let mut client = server.client();
    client.run(&format!("HSET customers:1 name {}", "x".repeat(1 << 20)));
    let before = peak_bytes(server.id());
    let greedy = format!("HMGET customers:1{}", " name".repeat(400));
    assert!(client.run(&greedy).error().contains("exceeds --output-limit"));
    client.run("MULTI");
    client.run("HINCRBY products:1 stock 1");
    client.run(&greedy);
    let said = client.run("EXEC").error().to_owned();
    assert!(said.contains("exceeds --output-limit"), "{said}");
    // Nothing of the transaction was done, and the connection goes on.
    assert_eq!(client.run("HGET products:1 stock").text(), "12");
    assert_eq!(client.run("HMGET customers:1 name name").array().len(), 2);
    // The 400 MB of a single reply would show.
    let grown = peak_bytes(server.id()).saturating_sub(before);
    assert!(grown < 100 << 20, "{grown}");
}

#[test]
fn a_transaction_has_a_bounded_number_of_commands() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let mut client = server.client();
    let increment = "HINCRBY products:1 stock 1".to_owned();
    let commands: Vec<_> = [vec!["MULTI".to_owned()], vec![increment; 100_001]].concat();
    let replies = client.pipeline(&commands);
    assert_eq!(replies[100_000].text(), "QUEUED");
    assert!(replies[100_001].error().contains("more than 100000 commands"));
    assert!(client.run("EXEC").error().starts_with("EXECABORT"));
    assert_eq!(server.client().run("HGET products:1 stock").text(), "12");
}

#[test]
fn values_keys_and_names_cannot_carry_sql() {
    let scratch = Scratch::new();
    for (number, database) in shop::each(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.elsewhere(&scratch, &format!("data-{number}")).start();
        let mut client = server.client();
        let evil = [
            "x'; DROP TABLE order_lines; --",
            "\"; DROP TABLE order_lines; --",
            "$1', 'x'); DELETE FROM customers; --",
            "\\'; DELETE FROM customers; --",
            "%s {} $$ \u{1F512} \u{202e} ' \" ` ;",
        ];
        for (n, text) in evil.iter().enumerate() {
            let id = format!("customers:{}", 500 + n);
            assert_eq!(client.call(&["HSET", &id, "name", text]).int(), 1);
            assert_eq!(client.call(&["HGET", &id, "name"]).text(), *text);
            // In a text key, where every character is allowed.
            let key = format!("labels:{}:evil", text.replace('%', "%25").replace(':', "%3A"));
            assert!(!client.call(&["HSET", &key, "note", text]).is_error(), "{key}");
            // Where only a number or a name is allowed.
            assert!(client.call(&["HSET", &format!("customers:{text}"), "name", "x"]).is_error());
            assert!(client.call(&["HSET", &format!("{text}:1"), "name", "x"]).is_error());
            assert!(client.call(&["HSET", "customers:1", text, "x"]).is_error());
            assert!(client.call(&["HINCRBY", "customers:1", "visits", text]).is_error());
            client.call(&["SCAN", "0", "MATCH", &format!("{text}*")]);
            client.call(&["DESTAGE", "INVALIDATE", text]);
            client.call(&["DESTAGE", "NEXTID", text]);
        }
        server.drain();
        for (n, text) in evil.iter().enumerate() {
            let stored = format!("SELECT name FROM customers WHERE id = {}", 500 + n);
            assert_eq!(database.value(&stored), *text);
        }
        assert_eq!(database.number("SELECT count(*) FROM labels"), 5);
        assert_eq!(database.number("SELECT count(*) FROM customers"), 7);
        assert_eq!(database.number("SELECT count(*) FROM order_lines"), 1);
        assert_eq!(server.status()["destage"]["parked_groups"], 0);
    }
}

#[test]
fn tables_and_columns_with_odd_names_are_quoted() {
    let scratch = Scratch::new();
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(
            "CREATE TABLE \"select \"\"from\"\" where; --\" (\"order\" INTEGER PRIMARY KEY, \
             \"a b\" TEXT, \"x'y\" TEXT, \"Größe\" INTEGER)",
        );
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.elsewhere(&scratch, &format!("data-{number}")).start();
        let mut client = server.client();
        let key = "select \"from\" where; --:1";
        let written = client.call(&["HSET", key, "a b", "1", "x'y", "2", "Größe", "3"]);
        assert_eq!(written.int(), 3);
        assert_eq!(client.call(&["HINCRBY", key, "Größe", "4"]).int(), 7);
        server.drain();
        let rows = database.rows("SELECT * FROM \"select \"\"from\"\" where; --\"");
        assert_eq!(rows, [["1", "1", "2", "7"]]);
    }
}
