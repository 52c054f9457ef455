//! What is really there: a folder read as a whole.

use super::tree::{Content, Entry, Tree};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What a folder held when it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub(super) entries: BTreeMap<String, Thing>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Thing {
    Dir,
    File { content: Content, links: u64 },
    Link(String),
}

/// Reads all names, files and symbolic links below a folder.
///
/// # Errors
/// What could not be read, by name.
pub fn look(folder: &Path) -> io::Result<Seen> {
    let mut seen = Seen::default();
    let mut waiting = vec![String::new()];
    while let Some(inside) = waiting.pop() {
        for entry in named(fs::read_dir(folder.join(&inside)), &inside)? {
            let entry = named(entry, &inside)?;
            let own = entry.file_name();
            let own =
                own.to_str().ok_or_else(|| io::Error::other(format!("{own:?} is no text")))?;
            let name = if inside.is_empty() { own.to_owned() } else { format!("{inside}/{own}") };
            let path = entry.path();
            // As the name's own status says, not the folder's list.
            let status = named(fs::symlink_metadata(&path), &name)?;
            let thing = if status.is_dir() {
                waiting.push(name.clone());
                Thing::Dir
            } else if status.is_symlink() {
                Thing::Link(named(fs::read_link(&path), &name)?.display().to_string())
            } else {
                let bytes = named(fs::read(&path), &name)?;
                if bytes.len() as u64 != status.len() {
                    let lens = (status.len(), bytes.len());
                    let what =
                        format!("{name}: its length is {}, {} bytes can be read", lens.0, lens.1);
                    return Err(io::Error::other(what));
                }
                let content = Content { bytes, mode: status.mode() & 0o7777 };
                Thing::File { content, links: status.nlink() }
            };
            if seen.entries.insert(name.clone(), thing).is_some() {
                return Err(io::Error::other(format!("{name} is listed twice")));
            }
        }
    }
    Ok(seen)
}

fn named<T>(result: io::Result<T>, name: &str) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
}

impl Seen {
    /// Whether this is that tree, names, bytes, permissions and numbers of names.
    pub(super) fn is(&self, tree: &Tree) -> bool {
        self.entries.keys().eq(tree.names().keys())
            && self.entries.iter().all(|(name, thing)| thing.is(name, tree))
    }

    /// What differs from another look at the same folder; empty if nothing does.
    pub fn differs_from(&self, other: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        for name in self.entries.keys().chain(other.entries.keys()) {
            let (mine, theirs) = (self.entries.get(name), other.entries.get(name));
            if mine != theirs {
                let say = |thing: Option<&Thing>| {
                    thing.map_or_else(|| "nothing".to_owned(), Thing::short)
                };
                differences.push(format!("{name}: {} and {}", say(mine), say(theirs)));
            }
        }
        differences.sort();
        differences.dedup();
        differences
    }
}

impl Thing {
    pub(super) fn is(&self, name: &str, tree: &Tree) -> bool {
        match (self, tree.names().get(name)) {
            (Self::Dir, Some(Entry::Dir(_))) => true,
            (Self::Link(target), Some(Entry::Link(wanted))) => target == wanted,
            (Self::File { content, links }, Some(Entry::File(_))) => {
                tree.content(name) == Some(content) && *links == tree.links(name)
            }
            _ => false,
        }
    }

    fn short(&self) -> String {
        match self {
            Self::Dir => "a folder".to_owned(),
            Self::Link(target) => format!("a link to {target}"),
            Self::File { content, links } => {
                let sum = content
                    .bytes
                    .iter()
                    .fold(0_u32, |sum, &byte| sum.rotate_left(5).wrapping_add(u32::from(byte)));
                let (len, mode) = (content.bytes.len(), content.mode);
                format!("a file of {len} bytes (sum {sum:08x}), mode {mode:o}, {links} names")
            }
        }
    }
}
