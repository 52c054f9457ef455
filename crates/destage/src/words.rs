//! Words of the command line that stand for others: `--json`, and what earlier versions called otherwise.

use destage_sim::trace::Format;
use std::ffi::OsString;

/// The arguments in today's words; what to tell whoever used an old one.
pub(crate) fn todays(
    arguments: impl IntoIterator<Item = OsString>,
) -> (Vec<OsString>, Option<&'static str>) {
    let mut told = None;
    let mut all: Vec<OsString> = arguments.into_iter().collect();
    // What stands behind it goes to another program.
    let is_bench = all.iter().any(|word| word == "bench");
    if is_bench {
        return (all, None);
    }
    let is_sim = all.iter().any(|word| word == "sim");
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
        ] {
            assert_eq!(words(line), (now.to_owned(), told));
        }
    }
}
