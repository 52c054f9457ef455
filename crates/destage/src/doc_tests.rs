//! The command lines of the documentation, read by the parser of the program.

use crate::cli::Cli;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A command line, and whether it is only a mention that may leave out what is mandatory.
#[derive(Debug, PartialEq)]
struct CommandLine {
    text: String,
    is_mention: bool,
}

/// Every page of the documentation.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs")).expect("the folder is there");
    let mut pages: Vec<_> = docs.map(|entry| entry.expect("readable").path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.extend(["README.md", "CHANGELOG.md"].map(|page| root.join(page)));
    pages
}

/// What a page tells readers to run: in code blocks, in service files, and quoted in its sentences.
fn command_lines(page: &str) -> Vec<CommandLine> {
    let mut found = Vec::new();
    let mut paragraph = String::new();
    let mut language = None;
    for line in page.lines().chain([""]) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("```") {
            language = if language.is_none() { Some(name) } else { None };
        } else if let Some(language) = language {
            let command = match language {
                "console" => line.strip_prefix("$ "),
                "sh" => Some(line),
                "ini" => line.strip_prefix("ExecStart="),
                _ => None,
            };
            found.extend(command.map(|text| CommandLine { text: text.into(), is_mention: false }));
        } else if line.is_empty() {
            let quoted = paragraph.split('`').skip(1).step_by(2);
            found.extend(quoted.map(|text| CommandLine { text: text.into(), is_mention: true }));
            paragraph.clear();
        } else {
            paragraph.push_str(line);
            paragraph.push(' ');
        }
    }
    found
}

/// The program's arguments, its name first, if the command line runs it.
fn arguments(command: &CommandLine) -> Option<Vec<String>> {
    let words = shlex::split(&command.text.replace("SEGMENT:OFFSET", "1:4096"))?;
    let ends = |word: &String| [">", "|", "&&", ";", "&"].contains(&word.as_str());
    let words: Vec<String> = words.into_iter().take_while(|word| !ends(word)).collect();
    match words.first()?.as_str() {
        "cargo" if words.get(1)? == "run" && !words.iter().any(|word| word == "-p") => {
            let start = words.iter().position(|word| word == "--").map_or(words.len(), |at| at + 1);
            Some([&["destage".to_owned()], &words[start..]].concat())
        }
        program if program == "destage" || program.ends_with("/destage") => Some(words),
        _ => None,
    }
}

/// Reads the command line as the program does.
fn check(command: &CommandLine) -> Result<(), String> {
    let arguments = arguments(command).ok_or("it is not about the program")?;
    match Cli::try_parse_from(arguments).map_err(|error| (error.kind(), error.to_string())) {
        Ok(_) | Err((ErrorKind::DisplayHelp | ErrorKind::DisplayVersion, _)) => Ok(()),
        Err((
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
            _,
        )) if command.is_mention => Ok(()),
        Err((_, message)) => Err(format!("{}: {message}", command.text)),
    }
}

#[test]
fn every_command_line_of_the_documentation_is_understood() {
    let (mut run, mut mentioned) = (0, 0);
    for page in pages() {
        let text = fs::read_to_string(&page).expect("the page is readable");
        let commands = command_lines(&text).into_iter().filter(|line| arguments(line).is_some());
        for command in commands {
            check(&command).unwrap_or_else(|message| panic!("{}: {message}", page.display()));
            *if command.is_mention { &mut mentioned } else { &mut run } += 1;
        }
    }
    assert!(run >= 10 && mentioned >= 10, "only {run} command lines, {mentioned} mentions");
}

/// What stands in the blocks of TOML, each by itself.
fn settings(page: &str) -> Vec<String> {
    let blocks = page.split("```toml\n").skip(1);
    blocks.filter_map(|rest| Some(rest.split_once("```")?.0.to_owned())).collect()
}

#[test]
fn every_settings_file_of_the_documentation_can_be_read() {
    let mut count = 0;
    for page in pages() {
        for text in settings(&fs::read_to_string(&page).expect("the page is readable")) {
            text.parse::<toml::Table>()
                .unwrap_or_else(|error| panic!("{}: {error}{text}", page.display()));
            count += 1;
        }
    }
    assert!(count > 10, "only {count} blocks");
    let twice = settings("```toml\n[table.a]\nx = 1\n[table.a]\ny = 1\n```\n");
    assert!(twice[0].parse::<toml::Table>().is_err());
}

#[test]
fn command_lines_that_have_gone_wrong_are_noticed() {
    let page = "`destage\nserve`\n\n```console\n$ destage serve --stalenes 3s\ndestage ready\n```\n\
                ```sh\ncargo run --release -- journal export --from x > y\n```\n\
                ```text\ndestage nonsense\n```\n```ini\nExecStart=/usr/bin/destage\n```\n\
                `destage journal repair --cut SEGMENT:OFFSET`, `destage srve`, `cargo xtask test`\n";
    let commands: Vec<_> =
        command_lines(page).into_iter().filter(|line| arguments(line).is_some()).collect();
    let wrong: Vec<_> = commands.iter().filter_map(|command| check(command).err()).collect();
    assert_eq!((commands.len(), wrong.len()), (6, 4), "{commands:?}: {wrong:#?}");
    for (message, part) in wrong.iter().zip(["--staleness", "--from", "Usage", "'serve'"]) {
        assert!(message.contains(part), "{part}: {message}");
    }
}

/// All commands, those below others with their whole names; but `bench`, which is another program.
fn commands() -> Vec<(String, clap::Command)> {
    fn add(command: &clap::Command, above: &str, all: &mut Vec<(String, clap::Command)>) {
        let name = format!("{above}{}", command.get_name());
        let below = command.get_subcommands().filter(|below| !below.is_hide_set());
        below.filter(|below| below.get_name() != "bench").for_each(|below| {
            add(below, &format!("{name} "), all);
        });
        all.push((name, command.clone()));
    }
    let mut all = Vec::new();
    add(&Cli::command(), "", &mut all);
    all
}

fn visible(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set())
}

fn all_pages() -> String {
    let text = |page: &PathBuf| fs::read_to_string(page).expect("the page is readable");
    pages().iter().filter(|page| !page.ends_with("CHANGELOG.md")).map(text).collect()
}

/// Whether the word stands there, not as a part of a longer one.
fn names(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "-_".contains(c);
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

#[test]
fn every_flag_and_variable_of_every_command_is_on_a_page() {
    let pages = all_pages();
    let (mut missing, mut count) = (Vec::new(), 0);
    for (name, command) in commands() {
        for arg in visible(&command) {
            let flag = arg.get_long().map(|long| format!("--{long}"));
            let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
            for word in flag.into_iter().chain(variable).filter(|word| word != "--help") {
                count += 1;
                if !names(&pages, &word) {
                    missing.push(format!("{word} of {name}"));
                }
            }
        }
    }
    assert!(count > 200, "only {count} were found");
    assert!(missing.is_empty(), "no page mentions {missing:#?}");
}

/// What a sentence names in the form of a flag or variable is one of the program, or of those that the pages are about, too.
#[test]
fn every_flag_and_variable_that_a_sentence_names_exists() {
    /// Of `cargo`, `losetup`, `redis-cli` and Podman, and what a command that `--run` starts is told.
    const OTHERS: [&str; 8] = [
        "--binary",
        "--health-cmd",
        "DESTAGE_HOST",
        "DESTAGE_PORT",
        "DESTAGE_URL",
        "--example",
        "--direct-io",
        "--sector-size",
    ];
    /// These are about other programs, or other times.
    const LEFT_OUT: [&str; 3] = ["BENCHMARKS.md", "SOAK.md", "CHANGELOG.md"];
    /// Of ours, but not in the description of any command.
    const APART: [&str; 2] = ["--json", "DESTAGE_PROGRESS_AFTER"];
    let mut known: BTreeSet<String> =
        OTHERS.iter().chain(&APART).map(|&word| word.to_owned()).collect();
    known.extend(["--help".to_owned(), "--version".to_owned()]);
    for (_, command) in commands() {
        for arg in command.get_arguments() {
            known.extend(arg.get_long().map(|long| format!("--{long}")));
            known.extend(arg.get_env().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    let mut unknown = BTreeSet::new();
    let pages =
        pages().into_iter().filter(|page| !LEFT_OUT.iter().any(|name| page.ends_with(name)));
    for page in pages {
        let text = fs::read_to_string(&page).expect("the page is readable");
        let quoted = command_lines(&text).into_iter().filter(|line| line.is_mention);
        let words = quoted
            .filter_map(|line| Some(line.text.split([' ', '=', '|', ',']).next()?.to_owned()));
        let in_form = words.filter(|word| {
            word.len() > 2 && word.starts_with("--") || word.starts_with("DESTAGE_")
        });
        let name = page.file_name().expect("a file").to_string_lossy().into_owned();
        unknown
            .extend(in_form.filter(|word| !known.contains(word)).map(|w| format!("{name}: {w}")));
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// What a command line takes from a variable without ever showing it, no command that the server starts may inherit.
#[test]
fn commands_of_the_user_inherit_no_variable_that_may_hold_a_password() {
    let mut secrets = BTreeSet::new();
    for (_, command) in commands() {
        let hidden = command.get_arguments().filter(|arg| arg.is_hide_env_values_set());
        secrets.extend(hidden.filter_map(|arg| arg.get_env()).map(|name| name.to_os_string()));
    }
    let kept = destage_runtime::child::shell("true");
    let kept: BTreeSet<_> = kept.get_envs().map(|(name, value)| (name.into(), value)).collect();
    assert_eq!(kept, secrets.iter().map(|name| (name.clone(), None)).collect());
    assert!(secrets.len() >= 4, "{secrets:?}");
}
