//! `--json` means the same everywhere: the standard output is one JSON value, and nothing else.

use crate::harness::server::binary;
use crate::harness::{Launch, PATIENCE, Scratch, eventually, output};
use crate::volumes::Volumes;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// How each command with `--format` is tried; a unit test compares it with the command line.
const FORMS: &str = include_str!("forms.txt");

fn listed(how: &str) -> BTreeSet<&'static str> {
    FORMS.lines().filter_map(|line| line.strip_prefix(how)?.strip_prefix(' ')).collect()
}

/// Runs it with `--json`; a short one is an answer, too.
#[track_caller]
fn json(words: &str, arguments: &[&str]) -> Value {
    let mut command = Command::new(binary());
    command.args(words.split(' ')).args(arguments).arg("--json");
    command.env_remove("DESTAGE_PASSWORD").stdin(Stdio::null());
    let done = command.output().expect("the binary starts");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{words}: {}: {said}", done.status);
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| {
        panic!("{words}: {error} in\n{}", String::from_utf8_lossy(&done.stdout))
    })
}

/// The folder of a mount's journal, which a crash has left.
fn journal_of_a_mount(scratch: &Scratch) -> String {
    let (data, folder) = (scratch.join("rows"), scratch.join("mount-journal"));
    // A journal that no group is in is the same for every front end.
    let server = Launch::in_folder(scratch, "rows").start();
    server.kill();
    std::fs::rename(data.join("journal"), &folder).expect("it can be moved");
    folder.display().to_string()
}

#[test]
fn a_command_that_needs_no_server_prints_json_and_nothing_else() {
    let scratch = Scratch::new();
    let file = |name: &str| scratch.join(name).display().to_string();
    let server = Launch::example(&scratch).start();
    server.client().run("HINCRBY products:1 stock 1");
    let volumes = Volumes::start(&scratch, &["database"]);
    let settings = volumes.settings.display().to_string();
    volumes.kill();
    server.kill();
    let trace = "time_us,op,offset_bytes,size_bytes\n0,W,0,8192\n10,R,0,4096\n20,R,4096,8192\n";
    std::fs::write(scratch.join("trace.csv"), trace).expect("it can be written");
    let grid = "trace = 'trace.csv'\nflash = ['64M']\nreplacement = ['lru']\n";
    std::fs::write(scratch.join("grid.toml"), grid).expect("it can be written");
    let (data, trace, grid) = (file("data"), file("trace.csv"), file("grid.toml"));
    let (cache, journal) = (file("database.cache"), journal_of_a_mount(&scratch));
    let shop = format!("sqlite:{}", example(Path::new(&data)));
    let tried: [(&str, &[&str]); 13] = [
        ("block check", &["--cache", &cache]),
        ("block inspect", &["--cache", &cache]),
        ("check", &["--config", &settings]),
        ("journal check", &["--data", &data]),
        ("journal inspect", &["--data", &data]),
        ("mount check", &["--journal", &journal]),
        ("schema", &["--origin", &shop]),
        ("sim advise", &["--trace", &trace, "--rpo", "5s", "--flash", "64M"]),
        ("sim curve", &["--trace", &trace]),
        ("sim figure", &["table-2-1"]),
        ("sim inspect", &["--trace", &trace]),
        ("sim run", &["--trace", &trace, "--flash", "1M"]),
        ("sim sweep", &[&grid]),
    ];
    let done = tried.map(|(words, arguments)| {
        json(words, arguments);
        words
    });
    let done: BTreeSet<&str> = done.into();
    assert_eq!(done, listed("alone"));
}

/// The database of the example shop.
fn example(data: &Path) -> String {
    let files = std::fs::read_dir(data).expect("the folder is there").flatten();
    let mut files = files.map(|file| file.path());
    let is_database = |path: &std::path::PathBuf| {
        std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"SQLite format 3"))
    };
    files.find(is_database).expect("the shop is there").display().to_string()
}

#[test]
fn a_command_that_asks_a_server_prints_json_and_nothing_else() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let volumes = Volumes::start(&scratch, &["database"]);
    let admin = server.admin.to_string();
    // A mount's status is asked and shown as the others' are.
    let done: BTreeSet<&str> = ["status", "parked list", "mount status"]
        .map(|words| (words, &admin))
        .into_iter()
        .chain([("block status", &volumes.admin)])
        .map(|(words, admin)| {
            json(words, &["--admin", admin]);
            words
        })
        .collect();
    assert_eq!(done, listed("server"));
    // What a server answers to other commands is text, or JSON by itself.
    for words in ["flush", "drain"] {
        let rows = output(Command::new(binary()).args([words, "--admin", &admin]));
        let blocks =
            output(Command::new(binary()).args(["block", words, "--admin", &volumes.admin]));
        for said in [rows, blocks] {
            serde_json::from_str::<Value>(&said).unwrap_or_else(|e| panic!("{words}: {e}: {said}"));
        }
    }
}

/// A server that is away for a while must not get between the lines of a program.
#[test]
fn a_status_that_is_watched_stays_json_while_the_server_is_away() {
    let scratch = Scratch::new();
    let launch = Launch::example(&scratch);
    let server = launch.start();
    let admin = server.admin.to_string();
    let (out, log) = (scratch.join("watched.json"), scratch.join("watched.log"));
    let create = |path| std::fs::File::create(path).expect("a file");
    let mut watching = Command::new(binary())
        .args(["status", "--watch", "1", "--json", "--admin", &admin])
        .stdin(Stdio::null())
        .stdout(create(&out))
        .stderr(create(&log))
        .spawn()
        .expect("the binary starts");
    crate::harness::scratch::adopt(watching.id());
    let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let lines = || text(&out).lines().count();
    eventually("it is shown", PATIENCE, || lines() >= 1);
    server.kill();
    eventually("that it is away is told beside", PATIENCE, || text(&log).contains(&admin));
    let shown = lines();
    let server = launch.administered(&admin).start();
    eventually("it comes back into view", PATIENCE, || lines() > shown);
    watching.kill().and_then(|()| watching.wait()).expect("it is our child");
    crate::harness::scratch::release(watching.id());
    drop(server);
    let whole = text(&out);
    // The last line may have been cut when it was killed.
    for line in whole.lines().take(lines().saturating_sub(1)) {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}
