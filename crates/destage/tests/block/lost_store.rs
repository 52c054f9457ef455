//! A redo store that is lost while its cache is dirty: nothing is adopted unasked, and everything is sent when it is.

use crate::harness::{Random, Scratch};
use crate::history::{BLOCK, BLOCKS, History, State, read_state, stamped, state_of};
use crate::server::{Launch, destage, image, text};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Output;

struct Setup {
    image: PathBuf,
    store: PathBuf,
    launch: Launch,
    /// What was written: all of it was flushed.
    history: History,
    scratch: Scratch,
}

impl Setup {
    /// A killed server, whose cache holds writes that the origin lacks; of these the origin holds some, as if a group had been
    /// under way.
    fn killed(policy: &str, seed: u64) -> Self {
        let scratch = Scratch::new();
        let image = image(&scratch, BLOCKS * BLOCK as u64);
        let launch = Launch::before(&scratch, &image.display().to_string());
        let launch = launch.with(&["--policy", policy, "-D", "1h"]);
        let store = PathBuf::from(format!("{}.destage", image.display()));
        let mut setup = Self { image, store, launch, history: History::default(), scratch };
        let mut random = Random::new(seed, 0);
        let server = setup.launch.start();
        let client = server.client();
        setup.history.write(&client, &mut random, |number| number > 150);
        assert_eq!(server.stop(), 0);
        let server = setup.launch.start();
        let client = server.client();
        server.ask(&["pause"]);
        let before = setup.state();
        setup.history.write(&client, &mut random, |number| number > 300);
        setup.history.flush(&client).expect("a flush");
        let held = read_state(&client).expect("nothing is torn");
        server.kill();
        let file = File::options().write(true).open(&setup.image).expect("the image");
        let dirty = (0..BLOCKS).filter(|&block| before[block as usize] != held[block as usize]);
        for block in dirty.step_by(2) {
            let bytes = stamped(held[block as usize]);
            file.write_all_at(&bytes, block * BLOCK as u64).expect("it is written");
        }
        let halfway = setup.state();
        assert!(halfway != before && halfway != held, "the origin is in the middle");
        setup
    }

    fn state(&self) -> State {
        state_of(&fs::read(&self.image).expect("the image")).expect("nothing is torn")
    }

    fn adopting(&self) -> Launch {
        self.launch.clone().with(&["--adopt"])
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = destage();
        command.arg("block").args(arguments).arg("--origin").arg(&self.image);
        command.output().expect("the binary starts")
    }

    fn replay(&self) -> Output {
        self.ask(&["replay"])
    }

    /// Starts with these arguments until everything is at the origin, and ends in order.
    fn sends_everything(&self, launch: &Launch) {
        let server = launch.start();
        server.ask(&["drain"]);
        let held = read_state(&server.client()).expect("nothing is torn");
        assert_eq!(server.stop(), 0);
        let (at_the_origin, flushed) = (self.state(), self.history.flushed);
        assert_eq!(at_the_origin, held);
        self.history.is_prefix(&held, flushed).expect("everything flushed is there, in order");
    }
}

/// > The identity of a new redo store is never taken up without `--adopt`.
#[test]
fn a_cache_whose_redo_store_is_lost_is_sent_on_demand_only() {
    for policy in ["journaled", "ordered", "write-back"] {
        let setup = Setup::killed(policy, 61);
        let (origin, cache) = (fs::read(&setup.image), fs::read(&setup.launch.cache));
        fs::remove_file(&setup.store).expect("the store is lost");
        for _ in 0..2 {
            let (code, said) = setup.launch.refused();
            assert_eq!(code, 13, "{policy}: {said}");
            assert!(said.contains("an unused one") && said.contains("--adopt"), "{said}");
        }
        let checked = setup.ask(&["check", "--cache", &setup.launch.cache.display().to_string()]);
        assert_eq!(checked.status.code(), Some(13), "{}", text(&checked.stderr));
        assert!(text(&checked.stdout).contains("--adopt"), "{}", text(&checked.stdout));
        assert_eq!(setup.replay().status.code(), Some(14), "an unused store knows nothing");
        assert!(fs::read(&setup.image).ok() == origin.ok(), "{policy}: the origin was touched");
        assert!(
            fs::read(&setup.launch.cache).ok() == cache.ok(),
            "{policy}: the cache was touched"
        );
        setup.sends_everything(&setup.adopting());
        let replayed = setup.replay();
        assert!(replayed.status.success(), "{policy}: {}", text(&replayed.stderr));
        setup.sends_everything(&setup.launch);
    }
}

/// > Until everything that such a cache held is at the origin, `destage block replay` never calls the origin whole.
#[test]
fn a_replay_before_everything_was_sent_again_says_that_the_origin_may_be_no_state() {
    for policy in ["journaled", "write-back"] {
        let setup = Setup::killed(policy, 62);
        fs::remove_file(&setup.store).expect("the store is lost");
        let halfway = setup.state();
        // Killed again and again, before anything is sent and after the new identity was taken up.
        for more in [&["--adopt", "--when", "pressure"][..], &["--when", "pressure"]] {
            setup.launch.clone().with(more).start().kill();
            assert_eq!(setup.state(), halfway, "{policy}: nothing was sent");
            let replayed = setup.replay();
            let said = text(&replayed.stderr);
            assert_eq!(replayed.status.code(), Some(14), "{policy}: {said}");
            assert!(said.contains("may be no state that existed"), "{said}");
        }
        setup.sends_everything(&setup.launch);
        assert!(setup.replay().status.success(), "{policy}");
    }
}

#[test]
fn a_damaged_redo_store_is_replaced_by_who_removes_it() {
    let setup = Setup::killed("journaled", 63);
    let file = File::options().write(true).open(&setup.store).expect("the store");
    for header in [100, 4_096 + 100] {
        file.write_all_at(&[0x55; 8], header).expect("it is damaged");
    }
    for launch in [setup.launch.clone(), setup.adopting()] {
        let (code, said) = launch.refused();
        assert_eq!(code, 14, "{said}");
        assert!(said.contains("neither of its two headers is intact"), "{said}");
    }
    fs::remove_file(&setup.store).expect("it is removed");
    setup.sends_everything(&setup.adopting());
}

#[test]
fn another_disk_is_not_adopted_whatever_it_is_called() {
    let setup = Setup::killed("journaled", 64);
    fs::remove_file(&setup.store).expect("the store is lost");
    // The same disk under another name.
    let elsewhere = setup.scratch.join("other.img");
    fs::copy(&setup.image, &elsewhere).expect("a copy");
    let (code, said) = setup.adopting().to(&elsewhere.display().to_string()).refused();
    assert_eq!(code, 13, "{said}");
    assert!(said.contains("other.img") && said.contains("old name"), "{said}");
    // Another disk under the same name: one block suffices that the cache knows better.
    let untouched = (0..BLOCKS).find(|&block| {
        let now = setup.state()[block as usize];
        now > 0 && now <= 150 && !setup.history.is_overwritten(block, 150)
    });
    let block = untouched.expect("a block that was destaged and not written again");
    let file = File::options().write(true).open(&setup.image).expect("the image");
    file.write_all_at(&stamped(7_777), block * BLOCK as u64).expect("it is written");
    let before = fs::read(&setup.image).expect("the image");
    let (code, said) = setup.adopting().refused();
    assert_eq!(code, 14, "{said}");
    assert!(said.contains("another disk") && said.contains(&format!("block {block}")), "{said}");
    assert!(fs::read(&setup.image).expect("the image") == before, "it was touched");
    // A shorter one.
    file.set_len((BLOCKS - 1) * BLOCK as u64).expect("it is cut");
    let (code, said) = setup.adopting().refused();
    assert_eq!(code, 14, "{said}");
}

/// The store of someone else is no new one.
#[test]
fn a_store_that_another_cache_uses_is_not_adopted() {
    let setup = Setup::killed("journaled", 65);
    fs::remove_file(&setup.store).expect("the store is lost");
    let mut second = setup.launch.clone();
    second.cache = setup.scratch.join("second.img");
    assert_eq!(second.start().stop(), 0);
    let (code, said) = setup.adopting().refused();
    assert_eq!(code, 13, "{said}");
    assert!(!said.contains("unused"), "{said}");
}
