//! Consistency groups end to end: two volumes before slow disks of different speed, killed at random moments, caches lost.

use crate::crash::ANSWERED_MIN;
use crate::harness::{PATIENCE, Random, Scratch, eventually, seconds};
use crate::history::{BLOCK, BLOCKS, History, State, read_state, stamped, state_of};
use crate::server::{Launch, Server, SlowDisk, connect, destage, image, text};
use destage_block::nbd::client::Client;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

/// Writes after destaging was paused.
const HELD_BACK: u64 = 40;

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

    /// What its disk holds.
    fn state(&self) -> Result<State, String> {
        state_of(&std::fs::read(&self.image).expect("the image can be read"))
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
        "[volume.log]\norigin = '{}'\nredo = '{}'\ncache = '{}'\ncache-size = '64M'\nlinger = '0'\nbatch-size = '1M'\n\
         {log}\n",
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

/// However slow the clients, the bound does not stop them while destaging is paused.
fn grouped() -> Option<Pair> {
    pair(&["--group", "shop", "--coordinator", "-D", "1h"], "group = 'shop'\nstaleness = '1h'")
}

/// Clients of the database and of the log, and what both have written, each write after the one before was answered.
struct Writer {
    clients: [Client; 2],
    history: History,
}

const DATABASE: u64 = 0;
const LOG: u64 = 1;

impl Writer {
    fn to(server: &Server) -> Self {
        let clients = [server.client(), connect(&server.uri.replace(":///?", ":///log?"))];
        Self { clients, history: History::default() }
    }

    /// The number of the write.
    fn put(&mut self, volume: u64, block: u64) -> u64 {
        let number = self.history.note(volume * BLOCKS + block);
        let client = &self.clients[volume as usize];
        client.write(block * BLOCK as u64, &stamped(number), false).expect("the log takes it");
        self.history.acknowledged = number;
        number
    }

    fn put_anywhere(&mut self, random: &mut Random) -> u64 {
        self.put(random.between(0, 2), random.between(0, BLOCKS))
    }
}

/// Writes for a moment, then kills the server. If so told, the last writes are held back: however fast the disks and slow the
/// clients, the origins lack them.
fn killed(pair: &mut Pair, random: &mut Random, is_held_back: bool) -> History {
    let server = pair.launch.start();
    let mut writer = Writer::to(&server);
    let until = Instant::now() + Duration::from_millis(random.between(300, 900));
    let most = Instant::now() + seconds(20);
    loop {
        let enough = writer.put_anywhere(random) > 200 && Instant::now() > until;
        if enough || Instant::now() > most {
            break;
        }
    }
    if is_held_back {
        server.ask(&["pause"]);
        (0..HELD_BACK).for_each(|_| _ = writer.put_anywhere(random));
    }
    pair.kill(server);
    writer.history
}

impl Pair {
    fn kill(&mut self, server: Server) {
        server.kill();
        self.database.restart_disk();
        self.log.restart_disk();
    }
}

/// Both caches are lost after a kill: whether the origins lack something, and how many writes were answered; or what is wrong
/// with them.
fn caches_lost(
    mut pair: Pair,
    random: &mut Random,
    is_held_back: bool,
) -> Result<(bool, u64), String> {
    let history = killed(&mut pair, random, is_held_back);
    Ok((replayed(&pair, random, &history)?, history.acknowledged))
}

fn replayed(pair: &Pair, random: &mut Random, history: &History) -> Result<bool, String> {
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
        state.extend(volume.state()?);
    }
    let is_behind = state.iter().max() < Some(&history.acknowledged);
    history.is_prefix(&state, 0).map(|()| is_behind)
}

/// One kill of a group whose caches are lost; what is wrong, if anything.
pub(crate) fn round(seed: u64) -> Option<Result<u64, String>> {
    let checked = caches_lost(grouped()?, &mut Random::new(seed, 0), false);
    Some(
        checked
            .map(|(_, answered)| answered)
            .map_err(|error| format!("lost-group, seed {seed}: {error}")),
    )
}

/// > In a consistency group the origins, after `destage block replay` of each, always are all volumes as of one write.
#[test]
fn without_the_caches_the_origins_are_one_state() {
    for round in 0..8 {
        let Some(pair) = grouped() else { return };
        let is_held_back = round == 7;
        let checked = caches_lost(pair, &mut Random::new(21, round), is_held_back);
        let (is_behind, answered) =
            checked.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(answered >= ANSWERED_MIN, "{answered} writes were answered: that proves nothing");
        assert!(is_behind || !is_held_back, "the origins have what was held back");
    }
}

/// Negative control: the log is held back, the database is not.
#[test]
fn without_a_group_the_origins_are_of_different_times() {
    let Some(mut pair) = pair(&["-D", "1h"], "staleness = '1h'") else { return };
    let server = pair.launch.start();
    server.ask(&["pause", "--volume", "log"]);
    let mut writer = Writer::to(&server);
    writer.put(LOG, 0);
    let newer = writer.put(DATABASE, 0);
    eventually("the database's write arrives", PATIENCE, || {
        pair.database.state().is_ok_and(|state| state[0] == newer)
    });
    pair.kill(server);
    let checked = replayed(&pair, &mut Random::new(22, 0), &writer.history);
    checked.expect_err("volumes of their own were one state: the checker proves nothing");
}

#[test]
fn a_group_survives_its_server_and_its_end() {
    let Some(mut pair) = grouped() else { return };
    let mut random = Random::new(23, 0);
    killed(&mut pair, &mut random, false);
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
    let mut state = pair.database.state().expect("nothing is torn");
    state.extend(pair.log.state().expect("nothing is torn"));
    assert_eq!(state, held, "what the volumes held is at the origins");
    // Without the group, and each by itself.
    let alone = Launch::before(&pair.log.scratch, &pair.log.uri).redo_at(pair.log.redo());
    let server = alone.start();
    server.client().write(0, &stamped(1), true).expect("it is served alone");
    assert_eq!(server.stop(), 0);
}

/// A group that is committed, and of which the log's disk holds a part; what was written, all of it flushed. `None` where nbdkit is
/// missing.
fn committed_and_not_done() -> Option<(Pair, History)> {
    let mut pair = grouped()?;
    // Half a minute for what follows: a group of which the log's disk holds the first block is committed and not done.
    let log = &mut pair.log;
    log.disk = None;
    log.disk = SlowDisk::one_by_one(&log.scratch, &log.image, 300);
    let server = pair.launch.start();
    server.ask(&["pause"]);
    let mut writer = Writer::to(&server);
    writer.put(DATABASE, 0);
    // No neighbours: each is a request of its own.
    (0..BLOCKS).step_by(2).for_each(|block| _ = writer.put(LOG, block));
    writer.clients.iter().for_each(|client| client.flush().expect("a flush"));
    server.ask(&["resume"]);
    eventually("the log's first block arrives", PATIENCE, || {
        pair.log.state().is_ok_and(|state| state.iter().any(|&number| number > 0))
    });
    pair.kill(server);
    Some((pair, writer.history))
}

#[test]
fn a_coordinators_store_that_is_lost_is_replaced_and_all_volumes_become_one_state() {
    let Some((pair, history)) = committed_and_not_done() else { return };
    std::fs::remove_file(pair.database.redo()).expect("the store is lost");
    let (code, said) = pair.launch.refused();
    assert_eq!(code, 13, "{said}");
    let adopting = pair.launch.clone().with(&["--adopt"]);
    let (code, said) = adopting.refused();
    assert_eq!(code, 10, "the log's last group is in doubt: {said}");
    let alone = pair.log.replay(&["--alone"]);
    assert!(alone.status.success(), "{}", text(&alone.stderr));
    let server = adopting.start();
    server.ask(&["drain"]);
    assert_eq!(server.stop(), 0);
    let mut state = pair.database.state().expect("nothing is torn");
    state.extend(pair.log.state().expect("nothing is torn"));
    history.is_prefix(&state, history.acknowledged).expect("everything arrived");
    for volume in [&pair.database, &pair.log] {
        let replayed = volume.replay(&[]);
        assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    }
}

#[test]
fn a_volume_alone_names_the_store_that_knows() {
    let Some((pair, _)) = committed_and_not_done() else { return };
    let away = pair.database.scratch.join("away");
    std::fs::rename(pair.database.redo(), &away).expect("it can be moved");
    let refused = pair.log.replay(&[]);
    assert_eq!(refused.status.code(), Some(10), "{}", text(&refused.stderr));
    let said = text(&refused.stderr);
    assert!(said.contains(&pair.database.redo().display().to_string()), "{said}");
    assert!(said.contains("--coordinator") && said.contains("--alone"), "{said}");
    let (code, said) =
        Launch::before(&pair.log.scratch, &pair.log.uri).redo_at(pair.log.redo()).refused();
    assert_eq!(code, 10, "{said}");
    let asked = pair.log.replay(&["--coordinator", &away.display().to_string()]);
    assert!(asked.status.success(), "{}", text(&asked.stderr));
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

/// What one volume tried would hold up the others.
#[test]
fn volumes_of_a_group_try_no_settings() {
    let group = "group = 'shop'\nstaleness = '1h'";
    let flags = ["--group", "shop", "--coordinator", "-D", "1h"];
    let Some(with) = pair(&[&flags[..], &["--auto", "writes"]].concat(), group) else { return };
    let (code, said) = with.launch.refused();
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--auto does not go with --group"), "{said}");
    let Some(without) = grouped() else { return };
    let server = without.launch.start();
    let refused = server.try_ask(&["policy", "auto=writes", "linger=5ms"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("does not go with --group"), "{said}");
    assert_eq!(server.status()["policy"]["linger_seconds"], 0.0);
}
