//! The report as JSON and as Markdown between two markers of a document.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::Result;
use crate::figure::{Figure, Memory, thousands};
use crate::machine::Machine;

const BEGIN: &str = "<!-- destage-bench data: begin -->";
const END: &str = "<!-- destage-bench data: end -->";
/// Longest line of a list, unless a word is longer: prose is wrapped.
const COLUMNS_MAX: usize = 120;

/// Everything that one run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) command: String,
    pub(crate) seed: u64,
    pub(crate) rows: u64,
    pub(crate) seconds: f64,
    pub(crate) pairs: usize,
    pub(crate) machine: Machine,
    /// Name and value of each setting that matters.
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) memory: Vec<Memory>,
    /// Cases that could not be measured, and why.
    pub(crate) failures: Vec<String>,
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
        line("large table", &format!("{} rows of 10 x 100 bytes", thousands(self.rows as f64)));
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

    /// Puts the report between the markers of the document at `path`.
    ///
    /// # Errors
    ///
    /// The document cannot be read or written, or has no markers.
    pub(crate) fn write_into(&self, path: &Path) -> Result<()> {
        let document = fs::read_to_string(path)?;
        let text = between_markers(&document, &self.markdown())
            .ok_or_else(|| format!("{} has no lines {BEGIN} and {END}", path.display()))?;
        Ok(fs::write(path, text)?)
    }
}

fn between_markers(document: &str, text: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", text.trim_end()))
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
        let document = format!("head\n{BEGIN}\nold\n{END}\ntail\n");
        let once = between_markers(&document, "new\n").expect("has markers");
        assert_eq!(once, format!("head\n{BEGIN}\n\nnew\n\n{END}\ntail\n"));
        assert_eq!(between_markers(&once, "new").as_deref(), Some(once.as_str()));
        assert_eq!(between_markers("no markers", "new"), None);
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
