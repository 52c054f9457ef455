//! The model: names and what they stand for, and how each operation changes them.

use std::collections::BTreeMap;

/// What an operation changes; names are paths from the top of the tree, without a slash in front.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what the words say")]
pub enum Change {
    /// A new, empty file.
    Create {
        name: String,
        mode: u32,
    },
    /// The bytes of this version, see [`bytes`].
    Write {
        name: String,
        offset: usize,
        len: usize,
        version: u64,
    },
    /// The same at the end of the file.
    Append {
        name: String,
        len: usize,
        version: u64,
    },
    /// Cuts a file, or makes it longer by zeros.
    Truncate {
        name: String,
        len: usize,
    },
    /// Of a file or a folder, over what is there.
    Rename {
        from: String,
        to: String,
    },
    /// A second name of a file.
    Link {
        from: String,
        to: String,
    },
    Unlink {
        name: String,
    },
    MakeDir {
        name: String,
    },
    RemoveDir {
        name: String,
    },
    Symlink {
        name: String,
        target: String,
    },
    Chmod {
        name: String,
        mode: u32,
    },
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A folder, by a number that stays with it.
    Dir(u64),
    /// A file, by a number that stays with it: two names of one file have the same.
    File(u64),
    /// A symbolic link, and what it says.
    Link(String),
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
}

/// All names, and all files that have one.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    names: BTreeMap<String, Entry>,
    files: BTreeMap<u64, Content>,
    next: u64,
}

/// So many bytes as version `version` of something writes them. None is 0, and no two versions have the same.
pub fn bytes(version: u64, len: usize) -> Vec<u8> {
    // Eight bytes tell the version, however short a piece is looked at; seven bits each, so that none is 0.
    let word: [u8; 8] = std::array::from_fn(|byte| (version >> (7 * byte)) as u8 | 0x80);
    word.into_iter().cycle().take(len).collect()
}

impl Tree {
    /// All names in order.
    pub fn names(&self) -> &BTreeMap<String, Entry> {
        &self.names
    }

    /// What the file of that name holds, if it is one.
    pub fn content(&self, name: &str) -> Option<&Content> {
        match self.names.get(name)? {
            Entry::File(number) => self.files.get(number),
            _ => None,
        }
    }

    /// The names of what the filter takes.
    pub fn names_of(&self, is_wanted: impl Fn(&Entry) -> bool) -> Vec<&str> {
        let wanted = self.names.iter().filter(|(_, entry)| is_wanted(entry));
        wanted.map(|(name, _)| name.as_str()).collect()
    }

    /// Whether nothing is in that folder.
    pub fn is_empty(&self, folder: &str) -> bool {
        self.inside(folder).is_empty()
    }

    fn inside(&self, folder: &str) -> Vec<String> {
        let start = format!("{folder}/");
        self.names.keys().filter(|name| name.starts_with(&start)).cloned().collect()
    }

    /// How many names a file has.
    pub fn links(&self, name: &str) -> u64 {
        let entry = self.names.get(name);
        self.names.values().filter(|&other| Some(other) == entry).count() as u64
    }

    /// The numbers of the files and folders that an operation changes, before it is applied; the top has 0. A new file or folder
    /// has none yet.
    pub fn touched(&self, change: &Change) -> Vec<u64> {
        let names: &[&String] = match change {
            Change::Rename { from, to } | Change::Link { from, to } => &[from, to],
            Change::Create { name, .. }
            | Change::Write { name, .. }
            | Change::Append { name, .. }
            | Change::Truncate { name, .. }
            | Change::Unlink { name }
            | Change::MakeDir { name }
            | Change::RemoveDir { name }
            | Change::Symlink { name, .. }
            | Change::Chmod { name, .. } => &[name],
        };
        let is_of_bytes = matches!(
            change,
            Change::Write { .. }
                | Change::Append { .. }
                | Change::Truncate { .. }
                | Change::Chmod { .. }
        );
        let parents = names.iter().filter(|_| !is_of_bytes).map(|name| {
            let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
            self.number_of(parent).unwrap_or(0)
        });
        names.iter().filter_map(|name| self.number_of(name)).chain(parents).collect()
    }

    /// The number of what has this name; the top, which has none, is 0.
    pub fn number_of(&self, name: &str) -> Option<u64> {
        match self.names.get(name) {
            None => name.is_empty().then_some(0),
            Some(Entry::Dir(number) | Entry::File(number)) => Some(*number),
            Some(Entry::Link(_)) => None,
        }
    }

    /// Does what the operation does where it succeeds.
    ///
    /// # Panics
    /// If it could not succeed: who keeps the books asks for nothing that fails.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Create { name, mode } => {
                let number = self.number();
                self.files.insert(number, Content { bytes: Vec::new(), mode: *mode });
                self.add(name, Entry::File(number));
            }
            Change::Write { name, offset, len, version } => {
                let content = self.content_mut(name);
                let end = offset + len;
                content.bytes.resize(content.bytes.len().max(end), 0);
                content.bytes[*offset..end].copy_from_slice(&bytes(*version, *len));
            }
            Change::Append { name, len, version } => {
                self.content_mut(name).bytes.extend(bytes(*version, *len));
            }
            Change::Truncate { name, len } => self.content_mut(name).bytes.resize(*len, 0),
            Change::Chmod { name, mode } => self.content_mut(name).mode = *mode,
            Change::Rename { from, to } => self.rename(from, to),
            Change::Link { from, to } => {
                let entry = self.names.get(from).expect("the file is there").clone();
                self.add(to, entry);
            }
            Change::MakeDir { name } => {
                let number = self.number();
                self.add(name, Entry::Dir(number));
            }
            Change::Symlink { name, target } => self.add(name, Entry::Link(target.clone())),
            Change::Unlink { name } | Change::RemoveDir { name } => {
                self.names.remove(name).expect("the name is there");
                self.forget();
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn add(&mut self, name: &str, entry: Entry) {
        let before = self.names.insert(name.to_owned(), entry);
        assert_eq!(before, None, "{name} was there");
    }

    fn rename(&mut self, from: &str, to: &str) {
        let entry = self.names.remove(from).expect("the name is there");
        if matches!(entry, Entry::Dir(_)) {
            for name in self.inside(from) {
                let moved = self.names.remove(&name).expect("it was just found");
                self.names.insert(format!("{to}{}", &name[from.len()..]), moved);
            }
        }
        self.names.insert(to.to_owned(), entry);
        self.forget();
    }

    /// Files without a name are gone.
    fn forget(&mut self) {
        let names = &self.names;
        self.files.retain(|&number, _| names.values().any(|entry| *entry == Entry::File(number)));
    }

    fn content_mut(&mut self, name: &str) -> &mut Content {
        let Some(Entry::File(number)) = self.names.get(name) else { panic!("{name} is no file") };
        self.files.get_mut(number).expect("a name stands for a file")
    }
}
