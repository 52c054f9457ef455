//! Consistency groups end to end: two volumes before slow disks of different speed, killed at random moments, caches lost.

use crate::harness::{Random, Scratch, seconds};
use crate::history::{BLOCK, BLOCKS, History, read_state, stamped, state_of};
use crate::server::{Launch, SlowDisk, connect, destage, image, text};
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

/// One volume's disk and what belongs to it.
struct Volume {
    scratch: Scratch,
    image: PathBuf,
    delay_ms: u32,
    disk: Option<SlowDisk>,
    uri: String,
}

impl Volume {
    fn new(delay_ms: u32) -> Option<Self> {
        let scratch = Scratch::new();
        let image = image(&scratch, BLOCKS * BLOCK as u64);
        let disk = SlowDisk::start(&scratch, &image, delay_ms)?;
        let uri = disk.uri.clone();
        Some(Self { scratch, image, delay_ms, disk: Some(disk), uri })
    }

    fn redo(&self) -> PathBuf {
        self.scratch.join("redo")
    }

    /// As in the other crash tests: what its server was still waiting to write goes with it.
    fn restart_disk(&mut self) {
        self.disk = None;
        self.disk = SlowDisk::start(&self.scratch, &self.image, self.delay_ms);
    }

    fn replay(&self, more: &[&str]) -> Output {
        let mut command = destage();
        command.args(["block", "replay", "--origin", &self.uri, "--redo"]).arg(self.redo());
        command.args(more).output().expect("the binary starts")
    }
}

/// A database and its log.
struct Pair {
    database: Volume,
    log: Volume,
    launch: Launch,
}

/// `more` goes to the database's volume and `log` to the other one's section.
fn pair(more: &[&str], log: &str) -> Option<Pair> {
    let (database, other) = (Volume::new(2)?, Volume::new(25)?);
    let file = database.scratch.join("destage.toml");
    let settings = format!(
        "[volume.log]\norigin = '{}'\nredo = '{}'\ncache = '{}'\ncache-size = '64M'\nlinger = '0'\nbatch-size = '1M'\n{log}\n",
        other.uri,
        other.redo().display(),
        other.scratch.join("cache.img").display(),
    );
    std::fs::write(&file, settings).expect("the settings can be written");
    let launch = Launch::before(&database.scratch, &database.uri).redo_at(database.redo());
    let launch = launch.with(&["--linger", "0", "--batch-size", "1M", "--config"]);
    let launch = launch.with(&[&file.display().to_string()]).with(more);
    Some(Pair { database, log: other, launch })
}

fn grouped() -> Option<Pair> {
    pair(&["--group", "shop", "--coordinator"], "group = 'shop'")
}

/// Writes to both volumes, each write after the one before was answered, then kills the server.
fn killed(pair: &mut Pair, random: &mut Random) -> History {
    let server = pair.launch.start();
    let clients = [server.client(), connect(&server.uri.replace(":///?", ":///log?"))];
    let mut history = History::default();
    let until = Instant::now() + Duration::from_millis(random.between(300, 900));
    let most = Instant::now() + seconds(20);
    loop {
        let (volume, block) = (random.between(0, 2), random.between(0, BLOCKS));
        let number = history.note(volume * BLOCKS + block);
        if clients[volume as usize].write(block * BLOCK as u64, &stamped(number), false).is_err() {
            break;
        }
        history.acknowledged = number;
        let enough = number > 200 && Instant::now() > until;
        if enough || Instant::now() > most {
            break;
        }
    }
    server.kill();
    pair.database.restart_disk();
    pair.log.restart_disk();
    history
}

/// Both caches are lost: what is wrong with the two origins after the replays, if anything.
fn caches_lost(mut pair: Pair, random: &mut Random) -> Result<bool, String> {
    let history = killed(&mut pair, random);
    std::fs::remove_file(&pair.launch.cache).expect("the cache can be deleted");
    std::fs::remove_file(pair.log.scratch.join("cache.img")).expect("the cache can be deleted");
    let mut order = [&pair.database, &pair.log, &pair.log];
    if random.between(0, 2) == 0 {
        order.reverse();
    }
    for volume in order {
        let output = volume.replay(&[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let mut state = Vec::new();
    for volume in [&pair.database, &pair.log] {
        state.extend(state_of(&std::fs::read(&volume.image).expect("the image can be read"))?);
    }
    let is_behind = state.iter().max() < Some(&history.acknowledged);
    history.is_prefix(&state, 0).map(|()| is_behind)
}

/// One kill of a group whose caches are lost; what is wrong, if anything.
pub(crate) fn round(seed: u64) -> Option<Result<u64, String>> {
    let checked = caches_lost(grouped()?, &mut Random::new(seed, 0));
    Some(checked.map(|_| 0).map_err(|error| format!("lost-group, seed {seed}: {error}")))
}

/// > In a consistency group the origins, after `destage block replay` of each, always are all volumes as of one write.
#[test]
fn without_the_caches_the_origins_are_one_state() {
    let mut behind = false;
    for round in 0..8 {
        let Some(pair) = grouped() else { return };
        let checked = caches_lost(pair, &mut Random::new(21, round));
        behind |= checked.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    assert!(behind, "the origins had everything each time: the test proves nothing");
}

/// Negative control.
#[test]
fn without_a_group_the_origins_are_of_different_times() {
    for round in 0..20 {
        let Some(pair) = pair(&[], "") else { return };
        if caches_lost(pair, &mut Random::new(22, round)).is_err() {
            return;
        }
    }
    panic!("volumes of their own were one state each time: the checker proves nothing");
}

#[test]
fn a_group_survives_its_server_and_its_end() {
    let Some(mut pair) = grouped() else { return };
    let mut random = Random::new(23, 0);
    killed(&mut pair, &mut random);
    let server = pair.launch.start();
    // Nothing was flushed, so each volume may have lost its own last writes; what they hold now is to reach the origins.
    let (database, log) = (server.client(), connect(&server.uri.replace(":///?", ":///log?")));
    for client in [&database, &log] {
        client.write(0, &stamped(1), false).expect("the server answers");
    }
    let mut held = read_state(&database).expect("nothing is torn");
    held.extend(read_state(&log).expect("nothing is torn"));
    drop((database, log));
    let status = server.status();
    for volume in [0, 1] {
        let policy = status["volumes"][volume]["policy"].as_str().expect("a text");
        assert!(policy.contains("group=shop"), "{policy}");
    }
    // One volume is named, both are meant.
    let marks = server.ask(&["checkpoint", "--wait", "--volume", "log"]);
    let marks: serde_json::Value = serde_json::from_str(&marks).expect("a mark for each volume");
    assert!(marks[""]["mark"].is_number() && marks["log"]["mark"].is_number(), "{marks}");
    let refused = server.try_ask(&["policy", "write-back", "--volume", "log"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("consistency group 'shop'"), "{refused:?}");
    let changed = server.ask(&["policy", "staleness=20s"]);
    assert_eq!(changed.matches("D=20s").count(), 2, "{changed}");
    assert_eq!(server.stop(), 0);
    let read = |volume: &Volume| std::fs::read(&volume.image).expect("the image can be read");
    let mut state = state_of(&read(&pair.database)).expect("nothing is torn");
    state.extend(state_of(&read(&pair.log)).expect("nothing is torn"));
    assert_eq!(state, held, "what the volumes held is at the origins");
    // Without the group, and each by itself.
    let alone = Launch::before(&pair.log.scratch, &pair.log.uri).redo_at(pair.log.redo());
    let server = alone.start();
    server.client().write(0, &stamped(1), true).expect("it is served alone");
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_volume_alone_names_the_store_that_knows() {
    let mut random = Random::new(24, 0);
    // Killed in the middle of a group sooner or later.
    for _ in 0..20 {
        let Some(mut pair) = grouped() else { return };
        killed(&mut pair, &mut random);
        let away = pair.database.scratch.join("away");
        std::fs::rename(pair.database.redo(), &away).expect("it can be moved");
        let refused = pair.log.replay(&[]);
        if refused.status.success() {
            continue;
        }
        assert_eq!(refused.status.code(), Some(10), "{}", text(&refused.stderr));
        let said = text(&refused.stderr);
        assert!(said.contains(&pair.database.redo().display().to_string()), "{said}");
        assert!(said.contains("--coordinator") && said.contains("--alone"), "{said}");
        let (code, said) =
            Launch::before(&pair.log.scratch, &pair.log.uri).redo_at(pair.log.redo()).refused();
        assert_eq!(code, 10, "{said}");
        let asked = pair.log.replay(&["--coordinator", &away.display().to_string()]);
        assert!(asked.status.success(), "{}", text(&asked.stderr));
        return;
    }
    panic!("no group was ever in doubt");
}

#[test]
fn groups_that_make_no_sense_are_refused() {
    for (more, log, part) in [
        (&["--group", "shop"][..], "group = 'shop'", "'coordinator = true'"),
        (&["--group", "shop", "--coordinator"], "", "one volume only"),
        (
            &["--group", "shop", "--coordinator"],
            "group = 'shop'\npolicy = 'ordered'",
            "volume 'log' is not journaled",
        ),
        (&["--group", "shop", "--coordinator"], "group = 'shop'\nstaleness = '5s'", "--staleness"),
        (
            &["--group", "shop", "--coordinator"],
            "group = 'shop'\nat-limit = 'write-through'",
            "--at-limit",
        ),
    ] {
        let Some(pair) = pair(more, log) else { return };
        let (code, said) = pair.launch.refused();
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(part), "{said}");
    }
}
