//! The report as JSON and as Markdown between two markers of a document.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::Result;
use crate::figure::{Figure, Memory, thousands};
use crate::machine::Machine;

/// Longest line of a list, unless a word is longer: prose is wrapped.
const COLUMNS_MAX: usize = 120;

/// Everything that one run measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// The subcommand that measured; the markers name it.
    pub(crate) front_end: &'static str,
    pub(crate) command: String,
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) pairs: usize,
    pub(crate) machine: Machine,
    /// Name and value of each setting that matters.
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) memory: Vec<Memory>,
    /// What has another form than pairs of runs.
    pub(crate) tables: Vec<Table>,
    /// Cases that could not be measured, and why.
    pub(crate) failures: Vec<String>,
}

/// A table with a heading and a sentence on what it shows.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) note: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// A row with the paper's figures, below ours of that name.
    pub(crate) fn paper<'a>(name: &str, cells: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let cells = cells.into_iter().map(str::to_owned);
        std::iter::once(format!("{name}, the paper")).chain(cells).collect()
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("\n### {}\n\n", self.title);
        if !self.note.is_empty() {
            let _ = writeln!(text, "{}", list_item("", &self.note));
        }
        let rule: String = self.columns.iter().map(|_| "---|").collect();
        let _ = writeln!(text, "| {} |\n|{rule}", self.columns.join(" | "));
        for row in &self.rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text
    }
}

impl Report {
    pub(crate) fn markdown(&self) -> String {
        let mut text = self.conditions();
        let mut group = "";
        for figure in &self.figures {
            if figure.group != group {
                group = figure.group;
                text.push_str(&table_head(group));
            }
            let _ = writeln!(text, "| {} |", figure.cells().join(" | "));
        }
        self.tables.iter().for_each(|table| text.push_str(&table.markdown()));
        text.push_str(&self.memory_table());
        text.push_str(&self.details());
        if !self.failures.is_empty() {
            text.push_str("\n### Not measured\n\n");
            self.failures.iter().for_each(|line| text.push_str(&list_item("- ", line)));
        }
        text
    }

    fn conditions(&self) -> String {
        let machine = &self.machine;
        let sync = machine.fdatasync_us;
        let mut text = String::from("| | |\n|---|---|\n");
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "| {name} | {value} |");
        };
        line("command", &format!("`{}`", self.command));
        let cpus = machine.cpus;
        line("machine", &format!("{cpus} x {}, {} GiB", machine.cpu, machine.memory_gib));
        line("kernel", &machine.kernel);
        line("load before the run", &machine.load_before);
        line("commit", &machine.commit);
        machine.versions.iter().for_each(|(name, version)| line(name, version));
        line(
            "fdatasync of 4 KiB",
            &format!(
                "median {:.0} µs [{:.0}, {:.0}], 200 overwrites",
                sync.median, sync.min, sync.max
            ),
        );
        let (pairs, seconds) = (self.pairs, self.seconds);
        line("runs", &format!("{pairs} pairs, about {seconds} s per side, seed {}", self.seed));
        self.settings.iter().for_each(|(name, value)| line(name, value));
        text
    }

    fn memory_table(&self) -> String {
        if self.memory.is_empty() {
            return String::new();
        }
        let mut text = String::from(
            "\n### Memory\n\n| what | items | payload, bytes | measured, bytes | beyond payload | \
             target | reached |\n|---|---:|---:|---:|---:|---|---|\n",
        );
        for line in &self.memory {
            let limit = line.limit_beyond.map_or_else(|| "-".into(), |l| format!("≤ {l:.0}"));
            let reached = match line.reached() {
                None => "-",
                Some(true) => "yes",
                Some(false) => "**no**",
            };
            let _ = writeln!(
                text,
                "| {} | {} | {:.1} | {:.1} | {:.1} | {limit} | {reached} |",
                line.what,
                thousands(line.items as f64),
                line.payload_bytes,
                line.bytes,
                line.beyond(),
            );
        }
        text
    }

    fn details(&self) -> String {
        let mut text = String::from("\n### Latency, staleness, batches\n\n");
        let mut group = "";
        for figure in &self.figures {
            if figure.group != group {
                group = figure.group;
                text.push_str(&list_item("- ", group));
            }
            let (case, peer) = (&figure.case, &figure.peer);
            let item = format!("{case}. Peer: {peer}. {}", figure.detail());
            text.push_str(&list_item("  - ", &item));
        }
        if self.figures.is_empty() { String::new() } else { text }
    }

    /// Prints it, and puts it where it was asked for.
    ///
    /// # Errors
    ///
    /// It cannot be written, or at least one case could not be measured.
    pub(crate) fn publish(&self, json: Option<&Path>, document: Option<&Path>) -> Result<()> {
        publish(std::slice::from_ref(self), json, document)
    }

    /// Puts the report between the markers of the document at `path`.
    ///
    /// # Errors
    ///
    /// The document cannot be read or written, or has no markers.
    fn write_into(&self, path: &Path) -> Result<()> {
        let document = fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let markers = markers(self.front_end);
        let text = between_markers(&document, &markers, &self.markdown()).ok_or_else(|| {
            format!("{} has no lines {} and {}", path.display(), markers[0], markers[1])
        })?;
        Ok(fs::write(path, text)?)
    }
}

/// Prints them, and puts them where they were asked for. As JSON, several of them are a list.
///
/// # Errors
///
/// They cannot be written, or at least one case could not be measured.
pub(crate) fn publish(
    reports: &[Report],
    json: Option<&Path>,
    document: Option<&Path>,
) -> Result<()> {
    for report in reports {
        println!("{}", report.markdown());
    }
    if let Some(path) = json {
        let text = match reports {
            [alone] => serde_json::to_string_pretty(alone)?,
            several => serde_json::to_string_pretty(several)?,
        };
        fs::write(path, text)?;
    }
    if let Some(path) = document {
        for report in reports {
            report.write_into(path)?;
        }
    }
    match reports.iter().map(|report| report.failures.len()).sum() {
        0_usize => Ok(()),
        count => Err(format!("{count} cases could not be measured; see above").into()),
    }
}

/// The first and the last line of what a subcommand writes.
fn markers(front_end: &str) -> [String; 2] {
    ["begin", "end"].map(|word| format!("<!-- destage-bench {front_end}: {word} -->"))
}

fn between_markers(document: &str, [begin, end]: &[String; 2], text: &str) -> Option<String> {
    let (before, rest) = document.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n\n{}\n\n{end}{after}", text.trim_end()))
}

/// The lines of a list item: its mark before the first, the others indented to be part of it.
fn list_item(mark: &str, item: &str) -> String {
    let indent = " ".repeat(mark.len());
    let mut lines = vec![mark.to_owned()];
    for word in item.split_whitespace() {
        let line = lines.last_mut().expect("it starts with one");
        let is_empty = line.len() == mark.len();
        // At the start of a line these would begin something else than prose.
        let is_sign = matches!(word, "-" | "+" | "*" | "#" | ">");
        if is_empty || is_sign || line.chars().count() + 1 + word.chars().count() <= COLUMNS_MAX {
            line.push_str(if is_empty { "" } else { " " });
            line.push_str(word);
        } else {
            lines.push(format!("{indent}{word}"));
        }
    }
    lines.join("\n") + "\n"
}

fn table_head(group: &str) -> String {
    format!(
        "\n### {group}\n\n| case | ours/s | peer/s | ratio, median [min, max] | our CPU, µs | peer CPU, µs \
         | CPU ratio | target | reached |\n|---|---:|---:|---:|---:|---:|---:|---|---|\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let markers = markers("block");
        let [begin, end] = &markers;
        let document = format!("head\n{begin}\nold\n{end}\ntail\n");
        let once = between_markers(&document, &markers, "new\n").expect("has markers");
        assert_eq!(once, format!("head\n{begin}\n\nnew\n\n{end}\ntail\n"));
        assert_eq!(between_markers(&once, &markers, "new").as_deref(), Some(once.as_str()));
        assert_eq!(between_markers(&document, &super::markers("data"), "new"), None);
    }

    #[test]
    fn tables_are_written_with_their_note() {
        let cells = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table = Table {
            title: "Times".into(),
            note: "Seconds.".into(),
            columns: cells(["what", "time"]),
            rows: vec![cells(["start", "1"])],
        };
        let expected = "\n### Times\n\nSeconds.\n\n| what | time |\n|---|---|\n| start | 1 |\n";
        assert_eq!(table.markdown(), expected);
    }

    #[test]
    fn list_items_are_wrapped_into_lines_that_belong_to_them() {
        assert_eq!(list_item("- ", "short  one\n"), "- short one\n");
        let words: Vec<_> = (0..200).map(|n| format!("µ{n:02}")).collect();
        let item = list_item("  - ", &words.join(" "));
        let lines: Vec<_> = item.lines().collect();
        assert!(lines.len() > 5 && lines.iter().all(|line| line.chars().count() <= COLUMNS_MAX));
        assert!(lines[0].chars().count() > COLUMNS_MAX - 5, "lines are filled: {item}");
        assert!(lines[0].starts_with("  - µ00") && lines[1].starts_with("    µ"), "{item}");
        assert_eq!(item.split_whitespace().skip(1).collect::<Vec<_>>(), words);
        let signs = list_item("- ", &"+ ".repeat(COLUMNS_MAX));
        assert_eq!(signs.lines().count(), 1, "{signs}");
        let long = "x".repeat(COLUMNS_MAX);
        assert_eq!(list_item("- ", &format!("a {long} b")), format!("- a\n  {long}\n  b\n"));
    }
}
