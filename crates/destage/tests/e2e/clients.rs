//! Unmodified clients: on the rows of a shop, and on keys of all other kinds; their answers are typed as the clients have it.

use crate::harness::{
    Client, Database, Launch, Redis, Scratch, Server, has, output, prepared, shop,
};
use crate::mapped::{every_mapping, every_table, launch};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The shop behind a server, once for each database at hand and each of these protocols.
fn on_each_shop(protocols: &[&str], body: impl Fn(&Server, &Database, &str)) {
    for protocol in protocols {
        let scratch = Scratch::new();
        for (number, database) in shop::each(&scratch).into_iter().enumerate() {
            let launch = Launch::before(&scratch, &database.url());
            let server = launch.elsewhere(&scratch, &format!("data-{number}")).start();
            body(&server, &database, protocol);
        }
    }
}

/// What every client program leaves behind.
#[track_caller]
fn shop_holds_what_the_clients_wrote(server: &Server, database: &Database) {
    server.drain();
    assert_eq!(
        database.rows("SELECT name, email, visits, balance FROM customers WHERE id = 10"),
        [["Linus", "new@x.org", "3", "12.75"]]
    );
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 7);
    assert_eq!(
        database.rows("SELECT o.customer_id, l.quantity FROM orders o JOIN order_lines l ON l.order_id = o.id WHERE o.id = 50"),
        [["10", "3"]]
    );
    assert_eq!(database.number("SELECT count(*) FROM customers WHERE id IN (11, 12)"), 0);
    assert_eq!(database.number("SELECT count(*) FROM customers WHERE name = 'half'"), 0);
    assert!(database.number("SELECT count(*) FROM customers WHERE id >= 100") >= 20);
}

fn python(python: &str, port: &str, protocol: &str, section: &str) {
    python_with(python, port, protocol, section, &[]);
}

/// The same with these variables in its environment.
#[track_caller]
pub(crate) fn python_with(
    python: &str,
    port: &str,
    protocol: &str,
    section: &str,
    variables: &[(&str, String)],
) {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/clients/python/client.py");
    let mut client = Command::new(python);
    client.args(["-B", program, port, protocol, section]).envs(variables.iter().cloned());
    checked(&mut client);
}

fn go(program: &str, port: &str, protocol: &str, section: &str) {
    checked(Command::new(program).args([port, protocol, section]));
}

fn node(program: &str, port: &str, protocol: &str, section: &str) {
    checked(Command::new("node").args([program, port, protocol, section]));
}

/// A client program that ends well says how much it has checked.
#[track_caller]
fn checked(program: &mut Command) {
    let said = output(program);
    assert!(said.contains("checks"), "{said}");
}

#[test]
fn redis_py_reads_and_writes_rows_in_both_protocols() {
    let Some(program) = prepared("DESTAGE_TEST_PYTHON") else { return };
    on_each_shop(&["2", "3"], |server, database, protocol| {
        python(&program, &server.port(), protocol, "rows");
        shop_holds_what_the_clients_wrote(server, database);
    });
}

#[test]
fn go_redis_reads_and_writes_rows_in_both_protocols() {
    let Some(program) = prepared("DESTAGE_TEST_GO_CLIENT") else { return };
    on_each_shop(&["2", "3"], |server, database, protocol| {
        go(&program, &server.port(), protocol, "rows");
        shop_holds_what_the_clients_wrote(server, database);
    });
}

#[test]
fn node_redis_reads_and_writes_rows_in_both_protocols() {
    let Some(program) = prepared("DESTAGE_TEST_NODE_CLIENT") else { return };
    on_each_shop(&["2", "3"], |server, database, protocol| {
        node(&program, &server.port(), protocol, "rows");
        shop_holds_what_the_clients_wrote(server, database);
    });
}

/// Runs a client on mapped and plain keys: before Redis, which says what the answers are, and before each database at hand.
/// It is given a port, a protocol and the section of its calls.
#[track_caller]
fn keys_are_those_of_redis(client: impl Fn(&str, &str, &str)) {
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    for protocol in PROTOCOLS {
        client(&redis.port(), protocol, "keys");
    }
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(&every_table());
        // What the members of sets refer to.
        database.execute("INSERT INTO products VALUES (3, 'Desk')");
        let launch = launch(&scratch, &database, &format!("data-{number}"), &every_mapping());
        let server = launch.with(&["--unmapped", "cache"]).start();
        for protocol in PROTOCOLS {
            client(&server.port(), protocol, "keys");
            client(&server.port(), protocol, "differs");
        }
        server.drain();
        for protocol in PROTOCOLS {
            tables_hold_what_the_clients_wrote(&database, protocol);
        }
        assert_eq!(database.number("SELECT count(*) FROM everybody"), 2, "one of each protocol");
        assert_eq!(database.number("SELECT count(*) FROM ranks"), 10, "five of each protocol");
        assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 0);
    }
}

/// Each has keys of its own.
const PROTOCOLS: [&str; 2] = ["2", "3"];

/// What every client program leaves behind in that protocol.
#[track_caller]
fn tables_hold_what_the_clients_wrote(database: &Database, protocol: &str) {
    let tags = format!("SELECT tag FROM tags WHERE product_id = {protocol} ORDER BY tag");
    let red = format!("red{protocol}");
    assert_eq!(database.rows(&tags), [["blue"], [&red], ["white"]]);
    // Twice the points are whole numbers, which all databases show alike.
    let ranks = format!(
        "SELECT player, CAST(points * 2 AS INTEGER) FROM ranks WHERE board = '{protocol}' ORDER BY points"
    );
    let ranked = [["cid", "-8"], ["eve", "8"], ["bob", "10"], ["dan", "14"], ["ann", "23"]];
    assert_eq!(database.rows(&ranks), ranked);
    let place = format!("SELECT place FROM everybody WHERE name = 'm{protocol}'");
    assert_eq!(database.number(&place), 10);
    let notes =
        format!("SELECT name, body, seen FROM notes WHERE name LIKE '_{protocol}' ORDER BY name");
    let (first, second) = (format!("p{protocol}"), format!("q{protocol}"));
    assert_eq!(database.rows(&notes), [[&first, "left", "0"], [&second, "right", "0"]]);
    assert_eq!(database.number(&format!("SELECT n FROM counters WHERE id = {protocol}")), -8);
}

#[test]
fn redis_py_finds_sets_sorted_sets_strings_and_plain_keys_as_in_redis() {
    let Some(program) = prepared("DESTAGE_TEST_PYTHON") else { return };
    keys_are_those_of_redis(|port, protocol, section| python(&program, port, protocol, section));
}

#[test]
fn go_redis_finds_sets_sorted_sets_strings_and_plain_keys_as_in_redis() {
    let Some(program) = prepared("DESTAGE_TEST_GO_CLIENT") else { return };
    keys_are_those_of_redis(|port, protocol, section| go(&program, port, protocol, section));
}

#[test]
fn node_redis_finds_sets_sorted_sets_strings_and_plain_keys_as_in_redis() {
    let Some(program) = prepared("DESTAGE_TEST_NODE_CLIENT") else { return };
    keys_are_those_of_redis(|port, protocol, section| node(&program, port, protocol, section));
}

/// The tables behind YCSB's keys: the rows, and the index of all keys that its scans read.
const YCSB_TABLES: &str = "
CREATE TABLE usertable (
    ycsb_key VARCHAR(60) PRIMARY KEY, field0 VARCHAR(200), field1 VARCHAR(200), field2 VARCHAR(200),
    field3 VARCHAR(200), field4 VARCHAR(200), field5 VARCHAR(200), field6 VARCHAR(200), field7 VARCHAR(200),
    field8 VARCHAR(200), field9 VARCHAR(200)
);
CREATE TABLE ycsb_index (ycsb_key VARCHAR(60) PRIMARY KEY, place BIGINT NOT NULL);
";

const YCSB_MAPPINGS: &str = r#"
[[hash]]
key = "{ycsb_key=user*}"
table = "usertable"

[[zset]]
key = "_indices"
table = "ycsb_index"
member = "ycsb_key"
score = "place"
members-max = 20
"#;

#[test]
fn jedis_performs_the_calls_of_ycsb() {
    let Some(folder) = prepared("DESTAGE_TEST_JAVA_CLIENT") else { return };
    let scratch = Scratch::new();
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(YCSB_TABLES);
        let server = launch(&scratch, &database, &format!("data-{number}"), YCSB_MAPPINGS).start();
        let classes = format!("{folder}:{folder}/*");
        let said = output(Command::new("java").args(["-cp", &classes, "Client", &server.port()]));
        assert!(said.contains("checks"), "{said}");
        server.drain();
        for table in ["usertable", "ycsb_index"] {
            assert_eq!(database.number(&format!("SELECT count(*) FROM {table}")), 59);
        }
        assert_eq!(database.number("SELECT count(*) FROM usertable WHERE field7 = 'changed'"), 1);
    }
}

#[test]
fn ioredis_is_told_that_there_is_no_other_database() {
    let Some(program) = prepared("DESTAGE_TEST_NODE_CLIENT") else { return };
    let program = Path::new(&program).with_file_name("ioredis.mjs");
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url()).start();
    checked(Command::new("node").arg(program).arg(server.port()));
    server.drain();
    assert_eq!(database.number("SELECT visits FROM customers WHERE id = 1"), 5);
}

/// A server that takes keys of locks, before a database of SQLite.
fn with_locks(scratch: &Scratch) -> (Database, Server) {
    let database = shop::sqlite(scratch);
    let launch = Launch::before(scratch, &database.url());
    (database, launch.with(&["--unmapped", "lock:*"]).start())
}

/// Without a release that compares the value, two processes hold the lock at once.
#[test]
fn locks_of_redis_py_are_held_by_one_at_a_time() {
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/clients/python/locks.py");
    let run = |port: &str, mode: &str| {
        output(Command::new(&python).args(["-B", program, port, mode])).trim().to_owned()
    };
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    let (_database, server) = with_locks(&scratch);
    for port in [redis.port(), server.port()] {
        let said = run(&port, "promise");
        assert!(said.ends_with("checks"), "{said}");
    }
    assert_eq!(run(&server.port(), "control"), "two at once");
}

#[test]
fn ioredis_sends_scripts_by_their_digests() {
    let Some(program) = prepared("DESTAGE_TEST_NODE_CLIENT") else { return };
    let program = Path::new(&program).with_file_name("scripts.mjs");
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    let (_database, server) = with_locks(&scratch);
    for port in [redis.port(), server.port()] {
        checked(Command::new("node").arg(&program).arg(port));
    }
}

/// The names of a server's commands.
#[track_caller]
fn commands(client: &mut Client) -> BTreeSet<String> {
    client.run("COMMAND LIST").array().iter().map(|name| name.text().to_lowercase()).collect()
}

#[test]
fn each_command_of_redis_is_served_or_says_what_to_use_instead() {
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    let server = Launch::example(&scratch).start();
    let mut client = server.client();
    let (all, served) = (commands(&mut redis.client()), commands(&mut client));
    // Those of later versions and of modules that usually come along.
    let later =
        ["hgetdel", "hgetex", "hsetex", "json.get", "ft.search", "bf.add", "ts.add", "vadd"];
    let all: Vec<&str> = all.iter().map(String::as_str).chain(later).collect();
    assert!(all.len() > 200, "{all:?}");
    let mut unnamed = Vec::new();
    // What stands behind a bar belongs to the command before it.
    for name in all.iter().filter(|name| !name.contains('|') && !served.contains(**name)) {
        let reply = client.call(&[name, "customers:1", "x"]);
        let message = reply.error();
        assert!(message.starts_with(&format!("ERR unknown command '{name}'")), "{message}");
        if message.contains("see COMMAND LIST") {
            unnamed.push(*name);
        }
    }
    assert!(unnamed.is_empty(), "nothing is named instead of {unnamed:?}");
    assert!(client.run("NOSUCH x").error().contains("see COMMAND LIST"));
}

#[test]
fn redis_cli_talks_in_both_protocols() {
    if !has("redis-cli") {
        return;
    }
    on_each_shop(&["-2", "-3"], |server, _, protocol| {
        let cli = |command: &[&str]| {
            let printed = output(
                Command::new("redis-cli").args([protocol, "-p", &server.port()]).args(command),
            );
            printed.trim().to_owned()
        };
        assert_eq!(cli(&["PING"]), "PONG");
        assert_eq!(cli(&["HSET", "customers:10", "name", "Linus Torvalds"]), "1");
        assert_eq!(cli(&["HGET", "customers:10", "name"]), "Linus Torvalds");
        let row = cli(&["HGETALL", "customers:1"]);
        assert!(row.contains("ada@example.org") && row.contains("email"), "{row}");
        let keys = cli(&["--scan", "--pattern", "customers:*"]);
        assert_eq!(keys.lines().count(), 3, "{keys}");
        assert!(cli(&["DESTAGE", "STATUS"]).contains("write-back"));
        assert!(cli(&["INFO"]).contains("redis_version"));
        assert!(cli(&["GET", "customers:1"]).to_lowercase().contains("hget"));
    });
}

#[test]
fn redis_cli_runs_a_transaction_from_its_input() {
    if !has("redis-cli") {
        return;
    }
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url()).start();
    let script = "MULTI\nHSET orders:7 customer_id 1\nHSET order_lines:7:2 quantity 4\nEXEC\n";
    let shell = format!("printf '{script}' | redis-cli -p {}", server.port());
    let said = output(Command::new("sh").args(["-c", &shell]));
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["OK", "QUEUED", "QUEUED", "1", "1"]);
    server.drain();
    assert_eq!(database.number("SELECT quantity FROM order_lines WHERE order_id = 7"), 4);
}

#[test]
fn redis_benchmark_reads_and_writes_rows() {
    if !has("redis-benchmark") {
        return;
    }
    on_each_shop(&["1", "16"], |server, database, depth| {
        let benchmark = |command: &[&str]| {
            let options = ["-n", "4000", "-c", "20", "-r", "500", "-q", "-P", depth];
            let mut benchmark = Command::new("redis-benchmark");
            let said = output(benchmark.args(["-p", &server.port()]).args(options).args(command));
            assert!(said.contains("requests per second"), "{said}");
            assert!(!said.to_lowercase().contains("error"), "{said}");
        };
        benchmark(&[
            "HSET",
            "customers:__rand_int__",
            "name",
            "customer",
            "email",
            "x@example.org",
        ]);
        benchmark(&["HGETALL", "customers:__rand_int__"]);
        benchmark(&["HINCRBY", "products:1", "stock", "1"]);
        server.drain();
        assert!(database.number("SELECT count(*) FROM customers") > 400);
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 4_010);
    });
}

#[test]
fn a_bare_start_serves_the_example_shop_and_its_suggestions_work() {
    if !has("redis-cli") {
        return;
    }
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    for part in ["listen=", "admin=", "origin=", "write-back", "d=0", "D=30s"] {
        assert!(server.ready.contains(part), "no {part} in: {}", server.ready);
    }
    let suggested = server.printed(3);
    let commands: Vec<&String> =
        suggested.iter().filter(|line| line.contains("redis-cli")).collect();
    assert!(commands.len() >= 2, "{suggested:?}");
    for command in commands {
        let command = &command[command.find("redis-cli").expect("the line has it")..];
        let said = output(Command::new("sh").args(["-c", command]));
        assert!(!said.trim().is_empty() && !said.contains("ERR"), "{command}: {said}");
    }
    let mut client = server.client();
    for table in ["customers", "products", "orders", "order_lines"] {
        let page = client.call(&["SCAN", "0", "MATCH", &format!("{table}:*"), "COUNT", "5"]);
        let key = page.array()[1].array().first().map(|key| key.text());
        let key = key.unwrap_or_else(|| panic!("{table} is empty"));
        assert!(!client.call(&["HGETALL", &key]).pairs().is_empty(), "{key}");
    }
}

#[test]
fn hello_auth_and_connection_commands_answer_as_redis_does() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    assert_eq!(client.run("PING").text(), "PONG");
    assert_eq!(client.call(&["PING", "a b"]).text(), "a b");
    client.run("CLIENT SETINFO LIB-NAME test").ok();
    client.run("CLIENT SETNAME me").ok();
    assert_eq!(client.run("CLIENT GETNAME").text(), "me");
    client.run("SELECT 0").ok();
    // Whoever asks for another database gets nothing of this one.
    assert!(client.run("SELECT 3").error().contains("there is only 0"));
    for refused in ["HGET customers:1 name", "HSET customers:1 name x", "MULTI", "SCAN 0"] {
        assert!(client.run(refused).error().contains("database 3"), "{refused}");
    }
    assert_eq!(client.run("PING").text(), "PONG");
    assert!(client.run("SELECT x").error().contains("not an integer"));
    assert!(client.run("SELECT 4").error().contains("there is only 0"));
    assert!(client.run("HGET customers:1 name").error().contains("database 4"));
    client.run("SELECT 0").ok();
    assert_eq!(client.run("HGET customers:1 name").text(), "Ada");
    // Who asks in between is told, as by Redis.
    assert!(client.run("SELECT 3").error().contains("there is only 0"));
    assert_eq!(client.run("HGET customers:1 name").text(), "Ada");
    assert!(client.run("HELLO 9").error().starts_with("NOPROTO"));
    let hello = client.run("HELLO 3 SETNAME other");
    assert!(matches!(hello, crate::harness::Reply::Map(_)), "{hello:?}");
    assert_eq!(client.run("CLIENT GETNAME").text(), "other");
    assert!(matches!(client.run("HGETALL customers:1"), crate::harness::Reply::Map(_)));
    client.run("RESET");
    assert!(matches!(client.run("HGETALL customers:1"), crate::harness::Reply::Array(_)));
    client.send_raw(b"PING\r\n").expect("the server listens");
    assert_eq!(client.receive().expect("inline commands are answered").text(), "PONG");
    client.run("QUIT").ok();
    assert!(Client::try_call(&mut client, &["PING"]).is_err(), "QUIT leaves the connection open");
}

#[test]
fn what_a_browser_sends_is_never_taken_for_commands() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let write = "HINCRBY products:1 stock 1";
    for request in ["POST / HTTP/1.1\r\nHost: shop\r\n", "GET / HTTP/1.1\r\nhost: shop\r\n"] {
        let mut browser = server.client();
        browser.send_raw(format!("{request}\r\n{write}\r\n").as_bytes()).expect("it is sent");
        // An error for each line up to the one that gives it away, and then the end.
        while let Ok(reply) = browser.receive() {
            assert!(reply.is_error(), "{reply:?}");
        }
    }
    // The same line is a command where no such request comes before it.
    let mut client = server.client();
    let before = client.run("HGET products:1 stock").int();
    client.send_raw(format!("{write}\r\n").as_bytes()).expect("it is sent");
    assert_eq!(client.receive().expect("there is a reply").int(), before + 1);
    assert_eq!(before, 12);
}
