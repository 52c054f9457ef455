//! Users of a file: what each may do, which keys it reaches, and that a right is gone once the file says so.

use crate::harness::server::binary;
use crate::harness::{
    Client, Database, Launch, PATIENCE, Reply, Scratch, Server, eventually, prepared, shop,
};
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The hash of a password, made by the program once for all tests.
fn hash_of(password: &str) -> String {
    static SECRET: OnceLock<String> = OnceLock::new();
    if password == "secret" {
        SECRET.get_or_init(|| make("secret")).clone()
    } else {
        make(password)
    }
}

fn make(password: &str) -> String {
    let mut command = Command::new(binary());
    command.args(["users", "hash"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut input = child.stdin.take().expect("the input is piped");
    writeln!(input, "{password}").expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("it is text").trim().to_owned()
}

/// A shop, and a file of users before it. Each has the password `secret` for `HASH`.
struct Setup {
    scratch: Scratch,
    database: Database,
}

const SETTINGS: &str = r#"
unmapped = ["lock:*", "other:*"]

[[string]]
key = "stock:{id}"
table = "products"
value = "stock"

[[query]]
key = "spent:{id}"
sql = "SELECT balance FROM customers WHERE id = $id"
depends_on = ["customers"]
types = { id = "integer" }

[[query]]
key = "visits:{id}"
sql = "SELECT visits FROM customers WHERE id = $id"
depends_on = ["customers"]
types = { id = "integer" }
"#;

const USERS: &str = "
# who may do what
user ops on admin HASH
user shop on write ~customers:* ~lock:* %R~products:* ~stock:* ~visits:* HASH
user report on read ~customers:1 ~customers:2 ~visits:* HASH
user odd on read ~customers:0* HASH
user gone off read ~* HASH
";

impl Setup {
    fn new() -> Self {
        let scratch = Scratch::new();
        let database = shop::sqlite(&scratch);
        let setup = Self { scratch, database };
        setup.users(USERS);
        std::fs::write(setup.scratch.join("destage.toml"), SETTINGS).expect("it can be written");
        setup
    }

    fn path(&self, name: &str) -> String {
        self.scratch.join(name).to_str().expect("the path is text").to_owned()
    }

    /// Writes the file of users.
    fn users(&self, text: &str) {
        let text = text.replace("HASH", &hash_of("secret"));
        std::fs::write(self.path("users"), text).expect("it can be written");
        let mode = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(self.path("users"), mode).expect("it is ours");
    }

    fn launch(&self) -> Launch {
        Launch::example(&self.scratch).with(&[
            "--origin",
            &self.database.url(),
            "--config",
            &self.path("destage.toml"),
            "--users",
            &self.path("users"),
            "--origin-timeout",
            "50s",
        ])
    }

    /// Has the file be read again, and waits until the log tells of it.
    #[track_caller]
    fn read_again(&self, server: &Server, says: &str) {
        let before = server.log().matches(says).count();
        server.signal(Signal::HUP);
        eventually(says, PATIENCE, || server.log().matches(says).count() > before);
    }
}

const READ_AGAIN: &str = "the users were read again";

#[track_caller]
fn logged_in(server: &Server, user: &str) -> Client {
    let mut client = server.client();
    client.call(&["AUTH", user, "secret"]).ok();
    client
}

#[track_caller]
fn refused(reply: &Reply, command: &str) {
    assert!(
        matches!(reply, Reply::Error(text) if text.starts_with("NOPERM ")),
        "{command}: {reply:?}"
    );
}

#[track_caller]
fn taken(reply: &Reply, command: &str) {
    assert!(
        !matches!(reply, Reply::Error(text) if text.starts_with("NOPERM ")),
        "{command}: {reply:?}"
    );
}

/// What every user is refused who is not `ops`, with what `shop` and `report` may send besides.
const OF_ADMINS: [&str; 16] = [
    "SLOWLOG GET",
    "LATENCY LATEST",
    "CLIENT LIST",
    "CONFIG GET *",
    "CONFIG SET slowlog-max-len 5",
    "ACL LIST",
    "ACL USERS",
    "ACL GETUSER ops",
    "SCRIPT FLUSH",
    "DESTAGE POLICY",
    "DESTAGE FLUSH 1",
    "DESTAGE PAUSE",
    "DESTAGE RESUME",
    "DESTAGE PARKED LIST",
    "DESTAGE INVALIDATE *",
    "MONITOR",
];

/// Of those who write, within their keys.
const OF_WRITERS: [&str; 15] = [
    "HSET customers:1 note hello",
    "DESTAGE ONCE t1 HINCRBY customers:1 visits 0",
    "DEL customers:77",
    "SET lock:a 1",
    "MSET lock:b 1 lock:c 2",
    "INCR stock:2",
    "EVAL return(redis.call('set',KEYS[1],ARGV[1])) 1 lock:d x",
    "EVAL return(redis.call('rename',KEYS[1],KEYS[2])) 2 lock:d lock:e",
    "EXPIRE lock:a 100",
    "DELEX lock:b",
    "DESTAGE INVALIDATE customers:1",
    "DESTAGE INVALIDATE customers:*",
    "DESTAGE NEXTID customers",
    "DESTAGE WAIT 60000",
    "DESTAGE BEGIN",
];

/// Keys of others: refused to `shop`, which may write.
const OF_OTHERS: [&str; 24] = [
    "HGETALL orders:1",
    "HSET products:1 stock 5",
    "HSET orders:1 note x",
    "DESTAGE ONCE t2 HSET orders:1 note x",
    "DEL customers:77 orders:77",
    "EXISTS customers:1 orders:1",
    "MGET lock:a other:a",
    "MSET lock:a 1 other:a 1",
    "MSETNX lock:x 1 other:x 1",
    "GET spent:1",
    "DEL spent:1",
    "EVAL return(redis.call('set',KEYS[1],'x')) 1 other:a",
    "EVAL return(redis.call('rename',KEYS[1],KEYS[2])) 2 lock:a other:a",
    "EVAL_RO return(redis.call('get',KEYS[1])) 1 other:a",
    "WATCH customers:1 orders:1",
    "TYPE orders:1",
    "TTL other:a",
    "EXPIRE other:a 1",
    "MEMORY USAGE orders:1",
    "OBJECT ENCODING orders:1",
    "DESTAGE INVALIDATE customers:1 orders:1",
    "DESTAGE INVALIDATE orders:*",
    "DESTAGE INVALIDATE *",
    "DESTAGE NEXTID orders",
];

#[test]
fn a_role_says_what_a_user_may_do_and_a_pattern_to_which_keys() {
    let setup = Setup::new();
    let server = setup.launch().start();
    let mut stranger = server.client();
    for command in ["HGETALL customers:1", "PING", "ACL WHOAMI", "DESTAGE STATUS", "MONITOR"] {
        assert!(stranger.run(command).error().starts_with("NOAUTH"), "{command}");
    }
    let [mut ops, mut shop, mut report] =
        ["ops", "shop", "report"].map(|user| logged_in(&server, user));
    for (client, name) in [(&mut ops, "ops"), (&mut shop, "shop"), (&mut report, "report")] {
        assert_eq!(client.run("ACL WHOAMI").text(), name);
        for command in ["PING", "INFO", "DESTAGE STATUS", "HGETALL customers:1", "CLIENT ID"] {
            assert!(!client.run(command).is_error(), "{name}: {command}");
        }
        assert!(client.run("CLIENT INFO").text().contains(&format!(" user={name} ")));
    }
    for command in OF_WRITERS {
        refused(&report.run(command), command);
        let reply = shop.run(command);
        taken(&reply, command);
        taken(&ops.run(command), command);
        let is_fit = !reply.is_error() || command == "DESTAGE NEXTID customers";
        assert!(is_fit, "{command}: {reply:?}");
    }
    [&mut shop, &mut ops].into_iter().for_each(|client| client.run("DISCARD").ok());
    for command in OF_OTHERS {
        refused(&shop.run(command), command);
        refused(&report.run(command), command);
        taken(&ops.run(command), command);
    }
    for command in OF_ADMINS {
        refused(&shop.run(command), command);
        refused(&report.run(command), command);
        taken(&ops.run(command), command);
    }
    let mut ops = logged_in(&server, "ops");
    ops.run("DESTAGE RESUME").ok();
    let status = ops.run("ACL LIST");
    let lines: Vec<String> = status.array().iter().map(Reply::text).collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_eq!(lines[0], "user gone off ~* resetchannels -@all +@connection +@transaction +@read");
    assert!(lines[4].starts_with("user shop on ~customers:* ~lock:* %R~products:* "), "{lines:?}");
    assert!(!lines.concat().contains("pbkdf2"), "hashes are nobody's business");
    for command in ["ACL SETUSER x on", "ACL DELUSER shop", "ACL LOAD", "ACL SAVE", "ACL LOG"] {
        assert!(ops.run(command).error().contains("from the file of --users only"), "{command}");
    }
    let categories = shop.run("ACL CAT");
    assert!(categories.array().iter().any(|category| category.text() == "dangerous"));
    let dangerous: Vec<String> =
        shop.run("ACL CAT dangerous").array().iter().map(Reply::text).collect();
    assert!(dangerous.contains(&"monitor".into()) && !dangerous.contains(&"get".into()));
    assert!(shop.run("ACL CAT nosuch").error().contains("Unknown category"));
    // Who is off, and whoever sends a wrong password, is not told apart from nobody.
    for (user, password) in
        [("gone", "secret"), ("shop", "wrong"), ("nobody", "secret"), ("default", "secret")]
    {
        let error = server.client().call(&["AUTH", user, password]).error().to_owned();
        assert!(error.starts_with("WRONGPASS"), "{user}: {error}");
    }
    assert!(server.client().call(&["AUTH", "secret"]).error().contains("without any password"));
    shop.run("RESET");
    assert!(shop.run("PING").error().starts_with("NOAUTH"));
}

#[test]
fn what_is_refused_changes_nothing_and_what_is_shown_is_within_the_patterns() {
    let setup = Setup::new();
    let server = setup.launch().start();
    let [mut ops, mut shop, mut report] =
        ["ops", "shop", "report"].map(|user| logged_in(&server, user));
    ops.run("SET other:a theirs").ok();
    ops.run("SET lock:a ours").ok();
    let seen = |client: &mut Client| {
        let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
        loop {
            let page = client.run(&format!("SCAN {cursor} COUNT 100"));
            keys.extend(page.array()[1].array().iter().map(Reply::text));
            cursor = page.array()[0].text();
            if cursor == "0" {
                keys.sort_unstable();
                return keys;
            }
        }
    };
    let all = seen(&mut ops);
    for key in ["customers:1", "orders:1", "other:a", "lock:a", "products:2"] {
        assert!(all.contains(&key.to_owned()), "{all:?}");
    }
    assert_eq!(
        seen(&mut shop),
        ["customers:1", "customers:2", "lock:a", "products:1", "products:2"]
    );
    assert_eq!(seen(&mut report), ["customers:1", "customers:2"]);
    // A row has several spellings: it counts as SCAN writes it.
    assert_eq!(report.run("HGET customers:1 name").text(), "Ada");
    let mut odd = logged_in(&server, "odd");
    for key in ["customers:01", "customers:1"] {
        refused(&odd.run(&format!("HGET {key} name")), key);
    }
    assert_eq!(ops.run("HGET customers:01 name").text(), "Ada");
    // A transaction with a command that is refused is not done.
    shop.run("MULTI").ok();
    assert_eq!(shop.run("HSET customers:1 note mine").text(), "QUEUED");
    refused(&shop.run("HSET orders:1 note mine"), "in a transaction");
    assert!(shop.run("EXEC").error().starts_with("EXECABORT"));
    shop.run("DESTAGE BEGIN 60000").ok();
    assert_eq!(shop.run("HSET customers:1 note mine").int(), 1);
    refused(&shop.run("HSET orders:1 note mine"), "under leases");
    assert!(shop.run("EXEC").error().starts_with("EXECABORT"));
    for command in ["SET other:a mine", "EVAL return(redis.call('set',KEYS[1],'mine')) 1 other:a"] {
        refused(&shop.run(command), command);
    }
    let script = "return redis.call('set', KEYS[1], ARGV[1])";
    let sha = ops.call(&["SCRIPT", "LOAD", script]).text();
    refused(&shop.call(&["EVALSHA", &sha, "1", "other:a", "mine"]), "EVALSHA");
    shop.call(&["EVALSHA", &sha, "1", "lock:a", "mine"]).ok();
    // A script that names a key of others by itself is refused as of any.
    let error = shop
        .call(&["EVAL", "return redis.call('get', 'other:a')", "1", "lock:a"])
        .error()
        .to_owned();
    assert!(error.contains("it is given (KEYS)"), "{error}");
    assert_eq!(ops.run("GET other:a").text(), "theirs");
    assert_eq!(ops.run("GET lock:a").text(), "mine");
    assert_eq!(ops.run("HGET orders:1 note"), Reply::Nil);
    assert_eq!(ops.run("HGET customers:1 note"), Reply::Nil);
    ops.run("HSET orders:1 note theirs").int();
    ops.run("DESTAGE DRAIN 0");
    assert_eq!(setup.database.rows("SELECT note FROM orders WHERE id = 1"), [["theirs"]]);
}

/// A connection that is closed; whatever it was told before.
#[track_caller]
fn is_closed(client: &mut Client) {
    while client.receive().is_ok() {}
    assert!(client.try_call(&["PING"]).is_err());
}

#[test]
fn whoever_loses_a_right_loses_it_with_the_next_reading_of_the_file() {
    let setup = Setup::new();
    let both = format!(
        "{USERS}user ada on write ~customers:* HASH\nuser bob on write ~customers:* HASH\n\
                        user eve on admin HASH\nuser mia on admin HASH\n"
    );
    setup.users(&both);
    let server = setup.launch().with(&["--client-wait", "1h"]).start();
    let mut ops = logged_in(&server, "ops");
    // The same for one who loses the right, and for one who keeps it.
    let [mut of_eve, mut of_mia] = ["eve", "mia"].map(|user| {
        let mut client = logged_in(&server, user);
        client.run("MONITOR").ok();
        client
    });
    let [mut of_ada, mut of_bob] = ["ada", "bob"].map(|user| {
        let mut client = logged_in(&server, user);
        client.run("MULTI").ok();
        assert_eq!(client.run(&format!("HSET customers:1 email {user}")).text(), "QUEUED");
        client
    });
    // Blocked: another session may write the row.
    ops.run("DESTAGE BEGIN 60000").ok();
    ops.run("DESTAGE EXCLUDE customers:2").ok();
    let [mut blocked_ada, mut blocked_bob] = ["ada", "bob"].map(|user| {
        let mut client = logged_in(&server, user);
        client
            .send(&["HINCRBY", "customers:2", "visits", if user == "ada" { "100" } else { "1" }])
            .unwrap();
        client
    });
    let mut other = logged_in(&server, "mia");
    eventually("both wait", PATIENCE, || {
        let list = other.run("CLIENT LIST").text();
        list.lines()
            .filter(|line| line.contains(" flags=b ") && line.contains("cmd=hincrby"))
            .count()
            == 2
    });
    // Ada may only read from now on, Eve is gone, Bob may do more, Mia stays.
    let less = both
        .replace("user ada on write", "user ada on read")
        .replace("user eve on admin HASH\n", "")
        .replace("user bob on write ~customers:*", "user bob on write ~customers:* ~orders:*");
    setup.users(&less);
    setup.read_again(&server, READ_AGAIN);
    [&mut of_eve, &mut of_ada, &mut blocked_ada].into_iter().for_each(is_closed);
    ops.run("DISCARD").ok();
    assert_eq!(blocked_bob.receive().unwrap().int(), 1, "what waits goes on for who may");
    assert_eq!(of_bob.run("EXEC").array(), [Reply::Int(0)]);
    assert!(!of_bob.run("HGETALL orders:1").is_error(), "a right that is new counts at once");
    eventually(
        "Mia looks on",
        PATIENCE,
        || matches!(of_mia.receive(), Ok(Reply::Status(line)) if line.contains("orders:1")),
    );
    assert_eq!(ops.run("HGET customers:1 email").text(), "bob");
    assert_eq!(ops.run("HGET customers:2 visits").int(), 1, "what Ada had sent is not done");
    let mut ada = logged_in(&server, "ada");
    assert!(!ada.run("HGETALL customers:1").is_error());
    refused(&ada.run("HSET customers:1 email ada"), "as the file says now");
    assert!(server.client().call(&["AUTH", "eve", "secret"]).error().starts_with("WRONGPASS"));
    // A password that is replaced is one right less.
    setup.users(&less.replace(
        "user ada on read ~customers:* HASH",
        &format!("user ada on read ~customers:* {}", hash_of("new")),
    ));
    setup.read_again(&server, READ_AGAIN);
    is_closed(&mut ada);
    assert!(server.client().call(&["AUTH", "ada", "secret"]).error().starts_with("WRONGPASS"));
    server.client().call(&["AUTH", "ada", "new"]).ok();
    assert!(!of_bob.run("HGETALL orders:1").is_error(), "others stay");
}

#[test]
fn a_bad_file_is_refused_with_its_line_and_the_users_stay() {
    let setup = Setup::new();
    let launch = setup.launch();
    setup.users("user ops on admin HASH\nuser shop on write ~a:* >hush\n");
    let exit = launch.refused();
    exit.says(2, &["line 2", "word 6", "destage users hash"]);
    assert!(!exit.log.contains("hush") && !launch.data().exists(), "{}", exit.log);
    setup.users("user default on admin HASH\n");
    launch.with(&["--password", "p"]).refused().says(2, &["line 1", "--password"]);
    setup.users(USERS);
    let server = launch.start();
    let mut shop = logged_in(&server, "shop");
    setup.users("user shop on\n");
    setup.read_again(&server, "the users stay as they are");
    assert!(
        server.log().contains("line 1: say what shop may do: read, write or admin"),
        "{}",
        server.log()
    );
    assert_eq!(shop.run("HGET customers:1 name").text(), "Ada");
    logged_in(&server, "report");
    std::fs::remove_file(setup.path("users")).unwrap();
    setup.read_again(&server, "the users stay as they are");
    logged_in(&server, "report");
    let check =
        Command::new(binary()).args(["users", "hash"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(check.status.code(), Some(2), "an empty password has no hash");
}

#[test]
fn the_password_is_that_of_the_user_default_who_may_do_everything() {
    let setup = Setup::new();
    let server = setup.launch().with(&["--password", "open-sesame"]).start();
    let mut client = server.client();
    client.call(&["AUTH", "open-sesame"]).ok();
    assert_eq!(client.run("ACL WHOAMI").text(), "default");
    assert!(!client.run("DESTAGE POLICY").is_error());
    assert!(
        client
            .run("ACL LIST")
            .array()
            .iter()
            .any(|line| line.text() == "user default on ~* resetchannels +@all")
    );
    // One connection after the other user: the last one counts.
    client.call(&["AUTH", "report", "secret"]).ok();
    refused(&client.run("DESTAGE POLICY"), "as report");
    assert!(client.call(&["AUTH", "ops", "wrong"]).error().starts_with("WRONGPASS"));
    refused(&client.run("DESTAGE POLICY"), "still as report");
    client.call(&["AUTH", "default", "open-sesame"]).ok();
    assert!(!client.run("DESTAGE POLICY").is_error());
    // The admin port knows the password alone.
    assert!(server.post("policy", &[]).to_lowercase().contains("password"));
    // A default of the file is whom AUTH with a password alone means, where there is no other.
    setup.users("user default on read ~customers:* HASH\n");
    drop(server);
    let server = setup.launch().start();
    let mut client = server.client();
    client.call(&["AUTH", "secret"]).ok();
    assert_eq!(client.run("ACL WHOAMI").text(), "default");
    refused(&client.run("HGETALL orders:1"), "the file says so");
}

#[test]
fn passwords_of_users_are_shown_nowhere_and_guessing_them_is_held_up() {
    let setup = Setup::new();
    let server = setup.launch().start();
    let mut ops = logged_in(&server, "ops");
    ops.run("CONFIG SET slowlog-log-slower-than 0").ok();
    let mut monitor = logged_in(&server, "ops");
    monitor.run("MONITOR").ok();
    let mut shop = server.client();
    shop.call(&["HELLO", "3", "AUTH", "shop", "hush-hush"]).error();
    ops.run("ACL SETUSER x >hush-hush").error();
    shop.call(&["AUTH", "shop", "secret"]).ok();
    shop.run("HGETALL customers:2");
    shop.run("ECHO end").text();
    let mut shown = String::new();
    while !shown.contains("end") {
        shown += &format!("{:?}", monitor.receive().unwrap());
    }
    let slow = ops.run("SLOWLOG GET -1");
    let words = slow.array().iter().flat_map(|entry| entry.array()[3].array());
    shown.extend(words.map(Reply::text));
    assert!(shown.contains("customers:2"), "what waited is in it: {shown}");
    assert!(!shown.contains("hush") && !server.log().contains("hush"), "{shown}");
    // As for the one password: ten different guesses, and each further one costs time.
    let mut held = false;
    for guess in 0..60 {
        let error =
            server.client().call(&["AUTH", "shop", &format!("guess-{guess}")]).error().to_owned();
        held |= error.contains("was not looked at");
        if held {
            break;
        }
        assert!(error.starts_with("WRONGPASS"), "{error}");
    }
    assert!(held, "guesses are held up");
    assert!(server.status()["clients"]["auth_failures_total"].as_u64().unwrap() > 10);
}

#[test]
fn redis_py_logs_in_as_a_user_and_is_told_what_it_may_not() {
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    let setup = Setup::new();
    let server = setup.launch().start();
    let program = "import redis, sys\n\
        for protocol in (2, 3):\n\
        \x20   r = redis.Redis(port=int(sys.argv[1]), username='shop', password='secret', protocol=protocol, decode_responses=True)\n\
        \x20   assert r.hget('customers:1', 'name') == 'Ada'\n\
        \x20   assert r.acl_whoami() == 'shop'\n\
        \x20   with r.lock('lock:py', timeout=60):\n\
        \x20       r.hset('customers:1', 'note', 'locked')\n\
        \x20   for refused in (lambda: r.hset('orders:1', 'note', 'x'), r.client_list, lambda: r.lock('other:py').acquire()):\n\
        \x20       try:\n\
        \x20           refused()\n\
        \x20           sys.exit('not refused')\n\
        \x20       except redis.exceptions.NoPermissionError:\n\
        \x20           pass\n\
        \x20   ops = redis.Redis(port=int(sys.argv[1]), username='ops', password='secret', protocol=protocol, decode_responses=True)\n\
        \x20   assert sorted(ops.acl_users()) == ['gone', 'odd', 'ops', 'report', 'shop']\n\
        \x20   assert ops.acl_getuser('report')['flags'] == ['on']\n\
        \x20   assert 'read' in ops.acl_cat() and 'hget' in ops.acl_cat('read')\n\
        try:\n\
        \x20   redis.Redis(port=int(sys.argv[1]), username='shop', password='no', retry=None).ping()\n\
        \x20   sys.exit('let in')\n\
        except redis.exceptions.AuthenticationError:\n\
        \x20   print('done')\n";
    let said = crate::harness::output(Command::new(python).args(["-c", program, &server.port()]));
    assert_eq!(said.trim(), "done");
}
