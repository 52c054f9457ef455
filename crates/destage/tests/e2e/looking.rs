//! What tools for Redis look at beside the data: slow requests, what is asked for, who is connected, what a key takes.

use crate::harness::{Client, Database, Launch, PATIENCE, Reply, Scratch, eventually};

/// The origin holds a table back for a moment: whoever needs a row of it waits.
#[test]
fn requests_that_waited_long_are_kept_with_how_long() {
    let Some(origin) = Database::postgres() else { return };
    let origin = origin
        .with("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 5), (2, 6)");
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &origin.url()).start();
    let (mut one, mut two) = (server.client(), server.client());
    one.run("CLIENT SETNAME shop").ok();
    one.run("CONFIG SET latency-monitor-threshold 50").ok();
    assert_eq!(one.run("HGET t:2 n").text(), "6");
    one.run("SLOWLOG RESET").ok();
    std::thread::scope(|scope| {
        scope.spawn(|| origin.execute("BEGIN; LOCK TABLE t; SELECT pg_sleep(0.3); COMMIT"));
        eventually("the table is locked", PATIENCE, || {
            let locks = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = 't'::regclass";
            origin.number(locks) == 1
        });
        assert_eq!(one.run("HGET t:1 n").text(), "5");
    });
    // What is cached waits for nothing.
    assert_eq!(one.run("HGET t:2 n").text(), "6");
    assert_eq!(two.run("SLOWLOG LEN").int(), 1);
    let entries = two.run("SLOWLOG GET");
    let [id, at, took, words, from, name] = entries.array()[0].array() else {
        panic!("{entries:?}");
    };
    assert_eq!((id.int(), name.text()), (id.int().max(0), "shop".to_owned()));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a date");
    assert!((now.as_secs() as i64 - 60..=now.as_secs() as i64).contains(&at.int()), "{at:?}");
    assert!((50_000..60_000_000).contains(&took.int()), "{took:?} us");
    let words: Vec<String> = words.array().iter().map(Reply::text).collect();
    assert_eq!(words, ["HGET", "t:1", "n"]);
    assert!(from.text().starts_with("127.0.0.1:") && !from.text().ends_with(":0"), "{from:?}");
    let latest = two.run("LATENCY LATEST");
    let command = latest.array().iter().find(|event| event.array()[0].text() == "command");
    let command = command.expect("the event is there").array();
    assert!(command[2].int() >= 50 && command[3].int() >= command[2].int(), "{command:?}");
    assert!(!two.run("LATENCY HISTORY command").array().is_empty());
    assert!(two.run("LATENCY DOCTOR").text().contains("requests waited for the origin"));
    assert!(two.run("LATENCY RESET").int() >= 1);
    assert_eq!(two.run("LATENCY LATEST").array().len(), 0);
    two.run("SLOWLOG RESET").ok();
    assert_eq!(two.run("SLOWLOG LEN").int(), 0);
}

#[test]
fn only_what_is_about_looking_can_be_set() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let mut client = server.client();
    assert_eq!(client.run("CONFIG GET slowlog*").pairs().len(), 2);
    let get = |client: &mut Client, name: &str| {
        client.run(&format!("CONFIG GET {name}")).pairs()[0].1.clone()
    };
    assert_eq!(get(&mut client, "slowlog-log-slower-than"), "10000");
    client.run("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 2").ok();
    assert_eq!(get(&mut client, "slowlog-max-len"), "2");
    for id in 1..=4 {
        client.run(&format!("HGETALL products:{id}"));
    }
    assert_eq!(client.run("SLOWLOG GET -1").array().len(), 2, "the newest are kept");
    client.run("CONFIG SET slowlog-log-slower-than -1").ok();
    client.run("SLOWLOG RESET").ok();
    client.run("HGETALL products:5");
    assert_eq!(client.run("SLOWLOG LEN").int(), 0);
    for refused in [
        "CONFIG SET maxmemory 1",
        "CONFIG SET slowlog-max-len",
        "CONFIG SET slowlog-max-len 100000",
        "CONFIG SET slowlog-max-len 5 maxclients 1",
        "SLOWLOG GET x",
        "SLOWLOG HELLO",
        "LATENCY HELLO",
    ] {
        assert!(client.run(refused).is_error(), "{refused}");
    }
    assert_eq!(get(&mut client, "slowlog-max-len"), "2", "all of a request or nothing");
}

#[test]
fn a_monitor_sees_what_others_ask_for_and_no_passwords() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--password", "secret"]).start();
    let mut monitor = server.client();
    assert!(monitor.run("MONITOR").is_error(), "a stranger sees nothing");
    monitor.run("AUTH secret").ok();
    monitor.run("MONITOR").ok();
    let mut client = server.client();
    client.run("AUTH secret").ok();
    client.run("HSET products:1 name x");
    client.call(&["PING", "a \"b\"\n"]);
    client.call(&["AUTH", "default", "secret"]).ok();
    client.run("HGET products:1 name");
    let mut lines = Vec::new();
    while lines.len() < 3 {
        lines.push(monitor.receive().expect("a line").text());
    }
    let shown = |line: &str| line.split_once("] ").expect("an address").1.to_owned();
    let all: Vec<String> = lines.iter().map(|line| shown(line)).collect();
    let expected = [
        r#""HSET" "products:1" "name" "x""#,
        r#""PING" "a \"b\"\n""#,
        r#""HGET" "products:1" "name""#,
    ];
    assert_eq!(all, expected, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("[0 127.0.0.1:")), "{lines:?}");
    assert!(client.run("CLIENT LIST").text().contains("flags=O"));
    monitor.receive().expect("that is shown as well");
    assert!(monitor.run("HGET products:1 name").error().contains("MONITOR"));
    assert_eq!(monitor.run("RESET").text(), "RESET");
    monitor.run("AUTH secret").ok();
    client.run("HGET products:2 name");
    assert_eq!(monitor.run("HGET products:1 name").text(), "x", "it is shown nothing any more");
}

#[test]
fn a_monitor_that_reads_nothing_is_disconnected_and_holds_up_nobody() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--output-limit", "1M"]).start();
    let mut monitor = server.client();
    monitor.run("MONITOR").ok();
    let mut client = server.client();
    let text = "y".repeat(1_000);
    let long: Vec<String> = (0..500).map(|_| format!("ECHO {text}")).collect();
    eventually("it is disconnected", PATIENCE, || {
        assert_eq!(client.pipeline(&long).len(), long.len());
        !client.run("CLIENT LIST").text().contains("flags=O")
    });
}

#[test]
fn who_is_connected_is_told_as_redis_tells_it() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    clients[1].run("CLIENT SETNAME worker").ok();
    clients[1].run("CLIENT SETINFO LIB-NAME redis-py").ok();
    clients[1].run("CLIENT SETINFO LIB-VER 5.0").ok();
    clients[2].run("MULTI").ok();
    clients[2].run("PING");
    clients[2].run("ECHO x");
    let id = clients[1].run("CLIENT ID").int();
    let list = clients[0].run("CLIENT LIST").text();
    assert_eq!(list.lines().count(), 3, "{list}");
    let field = |line: &str, name: &str| {
        let found = line.split(' ').find_map(|part| part.strip_prefix(&format!("{name}=")));
        found.unwrap_or_else(|| panic!("{name}: {line}")).to_owned()
    };
    let worker = list.lines().find(|line| field(line, "name") == "worker").expect("it is there");
    assert_eq!(field(worker, "id"), id.to_string());
    assert_eq!(
        (field(worker, "lib-name"), field(worker, "lib-ver")),
        ("redis-py".into(), "5.0".into())
    );
    assert_eq!((field(worker, "cmd"), field(worker, "flags")), ("client".into(), "N".into()));
    for name in ["addr", "age", "idle", "db", "qbuf", "omem", "tot-mem", "user", "resp"] {
        field(worker, name);
    }
    let queues = list.lines().find(|line| field(line, "flags").contains('x')).expect("MULTI");
    assert_eq!(field(queues, "multi"), "2");
    let one = clients[0].run(&format!("CLIENT LIST ID {id} 424242")).text();
    assert_eq!((one.lines().count(), field(&one, "name")), (1, "worker".into()));
    assert_eq!(clients[0].run("CLIENT LIST TYPE pubsub").text(), "");
    assert!(clients[0].run("CLIENT LIST NONSENSE").is_error());
    assert_eq!(field(&clients[0].run("CLIENT INFO").text(), "cmd"), "client");
}

#[test]
fn what_a_cached_key_takes_is_told_and_nothing_is_fetched_for_it() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--unmapped", "cache"]).start();
    let mut client = server.client();
    assert!(matches!(client.run("MEMORY USAGE products:1"), Reply::Nil), "it is not cached");
    assert!(matches!(client.run("OBJECT ENCODING products:1"), Reply::Nil));
    client.run("HGETALL products:1");
    client.run("SET plain value");
    client.run("HSET hash field value");
    let small = client.run("MEMORY USAGE products:1").int();
    client.call(&["HSET", "products:1", "name", &"x".repeat(500)]);
    let large = client.run("MEMORY USAGE products:1 SAMPLES 0").int();
    assert!(small > 28 && large >= small + 400, "{small}, {large}");
    for (key, encoding) in [("products:1", "listpack"), ("plain", "raw"), ("hash", "listpack")] {
        assert_eq!(client.run(&format!("OBJECT ENCODING {key}")).text(), encoding, "{key}");
        assert_eq!(client.run(&format!("OBJECT REFCOUNT {key}")).int(), 1);
    }
    for refused in ["MEMORY DOCTOR", "OBJECT IDLETIME products:1", "MEMORY USAGE nothing:1:2"] {
        let reply = client.run(refused);
        assert!(reply.is_error() || matches!(reply, Reply::Nil), "{refused}: {reply:?}");
    }
}
