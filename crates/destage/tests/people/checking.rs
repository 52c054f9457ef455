//! `destage check` finds what a start would find, and changes nothing.

use crate::harness::server::binary;
use crate::harness::{Database, Launch, Scratch, has, output, shop};
use crate::volumes::Volumes;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Writes a settings file in front of this origin.
fn settings(scratch: &Scratch, origin: &str, more: &str) -> PathBuf {
    let path = scratch.join("destage.toml");
    let data = scratch.join("data");
    let text = format!(
        "origin = \"{origin}\"\nno-auth = true\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ndata = \"{}\"\n{more}",
        data.display()
    );
    std::fs::write(&path, text).expect("the file can be written");
    path
}

fn check(path: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["check", "--config"]).arg(path).args(more).env_remove("DESTAGE_PASSWORD");
    command.output().expect("the binary starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Every file below a folder with its length and date.
fn state(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("readable").flatten() {
            let meta = entry.metadata().expect("readable");
            if meta.is_dir() {
                folders.push(entry.path());
            }
            let date = meta.modified().expect("it has a date");
            found.push(format!("{} {} {date:?}", entry.path().display(), meta.len()));
        }
    }
    found.sort();
    found
}

#[test]
fn what_it_finds_in_order_starts_and_nothing_is_changed_by_looking() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let path = settings(&scratch, &database.url(), "when = \"adaptive\"\n");
    let before = state(&scratch.join(""));
    let first = check(&path, &[]);
    assert_eq!(first.status.code(), Some(0), "{}", said(&first));
    for part in ["tables, all settings fit", "a start makes it", "a start would succeed"] {
        assert!(said(&first).contains(part), "{part}: {}", said(&first));
    }
    assert_eq!(state(&scratch.join("")), before);
    let server = Launch::example(&scratch).with(&["--config", &path.display().to_string()]).start();
    server.client().run("HSET customers:4711 name Ada");
    // Beside the server, too; then with what it has left.
    let beside = check(&path, &[]);
    assert_eq!(beside.status.code(), Some(0), "{}", said(&beside));
    server.kill();
    let before = state(&scratch.join("data"));
    let after = check(&path, &["--format", "json"]);
    let found: serde_json::Value = serde_json::from_slice(&after.stdout).expect("JSON");
    assert_eq!(found["ok"], true, "{found}");
    assert_eq!(state(&scratch.join("data")), before);
}

/// The names of all tables, and what is in those that matter here, Destage's own among them.
fn held(database: &Database) -> Vec<Vec<String>> {
    let mut held = database.rows(match database {
        Database::Sqlite(_) => "SELECT name FROM sqlite_master ORDER BY 1",
        Database::Postgres(_) => {
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
        }
        Database::Mariadb(_) => {
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1"
        }
    });
    for table in ["counters", "destage_owner", "destage_watermark"] {
        if held.contains(&vec![table.to_owned()]) {
            held.extend(database.rows(&format!("SELECT * FROM {table}")));
        }
    }
    held
}

#[test]
fn no_origin_is_changed_by_looking() {
    let scratch = Scratch::new();
    let sqlite = Some(Database::sqlite(&scratch));
    let all = [sqlite, Database::postgres(), Database::mariadb()].into_iter().flatten().collect();
    for (scratch, database) in scratch.apart(all) {
        let database = database.with(
            "CREATE TABLE counters (id NAME PRIMARY KEY, n BIGINT NOT NULL); INSERT INTO counters VALUES ('a', 1)",
        );
        let path = settings(&scratch, &database.url(), "");
        let is_kept = |what: &str| {
            let (before, folder) = (held(&database), state(&scratch.join("")));
            let output = check(&path, &[]);
            assert_eq!(output.status.code(), Some(0), "{what}: {}", said(&output));
            assert_eq!(held(&database), before, "{what}");
            assert_eq!(state(&scratch.join("")), folder, "{what}");
            before
        };
        let before = is_kept("before a start");
        let launch = Launch::example(&scratch).with(&["--config", &path.display().to_string()]);
        let server = launch.start();
        server.client().run("HINCRBY counters:a n 1");
        server.kill();
        let after = is_kept("with what a killed server has left");
        assert_ne!(after, before, "what a start does to its origin is not noticed here");
    }
}

#[test]
fn what_would_refuse_a_start_is_found_with_its_exit_code() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    for (origin, more, code, part) in [
        (database.url(), "[table.nowhere]\nblind = true\n", 2, "nowhere"),
        (database.url(), "stalenes = \"3s\"\n", 2, "stalenes"),
        (
            "postgres://u:p@127.0.0.1:1/shop".to_owned(),
            "origin-timeout = \"1s\"\n",
            10,
            "127.0.0.1:1",
        ),
    ] {
        let path = settings(&scratch, &origin, more);
        let output = check(&path, &[]);
        assert_eq!(output.status.code(), Some(code), "{more}: {}", said(&output));
        assert!(said(&output).contains(part), "{part}: {}", said(&output));
        let refused =
            Launch::example(&scratch).with(&["--config", &path.display().to_string()]).refused();
        assert_eq!(refused.code, Some(code), "the start disagrees: {}", refused.log);
    }
}

#[test]
fn an_empty_variable_hides_no_key_of_the_file() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let check = |path: &Path, name: &str| {
        let mut command = Command::new(binary());
        command.args(["check", "--config"]).arg(path).env_remove("DESTAGE_PASSWORD").env(name, "");
        said(&command.output().expect("the binary starts"))
    };
    let path = settings(&scratch, &database.url(), "");
    let found = check(&path, "DESTAGE_ORIGIN");
    assert!(
        found.contains("origin: sqlite:") && found.contains("a start would succeed"),
        "{found}"
    );
    // Without the password others would be let in, and without the servers there would be nobody to copy to.
    let let_in = std::fs::read_to_string(&path).expect("it is there");
    let let_in = let_in.replace("no-auth = true", "password = \"secret\"");
    std::fs::write(&path, let_in).expect("the file can be written");
    let found = check(&path, "DESTAGE_PASSWORD");
    assert!(found.contains("a start would succeed"), "{found}");
    let more = "replicas = \"redis://127.0.0.1:1\"\ncopies = 1\n";
    let path = settings(&scratch, &database.url(), more);
    let found = check(&path, "DESTAGE_REPLICAS");
    assert!(!found.contains("there are none"), "{found}");
}

#[test]
fn volumes_are_checked_as_well() {
    let scratch = Scratch::new();
    let disk = scratch.join("disk.img");
    std::fs::File::create(&disk).and_then(|file| file.set_len(1 << 20)).expect("a disk");
    let path = scratch.join("block.toml");
    let write = |origin: &Path| {
        let text = format!(
            "listen = \"unix:{}\"\nadmin = \"none\"\n[volume.a]\norigin = \"file:{}\"\ncache = \"{}\"\n",
            scratch.join("nbd.sock").display(),
            origin.display(),
            scratch.join("cache.img").display()
        );
        std::fs::write(&path, text).expect("the file can be written");
    };
    write(&disk);
    let before = state(&scratch.join(""));
    let good = check(&path, &[]);
    assert_eq!(good.status.code(), Some(0), "{}", said(&good));
    assert!(said(&good).contains("volume 'a': cache"), "{}", said(&good));
    assert_eq!(state(&scratch.join("")), before);
    write(&scratch.join("nowhere.img"));
    let bad = check(&path, &[]);
    assert_eq!(bad.status.code(), Some(10), "{}", said(&bad));
    assert!(said(&bad).contains("an origin is never created"), "{}", said(&bad));
}

#[test]
fn no_volume_is_changed_by_looking() {
    if !has("qemu-io") {
        return;
    }
    let scratch = Scratch::new();
    let volumes = Volumes::start(&scratch, &["a", "b"]);
    let path = volumes.settings.clone();
    let before = state(&scratch.join(""));
    for uri in &volumes.uris {
        let words = ["-f", "raw", "-c", "write -P 7 64k 64k", "-c", "flush", uri];
        output(Command::new("qemu-io").args(words));
    }
    drop(volumes);
    let after = state(&scratch.join(""));
    assert_ne!(after, before, "writes are not noticed here");
    let found = check(&path, &[]);
    assert_eq!(found.status.code(), Some(0), "{}", said(&found));
    assert!(said(&found).contains("volume 'b': redo store"), "{}", said(&found));
    assert_eq!(state(&scratch.join("")), after);
}
