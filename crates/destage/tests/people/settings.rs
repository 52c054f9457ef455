//! Settings change while the server runs, by SIGHUP and by `policy --save`; shells and manuals know every command.

use crate::harness::server::binary;
use crate::harness::{Launch, PATIENCE, Scratch, eventually, output};
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
