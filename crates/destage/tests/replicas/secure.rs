//! Servers that ask for TLS, a certificate of the client, a user and a password.

use crate::certificates::Certificates;
use crate::world::{Client, World};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const JOURNAL_UNUSABLE: i32 = 13;
const PASSWORD: &str = "geheim";
/// A start does not wait for what a person has to mend.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn servers_are_reached_by_tls_with_a_user_a_password_and_a_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = Certificates::make(folder.path().to_owned());
    let file = |name: &str| made.file(name);
    let (cert, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let password = format!(">{PASSWORD}");
    // What REPLICAS says that the user needs.
    let mut settings = vec!["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file"];
    settings.extend([&*ca, "--tls-auth-clients", "yes", "--user", "default", "off"]);
    settings.extend(["--user", "app", "on", &password, "~{destage:*", "+evalsha", "+script"]);
    settings.extend(["+info", "+pubsub", "+config|get", "+hmget", "+hget", "+hset", "+hdel"]);
    settings.extend(["+lrange", "+lindex", "+ltrim", "+rpush", "+del"]);
    let mut world = World::new(3, &settings);
    let around = |user: &str, ca: &str, own: &str| {
        let own = match own {
            "" => String::new(),
            own => format!(
                "&sslcert={}&sslkey={}",
                file(&format!("{own}.pem")),
                file(&format!("{own}.key"))
            ),
        };
        (format!("rediss://{user}@"), format!("?sslrootcert={}{own}", file(ca)))
    };
    for (user, ca, own, part) in [
        ("app:falsch", "ca.pem", "client", "user or password"),
        ("app:geheim", "other-ca.pem", "client", "certificate"),
        ("app:geheim", "ca.pem", "", "certificate"),
    ] {
        world.around = around(user, ca, own);
        let began = Instant::now();
        let (code, text) = world.refused(&["--failover", "300ms"]);
        assert_eq!(code, Some(JOURNAL_UNUSABLE), "{text}");
        assert!(text.to_lowercase().contains(part), "{part} in {text}");
        assert!(!text.contains("falsch") && !text.contains(PASSWORD), "{text}");
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
    world.around = around("app:geheim", "ca.pem", "client");
    let flags = ["--when", "periodic:1h", "--staleness", "none"];
    let mut owner = world.start(&flags);
    assert_eq!(owner.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    owner.kill();
    world.lose_disk(owner);
    let mut next = world.start(&[]);
    assert_eq!(next.client().ask(&["HGET", "t:1", "n"]), "1");
    next.end();
    assert_eq!(world.origin_rows(), [(1, 1)]);
}

#[test]
fn an_owner_and_its_standby_are_reached_by_tls_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = Certificates::make(folder.path().to_owned());
    let (cert, key, ca) = (made.file("server.pem"), made.file("server.key"), made.file("ca.pem"));
    let flags = ["--failover", "1s", "--tls-certificate", &cert, "--tls-key", &key];
    let mut world = World::new(3, &[]);
    let mut owner = world.start(&flags);
    let mut standby = world.start_standby(&flags);
    let ask = |address: &str, command: &[&str]| {
        let port = address.rsplit(':').next().expect("a port").to_owned();
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &port, "--tls", "--cacert", &ca]).args(command);
        let said = cli.output().expect("redis-cli is installed").stdout;
        String::from_utf8_lossy(&said).trim().to_owned()
    };
    assert_eq!(ask(&owner.address(), &["HINCRBY", "t:1", "n", "1"]), "1");
    let until = Instant::now() + PATIENCE;
    // It has to look at the servers first.
    while !ask(&standby.address(), &["HGET", "t:1", "n"]).contains(&owner.address()) {
        assert!(Instant::now() < until, "the standby does not know the owner");
    }
    for address in [owner.address(), standby.address()] {
        let mut plain = TcpStream::connect(address).expect("it listens");
        plain.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        plain.write_all(b"PING\r\n").expect("it is taken");
        let mut said = String::new();
        plain.read_to_string(&mut said).expect("an end");
        assert!(said.starts_with("-ERR this port speaks TLS"), "{said}");
    }
    owner.kill();
    standby.await_owner();
    assert_eq!(ask(&standby.address(), &["HINCRBY", "t:1", "n", "1"]), "2");
    standby.end();
    assert_eq!(world.origin_rows(), [(1, 2)]);
}

/// > So strangers do not hold the places of `--max-clients` for good.
#[test]
fn strangers_do_not_hold_the_places_of_a_standby() {
    let flags = ["--failover", "1s", "--password", PASSWORD, "--handshake-timeout", "1s"];
    let mut world = World::new(3, &[]);
    let mut owner = world.start(&flags);
    let mut standby = world.start_standby(&flags);
    let address = standby.address();
    let connect = |number: usize| {
        let mut stranger = TcpStream::connect(&address).expect("it listens");
        if number.is_multiple_of(2) {
            stranger.write_all(b"PING\r\n").expect("it is taken");
        }
        stranger
    };
    // As many as it has places.
    let strangers: Vec<TcpStream> = (0..256).map(connect).collect();
    let found = || {
        let mut client = Client::try_open(&address)?;
        client.try_ask(&["AUTH", PASSWORD])?;
        client.try_ask(&["SENTINEL", "get-master-addr-by-name", "destage"])
    };
    let known = owner.address().replace(':', " ");
    let until = Instant::now() + PATIENCE;
    while found().as_ref() != Some(&known) {
        assert!(Instant::now() < until, "nobody is let in");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(strangers);
    standby.kill();
    owner.end();
}
