//! Settings that a volume's server tries out by itself.

use crate::harness::{PATIENCE, Scratch, eventually, millis};
use crate::history::stamped;
use crate::server::{Launch, Server, image};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const EVERY: Duration = millis(3);

fn launch(scratch: &Scratch) -> Launch {
    let image = image(scratch, 8 << 20);
    Launch::before(scratch, &format!("file:{}", image.display()))
}

/// Writes four blocks again and again, at a rate that the machine's noise does not change; how many writes there were.
fn writes(server: &Server, ends: Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    let client = server.client();
    thread::spawn(move || {
        let (began, mut sent) = (Instant::now(), 0);
        while !ends.load(Ordering::Relaxed) {
            while u128::from(sent) < began.elapsed().as_nanos() / EVERY.as_nanos() {
                sent += 1;
                client.write(sent % 4 * 4096, &stamped(sent), false).expect("a write");
            }
            thread::sleep(EVERY);
        }
        sent
    })
}

#[test]
fn a_volume_finds_a_longer_linger_says_why_and_is_switched_off() {
    let scratch = Scratch::new();
    let log = scratch.join("log");
    let flags = ["--policy", "write-back", "-d", "0", "--linger", "4ms", "--auto", "writes"];
    let launch = launch(&scratch).logging_to(log.clone()).with(&flags);
    let server = launch.with(&["--auto-period", "1s"]).start();
    let ends = Arc::new(AtomicBool::new(false));
    let writer = writes(&server, ends.clone());
    let auto = || server.volume("auto");
    eventually("a step is kept", 2 * PATIENCE, || {
        let auto = auto();
        let (kept, back) = (auto["kept_total"].as_u64(), auto["went_back_total"].as_u64());
        if kept == Some(0) && back >= Some(3) {
            // The machine was too busy for a fair trial.
            server.ask(&["policy", "auto=off"]);
            server.ask(&["policy", "auto=writes"]);
        }
        kept > Some(0)
    });
    let status = server.status();
    assert!(status["policy"]["linger_seconds"].as_f64() > Some(0.004), "{status}");
    assert!(status["auto"]["kept_total"].as_u64() >= Some(1), "{status}");
    assert!(auto()["last"].as_str().is_some_and(|last| last.contains("linger")), "{status}");
    let said = std::fs::read_to_string(&log).expect("there is a log");
    for part in ["auto: linger 4ms -> ", "is tried: the origin writes for each change", "is kept"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(server.ask(&["status"]).contains("set by the user"));
    server.ask(&["policy", "auto=off"]);
    let status = server.status();
    assert_eq!((&status["policy"]["linger_seconds"], &auto()), (&0.004.into(), &().into()));
    ends.store(true, Ordering::Relaxed);
    let sent = writer.join().expect("all were written");
    assert!(sent > 100);
    let mut block = vec![0; 4096];
    server.client().read(sent % 4 * 4096, &mut block).expect("a read");
    assert_eq!(block, stamped(sent));
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_volume_tries_what_advice_on_its_own_recording_says() {
    let scratch = Scratch::new();
    let (log, file) = (scratch.join("log"), scratch.join("run").display().to_string());
    let flags = ["--policy", "write-back", "-d", "0", "--linger", "4ms", "--auto", "writes"];
    let launch = launch(&scratch).logging_to(log.clone()).with(&flags);
    let advice = ["--auto-linger", "1ms..40ms", "--auto-advice", "2s", "--record", &file];
    let server = launch.with(&["--auto-period", "1s"]).with(&advice).start();
    // The recording begins with what it knows as in force, and there is no step from here: only advice leads anywhere.
    server.ask(&["policy", "linger=40ms"]);
    let ends = Arc::new(AtomicBool::new(false));
    let writer = writes(&server, ends.clone());
    let said = || std::fs::read_to_string(&log).expect("there is a log");
    eventually("what is advised is tried", 2 * PATIENCE, || {
        said().contains("auto: linger 40ms -> ") && said().contains("is tried as advised")
    });
    eventually("it goes back", 2 * PATIENCE, || {
        server.volume("auto")["went_back_total"].as_u64() >= Some(1)
            && server.status()["policy"]["linger_seconds"] == 0.04
    });
    assert!(said().contains("auto: advised is 'destage block policy"), "{}", said());
    let auto = server.volume("auto");
    assert!(auto["advice"].as_str().is_some_and(|words| words.contains("linger=")), "{auto}");
    ends.store(true, Ordering::Relaxed);
    assert!(writer.join().expect("all were written") > 100);
    assert_eq!(server.stop(), 0);
}
