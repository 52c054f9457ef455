use super::*;
use destage_testkit::needs;
use destage_tokens::{Entry, HostId, Mode, Register, Root, Store};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

fn at(server: String, limit: Duration) -> Arc<Etcd> {
    let address = EtcdAddress { servers: vec![server], user: None, tls: None };
    Arc::new(Etcd::new(address, "volume", limit).unwrap())
}

/// Reads a request: its head and its body, in small letters.
fn request(connection: &mut TcpStream) -> (String, String) {
    let mut request = Vec::new();
    let mut byte = [0];
    let parts_of = |request: &[u8]| {
        let text = String::from_utf8_lossy(request).into_owned();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
        let is_whole = body.len() >= length.parse::<usize>().ok()?;
        is_whole.then(|| (head.to_owned(), body.to_owned()))
    };
    loop {
        if let Some(parts) = parts_of(&request.to_ascii_lowercase()) {
            return parts;
        }
        connection.read_exact(&mut byte).unwrap();
        request.push(byte[0]);
    }
}

/// Reads a request, and answers it with the beginning of a stream.
fn begin_stream(connection: &mut TcpStream) -> String {
    let (_, body) = request(connection);
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    connection.write_all(head.as_bytes()).unwrap();
    body
}

/// A server that gives these answers, one a request: where it is, and what it was asked, by its path and with which ticket.
fn stub(answers: Vec<(u16, Json)>) -> (String, thread::JoinHandle<Vec<(String, String)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let mut asked = Vec::new();
        for (status, answer) in answers {
            let mut connection = listener.accept().unwrap().0;
            let (head, _) = request(&mut connection);
            let path = head.split(' ').nth(1).unwrap().trim_start_matches("/v3/").to_owned();
            let ticket = head.lines().find_map(|line| line.strip_prefix("authorization: "));
            asked.push((path, ticket.unwrap_or("").to_owned()));
            let (answer, rest) = (answer.to_string(), "Connection: close\r\n\r\n");
            let length = answer.len();
            let head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {length}\r\n{rest}");
            write!(connection, "{head}{answer}").unwrap();
        }
        asked
    });
    (place, server)
}

fn refusal(text: &str) -> Json {
    json!({ "error": text, "code": 3, "message": text })
}

#[test]
fn who_is_told_that_the_ticket_is_old_signs_in_once_more() {
    for old in TICKET_IS_OLD {
        let revision = json!({ "header": { "revision": "8" } });
        let (place, server) = stub(vec![
            (200, json!({ "token": "one" })),
            (400, refusal(&format!("etcdserver: {old}"))),
            (200, json!({ "token": "two" })),
            (200, revision),
        ]);
        let user = Some(("me".into(), "secret".into()));
        let address = EtcdAddress { servers: vec![place], user, tls: None };
        let etcd = Etcd::new(address, "volume", Duration::from_secs(5)).unwrap();
        assert_eq!(etcd.revision().unwrap(), Rev(8), "{old}");
        let tickets = server.join().unwrap().into_iter().filter(|(path, _)| path == "kv/range");
        assert_eq!(tickets.map(|(_, ticket)| ticket).collect::<Vec<_>>(), ["one", "two"], "{old}");
    }
}

#[test]
fn a_server_that_cannot_is_not_asked_again() {
    let lost = json!({ "error": { "http_code": 503, "message": "etcdserver: no leader" } });
    let alone = |limit| (503, refusal(limit));
    let (first, firsts) =
        stub(vec![alone("etcdserver: no leader"), (200, lost.clone()), (503, lost)]);
    let kept = json!({ "result": { "ID": "5", "TTL": "9" } });
    let revision = json!({ "header": { "revision": "8" } });
    let denied = (403, refusal("etcdserver: permission denied"));
    let (second, seconds) = stub(vec![
        (200, revision.clone()),
        denied,
        (500, refusal("not a primary lessor")),
        (200, kept.clone()),
        alone("etcdserver: request timed out"),
        (200, kept),
    ]);
    let address = EtcdAddress { servers: vec![first, second], user: None, tls: None };
    let etcd = Etcd::new(address, "volume", Duration::from_secs(5)).unwrap();
    let error = etcd.revision().unwrap_err();
    assert!(error.0.contains("no leader"), "{error}");
    assert_eq!(etcd.revision().unwrap(), Rev(8));
    // The other one would say the same.
    let error = etcd.revision().unwrap_err();
    assert!(error.0.contains("permission denied"), "{error}");
    etcd.renew(LeaseId(5)).unwrap_err();
    // That a server has no leader says nothing of the lease.
    let error = etcd.renew(LeaseId(5)).unwrap_err();
    assert!(error.0.contains("no leader"), "{error}");
    assert_eq!(etcd.renew(LeaseId(5)).unwrap(), Kept::Renewed);
    etcd.renew(LeaseId(5)).unwrap_err();
    let error = etcd.renew(LeaseId(5)).unwrap_err();
    assert!(error.0.contains("no leader"), "{error}");
    assert_eq!(etcd.renew(LeaseId(5)).unwrap(), Kept::Renewed);
    assert_eq!((firsts.join().unwrap().len(), seconds.join().unwrap().len()), (3, 6));
}

/// A connection may die without a word: whoever hears nothing on it asks anew, from where it ended.
#[test]
fn a_watch_that_hears_nothing_asks_anew() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let etcd = at(listener.local_addr().unwrap().to_string(), Duration::from_millis(200));
    let host = HostId(7);
    let key = etcd.key(&Key::Session(host));
    let server = thread::spawn(move || {
        let mut silent = listener.accept().unwrap().0;
        let first = begin_stream(&mut silent);
        let mut speaks = listener.accept().unwrap().0;
        let second = begin_stream(&mut speaks);
        let event = json!({ "result": { "events": [
            { "kv": { "key": key, "value": BASE64_STANDARD.encode("{}"), "mod_revision": "9" } }
        ] } });
        let event = format!("{event}\n");
        write!(speaks, "{:x}\r\n{event}\r\n", event.len()).unwrap();
        (first, second, silent, speaks)
    });
    let mut watch = Watch { etcd, from: 5, stream: None };
    let heard = loop {
        let events = watch.next().expect("it goes on");
        if !events.is_empty() {
            break events;
        }
    };
    assert_eq!(
        heard,
        [Event { key: Key::Session(host), value: Some(Value::Session), revision: Rev(9) }]
    );
    let (first, second, ..) = server.join().unwrap();
    assert!(first.contains(r#""start_revision": "5""#), "{first}");
    assert_eq!(first, second);
    assert_eq!(watch.from, 10);
}

/// A real one; ends when dropped.
struct Server(Child, String);

impl Server {
    fn start(folder: &Path) -> Self {
        let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let places = sockets.each_ref().map(|socket| socket.local_addr().unwrap().to_string());
        drop(sockets);
        let [clients, peers] = places.each_ref().map(|place| format!("http://{place}"));
        let server = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let [place, _] = places;
        Self(server, place)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// SplitMix64.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % below
}

fn some_key(state: &mut u64) -> Key {
    match random(state, 5) {
        0 => Key::Host(HostId(1)),
        1 => Key::Session(HostId(2)),
        2 => Key::Token(Root::Volume),
        part => Key::Token(Root::File(vec![part as u8, 0xff].into())),
    }
}

fn some_value(state: &mut u64, key: &Key) -> Value {
    match key {
        Key::Host(_) => Value::Host { is_fenced: random(state, 2) == 0 },
        Key::Session(_) => Value::Session,
        Key::Life(_) => Value::Life,
        Key::Token(_) => {
            let epoch = Rev(random(state, 100));
            let entry = Entry { host: HostId(1), epoch, mode: Mode::Exclusive };
            Value::Token(Register { holders: vec![entry], wants: vec![] })
        }
    }
}

/// The protocol is searched with the model of a store: the real one does the same. It forgets what it is told to forget, and
/// a watch that would need it says so.
#[test]
fn the_real_store_does_what_the_model_does_and_forgets_its_history() {
    if !needs::has("etcd") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let etcd = at(server.1.clone(), Duration::from_secs(5));
    let mut tries = 0;
    let first = loop {
        match etcd.revision() {
            Ok(revision) => break revision,
            Err(error) if tries == 600 => panic!("{error}"),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
        tries += 1;
    };
    // The model begins with none.
    let real = |rev: Rev| if rev == Rev::NONE { rev } else { Rev(rev.0 + first.0) };
    let mut model = Store::default();
    let mut watch = etcd.load().unwrap().watch;
    let (mut told, mut expected) = (Vec::new(), Vec::new());
    let (mut state, mut done) = (1, 0);
    for _ in 0..200 {
        let mut txn = Txn::default();
        for _ in 0..=random(&mut state, 2) {
            let key = some_key(&mut state);
            if txn.puts.iter().any(|put| put.key == key) {
                continue;
            }
            let rev = model.get(&key).map_or(Rev::NONE, |(_, rev)| rev);
            let rev = if random(&mut state, 5) == 0 { Rev(rev.0 + 1) } else { rev };
            // What is not there does not go: that has no revision of its own there, and nothing does so.
            let is_there = model.get(&key).is_some();
            let goes = is_there && random(&mut state, 4) == 0;
            let value = (!goes).then(|| some_value(&mut state, &key));
            txn.compares.push((key.clone(), rev));
            txn.puts.push(Put { key, value, lease: None });
        }
        let compares = txn.compares.iter().map(|(key, rev)| (key.clone(), real(*rev))).collect();
        let reply = etcd.txn(&Txn { compares, puts: txn.puts.clone() }).unwrap();
        let (wanted, events) = model.txn(&txn);
        assert_eq!(reply.is_done, wanted.is_done, "{txn:?}");
        assert_eq!(reply.revision.0, model.revision().0 + first.0, "{txn:?}");
        let found = wanted
            .found
            .into_iter()
            .map(|(key, found)| (key, found.map(|(value, rev)| (value, real(rev)))));
        assert_eq!(reply.found, found.collect::<Vec<_>>());
        done += u32::from(reply.is_done);
        expected.extend(
            events.into_iter().map(|event| Event { revision: real(event.revision), ..event }),
        );
    }
    assert!((50..200).contains(&done), "{done}");
    while told.len() < expected.len() {
        told.extend(watch.next().expect("it goes on"));
    }
    let order = |event: &Event| (event.revision, event.key.clone());
    told.sort_by_key(order);
    expected.sort_by_key(order);
    assert_eq!(told, expected);
    let all = model.all();
    let keys = all.keys.into_iter().map(|(key, value, rev)| (key, value, real(rev)));
    let mut found = etcd.load().unwrap().all;
    found.keys.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(found.keys, keys.collect::<Vec<_>>());

    let newest = etcd.revision().unwrap();
    let mut early = Watch { etcd: etcd.clone(), from: first.0 + 1, stream: None };
    assert!(hears(&mut early), "what is not forgotten is told");
    etcd.compact(newest).unwrap();
    etcd.compact(newest).unwrap_err();
    let mut early = Watch { etcd: etcd.clone(), from: first.0 + 1, stream: None };
    assert!(!hears(&mut early), "what is forgotten is not told, and that is noticed");
    assert_eq!(etcd.load().unwrap().all.keys.len(), found.keys.len());
}

/// Whether a watch tells of something, or ends.
fn hears(watch: &mut Watch) -> bool {
    loop {
        match watch.next() {
            Some(events) if events.is_empty() => {}
            Some(_) => return true,
            None => return false,
        }
    }
}
