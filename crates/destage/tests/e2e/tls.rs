//! Clients that come by TLS, and those that do not.

use crate::clients::python_with;
use crate::harness::{
    Certificates, Client, Database, Launch, PATIENCE, Scratch, Server, eventually, has, prepared,
    seconds, shop,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// A shop behind a server that is reached by TLS alone.
struct Setup {
    made: Certificates,
    database: Database,
    launch: Launch,
    scratch: Scratch,
}

fn setup() -> Setup {
    let scratch = Scratch::new();
    let made = Certificates::make(scratch.join("certificates"));
    let database = shop::sqlite(&scratch);
    let launch = Launch::before(&scratch, &database.url()).with(&[
        "--tls-certificate",
        &made.file("server.pem"),
        "--tls-key",
        &made.file("server.key"),
    ]);
    Setup { made, database, launch, scratch }
}

impl Setup {
    /// The same for clients that the authority knows.
    fn of_known_clients(&self) -> Launch {
        self.launch.with(&["--tls-client-ca", &self.made.file("ca.pem")])
    }

    /// What redis-cli says on both of its outputs, as `own` with trust in `authority`.
    fn cli(&self, server: &Server, authority: &str, own: Option<&str>, command: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &server.port(), "--tls", "--cacert", &self.made.file(authority)]);
        if let Some(own) = own {
            let file = |kind| self.made.file(&format!("{own}.{kind}"));
            cli.args(["--cert", &file("pem"), "--key", &file("key")]);
        }
        let output = cli.args(command).stdin(Stdio::null()).output().expect("redis-cli starts");
        let both = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&both).trim().to_owned()
    }

    /// The variables by which redis-py is told the same.
    fn variables(&self, authority: &str, own: Option<&str>) -> Vec<(&'static str, String)> {
        let own = own.map(|own| ("CLIENT_TLS_OWN", self.made.file(own)));
        let authority = ("CLIENT_TLS_CA", self.made.file(authority));
        std::iter::once(authority).chain(own).collect()
    }

    /// Everything that is acknowledged is at the origin.
    #[track_caller]
    fn drain(&self, server: &Server) {
        server.post("drain", &[]);
        eventually("everything is at the origin", PATIENCE, || {
            server.status()["writes"]["dirty_groups"] == 0
        });
    }
}

#[test]
fn redis_cli_and_redis_py_read_and_write_rows_by_tls() {
    let setup = setup();
    let server = setup.launch.start();
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    let variables = setup.variables("ca.pem", None);
    python_with(&python, &server.port(), "2", "rows", &variables);
    setup.drain(&server);
    let linus = "SELECT name, visits FROM customers WHERE id = 10";
    assert_eq!(setup.database.rows(linus), [["Linus", "3"]]);
    if !has("redis-cli") {
        return;
    }
    assert_eq!(setup.cli(&server, "ca.pem", None, &["HGET", "customers:10", "name"]), "Linus");
    // One that the server does not ask for is as good.
    assert_eq!(setup.cli(&server, "ca.pem", Some("stranger"), &["PING"]), "PONG");
    let other = setup.cli(&server, "other-ca.pem", None, &["PING"]);
    assert!(other.contains("certificate verify failed"), "{other}");
    python_with(&python, &server.port(), "3", "refused", &setup.variables("other-ca.pem", None));
    let suggested = server.printed(1).join("\n");
    let shown = format!("redis-cli --tls --cacert CA.pem -p {}", server.port());
    assert!(suggested.contains(&shown), "{suggested}");
}

#[test]
fn only_clients_with_a_certificate_of_the_authority_are_let_in() {
    let setup = setup();
    let server = setup.of_known_clients().start();
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    let (port, known) = (server.port(), setup.variables("ca.pem", Some("client")));
    for own in [None, Some("stranger")] {
        python_with(&python, &port, "3", "refused", &setup.variables("ca.pem", own));
    }
    python_with(&python, &port, "3", "rows", &known);
    if !has("redis-cli") {
        return;
    }
    for own in [None, Some("stranger")] {
        let said = setup.cli(&server, "ca.pem", own, &["HGET", "customers:10", "name"]);
        assert!(!said.contains("Linus"), "{own:?}: {said}");
    }
    let said = setup.cli(&server, "ca.pem", Some("client"), &["HGET", "customers:10", "name"]);
    assert_eq!(said, "Linus");
    assert!(server.log().contains("did not come to speak TLS"), "{}", server.log());
}

#[test]
fn a_pipeline_of_megabytes_is_answered_whole_by_tls() {
    let setup = setup();
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    let server = setup.launch.start();
    python_with(&python, &server.port(), "3", "large", &setup.variables("ca.pem", None));
    setup.drain(&server);
    let length = "SELECT sum(length(note)) FROM customers WHERE name = 'large'";
    let expected: usize = (0..1_500).map(|n: usize| n.to_string().len() + 1).sum();
    assert_eq!(setup.database.number(length), expected as i64 * 1_000);
}

#[test]
fn what_was_acknowledged_by_tls_outlives_a_kill() {
    let setup = setup();
    if !has("redis-cli") {
        return;
    }
    let launch = setup.of_known_clients().with(&["--when", "periodic:1h", "--staleness", "none"]);
    let server = launch.start();
    let cli =
        |server: &Server, command: &[&str]| setup.cli(server, "ca.pem", Some("client"), command);
    for row in 100..110 {
        assert_eq!(cli(&server, &["HSET", &format!("customers:{row}"), "name", "kept"]), "1");
    }
    assert_eq!(cli(&server, &["HINCRBY", "products:1", "stock", "-3"]), "7");
    server.kill();
    let server = launch.start();
    assert_eq!(cli(&server, &["HGET", "customers:109", "name"]), "kept");
    assert_eq!(cli(&server, &["HGET", "products:1", "stock"]), "7");
    setup.drain(&server);
    assert_eq!(setup.database.number("SELECT count(*) FROM customers WHERE name = 'kept'"), 10);
    assert_eq!(setup.database.number("SELECT stock FROM products WHERE id = 1"), 7);
}

#[test]
fn a_client_in_the_clear_is_told_to_speak_tls_and_the_log_says_so_once() {
    let setup = setup();
    let server = setup.launch.start();
    for _ in 0..50 {
        let mut client = server.client();
        let said = client.run("HGET customers:1 name");
        assert!(said.error().contains("speaks TLS"), "{said:?}");
        assert!(client.receive().is_err(), "the connection is closed");
    }
    eventually("nobody is left", PATIENCE, || server.status()["clients"]["connected"] == 0);
    let lines = server.log().matches("does not speak TLS").count();
    // One for all of them, and a further one if they have taken more than ten seconds.
    assert!((1..=6).contains(&lines), "{lines} lines: {}", server.log());
}

#[test]
fn who_never_agrees_holds_up_nobody_and_is_disconnected_in_time() {
    let setup = setup();
    if !has("redis-cli") {
        return;
    }
    let launch = setup.launch.with(&["--max-clients", "25", "--handshake-timeout", "2s"]);
    let server = setup.launch.start();
    // The first bytes of a handshake, and nothing.
    let strangers = |server: &Server| -> Vec<TcpStream> {
        let begun = |at| {
            let mut stream = TcpStream::connect(server.listen).expect("it listens");
            let hello = [22, 3, 1, 1, 0, 1, 0, 0, 252][..at % 10_usize].to_vec();
            stream.write_all(&hello).expect("it is taken");
            stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
            stream
        };
        (0..20).map(begun).collect()
    };
    let silent = strangers(&server);
    assert_eq!(setup.cli(&server, "ca.pem", None, &["HGET", "customers:1", "name"]), "Ada");
    assert_eq!(server.status()["clients"]["connected"], 20);
    drop((silent, server));
    let server = launch.start();
    for mut stream in strangers(&server) {
        assert_eq!(stream.read(&mut [0; 16]).expect("the end"), 0);
    }
    eventually("nobody is left", PATIENCE, || server.status()["clients"]["connected"] == 0);
    // Who has agreed may be silent.
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    let silent = "import redis, sys, time\n\
                  r = redis.Redis(port=int(sys.argv[1]), ssl=True, ssl_ca_certs=sys.argv[2], retry=None)\n\
                  with r.client() as one:\n    one.ping()\n    time.sleep(3)\n    print(one.ping())\n";
    let authority = setup.made.file("ca.pem");
    let said = crate::harness::output(Command::new(python).args([
        "-c",
        silent,
        &server.port(),
        &authority,
    ]));
    assert_eq!(said.trim(), "True");
}

#[test]
fn files_that_cannot_be_used_are_named_before_anything_is_claimed() {
    let setup = setup();
    let plain = Launch::before(&setup.scratch, &setup.database.url());
    let file = |name: &str| setup.made.file(name);
    for (certificate, key, ca, words) in [
        ("no.pem", "server.key", "ca.pem", &["the certificate", "no.pem"][..]),
        ("server.pem", "client.key", "ca.pem", &["server.pem"]),
        ("server.pem", "server.pem", "ca.pem", &["the private key", "server.pem"]),
        ("server.pem", "server.key", "server.key", &["the certificate authorities", "server.key"]),
    ] {
        let launch = plain
            .with(&["--tls-certificate", &file(certificate), "--tls-key", &file(key)])
            .with(&["--tls-client-ca", &file(ca)]);
        launch.refused().says(2, words);
        assert!(!launch.data().exists(), "nothing is begun");
    }
    plain.with(&["--tls-key", &file("server.key")]).refused().says(2, &["--tls-certificate"]);
    plain.with(&["--tls-client-ca", &file("ca.pem")]).refused().says(2, &["--tls-certificate"]);
}

#[test]
fn client_certificates_let_other_hosts_in_and_a_servers_own_does_not() {
    let setup = setup();
    let open = Launch::example(&setup.scratch).listening("0.0.0.0:0").with(&[
        "--tls-certificate",
        &setup.made.file("server.pem"),
        "--tls-key",
        &setup.made.file("server.key"),
    ]);
    open.refused().says(2, &["--tls-client-ca", "--password"]);
    let server = open.with(&["--tls-client-ca", &setup.made.file("ca.pem")]).start();
    if has("redis-cli") {
        assert_eq!(setup.cli(&server, "ca.pem", Some("client"), &["PING"]), "PONG");
    }
}

#[test]
fn a_client_that_does_not_read_its_replies_by_tls_is_cut_off_and_a_slow_one_gets_all() {
    let setup = setup();
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    let server = setup.launch.with(&["--output-limit", "1M"]).start();
    // Sends on and on, and reads nothing until it is told to.
    let program = "import socket, ssl, sys, time\n\
        context = ssl.create_default_context(cafile=sys.argv[2])\n\
        plain = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
        s = context.wrap_socket(plain, server_hostname='127.0.0.1')\n\
        s.settimeout(60)\n\
        def send(count):\n    s.sendall(b'ECHO ' + b'x' * 1000 + b'\\r\\n')\n    return count + 1\n\
        sent = 0\n\
        for _ in range(300):\n    sent = send(sent)\n\
        got = b''\n\
        while got.count(b'\\n') < 600:\n    got += s.recv(100)\n\
        print('all')\n\
        try:\n    while True:\n        send(0)\n\
        except OSError:\n    print('cut')\n";
    let authority = setup.made.file("ca.pem");
    let said = crate::harness::output(Command::new(python).args([
        "-c",
        program,
        &server.port(),
        &authority,
    ]));
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["all", "cut"]);
    eventually("nothing is held for it", PATIENCE, || {
        server.status()["memory"]["clients_bytes"] == 0
    });
    let mut plain = Client::connect(server.listen);
    plain.patience(seconds(60));
    assert!(plain.run("PING").is_error());
}
