//! A batch on its way to the origin: effect after effect, in the one order that keeps what is promised.
//!
//! ```text
//!   1  per file: cut, bytes in ascending order, size, attributes     the names of new files are not there yet
//!   2  durable
//!   3  names, in the order in which they changed; then, where a rename takes two steps, the second ones of new files
//!   4  times of directories; durable
//!   5  what the files look like now
//! ```
//!
//! A crash between any two of these is followed by all of it once more; each step finds out whether it has been done.

mod at_work;
mod content;
mod doubt;
mod kept;

pub(crate) use at_work::AtWork;
use at_work::Touched;

use super::needs::staged_name;
use super::plan::{FileWork, Landed, NameWork, Plan, Step};
use super::record::{Base, NameChange};
use super::traces::Judged;
use crate::ask::{Errno, Ino, Kind, Name};
use crate::lanes;
use crate::origin::{Attributes, Key, Origin, Result};
use destage_core::Time;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// The folders of this front end at the origin.
#[derive(Clone, Debug)]
pub(crate) struct OwnFolders {
    /// Files made in advance: several, as the kernel changes the names in one directory one after the other.
    pub(crate) pools: Vec<Key>,
    /// What could not be written since others had changed the origin.
    pub(crate) conflicts: Key,
    /// Where the file is that says when this mount last changed files.
    pub(crate) at_work: (Key, Name),
}

impl OwnFolders {
    /// Where the file of this number was made in advance.
    pub(crate) fn pool(&self, number: u64) -> &Key {
        &self.pools[(number % self.pools.len() as u64) as usize]
    }

    /// Does something with each part of these numbers, several at a time. Those of one folder are in one part, as the kernel
    /// changes the names in a directory one after the other.
    pub(crate) fn in_lanes<T: Send>(
        &self,
        lanes: usize,
        numbers: &[u64],
        work: impl Fn(&[u64]) -> T + Sync,
    ) -> Vec<T> {
        let pools = self.pools.len();
        let mut parts = vec![Vec::new(); pools.min(lanes.max(1))];
        let count = parts.len();
        for &number in numbers {
            parts[(number % pools as u64) as usize % count].push(number);
        }
        parts.retain(|part| !part.is_empty());
        if lanes < 2 {
            return parts.iter().map(|part| work(part)).collect();
        }
        lanes::each(parts, |part| work(&part))
    }
}

/// Promises to be broken on purpose, to show that tests notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Controls {
    /// Names go out before the content of their files.
    pub(crate) names_first: bool,
    /// Whether the origin is as it was left is not looked at.
    pub(crate) no_base: bool,
    /// What makes a file longer comes in any order.
    pub(crate) no_growth_order: bool,
    /// A file that others have had is theirs only if the journal says that it has got a name.
    pub(crate) trusts_journal: bool,
    /// Changes of names that others may have changed are taken for others.
    pub(crate) guesses_lost: bool,
    /// Whatever an attempt may have changed is taken for what it has left.
    pub(crate) no_traces: bool,
}

/// What came of a step of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    Judged(Judged),
    /// And what it has changed of files beyond the batch: what these are like now, where the origin says so.
    Landed(Landed, Vec<(Ino, Option<Base>)>),
    /// The origin's error, and the same of all files.
    Failed(Errno, Vec<(Ino, Option<Base>)>),
}

/// Carries a step of a batch out, with so many files at a time.
pub(crate) fn carry_out(
    origin: &dyn Origin,
    own: &OwnFolders,
    plan: &Plan,
    controls: Controls,
    lanes: usize,
    at_work: &AtWork,
    clock: &(dyn Fn() -> Time + Sync),
) -> Carried {
    let touched = Mutex::default();
    let mut carrier = Carrier {
        origin,
        own,
        is_shared: plan.is_shared,
        landed: Landed::default(),
        controls,
        lanes,
        second_steps: Vec::new(),
        at_work,
        clock,
        touched: &touched,
    };
    if plan.step == Step::Judge {
        return match carrier.judge(plan) {
            Ok(judged) => Carried::Judged(judged),
            Err(error) => Carried::Failed(error, Vec::new()),
        };
    }
    match carrier.all(plan) {
        Ok(()) => {
            let is_beyond = |ino| !plan.touched.contains_key(&ino);
            let beyond = carrier.changed(plan, is_beyond, true);
            Carried::Landed(carrier.landed, beyond)
        }
        Err(error) => Carried::Failed(error, carrier.changed(plan, |_| true, false)),
    }
}

struct Carrier<'a> {
    origin: &'a dyn Origin,
    own: &'a OwnFolders,
    is_shared: bool,
    landed: Landed,
    controls: Controls,
    lanes: usize,
    /// New files that have their names, and still those under which they were made in advance, by their numbers.
    second_steps: Vec<(u64, Key)>,
    at_work: &'a AtWork,
    clock: &'a (dyn Fn() -> Time + Sync),
    touched: &'a Mutex<Touched>,
}

impl Carrier<'_> {
    fn all(&mut self, plan: &Plan) -> Result<()> {
        if self.controls.names_first {
            self.names(plan)?;
            self.files(plan)?;
        } else {
            self.files(plan)?;
            self.names(plan)?;
        }
        self.look(plan)
    }

    fn files(&mut self, plan: &Plan) -> Result<()> {
        let each = self.syncs_each(plan.files.len());
        if self.is_one_lane(plan.files.len()) {
            self.lane(&plan.files, each)?;
        } else {
            let share = plan.files.len().div_ceil(self.lanes);
            let results = lanes::each(plan.files.chunks(share), |files| -> Result<Landed> {
                let mut lane =
                    Carrier { landed: Landed::default(), second_steps: Vec::new(), ..*self };
                lane.lane(files, each)?;
                Ok(lane.landed)
            });
            for landed in results {
                self.landed.conflicts.extend(landed?.conflicts);
            }
        }
        if each || plan.files.is_empty() { Ok(()) } else { self.origin.sync_all() }
    }

    /// Brings files one after the other, each durably if there is no better way.
    fn lane(&mut self, files: &[FileWork], each: bool) -> Result<()> {
        for file in files {
            match self.file(file) {
                Ok(is_written) if is_written && each => self.origin.sync(&file.key)?,
                Ok(_) => {}
                // One file is not to hold up all others for ever.
                Err(error) if is_lasting(error) => self.keep(file, REFUSED)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings a file; false if it is not to be touched.
    fn file(&mut self, file: &FileWork) -> Result<bool> {
        let key = &file.key;
        if file.is_others && !self.is_only_here(file)? {
            self.keep(file, CHANGED)?;
            return Ok(false);
        }
        if file.is_lost && !self.is_only_here(file)? {
            self.keep(file, kept::LOST)?;
            return Ok(false);
        }
        let found = match self.origin.stat(key) {
            Ok(found) => found,
            // An earlier attempt has deleted it.
            Err(Errno::STALE | Errno::NOENT) if file.stat.nlink == 0 => return Ok(false),
            Err(Errno::STALE | Errno::NOENT) => {
                self.keep(file, "the origin has lost it: others have deleted it")?;
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let is_other = file.base.is_some_and(|base| !base.is_of(&found, self.is_shared));
        if is_other && file.stat.kind == Kind::File && !self.controls.no_base {
            self.is_changed(key.ino);
            self.keep(file, CHANGED)?;
            return Ok(false);
        }
        if file.base.is_some_and(|base| !is_other && base.mtime != found.mtime) {
            tracing::warn!(
                ino = key.ino,
                "the origin has set anew when this file was changed, and nothing else, as after an eviction: that is no conflict"
            );
        }
        self.touch(key.ino)?;
        if file.has_content {
            self.content(key, found.size, file)?;
            self.is_at_work()?;
        }
        let stat = &file.stat;
        let owner = (stat.uid, stat.gid);
        let is_owned = owner == (found.uid, found.gid) || !file.has_mode;
        let has_mode = stat.kind != Kind::Link && file.has_mode;
        let set = Attributes {
            owner: (!is_owned).then_some(owner),
            // A new owner takes privileges away.
            mode: (has_mode && (!is_owned || stat.mode != found.mode)).then_some(stat.mode),
            ..Attributes::default()
        };
        if set != Attributes::default() {
            self.origin.set(key, &set)?;
        }
        self.xattrs(file)?;
        let times = Attributes {
            atime: Some(stat.atime),
            mtime: file.has_mtime.then_some(stat.mtime),
            ..Attributes::default()
        };
        self.origin.set(key, &times)?;
        Ok(true)
    }

    /// What goes gives room to what comes: some origins have little for all attributes of a file.
    fn xattrs(&self, file: &FileWork) -> Result<()> {
        for (name, _) in file.xattrs.iter().filter(|(_, value)| value.is_none()) {
            match self.origin.remove_xattr(&file.key, name) {
                Err(Errno::NODATA) => {}
                other => other?,
            }
        }
        for (name, value) in &file.xattrs {
            let Some(value) = value else { continue };
            match self.origin.set_xattr(&file.key, name, value) {
                // Not the origin is full: there will never be room.
                Err(Errno::NOSPC) if self.has_room()? => return Err(Errno(libc::E2BIG)),
                other => other?,
            }
        }
        Ok(())
    }

    fn has_room(&self) -> Result<bool> {
        let space = self.origin.space()?;
        Ok(space.available * u64::from(space.block_bytes) >= ROOM_MIN)
    }

    /// Whether nobody else can have heard of a file: it has no name but the one under which it was made in advance.
    fn is_only_here(&self, file: &FileWork) -> Result<bool> {
        let Some(staged) = file.staged else { return Ok(false) };
        if self.controls.trusts_journal {
            return Ok(true);
        }
        Ok(self.is_staged(&file.key, file.stat.kind, staged)? == Some(true))
    }

    fn names(&mut self, plan: &Plan) -> Result<()> {
        let done = self.done_before(&plan.in_doubt)?;
        let last_done = done.checked_sub(1).map(|last| &plan.in_doubt[last]);
        if let Some(last) = last_done.filter(|last| !self.is_lost(last)) {
            self.end_rename(last)?;
        }
        let mut skipped = Vec::new();
        for work in &plan.names {
            self.touch(work.file.ino)?;
            work.replaced.iter().try_for_each(|replaced| self.touch(replaced.ino))?;
            if last_done.is_some_and(|last| work.lsn <= last.lsn) && !self.is_lost(work) {
                self.end_create(work)?;
                skipped.push(work);
                continue;
            }
            let mut named = self.name(work);
            if let Err(Errno::NOENT | Errno::EXIST) = named
                && !self.is_lost(work)
            {
                // Not what was found a moment ago.
                self.asks_again(work)?;
                named = self.name(work);
            }
            match named {
                Err(error) if is_lasting(error) => self.note(work, REFUSED)?,
                other => other?,
            }
        }
        self.tell_of_earlier(&skipped)?;
        self.take_second_steps()?;
        for (dir, stat) in &plan.dirs {
            let times = Attributes {
                atime: Some(stat.atime),
                mtime: Some(stat.mtime),
                ..Attributes::default()
            };
            match self.origin.set(dir, &times) {
                // It goes with this batch.
                Err(Errno::STALE | Errno::NOENT) => {}
                other => other?,
            }
        }
        self.names_durable(plan)
    }

    /// Whose a name is that should be the file's. That it is nobody's is not taken from what a client of the origin remembers.
    fn whose_surely(&self, file: &Key, dir: &Key, name: &[u8]) -> Result<Option<Key>> {
        match self.whose(dir, name)? {
            None if self.has_name(file, dir, name)? => Ok(Some(file.clone())),
            found => Ok(found),
        }
    }

    /// Some origins find that out by giving the name, and taking it away.
    pub(super) fn has_name(&self, file: &Key, dir: &Key, name: &[u8]) -> Result<bool> {
        self.touch(file.ino)?;
        self.origin.has_name(file, dir, name)
    }

    /// Has the origin's client find out anew whose the names are that a change is about.
    fn asks_again(&self, work: &NameWork) -> Result<()> {
        for ((_, name, _), dir) in work.change.before().into_iter().flatten().zip(&work.dirs) {
            self.has_name(&work.file, dir, name)?;
        }
        Ok(())
    }

    /// Whose a name is. A number does not tell: others may have deleted its file, and origins give numbers again.
    fn whose(&self, dir: &Key, name: &[u8]) -> Result<Option<Key>> {
        match self.origin.lookup(dir, name) {
            Ok((key, _)) => Ok(Some(key)),
            // A directory that is gone has no names.
            Err(Errno::NOENT | Errno::STALE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn name(&mut self, work: &NameWork) -> Result<()> {
        let [dir, to_dir] = &work.dirs;
        let file = &work.file;
        if self.is_lost(work) {
            return self.lost_name(work);
        }
        match &work.change {
            NameChange::Create { name, staged: number, make, .. } => {
                let pool = self.own.pool(*number);
                let staged = staged_name(*number);
                let in_steps = self.origin.renames_in_steps() && make.kind() != Kind::Dir;
                let named = if in_steps {
                    self.origin.link(file, dir, name)
                } else {
                    self.origin.rename(pool, &staged, dir, name, false)
                };
                match named {
                    Ok(()) => {
                        self.second_steps.extend(in_steps.then(|| (*number, file.clone())));
                        Ok(())
                    }
                    Err(Errno::EXIST | Errno::NOENT) => {
                        if self.whose(dir, name)?.as_ref() == Some(file) {
                            self.second_steps.extend(in_steps.then(|| (*number, file.clone())));
                            return Ok(());
                        }
                        let reason = "others have given its name to another file";
                        self.set_aside(work, pool, &staged, reason)
                    }
                    Err(Errno::STALE) => {
                        let reason = "others have deleted the directory in which it was made";
                        self.set_aside(work, pool, &staged, reason)
                    }
                    Err(error) => Err(error),
                }
            }
            NameChange::Link { name, .. } => match self.origin.link(file, dir, name) {
                Ok(()) => Ok(()),
                Err(Errno::EXIST) if self.whose(dir, name)?.as_ref() == Some(file) => Ok(()),
                Err(Errno::EXIST | Errno::NOENT | Errno::STALE) => {
                    self.note(work, "a further name could not be given: others have changed it")
                }
                Err(error) => Err(error),
            },
            NameChange::Unlink { name, .. } => match self.whose_surely(file, dir, name)? {
                Some(found) if found == *file => self.origin.unlink(dir, name),
                None => Ok(()),
                Some(_) => self.note(work, "its name, to be deleted, is another file's by others"),
            },
            NameChange::RmDir { name, .. } => match self.whose(dir, name)? {
                Some(found) if found == *file => match self.origin.rmdir(dir, name) {
                    Err(Errno::NOTEMPTY | Errno::EXIST) => {
                        self.note(work, "the directory, to be deleted, holds files of others")
                    }
                    other => other,
                },
                None => Ok(()),
                Some(_) => self.note(work, "its name, to be deleted, is another file's by others"),
            },
            NameChange::Rename { name, to_name, .. } => {
                let is_here = self.whose_surely(file, dir, name)?.as_ref() == Some(file);
                let to = self.whose(to_dir, to_name)?;
                match (is_here, to.as_ref() == Some(file)) {
                    (true, true) => self.origin.unlink(dir, name),
                    (true, false) if to == work.replaced || to.is_none() => {
                        match self.origin.rename(dir, name, to_dir, to_name, to.is_some()) {
                            // Some origins say the one, some the other.
                            Err(Errno::NOTEMPTY | Errno::EXIST) if to.is_some() => {
                                let reason =
                                    "the directory that it was to replace holds files of others";
                                self.set_aside(work, dir, name, reason)
                            }
                            Err(Errno::NOENT | Errno::STALE) if self.is_gone(to_dir)? => {
                                let reason =
                                    "others have deleted the directory into which it was moved";
                                self.set_aside(work, dir, name, reason)
                            }
                            other => other,
                        }
                    }
                    (true, false) => {
                        let reason = "others have given its new name to another file";
                        self.set_aside(work, dir, name, reason)
                    }
                    (false, true) => Ok(()),
                    (false, false) => {
                        self.note(work, "it could not be renamed: others have moved or deleted it")
                    }
                }
            }
        }
    }

    fn is_gone(&self, file: &Key) -> Result<bool> {
        match self.origin.stat(file) {
            // Who has it open here still finds it.
            Ok(stat) => Ok(stat.nlink == 0),
            Err(Errno::STALE | Errno::NOENT) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Takes the names under which new files were made away from them. Nobody waits for the order of these.
    fn take_second_steps(&mut self) -> Result<()> {
        let files: BTreeMap<u64, Key> =
            std::mem::take(&mut self.second_steps).into_iter().collect();
        let numbers: Vec<u64> = files.keys().copied().collect();
        let taken = self.own.in_lanes(self.lanes, &numbers, |numbers| -> Result<()> {
            for &number in numbers {
                self.touch(files[&number].ino)?;
                let (pool, name) = (self.own.pool(number), staged_name(number));
                match self.origin.unlink(pool, &name) {
                    // An earlier attempt has, or its client has forgotten the name, since another one of the file was replaced.
                    Err(Errno::NOENT) => {
                        if self.has_name(&files[&number], pool, &name)? {
                            self.origin.unlink(pool, &name)?;
                        }
                    }
                    other => other?,
                }
            }
            Ok(())
        });
        taken.into_iter().collect()
    }

    /// Many at once are quicker than one by one, where that is offered.
    fn syncs_each(&self, count: usize) -> bool {
        count <= SYNC_EACH_MAX || !self.origin.syncs_all()
    }

    fn names_durable(&self, plan: &Plan) -> Result<()> {
        if !self.syncs_each(plan.dirs.len()) {
            return self.origin.sync_all();
        }
        for (dir, _) in &plan.dirs {
            match self.origin.sync(dir) {
                // It went with this batch, and so did its names.
                Err(Errno::STALE | Errno::NOENT) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// What the files are like now: the next batch must find them so. Where others have changed one, it is to find that out: what
    /// is known of such a file stays what it was.
    fn look(&mut self, plan: &Plan) -> Result<()> {
        let of_content = self.landed.conflicts.iter().filter(|found| found.of_name.is_none());
        let lost: BTreeSet<Ino> = of_content.map(|conflict| conflict.ino).collect();
        let touched: Vec<(Ino, &Key)> = plan.touched.iter().map(|(ino, key)| (*ino, key)).collect();
        let look = |&(ino, key): &(Ino, &Key)| match self.origin.stat(key) {
            Ok(stat) => Ok(Some((ino, Base::of(&stat)))),
            // What is gone now needs no base.
            Err(Errno::STALE | Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        };
        let looked = self.each(&touched, look)?;
        let left_alone = plan.files.iter().filter(|file| file.stat.kind == Kind::File);
        let left_alone: HashMap<Ino, &FileWork> =
            left_alone.filter(|file| !file.has_content).map(|file| (file.key.ino, file)).collect();
        let is_as_left = |file: &FileWork, base: &Base| {
            let is_guessed = plan.is_shared && base.mtime < base.ctime;
            let is_mtime = file.has_mtime || is_guessed || base.mtime == file.stat.mtime;
            is_mtime && base.size == file.stat.size
        };
        let is_ours = |(ino, base): &(Ino, Base)| {
            !lost.contains(ino) && left_alone.get(ino).is_none_or(|file| is_as_left(file, base))
        };
        let (ours, others): (Vec<_>, Vec<_>) = looked.into_iter().flatten().partition(is_ours);
        self.landed.bases.extend(ours);
        self.landed.left.extend(others);
        Ok(())
    }

    /// What is found of each, several at a time.
    fn each<T: Sync, F: Send>(
        &self,
        files: &[T],
        find: impl Fn(&T) -> Result<F> + Sync,
    ) -> Result<Vec<F>> {
        if self.is_one_lane(files.len()) {
            return files.iter().map(find).collect();
        }
        let parts = files.chunks(files.len().div_ceil(self.lanes));
        let found = lanes::each(parts, |part| part.iter().map(&find).collect::<Result<Vec<F>>>());
        Ok(found.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Whether so many files are brought one after the other.
    fn is_one_lane(&self, count: usize) -> bool {
        self.lanes < 2 || count < LANE_FILES_MIN
    }
}

/// Whether it is of no use to try again: the origin does not take such a thing.
fn is_lasting(error: Errno) -> bool {
    matches!(
        error.0,
        libc::EPERM
            | libc::EACCES
            | libc::EINVAL
            | libc::EOPNOTSUPP
            | libc::ELOOP
            | libc::E2BIG
            | libc::ERANGE
            | libc::EFBIG
            | libc::EMLINK
            | libc::ENAMETOOLONG
            | libc::EXDEV
            | libc::ENOTDIR
            | libc::EISDIR
    )
}

const CHANGED: &str = "others have changed it at the origin meanwhile";
const REFUSED: &str = "the origin refuses it, and would again";
/// An origin with that much room is not full, bytes.
const ROOM_MIN: u64 = 16 << 20;
/// Files from which on several are brought at a time.
const LANE_FILES_MIN: usize = 16;
/// Files up to which each is made durable by itself.
const SYNC_EACH_MAX: usize = 4;
