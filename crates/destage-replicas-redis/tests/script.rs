//! The script does what the model does, whatever it is asked: on a real server.

use destage_replicas::{
    Beat, Config, Entry, Epoch, Member, MemberList, Position, Reply, Request, RunId, Server,
};
use destage_replicas_redis::{Link, Places, Wire};
use destage_testkit::virtual_time::Rng;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);

struct Redis {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Redis {
    fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(settings)
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        Self { child, port, _folder: folder }
    }

    fn places(&self) -> Places {
        Places::parse(&format!("redis://127.0.0.1:{}", self.port)).expect("an address")
    }

    /// Connects once it answers; what it is refused for otherwise.
    fn link(&self) -> Result<Link, String> {
        let until = Instant::now() + PATIENCE;
        let places = self.places();
        loop {
            match Link::open(&places, &places.addresses()[0], Wire::new("test"), PATIENCE) {
                Ok(link) => return Ok(link),
                Err(destage_replicas_redis::Trouble::Unfit(why)) => return Err(why),
                Err(other) => assert!(Instant::now() < until, "{other}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn epoch(rng: &mut Rng) -> Epoch {
    // Bytes beyond 0x7f, which signed comparisons get wrong, and those that text is split at.
    let number = rng.pick(&[0, 1, 2, 3, 127, 128, 255, 256]);
    Epoch { number, identity: rng.pick(&[1, 0x0a0d, 0x80, 0xff00, u64::MAX - 1]) }
}

fn config(rng: &mut Rng) -> Arc<Config> {
    let member = |rng: &mut Rng| Member {
        address: format!("10.0.0.{}:6379", rng.below(9)).into(),
        run: RunId(u128::from(rng.next()) << 64 | u128::from(rng.next())),
        is_durable: rng.chance(50),
        admitted: epoch(rng),
    };
    let list = |rng: &mut Rng| MemberList {
        members: (0..=rng.below(3)).map(|_| member(rng)).collect(),
        copies: 1 + rng.below(3) as usize,
    };
    let now = list(rng);
    let before = (0..rng.below(3)).map(|_| list(rng)).collect();
    Arc::new(Config { epoch: epoch(rng), subject: "origin ä".into(), now, before })
}

/// What an owner might ask, or one that is confused: mostly what fits how the server stands.
fn request(rng: &mut Rng, server: &Server) -> Request {
    let view = server.view();
    let likely = |rng: &mut Rng, fits: Epoch| if rng.chance(90) { fits } else { epoch(rng) };
    match rng.below(20) {
        0 => Request::Look,
        1 | 2 => {
            let beat = Beat { promise: likely(rng, view.beat.promise), count: view.beat.count };
            let unless_since = rng.chance(50).then_some(beat);
            let epoch = epoch(rng);
            Request::Promise { epoch, unless_since, place: "host:6380".into() }
        }
        3 => {
            let epoch = likely(rng, view.beat.promise);
            let admitted = likely(rng, view.admitted);
            Request::Configure { epoch, config: config(rng), admitted }
        }
        4 => Request::Read {
            epoch: rng.chance(60).then(|| likely(rng, view.beat.promise)),
            from: Position(rng.below(view.last.0 + 4)),
            bytes_max: rng.pick(&[1, 20, 1 << 20]),
        },
        5 if rng.chance(20) => Request::GiveUp { epoch: likely(rng, view.beat.promise) },
        _ => {
            let near = Position((view.last.0 + 2).saturating_sub(rng.below(5)));
            let after = if rng.chance(60) { view.last } else { near };
            let known = server.entries().find(|(at, _)| *at == after).map(|(_, e)| e.epoch);
            let known =
                known.unwrap_or(if after == view.last { view.last_epoch } else { view.base_epoch });
            let entry = |rng: &mut Rng| {
                let bytes: Vec<u8> = (0..rng.below(30)).map(|_| rng.next() as u8).collect();
                Entry { epoch: likely(rng, view.beat.promise), payload: bytes.into() }
            };
            let count = if rng.chance(2) { 2_500 } else { rng.below(4) };
            Request::Append {
                epoch: likely(rng, view.beat.promise),
                admitted: likely(rng, view.admitted),
                after,
                after_epoch: likely(rng, known),
                entries: (0..count).map(|_| entry(rng)).collect(),
                base: Position((view.base.0 + rng.below(6)).saturating_sub(2)),
                begins: rng.chance(15),
                beat: rng.below(1 << 40),
            }
        }
    }
}

#[test]
fn the_script_does_what_the_model_does() {
    let redis = Redis::start(&[]);
    let mut link = redis.link().expect("a server that keeps what it accepts");
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for seed in 0..40 {
        let places = redis.places();
        let wire = Wire::new(&format!("log {seed}"));
        link = Link::open(&places, &places.addresses()[0], wire, PATIENCE).unwrap_or(link);
        let mut rng = Rng::new(seed, 7);
        let mut model = Server::default();
        for step in 0..150 {
            let request = request(&mut rng, &model);
            let expected = model.handle(&request);
            let found = link.ask(std::slice::from_ref(&request)).expect("it answers").remove(0);
            assert_eq!(found, expected, "seed {seed}, step {step}: {request:?}");
            let word = format!("{expected:?}");
            let word = word.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            *seen.entry(word.to_owned()).or_default() += 1;
        }
        let all = Request::Read { epoch: None, from: Position(0), bytes_max: usize::MAX >> 12 };
        let Reply::Entries { entries, .. } = link.ask(&[all]).expect("it answers").remove(0) else {
            panic!("entries")
        };
        assert_eq!(entries, model.to_vec(), "seed {seed}");
    }
    for word in [
        "Appended",
        "Gap",
        "Fenced",
        "Stranger",
        "Promised",
        "Lively",
        "Configured",
        "Entries",
        "GivenUp",
    ] {
        assert!(seen.get(word).is_some_and(|&count| count > 5), "{word}: {seen:?}");
    }
}

#[test]
fn a_server_without_room_refuses_entries_and_still_promises_and_lets_go() {
    let redis = Redis::start(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]);
    let mut link = redis.link().expect("a server");
    let mut rng = Rng::new(1, 1);
    let of = |number| Epoch { number, identity: 1 };
    let promise =
        |number| Request::Promise { epoch: of(number), unless_since: None, place: "".into() };
    let configure = Request::Configure { epoch: of(1), config: config(&mut rng), admitted: of(1) };
    assert!(matches!(link.ask(&[promise(1), configure]).unwrap()[1], Reply::Configured));
    let append = |after: u64, base: u64, count: usize| Request::Append {
        epoch: of(1),
        admitted: of(1),
        after: Position(after),
        after_epoch: if after == 0 { Epoch::NONE } else { of(1) },
        entries: vec![Entry { epoch: of(1), payload: vec![7; 100_000].into() }; count],
        base: Position(base),
        begins: false,
        beat: 1,
    };
    let last = (0..100).find(|&at| link.ask(&[append(at, 1, 1)]).unwrap()[0] == Reply::Full);
    let last = last.expect("its memory is full");
    assert!(last > 2, "{last}");
    assert_eq!(link.ask(&[append(last, 1, 0)]).unwrap(), [Reply::Appended], "a renewal");
    let Reply::Seen(view) = link.ask(&[Request::Look]).unwrap().remove(0) else { panic!("seen") };
    assert_eq!(view.last, Position(last), "nothing is there by halves");
    assert_eq!(link.ask(&[append(last, last + 1, 0)]).unwrap(), [Reply::Appended], "it lets go");
    assert_eq!(link.ask(&[append(last, last + 1, 1)]).unwrap(), [Reply::Appended], "there is room");
    while link.ask(&[append(last + 1, last + 1, 30)]).unwrap()[0] != Reply::Full {}
    let Reply::Promised(view) = link.ask(&[promise(2)]).unwrap().remove(0) else { panic!() };
    let first = |payload: &[u8]| Request::Append {
        epoch: of(2),
        admitted: of(1),
        after: view.last,
        after_epoch: view.last_epoch,
        entries: vec![Entry { epoch: of(2), payload: payload.into() }],
        base: view.base,
        begins: false,
        beat: 2,
    };
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", redis.port)).unwrap();
    let mut people = client.get_connection().unwrap();
    let set = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1mb").exec(&mut people);
    set.expect("it has less memory than it uses");
    // Without an owner's first entry nothing would ever leave it.
    assert_eq!(link.ask(&[first(&[7; 100_000])]).unwrap(), [Reply::Full]);
    assert_eq!(link.ask(&[first(b"")]).unwrap(), [Reply::Appended]);
}

#[test]
fn servers_that_would_forget_are_refused_with_the_remedy() {
    let refusal = |settings: &[&str]| {
        let redis = Redis::start(settings);
        redis.link().err().unwrap_or_else(|| panic!("{settings:?} is refused"))
    };
    assert!(refusal(&["--save", "3600 1"]).contains("CONFIG SET save \"\""));
    assert!(
        refusal(&["--maxmemory-policy", "allkeys-lru"]).contains("maxmemory-policy noeviction")
    );
    assert!(refusal(&["--cluster-enabled", "yes"]).contains("cluster-enabled no"));
    let replica = refusal(&["--replicaof", "127.0.0.1 1"]);
    assert!(replica.contains("REPLICAOF NO ONE"), "{replica}");
    for (settings, is_durable) in [
        (&["--appendonly", "yes", "--appendfsync", "always"][..], true),
        (&["--appendonly", "yes", "--appendfsync", "everysec"][..], false),
        (
            &[
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
                "--no-appendfsync-on-rewrite",
                "yes",
            ][..],
            false,
        ),
        (&[][..], false),
    ] {
        let who = Redis::start(settings).link().expect("it is fit").who();
        assert_eq!(who.is_durable, is_durable, "{settings:?}");
    }
}

#[test]
fn a_server_that_says_nothing_or_nonsense_is_given_up() {
    use std::io::Write;
    for answer in ["", "nonsense\r\n", "*999999999\r\n", "$2147483647\r\nx"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let served = std::thread::spawn(move || {
            let mut all = Vec::new();
            for mut stream in listener.incoming().take(2).flatten() {
                let _ = stream.write_all(answer.as_bytes());
                all.push(stream);
            }
        });
        let places = Places::parse(&format!("redis://:pw@127.0.0.1:{port}")).expect("an address");
        let began = Instant::now();
        let patience = Duration::from_millis(300);
        let opened = Link::open(&places, &places.addresses()[0], Wire::new("test"), patience);
        assert!(opened.is_err(), "{answer:?}");
        assert!(began.elapsed() < Duration::from_secs(3), "{answer:?}: {:?}", began.elapsed());
        let _ = std::net::TcpStream::connect(("127.0.0.1", port));
        served.join().expect("it has served");
    }
}
