//! Who guesses the password, of clients or at the admin port, is slowed down and noted; nobody else is.

use crate::harness::{Client, Launch, Reply, Scratch, Server, eventually, millis, seconds, skip};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

const PASSWORD: &str = "right-of-the-test";
/// Different ones that may be wrong before an address is held up, and the one that begins it.
const WRONG: usize = 11;

fn launch(scratch: &Scratch) -> Launch {
    Launch::example(scratch).with(&["--password", PASSWORD])
}

/// From the loopback address of version 4.
fn four(server: &Server) -> Client {
    Client::connect((Ipv4Addr::LOCALHOST, server.listen.port()).into())
}

fn six(server: &Server) -> Client {
    Client::connect((Ipv6Addr::LOCALHOST, server.listen.port()).into())
}

/// A guess that would forge a line of the log if it were written there.
fn guess(number: usize) -> String {
    format!("guess-{number}\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2J")
}

#[track_caller]
fn error(reply: Reply) -> String {
    match reply {
        Reply::Error(message) => message,
        other => panic!("no error: {other:?}"),
    }
}

/// The status line of what the admin port says to a command with this password.
fn command(address: SocketAddr, password: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let body = r#"{"command":"flush"}"#;
    write!(
        stream,
        "POST /command HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Authorization: Bearer {password}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

/// How many wrong passwords the log has told of, and in how many lines.
fn told(server: &Server) -> (u64, usize) {
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains("wrong passwords were sent"));
    let counts = lines.filter_map(|line| {
        line.split_whitespace().find_map(|word| word.strip_prefix("wrong="))?.parse::<u64>().ok()
    });
    counts.fold((0, 0), |(sum, lines), count| (sum + count, lines + 1))
}

#[test]
fn whoever_guesses_the_password_is_held_up_at_every_door_and_nobody_else_is() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return skip("IPv6, for a second address");
    }
    let scratch = Scratch::new();
    let server = launch(&scratch).listening("[::]:0").start();
    let mut inside = four(&server);
    inside.call(&["AUTH", PASSWORD]).ok();
    let mut guesser = four(&server);
    for number in 0..WRONG {
        let wrong = guess(number);
        let reply = match number % 2 {
            0 => guesser.call(&["AUTH", &wrong]),
            _ => guesser.call(&["HELLO", "3", "AUTH", "default", &wrong]),
        };
        assert!(error(reply).starts_with("WRONGPASS"), "{number}");
    }
    // The right one is not looked at either, by whatever command, connection or port it comes.
    let held = error(guesser.call(&["AUTH", PASSWORD]));
    assert!(held.contains("not looked at") && held.contains("again in 1 s"), "{held}");
    let held = error(four(&server).call(&["HELLO", "3", "AUTH", "default", PASSWORD]));
    assert!(held.contains("not looked at"), "{held}");
    let answer = command(server.admin, PASSWORD);
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("retry-after: 1"), "{answer}");
    // Others, and those who are inside, go on.
    six(&server).call(&["AUTH", PASSWORD]).ok();
    assert!(!inside.run("HGETALL products:1").is_error());
    thread::sleep(millis(1_100));
    guesser.call(&["AUTH", PASSWORD]).ok();
    assert!(command(server.admin, PASSWORD).starts_with("HTTP/1.1 200 "));
    // All of it leaves a trace, and none of it what was sent.
    assert_eq!(server.metric("destage_auth_failures_total"), WRONG as f64);
    assert_eq!(server.metric("destage_auth_held_total"), 3.0);
    let clients = server.status()["clients"].clone();
    assert_eq!(clients["auth_failures_total"], WRONG, "{clients}");
    eventually("the log tells of all", seconds(60), || told(&server).0 == WRONG as u64);
    assert!(told(&server).1 <= 3, "{}", server.log());
    let log = server.log();
    assert!(log.contains("address=127.0.0.1"), "{log}");
    for secret in [PASSWORD, "guess-", "forged", "\u{1b}"] {
        assert!(!log.contains(secret), "{secret:?} in {log}");
    }
}

#[test]
fn a_client_with_an_old_password_holds_nobody_up() {
    let scratch = Scratch::new();
    let server = launch(&scratch).start();
    let mut client = four(&server);
    for _ in 0..WRONG * 3 {
        assert!(error(client.call(&["AUTH", "old"])).starts_with("WRONGPASS"));
        assert!(command(server.admin, "older").starts_with("HTTP/1.1 401 "));
    }
    client.call(&["AUTH", PASSWORD]).ok();
    assert_eq!(server.metric("destage_auth_failures_total"), (WRONG * 6) as f64);
}
