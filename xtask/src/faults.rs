//! The list of faults in `faults.toml`: each is a change that breaks a promise and compiles, and says which tests are to notice.

use crate::{Result, root};
use serde::Deserialize;
use std::path::Path;

/// A fault to put into the code.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    /// What it is called; says what goes wrong.
    pub(crate) name: String,
    /// The file, from the workspace's folder.
    pub(crate) file: String,
    /// Text that occurs there once.
    pub(crate) find: String,
    /// What takes its place.
    pub(crate) replace: String,
    /// The package whose tests notice it; that of the file if not given.
    package: Option<String>,
    /// Its test program, of the folder `tests`; the library's unit tests if not given.
    pub(crate) test: Option<String>,
    /// Tests whose names contain one of these; all of the program if none is given.
    #[serde(default)]
    pub(crate) only: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    fault: Vec<Fault>,
}

/// Reads the list.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn read() -> Result<Vec<Fault>> {
    let path = root().join(FILE);
    let failed =
        |error: &dyn std::fmt::Display| format!("failed to read {}: {error}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|error| failed(&error))?;
    let list: List = toml::from_str(&text).map_err(|error| failed(&error))?;
    Ok(list.fault)
}

impl Fault {
    /// The package whose tests are to notice it.
    pub(crate) fn package(&self) -> &str {
        let of_file = || self.file.split('/').nth(1).unwrap_or_default();
        self.package.as_deref().unwrap_or_else(of_file)
    }

    /// The file's text with the fault in it.
    ///
    /// # Errors
    /// Why it cannot be put there: the file has changed since the fault was noted.
    pub(crate) fn applied(&self, text: &str) -> Result<String> {
        match text.matches(&self.find).count() {
            1 => Ok(text.replacen(&self.find, &self.replace, 1)),
            found => Err(format!("its text occurs {found} times in {}", self.file)),
        }
    }

    /// Puts it into the sources below this folder; the file's text before.
    ///
    /// # Errors
    /// As [`Fault::applied`], or what the system says.
    pub(crate) fn apply(&self, folder: &Path) -> Result<String> {
        let path = folder.join(&self.file);
        let failed = |error| format!("failed to change {}: {error}", path.display());
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        std::fs::write(&path, self.applied(&text)?).map_err(failed)?;
        Ok(text)
    }
}

const FILE: &str = "xtask/faults.toml";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_fault_still_has_its_place_in_the_code() {
        let faults = read().expect("the list can be read");
        assert!(faults.len() >= 40, "{} faults", faults.len());
        let mut names = BTreeSet::new();
        let mut wrong = Vec::new();
        for fault in &faults {
            assert!(names.insert(&fault.name), "{} is there twice", fault.name);
            assert_ne!(fault.find, fault.replace, "{} changes nothing", fault.name);
            let package = root().join("crates").join(fault.package());
            assert!(package.is_dir(), "{}: there is no package {}", fault.name, fault.package());
            if let Some(test) = &fault.test {
                let program = package.join("tests").join(test);
                let is_there = program.is_dir() || program.with_extension("rs").is_file();
                assert!(is_there, "{}: there is no test program {test}", fault.name);
            }
            let text = std::fs::read_to_string(root().join(&fault.file));
            let applied =
                text.map_err(|error| error.to_string()).and_then(|text| fault.applied(&text));
            wrong.extend(applied.err().map(|what| format!("{}: {what}", fault.name)));
        }
        assert!(wrong.is_empty(), "mend xtask/faults.toml:\n{}", wrong.join("\n"));
    }

    #[test]
    fn a_fault_goes_where_its_text_occurs_once_and_nowhere_else() {
        let text = "
            [[fault]]
            name = 'less'
            file = 'crates/destage-core/src/lib.rs'
            find = 'a < b'
            replace = 'a <= b'
        ";
        let list: List = toml::from_str(text).expect("it is a list");
        let fault = &list.fault[0];
        assert_eq!(fault.package(), "destage-core");
        assert_eq!(fault.applied("if a < b {").as_deref(), Ok("if a <= b {"));
        fault.applied("a < b && a < b").expect_err("which one?");
        fault.applied("a > b").expect_err("it is gone");
    }
}
