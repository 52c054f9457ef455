//! Words of the command line that stand for others: `--json`, and what earlier versions called otherwise.

use destage_sim::trace::Format;
use std::ffi::OsString;

/// The arguments in today's words; what to tell whoever used an old one.
pub(crate) fn todays(
    arguments: impl IntoIterator<Item = OsString>,
) -> (Vec<OsString>, Option<&'static str>) {
    let mut told = None;
    let mut all: Vec<OsString> = arguments.into_iter().collect();
    let is_sim = match subcommand(&all).and_then(|word| word.to_str()) {
        // What stands behind it goes to another program.
        Some("bench") => return (all, None),
        name => name == Some("sim"),
    };
    for at in 0..all.len() {
        if all[at] == "--json" {
            all[at] = "--format=json".into();
        } else if is_sim && all[at] == "--format" && all.get(at + 1).is_some_and(is_of_traces) {
            all[at] = "--trace-format".into();
            told = Some(OLD_FORMAT);
        } else if is_sim
            && let Some(name) = all[at].to_str().and_then(|word| word.strip_prefix("--format="))
            && is_of_traces(&name.into())
        {
            all[at] = format!("--trace-format={name}").into();
            told = Some(OLD_FORMAT);
        }
    }
    (all, told)
}

/// The first word that is no flag of all commands and no value of one: a volume may be called 'bench', too.
fn subcommand(all: &[OsString]) -> Option<&OsString> {
    let mut words = all.iter().skip(1);
    while let Some(word) = words.next() {
        if word == "--log-level" || word == "--log-format" {
            words.next();
        } else if !word.to_string_lossy().starts_with('-') {
            return Some(word);
        }
    }
    None
}

const OLD_FORMAT: &str =
    "the format of a trace is named by --trace-format now; --format is the form of the result";

/// Whether it names a trace's format, and no form of a result.
fn is_of_traces(name: &OsString) -> bool {
    let is_form = name == "csv";
    name == "auto" || (!is_form && name.to_str().is_some_and(|name| name.parse::<Format>().is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> (String, bool) {
        let (words, told) = todays(line.split(' ').map(OsString::from));
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        (words.join(" "), told.is_some())
    }

    #[test]
    fn old_words_of_traces_are_taken_and_told_of() {
        for (line, now, told) in [
            ("destage sim run --format msr", "destage sim run --trace-format msr", true),
            ("destage sim run --format=auto", "destage sim run --trace-format=auto", true),
            ("destage sim run --format csv", "destage sim run --format csv", false),
            ("destage sim run --format json", "destage sim run --format json", false),
            ("destage status --json", "destage status --format=json", false),
            ("destage bench data --json x", "destage bench data --json x", false),
            (
                "destage --log-level off bench data --json",
                "destage --log-level off bench data --json",
                false,
            ),
            (
                "destage block status --volume bench --json",
                "destage block status --volume bench --format=json",
                false,
            ),
            (
                "destage status --volume sim --format csv",
                "destage status --volume sim --format csv",
                false,
            ),
        ] {
            assert_eq!(words(line), (now.to_owned(), told));
        }
    }
}
