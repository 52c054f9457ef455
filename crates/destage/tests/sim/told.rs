//! Each report tells the settings that it comes from.

use super::{destage, generated, json, stdout, write};
use serde_json::Value;

/// What is in force, by label, in the table of a run.
fn shown(table: &str, label: &str) -> String {
    let line = table.lines().find_map(|line| line.strip_prefix(label));
    line.unwrap_or_else(|| panic!("{label}: {table}")).trim().to_owned()
}

/// The cell of a column in the first row.
fn cell(csv: &str, column: &str) -> String {
    let cells = |line: &str| {
        let (mut cells, mut is_quoted) = (vec![String::new()], false);
        for letter in line.chars() {
            match letter {
                '"' => is_quoted = !is_quoted,
                ',' if !is_quoted => cells.push(String::new()),
                _ => cells.last_mut().expect("there is one").push(letter),
            }
        }
        cells
    };
    let mut lines = csv.lines().map(cells);
    let (header, row) = (lines.next().expect("a header"), lines.next().expect("a row"));
    let place = header.iter().position(|name| name == column);
    row[place.unwrap_or_else(|| panic!("{column}: {header:?}"))].clone()
}

#[test]
fn runs_with_devices_hold_what_is_in_force_in_each_form() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = generated(folder.path(), "mail-server", "300");
    let run = |form: &str| {
        let run = ["sim", "run", "--trace", &trace, "--ram", "1M", "--flash", "64M"];
        destage(&[&run[..], &["--policy", "ordered", "-D", "7s", "--format", form]].concat())
    };
    let table = stdout(&run("table"));
    let [ram, flash] = ["RAM ", "flash "].map(|label| shown(&table, label));
    assert!(flash.starts_with("ordered") && flash.contains("D = 7s"), "{table}");
    assert!(ram.contains("replacement lru"), "{table}");
    let report = json(&run("json"));
    assert_eq!(report["in_force"], serde_json::json!({ "ram": ram, "flash": flash }));
    assert_eq!(cell(&stdout(&run("csv")), "in_force_ram"), ram);
}

#[test]
fn sweeps_hold_what_is_in_force_in_each_form() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    generated(folder.path(), "mail-server", "300");
    let sweep = |name: &str, text: &str, form: &str| {
        let text = format!("trace = 'mail-server.csv'\n{text}");
        let grid = write(folder.path(), name, text.as_bytes());
        destage(&["sim", "sweep", &grid, "--format", form])
    };
    // With devices, each row has its own.
    let devices = "flash = '64M'\npolicy = ['journaled', 'write-back']\n";
    let devices = |form: &str| sweep("devices.toml", devices, form);
    let rows = json(&devices("json"));
    let flash = |row: usize| rows[row]["in_force"]["flash"].as_str().unwrap_or_default().to_owned();
    assert!(flash(0).starts_with("journaled") && flash(1).starts_with("write-back"), "{rows}");
    assert!(flash(0).contains("D = 30s") && flash(0).contains("replacement s3-fifo"), "{rows}");
    let table = stdout(&devices("table"));
    assert_eq!(shown(&table, "flash "), flash(0));
    assert!(table.contains("in the first run; varied: policy"), "{table}");
    let csv = stdout(&devices("csv"));
    assert!(csv.starts_with("in_force_flash,"), "{csv}");
    assert_eq!(cell(&csv, "in_force_flash"), flash(0));
    let page = stdout(&devices("html"));
    assert!(page.contains("In force in the first of them") && page.contains("D = 30s"), "{page}");
    // Hits: what is not said in the grid, too.
    let hits = |form: &str| sweep("hits.toml", "ram = '1M'\nflash = ['2M', '8M']\n", form);
    let rows = json(&hits("json"));
    let expected = |flash: &str| {
        let told = [("block", "4.0 KiB"), ("ram", "1.0 MiB"), ("flash", flash)];
        let unsaid = [("replacement", "s3-fifo"), ("ram_replacement", "lru")];
        let all = told.iter().chain(&unsaid);
        Value::Object(all.map(|(name, text)| ((*name).into(), (*text).into())).collect())
    };
    assert_eq!(
        (&rows[0]["in_force"], &rows[1]["in_force"]),
        (&expected("2.0 MiB"), &expected("8.0 MiB"))
    );
    assert_eq!(cell(&stdout(&hits("csv")), "in_force_ram_replacement"), "lru");
    let page = stdout(&hits("html"));
    assert!(page.contains("RAM replacement: lru") && page.contains("block: 4.0 KiB"), "{page}");
    let table = stdout(&hits("table"));
    assert_eq!(shown(&table, "replacement "), "s3-fifo");
}

#[test]
fn reports_of_hits_begin_with_what_is_in_force() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = generated(folder.path(), "mail-server", "300");
    let run = ["sim", "run", "--trace", &trace, "--flash", "2M,8M"];
    let table = stdout(&destage(&run));
    assert!(table.starts_with("block             4.0 KiB\n"), "{table}");
    let told = ["RAM ", "flash ", "replacement "].map(|label| shown(&table, label));
    assert_eq!(told, ["none", "2.0 MiB, 8.0 MiB", "s3-fifo"]);
    assert!(!table.contains("RAM replacement"), "which counts for nothing here: {table}");
    // A curve tells that its policy is another one unless told.
    let curve =
        |flags: &[&str]| stdout(&destage(&[&["sim", "curve", "--trace", &trace], flags].concat()));
    let table = curve(&[]);
    assert!(
        table.starts_with("replacement lru (servers have s3-fifo only: --replacement s3-fifo); "),
        "{table}"
    );
    let table = curve(&["--replacement", "lru,s3-fifo", "--sizes", "1M,2M"]);
    let head = "replacement lru, s3-fifo; block 4.0 KiB; sizes 1.0 MiB to 2.0 MiB\n";
    assert!(table.starts_with(head), "{table}");
    assert!(curve(&["--format", "html"]).contains("replacement lru (servers"));
}

#[test]
fn ram_alone_runs_as_a_server_runs() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = generated(folder.path(), "mail-server", "300");
    let ram = |flags: &[&str]| {
        let run = ["sim", "run", "--trace", &trace, "--ram", "64M", "--policy", "journaled"];
        shown(&stdout(&destage(&[&run[..], flags].concat())), "RAM ")
    };
    let alone = ram(&[]);
    for part in ["D = 30s", "at limit throttle", "linger 100ms", "replacement s3-fifo"] {
        assert!(alone.contains(part), "{part}: {alone}");
    }
    assert!(ram(&["-D", "7s", "--linger", "0"]).contains("D = 7s"));
    // The control: RAM before flash is no server.
    let before = ram(&["--flash", "256M"]);
    assert!(before.contains("replacement lru") && !before.contains("D = 30s"), "{before}");
}
