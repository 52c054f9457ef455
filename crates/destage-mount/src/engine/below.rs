//! Folders for whose files something else is chosen: a file belongs to them by the name by which it was looked up last.

use crate::ask::Name;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;

/// The folders: each as the names that lead to it from the top on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Below(Arc<[Vec<Name>]>);

/// Where a file is, as far as those folders are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// In one of them, or one of them itself.
    pub(crate) is_below: bool,
    /// On the way to these of them, of which so many names have been passed.
    passed: Vec<(u32, u32)>,
}

impl Below {
    pub(crate) fn new<P: AsRef<Path>>(folders: &[P]) -> Self {
        let names = |folder: &P| {
            let parts = folder.as_ref().components().filter_map(|part| match part {
                Component::Normal(name) => Some(name.as_bytes().into()),
                _ => None,
            });
            parts.collect::<Vec<Name>>()
        };
        let folders = folders.iter().map(names).filter(|names| !names.is_empty());
        Self(folders.collect())
    }

    /// There are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where the top is.
    pub(crate) fn top(&self) -> Place {
        Place { is_below: false, passed: (0..self.0.len() as u32).map(|at| (at, 0)).collect() }
    }

    /// Where a name in a directory is that is there.
    pub(crate) fn enter(&self, dir: &Place, name: &[u8]) -> Place {
        let mut place = Place { is_below: dir.is_below, passed: Vec::new() };
        for &(folder, passed) in &dir.passed {
            let names = &self.0[folder as usize];
            if *names[passed as usize] != *name {
                continue;
            }
            if passed as usize + 1 == names.len() {
                place.is_below = true;
            } else {
                place.passed.push((folder, passed + 1));
            }
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_folder_is_below_it_and_nothing_else_is() {
        let below = Below::new(&["mail/new", "db", "./mail/./old"]);
        let at = |path: &str| {
            let parts = path.split('/').filter(|part| !part.is_empty());
            parts.fold(below.top(), |place, name| below.enter(&place, name.as_bytes())).is_below
        };
        for path in ["db", "db/a", "mail/new", "mail/new/1/2", "mail/old/x"] {
            assert!(at(path), "{path}");
        }
        for path in ["", "mail", "mail/cur", "mail/db", "new", "dbs", "x/db"] {
            assert!(!at(path), "{path}");
        }
        assert!(Below::new::<&str>(&[]).is_empty() && Below::new(&["."]).is_empty());
    }
}
