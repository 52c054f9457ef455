//! Three users: each types what README and the quick start that it links say, from the first block to the last, and nothing else.

use crate::harness::{Database, PATIENCE, Scratch, eventually, has};
use crate::typed::{User, blocks};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What README has typed besides: each makes or tests the program itself, as `cargo xtask test` does around this test.
const OF_THE_PROJECT: [&str; 4] = [
    "cargo install --path crates/destage --locked",
    "cargo run --release -- serve",
    "cargo xtask test",
    "cargo xtask book",
];
const ROWS: &str = "Try it: rows";
const VOLUME: &str = "Try it: a volume";
const TRACES: &str = "Try it: traces";

#[test]
fn readme_has_nothing_typed_but_what_users_and_the_project_type() {
    let all = |heading| blocks("README.md", heading).into_iter().map(|block| block.lines.concat());
    let of_users: Vec<String> =
        [ROWS, VOLUME, TRACES].into_iter().flat_map(|h| all(Some(h))).collect();
    let others: Vec<String> = all(None).filter(|block| !of_users.contains(block)).collect();
    // The picture comes first. Each command is a block, to be copied at once.
    assert_eq!(others[1..], OF_THE_PROJECT);
}

#[test]
fn a_counter_in_an_own_database_survives_kill_9() {
    let Some(database) = Database::postgres() else { return };
    if !has("redis-cli") {
        return;
    }
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    user.place("postgres://user:password@localhost/shop", database.url());
    // From the checkout, then by the name of the installed program: the same shop.
    let ready = user.types("cargo run --release -- serve");
    assert!(ready.contains("origin=sqlite:./destage-example/shop.db"), "{ready}");
    let readme = blocks("README.md", Some(ROWS));
    let shop = readme.iter().find(|block| block.language == "console").expect("it is shown");
    user.follows(std::slice::from_ref(shop), None);
    let tries: Vec<&str> =
        shop.lines.iter().filter_map(|line| line.find("redis-cli").map(|at| &line[at..])).collect();
    assert_eq!(tries.len(), 3, "{tries:?}");
    for line in tries {
        let said = user.types(line);
        assert!(!said.trim().is_empty() && !said.contains("ERR"), "{line}: {said}");
    }
    let own: Vec<_> = readme.into_iter().filter(|block| block.language != "console").collect();
    user.follows(&own, Some(&database));
    user.ends();
    let before = user.lines().len();
    user.follows(&blocks("docs/START-ROWS.md", None), Some(&database));
    let count = "redis-cli -p 6380 -a choose-one HINCRBY counters:visits n 1";
    let again = "redis-cli -p 6380 -a choose-one HGET counters:visits n";
    let schema = "destage schema --origin postgres://user:password@localhost/shop";
    assert!(user.said(schema).contains("counters"), "{}", user.said(schema));
    assert_eq!(user.said(count).trim(), "1");
    assert_eq!(user.said(again).trim(), "1", "what was acknowledged is gone after kill -9");
    let lines = &user.lines()[before..];
    let at = |what: &str| lines.iter().position(|line| line.contains(what)).expect("it is typed");
    assert!(at("HINCRBY") < at("kill -9") && at("kill -9") < at(again), "{lines:?}");
    eventually("the database has it", PATIENCE, || {
        database.number("SELECT n FROM counters WHERE id = 'visits'") == 1
    });
    assert!(lines.len() <= 10, "{} commands: {lines:?}", lines.len());
}

#[test]
fn a_file_system_on_a_volume_survives_kill_9() {
    let tools = ["losetup", "mkfs.ext4", "mount", "umount", "fusermount3", "qemu-img"];
    if !tools.into_iter().all(has) {
        return;
    }
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    let folders = [
        ("/mnt/slow", "slow"),
        ("/mnt/ssd", "ssd"),
        ("/mnt/fast", "fast"),
        ("/run/destage", "volumes"),
        ("/etc/destage", "etc"),
    ];
    for (there, here) in folders {
        std::fs::create_dir_all(scratch.join(here)).expect("a folder");
        user.place(there, scratch.join(here).display());
    }
    // Given back with the test, however it ends.
    let _places = Places(vec![scratch.join("fast"), scratch.join("volumes")]);
    user.place("127.0.0.1:6382", "127.0.0.1:0");
    user.follows(&blocks("README.md", Some(VOLUME)), None);
    let shown = user.said("qemu-img info nbd://127.0.0.1:10809");
    assert!(shown.contains("1 GiB"), "{shown}");
    user.ends();
    std::fs::remove_file(scratch.join("ssd/cache.img")).expect("README's cache");
    let before = user.lines().len();
    user.follows(&blocks("docs/START-VOLUMES.md", None), None);
    assert_eq!(user.said("cat /mnt/fast/file"), "survived\n");
    let lines = &user.lines()[before..];
    let at = |what: &str| lines.iter().position(|line| line.contains(what)).expect("it is typed");
    assert!(at("sync") < at("kill -9") && at("kill -9") < at("cat /mnt"), "{lines:?}");
    let checked = user.said("destage check --config /etc/destage/block-main.toml");
    assert!(checked.contains("a start would succeed"), "{checked}");
    assert!(lines.len() <= 24, "{} commands: {lines:?}", lines.len());
}

/// Unmounted, and their loop devices detached, with their test.
struct Places(Vec<PathBuf>);

impl Drop for Places {
    fn drop(&mut self) {
        for place in &self.0 {
            let _ = Command::new("umount").arg("-l").arg(place).stderr(Stdio::null()).status();
        }
        let mut list = Command::new("losetup");
        let found = list.args(["--list", "--noheadings", "-O", "NAME,BACK-FILE"]).output();
        let devices = found.map(|found| found.stdout).unwrap_or_default();
        for line in String::from_utf8_lossy(&devices).lines() {
            let is_ours =
                |file: &str| self.0.iter().any(|place| Path::new(file).starts_with(place));
            let device = line.split_once(' ').filter(|(_, file)| is_ours(file.trim()));
            if let Some((name, _)) = device {
                let _ = Command::new("losetup").args(["-d", name]).status();
            }
        }
    }
}

#[test]
fn a_trace_leads_to_an_advice() {
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    user.follows(&blocks("README.md", Some(TRACES)), None);
    user.follows(&blocks("docs/START-TRACES.md", None), None);
    let lines = user.lines();
    let last = *lines.last().expect("it has lines");
    assert!(last.starts_with("destage sim advise"), "{lines:?}");
    let advice = user.said(last);
    assert!(advice.contains("destage block serve") || advice.contains("journaled"), "{advice}");
    assert!(lines.len() <= 6, "{lines:?}");
}

#[test]
fn a_recording_leads_to_settings_that_are_measured_again() {
    if !has("redis-cli") || !has("qemu-img") {
        return;
    }
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    for (front, advise, policy, before, after) in [
        (
            "Rows",
            "destage sim advise --front data --trace before --rpo 5s --ram 64M --crashes 20 | tee advice.txt",
            "destage policy --admin 127.0.0.1:6381",
            "destage sim inspect --trace before",
            "destage sim replay after --staleness 5s",
        ),
        (
            "A volume",
            "destage sim advise --trace first --rpo 5s --flash 128M --crashes 20 | tee advice.txt",
            "destage block policy --admin 127.0.0.1:6381",
            "destage sim inspect --trace first",
            "destage sim replay second --staleness 5s",
        ),
    ] {
        user.follows(&blocks("docs/START-LOOP.md", Some(front)), None);
        assert!(user.said(before).contains("recording"), "{}", user.said(before));
        let advice = user.said(advise);
        assert!(
            advice.contains("how sure:\n  a request") || advice.contains("recorded run"),
            "{advice}"
        );
        // It is in force: D is what was asked for, and not the default.
        assert!(advice.contains("staleness=5s"), "{advice}");
        let applied = user.said(policy);
        assert!(applied.replace(' ', "").contains("D=5s"), "{applied}");
        let measured = user.said(after);
        assert!(measured.contains("recorded") && measured.contains("modelled"), "{measured}");
        // What the advice said of requests is compared with what was recorded of them.
        let row = measured.lines().find(|line| line.starts_with("write until acknowledged, mean"));
        let row = row.map_or(0, |line| {
            line["write until acknowledged, mean".len()..]
                .split("  ")
                .filter(|cell| !cell.trim().is_empty())
                .count()
        });
        assert_eq!(row, 3, "{measured}");
    }
}
