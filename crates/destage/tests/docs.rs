//! The documentation against the code: promises have tests, flags and metrics exist, links lead somewhere.

use destage_runtime::status::{AutoReport, Report};
use destage_runtime::{exit, metrics};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Longest line of prose, which is wrapped at about 120 columns; tables and code may be longer.
const COLUMNS_MAX: usize = 125;
/// The pages of the manual and what they build upon.
const MANUAL: [&str; 15] = [
    "FOLDERS",
    "KEYS",
    "LIBRARY",
    "ORIGINS",
    "PASSWORDS",
    "POLICIES",
    "REPLICAS",
    "ROWS",
    "ROWS-TROUBLE",
    "SEMANTICS",
    "SOAK",
    "STOPPING",
    "VOLUMES",
    "VOLUMES-TROUBLE",
    "WATCHING",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every page of the documentation, relative to the workspace.
fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).expect("the folder is there");
    let names = docs.map(|entry| Path::new("docs").join(entry.expect("readable").file_name()));
    let mut pages: Vec<_> =
        names.filter(|path| path.extension().is_some_and(|ext| ext == "md")).collect();
    pages.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(PathBuf::from));
    pages
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((index + 1, line))
    })
}

/// What stands with the examples: not prose of the project, but its links count as well.
fn with_examples() -> Vec<PathBuf> {
    let mut pages = pages();
    for example in fs::read_dir(root().join("examples")).expect("the folder is there") {
        let name = example.expect("readable").file_name();
        pages.push(Path::new("examples").join(name).join("README.md"));
    }
    pages
}

/// Words with one blank in between.
fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The sentences of a page; list items, table cells and headings end one too.
fn sentences(text: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for (_, line) in prose(text) {
        let trimmed = line.trim_start();
        let item = trimmed.strip_prefix("- ");
        if trimmed.starts_with('|') {
            blocks.extend(trimmed.split('|').map(str::to_owned));
        } else if trimmed.is_empty() || trimmed.starts_with('#') || item.is_some() {
            blocks.push(item.unwrap_or_default().to_owned());
        } else {
            let block = blocks.last_mut().expect("it starts with one");
            *block = format!("{block} {trimmed}");
        }
    }
    let split = |block: &String| -> Vec<String> {
        squeeze(block).split_inclusive(". ").map(|sentence| sentence.trim().to_owned()).collect()
    };
    blocks.iter().flat_map(split).collect()
}

/// All test files, as one text without comment signs.
fn quotations() -> String {
    let mut folders = vec![root().join("crates")];
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if is_test(&path) {
                let comments = read(path);
                let lines = comments.lines().filter_map(|line| line.trim().strip_prefix("///"));
                lines.for_each(|line| {
                    text.push_str(line.trim().trim_start_matches('>'));
                    text.push(' ');
                });
            }
        }
    }
    squeeze(&text)
}

/// Tests lie in a folder of that name, beside the sources or among them.
fn is_test(path: &Path) -> bool {
    path.extension().is_some_and(|ext| ext == "rs")
        && path.components().any(|part| part.as_os_str() == "tests")
}

#[test]
fn every_promise_is_quoted_by_a_test() {
    let quoted = quotations();
    let page = read("docs/SEMANTICS.md");
    let promises: Vec<_> = sentences(&page)
        .into_iter()
        .filter(|sentence| {
            let words = sentence.split(|c: char| !c.is_alphanumeric());
            let mut promising = words.filter(|word| matches!(*word, "always" | "never"));
            // The page's own sentence about such sentences.
            promising.next().is_some() && !sentence.contains("\"always\" or \"never\"")
        })
        .collect();
    assert!(promises.len() > 10, "the sentences are found: {promises:?}");
    let unquoted: Vec<_> = promises.iter().filter(|&promise| !quoted.contains(promise)).collect();
    assert!(unquoted.is_empty(), "promised without a test that quotes it: {unquoted:#?}");
}

/// The anchors that a page's headings make.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let kept = line.trim_start_matches('#').trim().to_lowercase();
            let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[test]
fn relative_links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in with_examples() {
        let text = read(&page);
        let prose: Vec<_> = prose(&text).map(|(_, line)| line).collect();
        for link in prose.join("\n").split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                _ => page.parent().expect("a file has a folder").join(file),
            };
            let exists = root().join(&target).exists();
            if !exists || !(anchor.is_empty() || anchors(&read(&target)).contains(anchor)) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Where a change goes is of use only as long as it is there.
#[test]
fn the_files_that_the_architecture_names_exist() {
    let text = read("docs/ARCHITECTURE.md");
    let named = text.split('`').skip(1).step_by(2).filter(|word| word.starts_with("crates/"));
    let named: BTreeSet<&str> = named.collect();
    assert!(named.len() > 20, "they are found: {named:?}");
    let missing: Vec<_> = named.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "not there: {missing:?}");
    let crates = fs::read_dir(root().join("crates")).expect("the folder is there");
    for entry in crates {
        let name = entry.expect("readable").file_name();
        let row = format!("| `{}` |", name.to_string_lossy());
        assert!(text.contains(&row), "{row} has no row");
    }
}

#[test]
fn prose_is_wrapped() {
    let mut long = Vec::new();
    for page in pages() {
        let text = read(&page);
        for (number, line) in prose(&text) {
            if line.chars().count() > COLUMNS_MAX && !line.trim_start().starts_with('|') {
                long.push(format!("{}:{number}", page.display()));
            }
        }
    }
    assert!(long.is_empty(), "more than {COLUMNS_MAX} columns: {long:#?}");
}

/// Two versions of a paragraph, with the signs that a merge leaves between them, are read by nobody before users do.
#[test]
fn no_merge_is_left_half_done() {
    let signs = ["<<<<<<< ", "||||||| ", ">>>>>>> "];
    let half_done = |page: &PathBuf| {
        read(page).lines().any(|line| signs.iter().any(|sign| line.starts_with(sign)))
    };
    let found: Vec<_> = with_examples().into_iter().filter(half_done).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// The long flags in a help text.
fn flags(help: &str) -> impl Iterator<Item = &str> {
    help.lines().filter_map(|line| {
        let line = line.trim_start();
        // A short form stands before the long one.
        let line = line.split_once(", --").map_or(line, |(short, _)| match short.len() {
            2 => &line[4..],
            _ => line,
        });
        line.strip_prefix("--").and_then(|rest| rest.split([' ', '[', '=']).next())
    })
}

fn mentions(text: &str, flag: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
    text.split(&format!("--{flag}")).skip(1).any(ends)
}

#[test]
fn every_flag_of_serve_is_documented() {
    for command in [&["serve", "--help"][..], &["block", "serve", "--help"]] {
        check_flags(command);
    }
}

fn check_flags(command: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_destage")).args(command).output();
    let help = String::from_utf8(output.expect("the binary starts").stdout).expect("text");
    let text = MANUAL.map(|page| read(format!("docs/{page}.md")));
    let text = text.concat();
    let known: Vec<_> = flags(&help).filter(|&flag| flag != "help").collect();
    assert!(known.contains(&"staleness") && known.len() > 20, "{known:?}");
    let missing: Vec<_> = known.into_iter().filter(|flag| !mentions(&text, flag)).collect();
    assert!(missing.is_empty(), "flags that no page mentions: {missing:?}");
}

#[test]
fn the_exit_codes_are_those_of_the_program() {
    let page = read("docs/STOPPING.md");
    let rows = page.lines().filter_map(|line| {
        let (code, meaning) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
        Some((code.parse::<u8>().ok()?, meaning))
    });
    assert_eq!(rows.collect::<Vec<_>>(), exit::TABLE);
}

#[test]
fn the_metrics_named_exist() {
    /// Tables and a function at the origin, and a module in a log filter.
    const OTHERS: [&str; 8] = [
        "destage_changed",
        "destage_owner",
        "destage_watermark",
        "destage_parked",
        "destage_sequence",
        "destage_tombstones",
        "destage_journal",
        // The library.
        "destage_data",
    ];
    let own = [
        destage_data::serve::EXPORTS,
        destage_block::serve::EXPORTS,
        destage_mount::serve::EXPORTS,
    ];
    let own = own.iter().flat_map(|exports| (exports.families)());
    let mut known: BTreeSet<_> =
        metrics::common().into_iter().chain(own).map(|family| family.name).collect();
    known.extend(OTHERS);
    for page in MANUAL {
        let page = read(format!("docs/{page}.md"));
        let words = page.split(|c: char| !c.is_alphanumeric() && c != '_');
        // Queries ask for a histogram's buckets.
        let families = words.map(|word| word.strip_suffix("_bucket").unwrap_or(word));
        let unknown: Vec<_> =
            families.filter(|w| w.starts_with("destage_") && !known.contains(w)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}

/// One row for each metric, by the front end that exports it.
#[test]
fn the_list_of_metrics_is_that_of_the_program() {
    let mut families = vec![("all", metrics::common())];
    for (who, exports) in [
        ("`serve`", destage_data::serve::EXPORTS),
        ("`block serve`", destage_block::serve::EXPORTS),
        ("`mount`", destage_mount::serve::EXPORTS),
    ] {
        families.push((who, (exports.families)()));
    }
    let rows = families.iter().flat_map(|(who, families)| {
        families.iter().map(move |family| {
            let kind = format!("{:?}", family.kind).to_lowercase();
            format!("| `{}` | {kind} | {who} | {} |", family.name, family.help.replace('|', "\\|"))
        })
    });
    let rows: BTreeSet<String> = rows.collect();
    assert!(rows.len() > 100, "{rows:?}");
    let page = read("docs/METRICS.md");
    let listed: BTreeSet<String> =
        page.lines().filter(|line| line.starts_with("| `destage_")).map(str::to_owned).collect();
    let lines = |rows: Vec<&String>| rows.into_iter().cloned().collect::<Vec<_>>().join("\n");
    let missing = lines(rows.difference(&listed).collect());
    let wrong = lines(listed.difference(&rows).collect());
    assert!(missing.is_empty() && wrong.is_empty(), "missing:\n{missing}\nnot so:\n{wrong}");
}

/// A report in which nothing is absent.
fn of_any_front_end() -> Report {
    let mut report = Report::default();
    (report.derived, report.invalidation) = (Some(Default::default()), Some(Default::default()));
    (report.once, report.replicas) = (Some(Default::default()), Some(Default::default()));
    (report.ended, report.tracking) = (Some(Default::default()), Some(Default::default()));
    report.absent = Some(Default::default());
    let text = || Some(String::new());
    report.auto = Some(AutoReport { last: text(), advice: text(), ..AutoReport::default() });
    report.slow_commands = vec![Default::default()];
    (report.destage.rejected_total, report.destage.parked_groups) = (Some(0), Some(0));
    (report.journal.retained_seconds, report.journal.disk_full) = (Some(0.0), Some(false));
    report.journal.depth = Some(0);
    report.clients.open_files = Some(0);
    (report.clients.unread_bytes, report.clients.cut_off_total) = (Some(0), Some(0));
    (report.memory.rows_bytes, report.memory.index_bytes) = (Some(0), Some(0));
    report
}

#[test]
fn the_status_fields_named_exist_and_no_other() {
    let report = serde_json::to_value(of_any_front_end()).expect("a report is JSON");
    let page = read("docs/WATCHING.md");
    let table = page.split("## Status fields").nth(1).and_then(|rest| rest.split("##").next());
    let mut section = String::new();
    let mut named = BTreeSet::new();
    for line in table.expect("the heading is there").lines().filter(|line| line.starts_with("| `"))
    {
        let cell = line.split('|').nth(1).expect("the line is a row of a table");
        for name in cell.split('`').skip(1).step_by(2) {
            let field = match name.split_once('.') {
                Some((part, field)) => {
                    part.clone_into(&mut section);
                    field
                }
                None if report.get(name).is_some() => {
                    named.insert(name.to_owned());
                    continue;
                }
                None => name,
            };
            let part = report.get(&section).unwrap_or_else(|| panic!("no {section} for {name}"));
            assert!(field == "*" || part.get(field).is_some(), "no {section}.{field}");
            named.insert(format!("{section}.{field}"));
        }
    }
    let mut missing = Vec::new();
    for (name, value) in report.as_object().expect("a report is an object") {
        let fields: Vec<String> = match value.as_object() {
            Some(part) => part.keys().map(|field| format!("{name}.{field}")).collect(),
            None => vec![name.clone()],
        };
        let all = format!("{name}.*");
        missing.extend(fields.into_iter().filter(|f| !named.contains(f) && !named.contains(&all)));
    }
    assert!(missing.is_empty(), "in no row of the table: {missing:#?}");
}

/// README's figures are those of the tables that it links: a new run changes both.
#[test]
fn the_figures_of_the_readme_are_those_of_the_benchmarks() {
    let (readme, tables) = (read("README.md"), read("docs/BENCHMARKS.md"));
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim_matches([' ', '|']).to_owned())
            .collect()
    };
    let measured = |anchor: &str, case: &str| {
        let mut is_below = false;
        tables.lines().find_map(|line| {
            if line.starts_with('#') {
                is_below = anchors(line).contains(anchor);
            }
            let row = cells(line);
            let ratio = (is_below && row[0] == case).then(|| row.get(3)).flatten()?;
            Some(ratio.split_once(" [")?.0.to_owned())
        })
    };
    let mut count = 0;
    for line in readme.lines().filter(|line| line.starts_with("| [")) {
        let Some((_, anchor)) = line.split_once("docs/BENCHMARKS.md#") else { continue };
        let anchor = anchor.split_once(')').expect("the link ends").0;
        let [_, case, figure] = &cells(line)[..] else { panic!("{line}") };
        assert_eq!(Some(figure), measured(anchor, case).as_ref(), "README says of '{case}'");
        count += 1;
    }
    assert!(count >= 5, "only {count} figures were found");
}

/// Words in the sentences of a page, which stand outside of code, tables and headings.
fn lengths(text: &str) -> Vec<usize> {
    let mut blocks = vec![String::new()];
    for (_, line) in prose(text) {
        let line = line.trim_start();
        let number = line.split_once(". ").filter(|(number, _)| number.parse::<u8>().is_ok());
        let item = line.strip_prefix("- ").or_else(|| number.map(|(_, rest)| rest));
        if line.is_empty() || line.starts_with(['#', '|']) || item.is_some() {
            blocks.push(item.unwrap_or_default().to_owned());
        } else {
            let block = blocks.last_mut().expect("it starts with one");
            *block = format!("{block} {line}");
        }
    }
    let ends = |word: &&str| word.ends_with(['.', '?', '!']) || word.ends_with(".)");
    let mut lengths = Vec::new();
    for block in &blocks {
        let words: Vec<&str> = block.split_whitespace().collect();
        lengths.extend(words.split_inclusive(|word| ends(word)).map(<[&str]>::len));
    }
    lengths
}

fn mean(lengths: &[usize]) -> f64 {
    lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64
}

#[test]
fn sentences_are_short() {
    /// Most words of a sentence, in the mean of a page.
    const MEAN_MAX: f64 = 16.0;
    let mut long = Vec::new();
    for page in pages() {
        let name = page.display().to_string();
        let mean = mean(&lengths(&read(&page)));
        if mean > MEAN_MAX {
            long.push(format!(
                "{name}: {mean:.2} words in the mean, at most {MEAN_MAX} are allowed"
            ));
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn the_length_of_sentences_is_counted() {
    let text = "# A heading\nOne two three. Four\nfive?\n\n- six seven\n\n| a | b |\n\n```sh\nno words\n```\n1. eight\n";
    assert_eq!(lengths(text), [3, 2, 2, 1]);
    assert!((mean(&[1, 2, 3]) - 2.0).abs() < 1e-9);
}

#[test]
fn every_page_is_in_the_book() {
    let summary = read("docs/SUMMARY.md");
    for page in pages().iter().filter(|page| page.starts_with("docs")) {
        let name = page.file_name().expect("a file").to_string_lossy();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("]({name})")), "{name}");
    }
}

#[test]
fn the_glossary_is_sorted() {
    let text = read("docs/GLOSSARY.md");
    let words = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
    let words: Vec<String> = words.skip(1).map(|(word, _)| word.to_lowercase()).collect();
    assert!(words.len() > 40, "{words:?}");
    assert!(words.is_sorted(), "{words:?}");
}

/// Ten sentences that were hard to read stay gone, in whatever file they were.
#[test]
fn hard_sentences_do_not_come_back() {
    let gone = [
        "goes its way if that is undecided still",
        "What only reads, `EXEC` included",
        "as far as the log holds no later writes to them",
        "So where no document was found Destage asks for the collection",
        "is no longer taken for a foreign write",
        "takes X leases on rows that are to be read and then written",
        "which is not the one in d",
        ", which there is not",
        "at damaged or none, damaged or none",
        "What leaves a queue out of turn",
    ];
    let is_text = |path: &PathBuf| {
        let end = path.extension().and_then(|end| end.to_str());
        matches!(end, Some("rs" | "md")) && !path.ends_with("tests/docs.rs")
    };
    let mut folders = vec![root().join("docs"), root().join("crates")];
    let mut files = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if is_text(&path) {
                files.push(path);
            }
        }
    }
    assert!(files.len() > 500, "{} files", files.len());
    for file in files {
        let text = squeeze(&read(&file));
        let found = gone.iter().find(|sentence| text.contains(**sentence));
        assert_eq!(found, None, "{}", file.display());
    }
}

/// What has systemd give a service a mount namespace of its own, as systemd.exec(5) says, with what switches it off.
const NAMESPACING: [(&str, &str); 22] = [
    ("BindPaths", ""),
    ("BindReadOnlyPaths", ""),
    ("DynamicUser", "no"),
    ("ExecPaths", ""),
    ("InaccessiblePaths", ""),
    ("MountAPIVFS", "no"),
    ("MountFlags", ""),
    ("NoExecPaths", ""),
    ("PrivateDevices", "no"),
    ("PrivateIPC", "no"),
    ("PrivateMounts", "no"),
    ("PrivateNetwork", "no"),
    ("PrivateTmp", "no"),
    ("ProcSubset", "all"),
    ("ProtectControlGroups", "no"),
    ("ProtectHome", "no"),
    ("ProtectKernelLogs", "no"),
    ("ProtectKernelModules", "no"),
    ("ProtectKernelTunables", "no"),
    ("ProtectProc", "default"),
    ("ProtectSystem", "no"),
    ("ReadWritePaths", ""),
];

/// What a unit says last of each key.
fn unit_keys(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|l| l.split_once('=')).collect()
}

#[test]
fn the_drop_in_for_a_fuse_folder_leaves_the_server_in_the_mount_namespace_of_all() {
    let (unit, drop_in) = (
        read("packaging/systemd/destage-block@.service"),
        read("packaging/systemd/destage-block-root.conf"),
    );
    let (unit, drop_in) = (unit_keys(&unit), unit_keys(&drop_in));
    let mut found = 0;
    for (key, off) in NAMESPACING {
        if unit.get(key).is_some_and(|value| *value != off) {
            assert_eq!(drop_in.get(key), Some(&off), "{key} of the drop-in");
            found += 1;
        } else if let Some(value) = drop_in.get(key) {
            assert_eq!(*value, off, "{key} of the drop-in");
        }
    }
    assert!(found > 6, "the unit has only {found} of them");
    // systemd gives the folder to the unit's user: this one is another than that of the other units.
    assert_ne!(drop_in["StateDirectory"], unit["StateDirectory"]);
    assert_eq!(drop_in["WorkingDirectory"], format!("/var/lib/{}", drop_in["StateDirectory"]));
}
