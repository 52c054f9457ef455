//! Settings change while the server runs, by SIGHUP and by `policy --save`; shells and manuals know every command.

use crate::harness::server::binary;
use crate::harness::{Launch, PATIENCE, Scratch, eventually, has, output};
use crate::volumes::Volumes;
use rustix::process::Signal;
use std::process::Command;

#[test]
fn sighup_takes_over_what_can_change_and_names_the_rest() {
    let scratch = Scratch::new();
    let path = scratch.join("destage.toml");
    let write = |text: &str| std::fs::write(&path, text).expect("the file can be written");
    write("when = \"async\"\nmax-clients = 100\n");
    let server = Launch::example(&scratch).with(&["--config", &path.display().to_string()]).start();
    let mut client = server.client();
    write(
        "when = \"periodic:7s\"\nstaleness = \"2m\"\nmax-clients = 50\n[table.customers]\nblind = true\n",
    );
    server.signal(Signal::HUP);
    eventually("the policy changes", PATIENCE, || {
        server.status()["policy"]["when"] == "periodic:7s"
    });
    eventually("the log says what did not", PATIENCE, || server.log().contains("need a restart"));
    let log = server.log();
    let waits =
        log.lines().find(|line| line.contains("need a restart")).expect("the line is there");
    assert!(waits.contains("max-clients") && waits.contains("[table]"), "{waits}");
    assert!(!waits.contains("staleness"), "{waits}");
    assert_eq!(server.status()["policy"]["staleness_seconds"], 120.0);
    // A file that is wrong changes nothing, and nobody is cut off.
    write("when = \"sometimes\"\n");
    server.signal(Signal::HUP);
    eventually("it says so", PATIENCE, || server.log().contains("stay as they are"));
    assert_eq!(server.status()["policy"]["when"], "periodic:7s");
    assert!(!client.run("HGET customers:1 name").is_error());
    server.terminate(PATIENCE).says(0, &[]);
}

#[test]
fn a_saved_policy_survives_a_restart() {
    let scratch = Scratch::new();
    let path = scratch.join("destage.toml");
    std::fs::write(&path, "# mine\nwhen = \"async\" # as it was\n")
        .expect("the file can be written");
    let launch = Launch::example(&scratch).with(&["--config", &path.display().to_string()]);
    let server = launch.start();
    let admin = server.admin.to_string();
    let save = format!("--save={}", path.display());
    let policy = |changes: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["policy", "--admin", &admin]).args(changes).arg(&save);
        command.output().expect("the binary starts")
    };
    let refused = policy(&["when=sometimes"]);
    assert!(!refused.status.success());
    let kept = std::fs::read_to_string(&path).expect("the file is there");
    assert!(kept.contains("async"), "what was refused was saved: {kept}");
    assert!(policy(&["when=adaptive", "staleness=45s"]).status.success());
    server.terminate(PATIENCE).says(0, &[]);
    let kept = std::fs::read_to_string(&path).expect("the file is there");
    assert!(kept.starts_with("# mine\n") && kept.contains("# as it was"), "{kept}");
    let status = launch.start().status();
    assert_eq!(status["policy"]["when"], "adaptive");
    assert_eq!(status["policy"]["staleness_seconds"], 45.0);
}

/// What a command says, and whether it went well.
fn ask(words: &[&str]) -> (bool, String) {
    let output = Command::new(binary()).args(words).output().expect("the binary starts");
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn volumes_are_asked_for_by_name_and_take_over_what_can_change() {
    let scratch = Scratch::new();
    let volumes = Volumes::start(&scratch, &["database", "log"]);
    let status = |more: &[&str]| {
        let words = ["block", "status", "--json", "--admin", &volumes.admin];
        let (is_good, said) = ask(&[&words[..], more].concat());
        assert!(is_good, "{said}");
        serde_json::from_str::<serde_json::Value>(&said).expect("JSON")
    };
    let shown = status(&["--volume", "log"])["volumes"].clone();
    assert_eq!((shown.as_array().map(Vec::len), &shown[0]["name"]), (Some(1), &"log".into()));
    let nowhere = ["block", "status", "--admin", &volumes.admin, "--volume", "nowhere"];
    let (is_good, said) = ask(&nowhere);
    assert!(!is_good && said.contains("database, log"), "{said}");
    // Of one volume only, and the file says so afterwards.
    let save = format!("--save={}", volumes.settings.display());
    let policy = |change: &str| {
        ask(&["block", "policy", "--admin", &volumes.admin, "--volume", "log", change, &save])
    };
    let text = || std::fs::read_to_string(&volumes.settings).expect("the file is there");
    let before = text();
    let (is_good, said) = policy("staleness=1");
    assert!(!is_good, "{said}");
    assert_eq!(text(), before, "what was refused was saved");
    let (is_good, said) = policy("commit=3s");
    assert!(is_good, "{said}");
    let commits = || {
        let all = status(&[])["volumes"].clone();
        [all[0]["commit"].clone(), all[1]["commit"].clone()]
    };
    let [database, log] = commits();
    assert_eq!(log, "3s");
    assert_ne!(database, log, "the other volume changed, too");
    let (first, second) = text()
        .split_once("[volume.log]")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .expect("its section");
    assert!(second.contains("commit = \"3s\"") && !first.contains("commit"), "{first}{second}");
    // By SIGHUP; what cannot change is named.
    let changed = text()
        .replacen("[volume.database]\n", "[volume.database]\ncommit = \"5s\"\n", 1)
        .replacen("admin = ", "drain-timeout = \"9s\"\nadmin = ", 1);
    std::fs::write(&volumes.settings, changed).expect("the file can be written");
    volumes.signal(Signal::HUP);
    eventually("the policy changes", PATIENCE, || commits() == ["5s", "3s"]);
    eventually("the log names the rest", PATIENCE, || {
        let log = volumes.log();
        log.lines().any(|line| line.contains("need a restart") && line.contains("drain-timeout"))
    });
    std::fs::write(&volumes.settings, "nonsense = 1\n").expect("the file can be written");
    volumes.signal(Signal::HUP);
    eventually("it says so", PATIENCE, || volumes.log().contains("stay as they are"));
    assert_eq!(commits(), ["5s", "3s"]);
}

#[test]
fn volumes_of_a_group_are_saved_together_and_the_next_start_takes_them() {
    let scratch = Scratch::new();
    let first = Volumes::start(&scratch, &["database", "log"]);
    let settings = first.settings.clone();
    let text = || std::fs::read_to_string(&settings).expect("the file is there");
    drop(first);
    let group = |name: &str, more: &str| {
        let (head, rest) = (format!("[volume.{name}]\n"), format!("group = \"shop\"\n{more}"));
        text().replace(&head, &format!("{head}{rest}"))
    };
    std::fs::write(&settings, group("database", "coordinator = true\n")).expect("it is written");
    std::fs::write(&settings, group("log", "")).expect("it is written");
    let volumes = Volumes::again(&scratch, 2, &[]);
    let save = format!("--save={}", settings.display());
    let policy = |change: &str| {
        ask(&["block", "policy", "--admin", &volumes.admin, "--volume", "database", change, &save])
    };
    // The server's bounds are wider than those of the key.
    let before = text();
    let (is_good, said) = policy("bypass-sequential=32K");
    assert!(!is_good && said.contains("stays as it is"), "{said}");
    assert_eq!(text(), before);
    let (is_good, said) = policy("when=interval:5s,1s");
    assert!(is_good, "{said}");
    assert_eq!(text().matches("interval:5s,1s").count(), 2, "{}", text());
    drop(volumes);
    let again = Volumes::again(&scratch, 2, &[]);
    let (is_good, said) = ask(&["block", "policy", "--admin", &again.admin]);
    assert!(is_good && said.matches("when=interval:5s,1s").count() == 2, "{said}");
}

#[test]
fn what_is_said_of_no_volume_stops_the_start() {
    let scratch = Scratch::new();
    let mut volumes = Volumes::start(&scratch, &["database", "log"]);
    let path = volumes.settings.display().to_string();
    let (is_good, said) = ask(&["block", "serve", "--config", &path, "--read-only"]);
    assert!(
        !is_good && said.contains("read-only: ") && said.contains("[volume.database]"),
        "{said}"
    );
    // A server that runs goes on as it is.
    let text = std::fs::read_to_string(&path).expect("the file is there");
    std::fs::write(&path, format!("staleness = \"5s\"\n{text}")).expect("it is written");
    volumes.signal(Signal::HUP);
    eventually("it says so", PATIENCE, || volumes.log().contains("stay as they are"));
    let (is_good, said) = ask(&["block", "policy", "--admin", &volumes.admin]);
    assert!(is_good && said.matches("D=30s").count() == 2, "{said}");
    assert!(volumes.is_running());
}

#[test]
fn completions_are_scripts_that_their_shell_reads() {
    let scratch = Scratch::new();
    let script = scratch.join("completions.bash");
    let text = output(Command::new(binary()).args(["completions", "bash"]));
    std::fs::write(&script, &text).expect("the file can be written");
    let ask = format!(
        "source {}; COMP_WORDS=(destage block pol); COMP_CWORD=2; _destage destage pol block; echo ${{COMPREPLY[@]}}",
        script.display()
    );
    assert_eq!(output(Command::new("bash").args(["-c", &ask])).trim(), "policy");
    for shell in ["zsh", "fish"] {
        let text = output(Command::new(binary()).args(["completions", shell]));
        assert!(text.contains("staleness"), "{shell}");
        if !has(shell) {
            continue;
        }
        let script = scratch.join(format!("completions.{shell}"));
        let reads = |text: &str| {
            std::fs::write(&script, text).expect("the file can be written");
            Command::new(shell).arg("-n").arg(&script).output().expect("the shell starts")
        };
        let read = reads(&text);
        assert!(read.status.success() && read.stderr.is_empty(), "{shell}: {read:?}");
        assert!(!reads(&format!("{text}\nif (\n")).status.success(), "{shell} refuses nothing");
    }
}

#[test]
fn a_drain_that_takes_long_says_how_much_is_left() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--staleness", "1h"]).start();
    let admin = server.admin.to_string();
    let ask = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.args(words).args(["--admin", &admin]).output().expect("the binary starts")
    };
    assert!(ask(&["pause"]).status.success());
    let mut client = server.client();
    for _ in 0..5 {
        client.run("HINCRBY products:1 stock 1");
    }
    let late = ask(&["drain", "--timeout", "3s"]);
    let said = String::from_utf8_lossy(&late.stderr).into_owned();
    assert_eq!(late.status.code(), Some(19), "{said}");
    assert!(said.contains("draining: 0 of 5 (0 %)"), "{said}");
    assert!(ask(&["resume"]).status.success());
    let quick = ask(&["drain"]);
    assert!(quick.status.success() && !String::from_utf8_lossy(&quick.stderr).contains("draining"));
}
