//! The admin port through a real socket.

use super::*;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

struct Fake(Mutex<Report>, AtomicUsize);

impl Fake {
    /// How many commands wait.
    fn waiting(&self) -> usize {
        self.1.load(Ordering::Relaxed)
    }
}

impl Control for Fake {
    fn report(&self) -> Result<Report, ControlError> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn command(&self, name: &str, args: &[String], caller: &Caller) -> Result<Value, ControlError> {
        match name {
            "length" => Ok(json!(args[0].len())),
            // Until the mode is another one.
            "wait" => {
                self.1.fetch_add(1, Ordering::Relaxed);
                let result = loop {
                    if self.0.lock().unwrap().mode != "normal" {
                        break Ok(json!("waited"));
                    }
                    if let Err(error) = caller.still_waits(|| "too long".into()) {
                        break Err(error);
                    }
                    thread::sleep(Duration::from_millis(1));
                };
                self.1.fetch_sub(1, Ordering::Relaxed);
                result
            }
            "policy" => Ok(json!({ "policy": args })),
            "flush" => Err(ControlError::Failed("the journal is fenced".into())),
            "drain" => Err(ControlError::Unavailable("stopping".into())),
            _ => Err(ControlError::Invalid(format!("unknown command '{name}'"))),
        }
    }
}

fn start(password: Option<&str>) -> (AdminHandle, Arc<Fake>) {
    start_within(listener::LIMITS, password)
}

fn start_within(limits: Limits, password: Option<&str>) -> (AdminHandle, Arc<Fake>) {
    let mut report = Report { mode: "normal".into(), ..Report::default() };
    report.writes.groups_total = 42;
    let fake = Arc::new(Fake(Mutex::new(report), AtomicUsize::new(0)));
    let control: Arc<dyn Control> = fake.clone();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let auth = Arc::new(Auth::new(password.map(Into::into)));
    (serve_within(limits, listener, control, (auth, Clock::new()), Vec::new()).unwrap(), fake)
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
    for metric in crate::metrics::CATALOGUE.iter().filter(|one| one.value(&shown).is_some()) {
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
    for (mode, part) in [
        ("stopped", "fenced"),
        ("staleness-exceeded", "bound D is exceeded"),
        ("disk-full", "the journal's disk is full"),
    ] {
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
fn whoever_guesses_the_password_is_held_up_and_told_so() {
    let (admin, _fake) = start(Some("secret"));
    let command = json!({ "command": "policy" });
    let tried: Vec<u16> =
        (0..12).map(|n| post(&admin, Some(&format!("guess-{n}")), &command).0).collect();
    assert_eq!(tried, [vec![401; 11], vec![429]].concat());
    // No password is no guess, and what asks for none is answered.
    assert_eq!(post(&admin, None, &command).0, 401);
    let (status, answer) = post(&admin, Some("secret"), &command);
    assert!(
        status == 429 && answer["error"].as_str().unwrap().contains("again in 1 s"),
        "{answer}"
    );
    let (_, text) = get(&admin, "/metrics");
    assert!(text.contains("destage_auth_failures_total 11\n"), "{text}");
    assert!(text.contains("destage_auth_held_total 2\n"), "{text}");
    thread::sleep(Duration::from_millis(1_100));
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

/// As load balancers ask, and no browser.
#[test]
fn who_names_no_host_may_look_and_send_no_command() {
    let (admin, _fake) = start(None);
    for page in ["/readyz", "/healthz", "/status"] {
        let answer = raw(&admin, &format!("GET {page} HTTP/1.0\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.0 200"), "{page}: {answer}");
    }
    let command =
        "POST /command HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let answer = raw(&admin, command);
    assert!(answer.starts_with("HTTP/1.0 403"), "{answer}");
}

#[test]
fn a_command_takes_what_a_write_may_be_and_no_more() {
    let (admin, _fake) = start(None);
    let long = json!({ "command": "length", "args": ["\u{1}".repeat(16 << 20)] });
    assert_eq!(post(&admin, None, &long), (200, json!({ "result": 16 << 20 })));
    let answer = raw(
        &admin,
        &format!(
            "POST /command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            COMMAND_BYTES_MAX + 1
        ),
    );
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[test]
fn a_large_body_without_the_password_is_not_read() {
    let (admin, _fake) = start(Some("secret"));
    let head = "POST /command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 100000000\r\nExpect: 100-continue\r\n";
    let answer = raw(&admin, &format!("{head}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // With it, the server asks for it.
    let mut stream = TcpStream::connect(admin.addr()).unwrap();
    write!(stream, "{head}Authorization: Bearer secret\r\n\r\n").unwrap();
    let mut asked = [0; 12];
    stream.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100");
}

#[test]
fn silent_connections_do_not_block_others() {
    let (admin, _fake) = start(None);
    let silent: Vec<_> = (0..listener::CONNECTIONS_MAX / 2)
        .map(|_| TcpStream::connect(admin.addr()).unwrap())
        .collect();
    assert_eq!(get(&admin, "/healthz").0, 200);
    drop(silent);
}

const WAIT: &str = "POST /command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                    Content-Length: 18\r\nConnection: close\r\n\r\n{\"command\":\"wait\"}";

/// No time for anything but the head of a request.
const SHORT: Limits = Limits { rest: Duration::from_millis(200), ..listener::LIMITS };
/// What a client that wants to keep its place sends is so far apart.
const TRICKLE: Duration = Duration::from_millis(20);

#[test]
fn a_body_that_comes_byte_by_byte_is_cut_off_and_keeps_no_other_command_waiting() {
    let (admin, _fake) = start_within(SHORT, None);
    let mut stream = TcpStream::connect(admin.addr()).unwrap();
    let mut sends = stream.try_clone().unwrap();
    let answer = thread::scope(|scope| {
        scope.spawn(move || {
            let head = WAIT.split_once("{").unwrap().0.replace("18", "1000");
            let bytes = head.bytes().map(|byte| (byte, false)).chain([(b' ', true); 1000]);
            for (byte, waits) in bytes {
                if sends.write_all(&[byte]).is_err() {
                    return;
                }
                if waits {
                    thread::sleep(TRICKLE);
                }
            }
        });
        let mut answer = String::new();
        // It may be cut off as soon as it has been told.
        let _ = stream.read_to_string(&mut answer);
        answer
    });
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    let (admin, _fake) = start(None);
    let mut stream = TcpStream::connect(admin.addr()).unwrap();
    stream.write_all(WAIT.strip_suffix('}').unwrap().as_bytes()).unwrap();
    assert_eq!(post(&admin, None, &json!({ "command": "policy" })).0, 200);
}

#[test]
fn whoever_may_not_send_a_command_is_not_waited_for() {
    let (admin, _fake) = start(Some("secret"));
    let stuck = WAIT.strip_suffix('}').unwrap().replace("Connection: close\r\n", "");
    let answer = raw(&admin, &stuck);
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[test]
fn a_connection_ends_with_an_answer_once_it_has_had_its_time() {
    let (admin, _fake) = start_within(SHORT, None);
    let mut stream = TcpStream::connect(admin.addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut last = String::new();
    let until = Instant::now() + Duration::from_secs(30);
    while !last.contains("connection: close") {
        assert!(Instant::now() < until, "it is kept: {last}");
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).unwrap();
        last = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(last.starts_with("HTTP/1.1 200"), "{last}");
        thread::sleep(TRICKLE);
    }
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_body_that_was_asked_for_has_its_own_time() {
    let limits = Limits { head: Duration::from_secs(1), ..listener::LIMITS };
    let (admin, _fake) = start_within(limits, None);
    let body = json!({ "command": "policy" }).to_string();
    let mut stream = TcpStream::connect(admin.addr()).unwrap();
    write!(
        stream,
        "POST /command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .unwrap();
    let mut asked = [0; 25];
    stream.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    // Longer than a head may take.
    thread::sleep(limits.head * 3 / 2);
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_command_may_take_longer_than_a_connection_may_be_silent() {
    let (admin, fake) = start_within(SHORT, None);
    // One whose body does not come is cut off.
    let stuck = WAIT.strip_suffix('}').unwrap();
    let answer = raw(&admin, stuck);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    thread::scope(|scope| {
        let waits = scope.spawn(|| raw(&admin, WAIT));
        eventually("it waits", || fake.waiting() == 1);
        thread::sleep(SHORT.rest * 4);
        fake.0.lock().unwrap().mode = "throttled".into();
        let answer = waits.join().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("waited"), "{answer}");
    });
}

/// Nobody reads while a command is carried out, so nothing but a time of its own ends the connection afterwards.
#[test]
fn a_connection_that_is_silent_behind_a_long_command_ends() {
    let limits = Limits { head: Duration::from_millis(200), ..listener::LIMITS };
    let (admin, fake) = start_within(limits, None);
    let mut stream = TcpStream::connect(admin.addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(WAIT.replace("Connection: close\r\n", "").as_bytes()).unwrap();
    eventually("it waits", || fake.waiting() == 1);
    // Longer than a head may take.
    thread::sleep(limits.head * 2);
    fake.0.lock().unwrap().mode = "throttled".into();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the connection ends");
    assert!(
        answer.starts_with("HTTP/1.1 200") && !answer.contains("connection: close"),
        "{answer}"
    );
}

#[test]
fn a_long_body_does_not_wait_for_another_one_without_an_end() {
    let (admin, _fake) = start_within(SHORT, None);
    let begin = |bytes: &str| WAIT.strip_suffix('}').unwrap().replace("18", bytes);
    let mut stuck = TcpStream::connect(admin.addr()).unwrap();
    // It has the turn for a hundred seconds.
    stuck.write_all(begin("100000000").as_bytes()).unwrap();
    eventually("another one is refused", || {
        raw(&admin, &begin("100000")).starts_with("HTTP/1.1 503")
    });
}

#[test]
fn a_command_ends_when_its_client_hangs_up_or_its_time_is_over() {
    let (admin, fake) = start(None);
    let mut stream = TcpStream::connect(admin.addr()).unwrap();
    stream.write_all(WAIT.as_bytes()).unwrap();
    eventually("it waits", || fake.waiting() == 1);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(fake.waiting(), 1);
    drop(stream);
    eventually("it has ended", || fake.waiting() == 0);
    let limited = json!({ "command": "wait", "timeout_ms": 20 });
    assert_eq!(post(&admin, None, &limited), (504, json!({ "error": "too long" })));
}

#[test]
fn a_command_that_ends_with_the_server_is_answered() {
    let (admin, fake) = start(None);
    let mut stream = TcpStream::connect(admin.addr()).unwrap();
    stream.write_all(WAIT.as_bytes()).unwrap();
    eventually("it waits", || fake.waiting() == 1);
    fake.0.lock().unwrap().mode = "ended".into();
    drop(admin);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("waited"), "{answer}");
}

#[test]
fn commands_that_wait_leave_room_for_reports() {
    let (admin, fake) = start(None);
    let waiting: Vec<_> = (1..=COMMANDS_MAX)
        .map(|count| {
            let mut stream = TcpStream::connect(admin.addr()).unwrap();
            stream.write_all(WAIT.as_bytes()).unwrap();
            eventually("it waits", || fake.waiting() == count);
            stream
        })
        .collect();
    let (status, answer) = post(&admin, None, &json!({ "command": "policy" }));
    assert!(status == 503 && answer["error"].as_str().unwrap().contains("under way"), "{answer}");
    assert_eq!(get(&admin, "/status").0, 200);
    drop(waiting);
    eventually("they have ended", || fake.waiting() == 0);
    eventually("there is room", || post(&admin, None, &json!({ "command": "policy" })).0 == 200);
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
    let taken = TcpListener::bind(addr).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
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
