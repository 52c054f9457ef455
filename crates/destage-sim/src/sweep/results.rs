//! The file of results: a line of JSON per run that is done, synced before the next is written.
//!
//! What a crash leaves of the last line is cut off. Rows of other grids in the same file are kept and passed over.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Rows by key, and the file that holds them.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    rows: HashMap<String, Value>,
}

/// A file of results that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The system refused.
    #[error("failed to {what} the results {path}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// Another sweep has it.
    #[error(
        "the results {0} are in use by another sweep: wait for it, or name another file with --results"
    )]
    InUse(String),
    /// It holds something else.
    #[error(
        "line {line} of the results {path} is no row of a sweep: name another file with --results, or \
         delete this one"
    )]
    Foreign {
        /// The file.
        path: String,
        /// From 1.
        line: usize,
    },
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    key: String,
    row: Value,
}

impl Results {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// [`ResultsError`].
    pub fn open(path: &Path) -> Result<Self, ResultsError> {
        let failed =
            |what| move |error| ResultsError::Io { what, path: path.display().to_string(), error };
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        let mut file =
            options.create(true).read(true).append(true).open(path).map_err(failed("open"))?;
        if !file.metadata().map_err(failed("look at"))?.is_file() {
            // A pipe or a device may have no end.
            return Err(failed("keep rows in")(io::Error::other("it is not a regular file")));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ResultsError::InUse(path.display().to_string()));
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock")(error)),
        }
        if is_new {
            sync_folder(path).map_err(failed("make"))?;
        }
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(0)).map_err(failed("read"))?;
        file.read_to_end(&mut text).map_err(failed("read"))?;
        let (rows, whole) = rows(path, &text)?;
        if whole < text.len() {
            file.set_len(whole as u64).map_err(failed("cut the torn end of"))?;
        }
        Ok(Self { path: path.to_owned(), file, rows })
    }

    /// The row of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.rows.get(key)
    }

    /// Adds a row, which is durable afterwards.
    ///
    /// # Errors
    /// The disk is full, or otherwise refuses.
    pub fn add(&mut self, key: &str, row: Value) -> Result<(), ResultsError> {
        let line = Line { key: key.into(), row: rounded(row) };
        let failed =
            |what, error| ResultsError::Io { what, path: self.path.display().to_string(), error };
        let mut text =
            serde_json::to_vec(&line).map_err(|error| failed("write", io::Error::other(error)))?;
        text.push(b'\n');
        let before = self.file.metadata().map_err(|error| failed("look at", error))?.len();
        if let Err(error) = self.file.write_all(&text) {
            // What was written of the line would otherwise stand before the next one.
            let _ = self.file.set_len(before);
            return Err(failed("write", error));
        }
        self.file.sync_data().map_err(|error| failed("sync", error))?;
        self.rows.insert(line.key, line.row);
        Ok(())
    }
}

/// The rows, and how many bytes hold whole ones. Only the last line can be torn; it is nothing else's if it begins as a row
/// does, or is what some file systems leave where data was not written yet.
fn rows(path: &Path, text: &[u8]) -> Result<(HashMap<String, Value>, usize), ResultsError> {
    const START: &[u8] = b"{\"key\":\"";
    let mut rows = HashMap::new();
    let mut whole = 0;
    for (line, number) in text.split_inclusive(|&byte| byte == b'\n').zip(1..) {
        let is_last = whole + line.len() == text.len();
        match serde_json::from_slice::<Line>(line) {
            Ok(Line { key, row }) if line.ends_with(b"\n") => drop(rows.insert(key, row)),
            _ if is_last && (line.starts_with(START) || START.starts_with(line)) => break,
            _ if is_last && line[0] == 0 => break,
            _ => {
                let path = path.display().to_string();
                return Err(ResultsError::Foreign { path, line: number });
            }
        }
        whole += line.len();
    }
    Ok((rows, whole))
}

/// Fractions to fifteen digits, which are read as they were written: a row is the same before and after a crash.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let short = number.as_f64().and_then(|number| format!("{number:.14e}").parse().ok());
            Value::from(short.unwrap_or(0.0_f64))
        }
        Value::Array(values) => values.into_iter().map(rounded).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, rounded(value))).collect()
        }
        other => other,
    }
}

/// Makes a new file's name durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

/// The values of a row under names that lead to them, the parts joined by underscores; lists are left out.
pub fn columns(row: &Value) -> Vec<(String, Value)> {
    fn add(prefix: &str, map: &Map<String, Value>, columns: &mut Vec<(String, Value)>) {
        for (name, value) in map {
            let name = format!("{prefix}{}", name.replace('-', "_"));
            match value {
                Value::Object(map) => add(&format!("{name}_"), map, columns),
                Value::Array(_) => {}
                value => columns.push((name, value.clone())),
            }
        }
    }
    let mut columns = Vec::new();
    if let Value::Object(map) = row {
        add("", map, &mut columns);
    }
    columns
}

/// A value as a cell of a table.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_survive_and_a_torn_one_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let mut results = Results::open(&path).unwrap();
        results.add("a", json!({"hits": 1})).unwrap();
        results.add("b", json!({"hits": 2})).unwrap();
        drop(results);
        let whole = std::fs::read(&path).unwrap();
        let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for cut in first..whole.len() {
            let zeros = [0; 3];
            let torn = [&whole[..cut], &zeros[..if cut == first { 3 } else { 0 }]].concat();
            std::fs::write(&path, torn).unwrap();
            let mut results = Results::open(&path).unwrap();
            assert_eq!(results.get("a"), Some(&json!({"hits": 1})), "cut at {cut}");
            assert_eq!(results.get("b"), None, "cut at {cut}");
            results.add("b", json!({"hits": 3})).unwrap();
            drop(results);
            let again = Results::open(&path).unwrap();
            assert_eq!(again.get("b"), Some(&json!({"hits": 3})), "cut at {cut}");
        }
    }

    #[test]
    fn fractions_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let mut results = Results::open(&path).unwrap();
        let fractions = (0..2_000u64).map(|n| crate::blocks::mix(n) as f64 / u64::MAX as f64 / 3.0);
        let row = json!({"fractions": fractions.collect::<Vec<_>>(), "count": u64::MAX});
        results.add("a", row.clone()).unwrap();
        let before = results.get("a").cloned();
        drop(results);
        assert_eq!(Results::open(&path).unwrap().get("a").cloned(), before);
        let third = before.unwrap()["fractions"][7].as_f64().unwrap();
        assert!((third - row["fractions"][7].as_f64().unwrap()).abs() < 1e-14);
    }

    #[test]
    fn another_sweep_and_other_files_are_kept_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let _first = Results::open(&path).unwrap();
        assert!(matches!(Results::open(&path), Err(ResultsError::InUse(_))));
        for text in ["hello\n", "hello", "{\"key\":\"a\",\"row\":1}\n{}\n"] {
            let path = folder.path().join("notes.txt");
            std::fs::write(&path, text).unwrap();
            assert!(matches!(Results::open(&path), Err(ResultsError::Foreign { .. })), "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "it is left as it was");
        }
        let missing = Results::open(&folder.path().join("no/such")).unwrap_err().to_string();
        assert!(missing.contains("failed to open the results"), "{missing}");
    }

    #[test]
    fn nested_values_become_columns() {
        let row = json!({"b": 1, "a-c": {"y": "text", "x": {"z": 2.5}}, "list": [1, 2]});
        let names: Vec<_> = columns(&row).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a_c_x_z", "a_c_y", "b"]);
        assert_eq!([cell(&json!("text")), cell(&json!(1)), cell(&Value::Null)], ["text", "1", ""]);
    }
}
