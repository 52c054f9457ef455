//! The command lines of the documentation, read by the parser of the program.

use crate::cli::Cli;
use clap::Parser;
use clap::error::ErrorKind;
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
