//! Programs that use the simulated mount: random requests, and what the model makes of them.

use super::model::{Model, Tree};
use super::world::World;
use crate::ask::{Answered, Ask, Errno, Ino, Kind, Make, Name, SetAttr, Stat};
use crate::origin::Origin;
use destage_core::Span;

impl World {
    /// A program does something; `None` if something died before it was answered.
    pub(super) fn step(&mut self) -> Option<()> {
        let dirs = self.model.dirs();
        let dir = dirs[self.random.below(dirs.len())];
        let names = self.model.names(dir);
        let any = (!names.is_empty()).then(|| names[self.random.below(names.len())].clone());
        let files = self.model.files();
        let file = (!files.is_empty()).then(|| files[self.random.below(files.len())]);
        match (self.random.below(23), file, any) {
            (0..=3, ..) | (_, None, _) => self.make(dir, Make::File)?,
            (4, ..) => self.make(dir, Make::Dir)?,
            (5..=8, Some(ino), _) => self.write(ino)?,
            (9, Some(ino), _) => {
                let size = self.random.below(60);
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                let done = self.done(Ask::SetAttr { ino, set });
                self.unless_refused(done, |model| model.truncate(ino, size))?;
            }
            (10 | 11, _, Some(name)) => self.remove(dir, name)?,
            (12 | 13, _, Some(name)) => {
                let to_dir = dirs[self.random.below(dirs.len())];
                let others = self.model.names(to_dir);
                let to_name = if others.is_empty() || self.random.below(2) == 0 {
                    self.name()
                } else {
                    others[self.random.below(others.len())].clone()
                };
                self.rename(dir, name, to_dir, to_name)?;
            }
            (14, Some(ino), _) => {
                let name = self.name();
                let done = self.done(Ask::Link { ino, dir, name: name.clone() });
                self.unless_refused(done, |model| model.link(dir, &name, ino))?;
            }
            (15, Some(ino), _) => {
                let flags = libc::O_RDWR;
                if let Answered::Opened(opened) = self.done(Ask::Open { ino, flags })?.ok()? {
                    self.open.push((ino, opened.handle));
                }
            }
            (16, ..) => {
                if let Some((ino, handle)) = self.open.pop() {
                    self.done(Ask::Release { ino, handle })?.ok()?;
                    self.forget_gone(ino)?;
                }
            }
            (17 | 18, Some(ino), _) => {
                if self.done(Ask::Fsync { ino })?.is_ok() {
                    self.durable = self.model.len();
                }
            }
            (19, _, Some(name)) => self.remove_open(dir, name)?,
            (20 | 21, ..) => self.use_for_a_while(dir)?,
            _ => self.pass(Span::from_millis(200)),
        }
        while self.random.below(3) == 0 && self.work() {}
        if self.random.below(4) == 0 {
            let span = Span::from_millis(self.random.below(900) as u64);
            self.pass(span);
        }
        (!self.is_dead()).then_some(())
    }

    fn done(&mut self, ask: Ask) -> Option<Result<Answered, Errno>> {
        self.ask(ask)
    }

    /// What was not answered may have been done all the same. `None` if something died.
    fn unless_refused(
        &mut self,
        done: Option<Result<Answered, Errno>>,
        change: impl FnOnce(&mut Model),
    ) -> Option<()> {
        match done {
            Some(Err(_)) => return Some(()),
            Some(Ok(_)) | None => change(&mut self.model),
        }
        done.map(drop)
    }

    /// It was not made after all.
    pub(super) fn forget_made(&mut self) {
        self.making = None;
    }

    /// Numbers of files that are gone at the origin may be those of others.
    fn note_freed(&mut self) {
        self.origin.take_freed().into_iter().for_each(|ino| self.model.is_given_back(ino));
    }

    /// A file that was being made when something died, if this shows that it was.
    pub(super) fn adopt_made(&mut self, view: &Tree) {
        self.note_freed();
        let Some((dir, name, kind)) = self.making.clone() else { return };
        let name_of =
            |path: &str| path.rsplit_once('/').map(|(dir, name)| (dir.to_owned(), name.to_owned()));
        let root = self.origin.root().ino;
        let new = view.iter().find_map(|(path, (ino, ..))| {
            let (in_dir, called) = name_of(path)?;
            let dir_ino = if in_dir.is_empty() { root } else { view.get(&in_dir)?.0 };
            let is_it = dir_ino == dir && called.as_bytes() == &name[..];
            let is_new = !self.model.was_made(*ino);
            (is_it && is_new).then_some(*ino)
        });
        if let Some(ino) = new {
            self.making = None;
            self.model.create(dir, &name, ino, kind);
        }
    }

    fn name(&mut self) -> Name {
        self.names_made += 1;
        let short = self.random.below(6);
        let name = if self.random.below(2) == 0 {
            format!("n{short}")
        } else {
            format!("m{}", self.names_made)
        };
        name.into_bytes().into()
    }

    fn make(&mut self, dir: Ino, make: Make) -> Option<()> {
        let (name, kind) = (self.name(), make.kind());
        let ask = Ask::Make { dir, name: name.clone(), make, mode: 0o644, open: None };
        self.making = Some((dir, name.clone(), kind));
        let done = self.done(ask)?;
        self.making = None;
        self.note_freed();
        if let Ok(Answered::Entry(stat, _)) = done {
            self.model.create(dir, &name, stat.ino, kind);
        }
        Some(())
    }

    fn write(&mut self, ino: Ino) -> Option<()> {
        let offset = match self.random.below(3) {
            0 => self.model.size(ino),
            _ => self.random.below(50),
        };
        let data = vec![1 + self.random.below(250) as u8; 1 + self.random.below(20)];
        let ask = Ask::Write {
            ino,
            offset: offset as u64,
            data: data.clone(),
            sync: self.random.below(8) == 0,
            append: false,
            mapped: false,
        };
        let is_sync = matches!(ask, Ask::Write { sync: true, .. });
        let done = self.done(ask);
        self.unless_refused(done, |model| model.write(ino, offset, &data))?;
        if is_sync {
            self.durable = self.model.len();
        }
        Some(())
    }

    fn remove(&mut self, dir: Ino, name: Name) -> Option<()> {
        let stat = self.entry(dir, &name)?;
        let ask = match stat.kind {
            Kind::Dir => Ask::RmDir { dir, name: name.clone() },
            _ => Ask::Unlink { dir, name: name.clone() },
        };
        let done = self.done(ask);
        self.unless_refused(done, |model| model.unlink(dir, &name))?;
        if self.random.below(8) > 0 {
            self.forget_gone(stat.ino)?;
        }
        Some(())
    }

    /// The kernel forgets a file that has no name and that nobody has open, as a rule at once.
    pub(super) fn forget_gone(&mut self, ino: Ino) -> Option<()> {
        let is_known = self.model.has_name(ino) || self.open.iter().any(|(open, _)| *open == ino);
        let node = self.front.as_ref()?.tree.node(ino);
        let Some(node) = node.filter(|node| !is_known && node.opens == 0) else { return Some(()) };
        let count = node.lookups;
        self.done(Ask::Forget { ino, count })?.ok()?;
        Some(())
    }

    /// Makes a file that is gone again soon.
    fn use_for_a_while(&mut self, dir: Ino) -> Option<()> {
        let before = self.model.files();
        self.make(dir, Make::File)?;
        let made = self.model.files().into_iter().find(|ino| !before.contains(ino));
        let Some(ino) = made else { return Some(()) };
        self.write(ino)?;
        let names = self.model.names(dir);
        let name = names.into_iter().find(|name| self.model.whose(dir, name) == ino)?;
        if self.random.below(2) == 0 {
            let to_name = self.name();
            self.rename(dir, name.clone(), dir, to_name)?;
        }
        if self.model.names(dir).contains(&name) && self.model.whose(dir, &name) == ino {
            self.remove(dir, name)?;
        }
        if self.random.below(3) == 0 && self.done(Ask::Fsync { ino: dir })?.is_ok() {
            self.durable = self.model.len();
        }
        Some(())
    }

    /// Removes what somebody has open until then.
    fn remove_open(&mut self, dir: Ino, name: Name) -> Option<()> {
        let stat = self.entry(dir, &name)?;
        if stat.kind == Kind::Dir {
            return Some(());
        }
        let (ino, flags) = (stat.ino, libc::O_RDWR);
        let opened = self.done(Ask::Open { ino, flags })?;
        self.remove(dir, name)?;
        if let Ok(Answered::Opened(opened)) = opened {
            self.done(Ask::Release { ino, handle: opened.handle })?.ok()?;
        }
        self.forget_gone(ino)
    }

    fn entry(&mut self, dir: Ino, name: &Name) -> Option<Stat> {
        match self.done(Ask::Lookup { dir, name: name.clone() })? {
            Ok(Answered::Entry(stat, _)) => Some(stat),
            other => panic!("{name:?} is there: {other:?}"),
        }
    }

    /// The kernel lets nobody move a directory into itself.
    fn rename(&mut self, dir: Ino, name: Name, to_dir: Ino, to_name: Name) -> Option<()> {
        let stat = self.entry(dir, &name)?;
        if stat.kind == Kind::Dir {
            let tree = self.model.states.last()?.clone();
            let path_of = |ino: Ino| tree.iter().find(|(_, (other, ..))| *other == ino);
            let from = path_of(stat.ino)?.0.clone();
            let into = path_of(to_dir).map(|(path, _)| format!("{path}/")).unwrap_or_default();
            if into.starts_with(&format!("{from}/")) {
                return Some(());
            }
        }
        let ask = Ask::Rename {
            dir,
            name: name.clone(),
            to_dir,
            to_name: to_name.clone(),
            replace: true,
        };
        let done = self.done(ask);
        self.unless_refused(done, |model| model.rename(dir, &name, to_dir, &to_name))
    }
}
