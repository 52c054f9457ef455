//! The admin port through a real socket.

use super::*;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

struct Fake(Mutex<Report>);

impl Control for Fake {
    fn report(&self) -> Result<Report, ControlError> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn command(&self, name: &str, args: &[String]) -> Result<Value, ControlError> {
        match name {
            "policy" => Ok(json!({ "policy": args })),
            "flush" => Err(ControlError::Failed("the journal is fenced".into())),
            "drain" => Err(ControlError::Unavailable("stopping".into())),
            _ => Err(ControlError::Invalid(format!("unknown command '{name}'"))),
        }
    }
}

fn start(password: Option<&str>) -> (AdminHandle, Arc<Fake>) {
    let mut report = Report { mode: "normal".into(), ..Report::default() };
    report.writes.groups_total = 42;
    let fake = Arc::new(Fake(Mutex::new(report)));
    let control: Arc<dyn Control> = fake.clone();
    let addr = (Ipv4Addr::LOCALHOST, 0).into();
    (serve(addr, control, password.map(Into::into)).unwrap(), fake)
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(20)))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into()
}

fn get(admin: &AdminHandle, path: &str) -> (u16, String) {
    let mut response = agent().get(format!("http://{}{path}", admin.addr())).call().unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

fn post(admin: &AdminHandle, password: Option<&str>, body: &Value) -> (u16, Value) {
    let mut request = agent().post(format!("http://{}/command", admin.addr()));
    if let Some(password) = password {
        request = request.header("Authorization", format!("Bearer {password}"));
    }
    let mut response = request.send_json(body).unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap())
}

#[test]
fn status_and_metrics_show_the_report() {
    let (admin, fake) = start(Some("secret"));
    let (status, body) = get(&admin, "/status");
    let shown: Report = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &shown), (200, &*fake.0.lock().unwrap()));
    let (status, text) = get(&admin, "/metrics");
    assert_eq!(status, 200);
    for metric in crate::metrics::CATALOGUE {
        assert!(text.contains(&format!("\n{} ", metric.name)), "{}", metric.name);
    }
    assert!(text.contains("destage_writes_total 42\n"));
    fake.0.lock().unwrap().writes.groups_total = 43;
    assert!(get(&admin, "/metrics").1.contains("destage_writes_total 43\n"));
    assert_eq!(get(&admin, "/nothing").0, 404);
}

#[test]
fn readiness_follows_the_mode_and_health_does_not() {
    let (admin, fake) = start(None);
    assert_eq!(get(&admin, "/readyz"), (200, "ready\n".into()));
    for (mode, part) in [("stopped", "fenced"), ("staleness-exceeded", "bound D is exceeded")] {
        fake.0.lock().unwrap().mode = mode.into();
        let (status, body) = get(&admin, "/readyz");
        assert!(status == 503 && body.contains(part), "{status} {body}");
        assert_eq!(get(&admin, "/healthz").0, 200);
    }
    fake.0.lock().unwrap().mode = "throttled".into();
    assert_eq!(get(&admin, "/readyz").0, 200);
}

#[test]
fn commands_reach_the_front_end_and_failures_come_back() {
    let (admin, _fake) = start(None);
    let policy = json!({ "command": "policy", "args": ["write-through"] });
    let (status, answer) = post(&admin, None, &policy);
    assert_eq!((status, answer), (200, json!({ "result": { "policy": ["write-through"] } })));
    for (command, expected) in [("nap", 400), ("flush", 500), ("drain", 503)] {
        let (status, answer) = post(&admin, None, &json!({ "command": command }));
        assert_eq!(status, expected, "{answer}");
        assert!(answer["error"].is_string());
    }
    let (status, answer) = post(&admin, None, &json!({ "comand": "policy" }));
    assert!(status == 422 && answer["error"].as_str().unwrap().contains("comand"), "{answer}");
}

#[test]
fn commands_need_the_password_where_there_is_one() {
    let (admin, _fake) = start(Some("secret"));
    let command = json!({ "command": "policy" });
    for wrong in [None, Some("Secret"), Some("secret2"), Some("")] {
        let (status, answer) = post(&admin, wrong, &command);
        assert_eq!(status, 401);
        assert!(answer["error"].as_str().unwrap().contains("--password"));
    }
    assert_eq!(post(&admin, Some("secret"), &command).0, 200);
}

#[test]
fn pages_under_a_name_of_their_own_cannot_send_commands() {
    let (admin, _fake) = start(None);
    let answer = raw(
        &admin,
        "POST /command HTTP/1.1\r\nHost: evil.example\r\n\
        Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    );
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let answer = raw(
        &admin,
        "POST /command HTTP/1.1\r\nHost: localhost\r\n\
        Content-Type: text/plain\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    );
    assert!(answer.starts_with("HTTP/1.1 415"), "{answer}");
}

#[test]
fn large_bodies_are_refused_and_silent_connections_do_not_block_others() {
    let (admin, _fake) = start(None);
    let long = json!({ "command": "policy", "args": ["x".repeat(100_000)] });
    assert_eq!(post(&admin, None, &long).0, 413);
    let silent: Vec<_> = (0..listener::CONNECTIONS_MAX / 2)
        .map(|_| TcpStream::connect(admin.addr()).unwrap())
        .collect();
    assert_eq!(get(&admin, "/healthz").0, 200);
    drop(silent);
}

#[test]
fn requests_that_do_not_go_on_shut_nobody_out() {
    let (admin, _fake) = start(None);
    let stuck: Vec<_> = (0..listener::CONNECTIONS_MAX)
        .map(|at| {
            let mut stream = TcpStream::connect(admin.addr()).unwrap();
            // Some say nothing, some begin a request, some have had an answer.
            let whole = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(["", "GET /sta", whole][at % 3].as_bytes()).unwrap();
            stream
        })
        .collect();
    let answer =
        raw(&admin, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(stuck);
}

#[test]
fn stopping_frees_the_address_even_with_open_connections() {
    let (admin, _fake) = start(None);
    let addr = admin.addr();
    let open = TcpStream::connect(addr).unwrap();
    assert_eq!(
        serve(addr, Arc::new(Fake(Mutex::default())), None).unwrap_err().kind(),
        io::ErrorKind::AddrInUse
    );
    drop(admin);
    drop(open);
    assert!(TcpStream::connect(addr).is_err());
}

fn raw(admin: &AdminHandle, request: &str) -> String {
    let mut stream = TcpStream::connect(admin.addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
