//! What stands before an origin: a start that loses the log before it is let in, and one that comes to another origin.

use crate::FENCED;
use crate::world::{Origin, World};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const ORIGIN_WENT_BACK: i32 = 14;

/// In front of an origin: nothing that is sent arrives before it is opened.
pub(crate) struct Gate {
    pub(crate) url: String,
    is_open: Arc<AtomicBool>,
    arrivals: mpsc::Receiver<()>,
}

impl Gate {
    pub(crate) fn of(origin: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (front, name) = origin.rsplit_once('/').expect("a database");
        let (scheme, to) = front.rsplit_once("//").expect("an address");
        let url = format!("{scheme}//{}:{port}/{name}", to.rsplit_once(':').expect("a port").0);
        let to = to.rsplit_once('@').map_or(to, |(_, address)| address).to_owned();
        let is_open = Arc::new(AtomicBool::new(false));
        let (arrived, arrivals) = mpsc::channel();
        let opened = is_open.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // Nobody waits for it once the test is over.
                let _ = arrived.send(());
                while !opened.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let Ok(far) = TcpStream::connect(&to) else { continue };
                let ways = [near.try_clone().ok().zip(far.try_clone().ok()), Some((far, near))];
                for (mut from, mut to) in ways.into_iter().flatten() {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { url, is_open, arrivals }
    }

    /// Waits until somebody stands before it.
    fn await_arrival(&self) {
        self.arrivals.recv_timeout(Duration::from_secs(60)).expect("somebody comes");
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }
}

/// What other hosts have sent since, or must not send later, no host could know.
#[test]
fn a_log_does_not_go_on_before_another_origin() {
    let mut world = World::new(3, &[]);
    let mut owner = world.start(&[]);
    assert_eq!(owner.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    owner.end();
    let other = Origin::new();
    other.sql("CREATE TABLE t (id bigint PRIMARY KEY, n bigint NOT NULL DEFAULT 0)");
    let gate = Gate::of(&other.url);
    gate.open();
    let plain = |url: &str| {
        let (scheme, rest) = url.split_once("//").expect("an address");
        format!("{scheme}//{}", rest.rsplit_once('@').map_or(rest, |(_, address)| address))
    };
    let change = format!("{}={}", plain(world.origin_url()), plain(&gate.url));
    world.gate = Some(gate);
    for flags in [&[][..], &["--change-origin", &change]] {
        let (code, text) = world.refused_again(&owner, flags);
        assert_eq!(code, Some(ORIGIN_WENT_BACK), "{text}");
        assert!(text.contains("--replica-log NAME"), "{text}");
    }
    assert_eq!(other.rows(), []);
    let mut next = world.start(&["--replica-log", "other"]);
    assert_eq!(next.client().ask(&["HINCRBY", "t:1", "n", "5"]), ":5");
    next.end();
    assert_eq!((world.origin_rows(), other.rows()), (vec![(1, 1)], vec![(1, 5)]));
}

/// > A former owner that comes back acknowledges nothing.
#[test]
fn who_has_lost_the_log_before_it_claims_the_origin_does_not_depose_its_successor() {
    let mut world = World::new(3, &[]);
    // The origin has decided nothing of the successor's, so that its watermark does not tell.
    let flags = ["--failover", "600ms", "--when", "periodic:1h", "--staleness", "none"];
    let mut first = world.start(&flags);
    assert_eq!(first.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    first.end();
    // It takes the log over, and then waits for the origin, without hearing of anybody.
    world.gate = Some(Gate::of(world.origin_url()));
    let mut late = world.spawn(&flags);
    let gate = world.gate.take().expect("it is there");
    gate.await_arrival();
    (0..3).for_each(|server| world.servers.part(server, late.pid()));
    let mut owner = world.start(&flags);
    let mut client = owner.client();
    assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":2");
    gate.open();
    // Longer than a claim and the next look at it take.
    let lasting = Duration::from_secs(6);
    std::thread::sleep(lasting);
    assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":3");
    world.servers.heal();
    assert_eq!(late.await_end(), Some(FENCED));
    assert_eq!(client.ask(&["HINCRBY", "t:1", "n", "1"]), ":4");
    owner.end();
    assert_eq!(world.origin_rows(), [(1, 4)]);
}
