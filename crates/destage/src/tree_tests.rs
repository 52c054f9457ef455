//! What the command tree promises: one meaning of `--json`, and the same verbs for every front end.

use crate::cli::Cli;
use crate::words;
use clap::{Command, CommandFactory};
use std::collections::BTreeSet;
use std::ffi::OsString;

/// How each command with `--format` is tried: `tests/people/forms.rs` reads the same list.
const FORMS: &str = include_str!("../tests/people/forms.txt");

/// Every command that can be run, by its words behind `destage`.
fn all() -> Vec<(String, Command)> {
    fn below(command: &Command, words: &str, found: &mut Vec<(String, Command)>) {
        for next in command.get_subcommands() {
            let words = format!("{words} {}", next.get_name());
            found.push((words.trim().to_owned(), next.clone()));
            below(next, &words, found);
        }
    }
    let mut found = Vec::new();
    below(&Cli::command(), "", &mut found);
    found
}

fn forms_of(command: &Command) -> Option<Vec<String>> {
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some("format"))?;
    let values = arg.get_possible_values();
    Some(values.iter().map(|value| value.get_name().to_owned()).collect())
}

#[test]
fn json_is_the_form_of_a_result_everywhere() {
    let listed: BTreeSet<(&str, &str)> =
        FORMS.lines().filter_map(|line| line.split_once(' ')).collect();
    let mut seen = BTreeSet::new();
    for (words, command) in all() {
        for arg in command.get_arguments() {
            // Another word for the same would have to be learned.
            let long = arg.get_long().unwrap_or_default();
            assert!(!matches!(long, "json" | "output"), "{words} --{long}");
        }
        let Some(forms) = forms_of(&command) else { continue };
        assert!(
            listed.iter().any(|(_, listed)| *listed == words),
            "'{words}' has --format: say in tests/people/forms.txt how it is tried"
        );
        seen.insert(words.clone());
        assert!(forms[0] == "table" && forms.contains(&"json".to_owned()), "{words}: {forms:?}");
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some("format"));
        let usual = arg.and_then(|arg| arg.get_default_values().first()).expect("a default");
        assert_eq!(usual.to_str(), Some("table"), "{words}");
        let line = format!("destage {words} --json");
        let (line, told) = words::todays(line.split(' ').map(OsString::from));
        assert_eq!(line.last(), Some(&OsString::from("--format=json")), "{words}");
        assert_eq!(told, None, "{words}");
    }
    let all: BTreeSet<String> = listed.iter().map(|(_, words)| (*words).to_owned()).collect();
    assert_eq!(seen, all, "what is listed and what there is");
}

/// What a running server is asked, by its name or another one.
fn has(command: &Command, verb: &str) -> bool {
    command.get_subcommands().any(|next| next.get_name_and_visible_aliases().contains(&verb))
}

#[test]
fn every_front_end_has_the_same_verbs() {
    let rows = Cli::command();
    let front = |name: &str| rows.find_subcommand(name).expect("it is there").clone();
    let (block, mount) = (front("block"), front("mount"));
    for verb in ["status", "policy", "pause", "resume", "flush", "drain"] {
        for (name, command) in [("rows", &rows), ("block", &block), ("mount", &mount)] {
            assert!(has(command, verb), "{name} has no {verb}");
        }
    }
    // What holds writes for a snapshot of what lies behind; rows have transactions for that.
    for verb in ["freeze", "thaw", "check", "replay"] {
        assert!(has(&block, verb) && has(&mount, verb), "{verb}");
    }
    // What each of the others has alone is about what it alone has.
    let own = |command: &Command, others: [&Command; 2]| -> Vec<String> {
        let names = command.get_subcommands().map(Command::get_name);
        let own = names.filter(|name| !others.iter().any(|other| has(other, name)));
        own.map(str::to_owned).collect()
    };
    let block_only = ["mark", "checkpoint", "detach", "grow", "inspect", "resize"];
    assert_eq!(own(&block, [&rows, &mount]), block_only);
    assert_eq!(own(&mount, [&rows, &block]), ["sync", "conflicts", "unmount"]);
}
