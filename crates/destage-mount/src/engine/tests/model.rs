//! What a file system is after each request, and what of it an origin may show.

use crate::ask::{Ino, Kind, Name};
use std::collections::{BTreeMap, BTreeSet};

/// Each path with its file's number, what it is and what it holds.
pub(super) type Tree = BTreeMap<String, (Ino, Kind, Vec<u8>)>;

/// A file system, and what it was after each change.
#[derive(Clone, Debug)]
pub(super) struct Model {
    root: Ino,
    files: BTreeMap<Ino, File>,
    /// After so many changes.
    pub(super) states: Vec<Tree>,
    /// The content of each file, and after how many changes it was so.
    versions: BTreeMap<Ino, Vec<(usize, Vec<u8>)>>,
    made: BTreeSet<Ino>,
    /// After how many changes there was a file of this number, the newest one.
    born: BTreeMap<Ino, usize>,
}

#[derive(Clone, Debug)]
struct File {
    kind: Kind,
    content: Vec<u8>,
    names: BTreeMap<Name, Ino>,
    nlink: u32,
}

impl Model {
    pub(super) fn new(root: Ino) -> Self {
        let dir = File { kind: Kind::Dir, content: Vec::new(), names: BTreeMap::new(), nlink: 2 };
        let files = BTreeMap::from([(root, dir)]);
        Self {
            root,
            files,
            states: vec![Tree::new()],
            versions: BTreeMap::new(),
            made: BTreeSet::new(),
            born: BTreeMap::new(),
        }
    }

    /// It goes on from one of its states, as after a crash.
    pub(super) fn back_to(&mut self, at: usize) {
        let tree = self.states[at].clone();
        self.states.truncate(at + 1);
        self.versions.values_mut().for_each(|versions| versions.retain(|(since, _)| *since <= at));
        for file in self.files.values_mut() {
            file.names.clear();
            file.nlink = 0;
        }
        for (path, (ino, kind, content)) in &tree {
            let (dir, name) = path.rsplit_once('/').expect("paths begin with a slash");
            let dir = if dir.is_empty() { self.root } else { tree[dir].0 };
            let file = self.files.get_mut(ino).expect("a state's files are known");
            file.nlink += 1;
            (file.kind, file.content) = (*kind, content.clone());
            let dir = self.files.get_mut(&dir).expect("a state's files are known");
            dir.names.insert(name.as_bytes().into(), *ino);
        }
        let root = self.root;
        self.files.retain(|&ino, file| file.nlink > 0 || ino == root);
    }

    /// Whether it is known of this file that it was made, and be it gone since.
    pub(super) fn was_made(&self, ino: Ino) -> bool {
        self.made.contains(&ino)
    }

    /// Its number may be that of another file from now on.
    pub(super) fn is_given_back(&mut self, ino: Ino) {
        self.made.remove(&ino);
    }

    /// Whether a file has a name.
    pub(super) fn has_name(&self, ino: Ino) -> bool {
        self.now().values().any(|&(named, ..)| named == ino)
    }

    pub(super) fn dirs(&self) -> Vec<Ino> {
        let named: BTreeSet<Ino> = self.now().values().map(|&(ino, ..)| ino).collect();
        let dirs = self.files.iter().filter(|(_, file)| file.kind == Kind::Dir);
        let alive = |ino: &Ino| *ino == self.root || named.contains(ino);
        dirs.map(|(&ino, _)| ino).filter(alive).collect()
    }

    pub(super) fn files(&self) -> Vec<Ino> {
        let files = self.now().values().filter(|(_, kind, _)| *kind == Kind::File);
        let mut inos: Vec<Ino> = files.map(|&(ino, ..)| ino).collect();
        inos.sort_unstable();
        inos.dedup();
        inos
    }

    pub(super) fn names(&self, dir: Ino) -> Vec<Name> {
        self.files[&dir].names.keys().cloned().collect()
    }

    pub(super) fn whose(&self, dir: Ino, name: &Name) -> Ino {
        self.files[&dir].names[name]
    }

    fn now(&self) -> &Tree {
        self.states.last().expect("there is one state at least")
    }

    fn dir(&mut self, dir: Ino) -> &mut BTreeMap<Name, Ino> {
        &mut self.files.get_mut(&dir).expect("the directory is there").names
    }

    pub(super) fn create(&mut self, dir: Ino, name: &Name, ino: Ino, kind: Kind) {
        let file = File { kind, content: Vec::new(), names: BTreeMap::new(), nlink: 1 };
        self.made.insert(ino);
        self.born.insert(ino, self.states.len());
        self.versions.remove(&ino);
        self.files.insert(ino, file);
        self.dir(dir).insert(name.clone(), ino);
        self.changed(Some(ino));
    }

    pub(super) fn link(&mut self, dir: Ino, name: &Name, ino: Ino) {
        self.dir(dir).insert(name.clone(), ino);
        self.changed(None);
    }

    pub(super) fn unlink(&mut self, dir: Ino, name: &Name) {
        self.dir(dir).remove(name);
        self.changed(None);
    }

    pub(super) fn rename(&mut self, dir: Ino, name: &Name, to_dir: Ino, to_name: &Name) {
        let ino = self.dir(dir)[name];
        // Two names of one file stay two.
        if self.dir(to_dir).get(to_name) == Some(&ino) {
            return;
        }
        self.dir(dir).remove(name);
        self.dir(to_dir).insert(to_name.clone(), ino);
        self.changed(None);
    }

    pub(super) fn write(&mut self, ino: Ino, offset: usize, data: &[u8]) {
        let content = &mut self.files.get_mut(&ino).expect("the file is there").content;
        if content.len() < offset + data.len() {
            content.resize(offset + data.len(), 0);
        }
        content[offset..offset + data.len()].copy_from_slice(data);
        self.changed(Some(ino));
    }

    pub(super) fn truncate(&mut self, ino: Ino, size: usize) {
        self.files.get_mut(&ino).expect("the file is there").content.resize(size, 0);
        self.changed(Some(ino));
    }

    pub(super) fn size(&self, ino: Ino) -> usize {
        self.files[&ino].content.len()
    }

    /// How many changes there were.
    pub(super) fn len(&self) -> usize {
        self.states.len() - 1
    }

    fn changed(&mut self, content: Option<Ino>) {
        let mut tree = Tree::new();
        let mut dirs = vec![(String::new(), self.root)];
        while let Some((path, dir)) = dirs.pop() {
            for (name, ino) in &self.files[&dir].names {
                let path = format!("{path}/{}", String::from_utf8_lossy(name));
                let file = &self.files[ino];
                if file.kind == Kind::Dir {
                    dirs.push((path.clone(), *ino));
                }
                tree.insert(path, (*ino, file.kind, file.content.clone()));
            }
        }
        self.states.push(tree);
        if let Some(ino) = content {
            let version = (self.len(), self.files[&ino].content.clone());
            self.versions.entry(ino).or_default().push(version);
        }
    }

    /// What is wrong with what an origin shows whose host is lost with its journal, if anything is.
    pub(super) fn wrong_at_origin(&self, shown: &Tree) -> Option<String> {
        let left: BTreeSet<Ino> = self.now().values().map(|&(ino, ..)| ino).collect();
        let names = |tree: &Tree, at: usize| -> BTreeMap<String, Ino> {
            let is_left = |ino: &Ino| {
                left.contains(ino) && self.born.get(ino).is_some_and(|&born| born <= at)
            };
            let there = tree.iter().filter(|(_, (ino, ..))| is_left(ino));
            there.map(|(path, (ino, ..))| (path.clone(), *ino)).collect()
        };
        let there = names(shown, self.len());
        let same = (0..self.states.len()).rev().filter(|&at| names(&self.states[at], at) == there);
        // Names may have been so more than once.
        let wrong: Vec<Option<String>> = same.map(|at| self.wrong_in(shown, &left, at)).collect();
        if wrong.is_empty() {
            return Some(format!(
                "its names never were so: {there:?}, states {:#?}",
                self.states
                    .iter()
                    .enumerate()
                    .map(|(at, state)| names(state, at))
                    .collect::<Vec<_>>()
            ));
        }
        let is_right = wrong.iter().any(Option::is_none);
        wrong.into_iter().flatten().next().filter(|_| !is_right)
    }

    /// What is wrong with what files hold, where their names are those after so many changes.
    fn wrong_in(&self, shown: &Tree, left: &BTreeSet<Ino>, at: usize) -> Option<String> {
        for (path, (ino, kind, content)) in shown {
            if *kind != Kind::File || !left.contains(ino) {
                continue;
            }
            if let Some(wrong) = self.wrong_content(path, *ino, content, at) {
                return Some(format!("{path}: {wrong}"));
            }
        }
        None
    }

    /// A file's content may be that of any version since it has had its name, or lie between two of them.
    fn wrong_content(&self, path: &str, ino: Ino, content: &[u8], at: usize) -> Option<String> {
        let has_name = |state: &Tree| state.get(path).is_some_and(|&(other, ..)| other == ino);
        let named = (0..=at).rev().take_while(|&at| has_name(&self.states[at])).last();
        let named = named.unwrap_or(at);
        let versions = &self.versions[&ino];
        let first = versions.iter().rposition(|(since, _)| *since <= named).unwrap_or(0);
        let allowed = &versions[first..];
        let sizes = allowed.iter().map(|(_, content)| content.len());
        let (least, most) = (sizes.clone().min()?, sizes.max()?);
        if content.len() < least || content.len() > most {
            return Some(format!(
                "{} bytes of {ino}, of {least} to {most}, named after {named}, at {at}: {allowed:?}",
                content.len()
            ));
        }
        for (place, byte) in content.iter().enumerate() {
            if !allowed.iter().any(|(_, version)| version.get(place) == Some(byte)) {
                return Some(format!(
                    "byte {place} is {byte}, which it never was since it has this name (named after {named}): {content:?} of {allowed:?}"
                ));
            }
        }
        None
    }
}
