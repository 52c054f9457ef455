//! What cannot be brought to the origin, since others had changed it, is kept beside it.

use super::super::needs::staged_name;
use super::super::plan::{Conflict, FileWork, NameWork};
use super::super::record::NameChange;
use super::{Carrier, is_lasting};
use crate::ask::{Errno, Ino, Make, Name};
use crate::origin::{Key, Result};
use hashbrown::HashSet;

impl Carrier<'_> {
    /// A change of a name that others may have changed since: what it was to bring is kept, if it had not come there before.
    pub(super) fn lost_name(&mut self, work: &NameWork) -> Result<()> {
        let [dir, to_dir] = &work.dirs;
        let is_its = |whose: Option<Key>| whose.as_ref() == Some(&work.file);
        let is_done = match &work.change {
            NameChange::Create { staged, make, .. } => {
                let (own, name) = (self.own, staged_name(*staged));
                let pool = own.pool(*staged);
                return match self.is_staged(&work.file, make.kind(), *staged)? {
                    Some(true) => self.set_aside(work, pool, &name, LOST),
                    // It has the name that it was to have: others have seen it.
                    None => self.origin.unlink(pool, &name),
                    // It was set aside by an earlier attempt, which may not have said so, or it has had its name.
                    Some(false) => self.tell_of_set_aside(work, LOST),
                };
            }
            NameChange::Link { name, .. } => is_its(self.whose(dir, name)?),
            NameChange::Unlink { name, .. } | NameChange::RmDir { name, .. } => {
                !is_its(self.whose(dir, name)?)
            }
            NameChange::Rename { name, to_name, .. } => {
                !is_its(self.whose(dir, name)?) && is_its(self.whose(to_dir, to_name)?)
            }
        };
        if is_done { Ok(()) } else { self.note(work, LOST) }
    }

    /// Says of a file that an earlier attempt has set aside why it is there, if one has.
    fn tell_of_set_aside(&mut self, work: &NameWork, reason: &'static str) -> Result<()> {
        let place = place_of(work);
        let folder = match self.origin.lookup(&self.own.conflicts, place.as_bytes()) {
            Ok((folder, _)) => folder,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error),
        };
        match self.origin.lookup(&folder, ABOUT_NAME) {
            // It has said why, and nobody has heard of that.
            Ok((_, stat)) if stat.size > 0 => {
                let (ino, of_name) = (work.file.ino, Some(work.lsn));
                self.landed.conflicts.push(Conflict { ino, place, reason, of_name });
                Ok(())
            }
            Ok(_) | Err(Errno::NOENT) => self.tell_of_name(work, &folder, place, reason),
            Err(error) => Err(error),
        }
    }

    /// The same of changes that earlier attempts have done, as names tell: where they could not be done, names tell the same.
    pub(super) fn tell_of_earlier(&mut self, works: &[&NameWork]) -> Result<()> {
        if works.is_empty() {
            return Ok(());
        }
        let kept = self.origin.list(&self.own.conflicts)?;
        let kept: HashSet<Name> = kept.into_iter().map(|listed| listed.name).collect();
        for work in works {
            if kept.contains(place_of(work).as_bytes()) {
                self.tell_of_set_aside(work, EARLIER)?;
            }
        }
        Ok(())
    }

    /// Keeps what this host has of a file beside the origin's.
    pub(super) fn keep(&mut self, file: &FileWork, reason: &'static str) -> Result<()> {
        let place = format!("{}-{}", file.first.0, file.key.ino);
        let folder = self.folder(&place)?;
        let mut is_packed = false;
        // Where only attributes changed here, none of its bytes are this host's.
        if file.has_content {
            let key = match self.origin.make(&folder, DATA_NAME, &Make::File) {
                Ok((key, _)) => key,
                Err(Errno::EXIST) => self.origin.lookup(&folder, DATA_NAME)?.0,
                Err(error) => return Err(error),
            };
            let whole = FileWork { limit: 0, ..file.clone() };
            match self.content(&key, u64::MAX, &whole) {
                // Where they belong they cannot be: the ranges say where that is.
                Err(error) if is_lasting(error) => {
                    self.pack(&key, file)?;
                    is_packed = true;
                }
                other => other?,
            }
            self.origin.sync(&key)?;
        }
        let ranges = file.writes.iter().filter(|(.., content)| !is_packed || content.is_bytes());
        let ranges: Vec<(u64, u64)> = ranges.map(|(at, len, _)| (*at, *len)).collect();
        let about = serde_json::json!({
            "ino": file.key.ino,
            "reason": reason,
            "size": file.stat.size,
            "mode": file.stat.mode,
            "uid": file.stat.uid,
            "gid": file.stat.gid,
            "mtime": file.stat.mtime.seconds,
            "xattrs": file.xattrs.iter().map(|(name, value)| {
                let name = String::from_utf8_lossy(name);
                serde_json::json!({ "name": name, "value": value.as_deref().map(hex) })
            }).collect::<Vec<_>>(),
            "ranges": ranges,
            "packed": is_packed,
        });
        self.tell(&folder, place, file.key.ino, None, reason, &about)
    }

    /// Writes the ranges of a file one behind the other, without what is zeros.
    fn pack(&self, key: &Key, file: &FileWork) -> Result<()> {
        self.origin.truncate(key, 0)?;
        let mut at = 0;
        for (_, len, content) in file.writes.iter().filter(|(.., content)| content.is_bytes()) {
            let mut buffer = Vec::new();
            content.append_to(&mut buffer, *len);
            self.origin.write(key, at, &buffer)?;
            at += len;
        }
        Ok(())
    }

    /// Moves a file that cannot have its name to where conflicts are kept.
    pub(super) fn set_aside(
        &mut self,
        work: &NameWork,
        from: &Key,
        name: &[u8],
        reason: &'static str,
    ) -> Result<()> {
        let place = place_of(work);
        let folder = self.folder(&place)?;
        match self.origin.rename(from, name, &folder, DATA_NAME, false) {
            // An earlier attempt has.
            Ok(()) | Err(Errno::NOENT | Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        self.tell_of_name(work, &folder, place, reason)
    }

    /// Nothing is to be kept but that it happened.
    pub(super) fn note(&mut self, work: &NameWork, reason: &'static str) -> Result<()> {
        let place = place_of(work);
        let folder = self.folder(&place)?;
        self.tell_of_name(work, &folder, place, reason)
    }

    fn tell_of_name(
        &mut self,
        work: &NameWork,
        folder: &Key,
        place: String,
        reason: &'static str,
    ) -> Result<()> {
        let after = work.change.after().into_iter().flatten();
        let names: Vec<_> = after
            .map(|(dir, name, whose)| {
                let name = String::from_utf8_lossy(name);
                serde_json::json!({ "directory": dir, "name": name, "file": whose })
            })
            .collect();
        let about = serde_json::json!({ "ino": work.file.ino, "reason": reason, "names": names });
        self.tell(folder, place, work.file.ino, Some(work.lsn), reason, &about)
    }

    fn tell(
        &mut self,
        folder: &Key,
        place: String,
        ino: Ino,
        of_name: Option<destage_core::Lsn>,
        reason: &'static str,
        about: &serde_json::Value,
    ) -> Result<()> {
        let key = match self.origin.make(folder, ABOUT_NAME, &Make::File) {
            Ok((key, _)) => key,
            Err(Errno::EXIST) => self.origin.lookup(folder, ABOUT_NAME)?.0,
            Err(error) => return Err(error),
        };
        // An earlier attempt may have said something longer.
        self.origin.truncate(&key, 0)?;
        self.origin.write(&key, 0, about.to_string().as_bytes())?;
        self.origin.sync(&key)?;
        self.origin.sync(folder)?;
        self.origin.sync(&self.own.conflicts)?;
        self.landed.conflicts.push(Conflict { ino, place, reason, of_name });
        Ok(())
    }

    fn folder(&self, place: &str) -> Result<Key> {
        match self.origin.make(&self.own.conflicts, place.as_bytes(), &Make::Dir) {
            Ok((key, _)) => Ok(key),
            Err(Errno::EXIST) => Ok(self.origin.lookup(&self.own.conflicts, place.as_bytes())?.0),
            Err(error) => Err(error),
        }
    }
}

/// Where what is kept of a change of names is, the same in every attempt. The same group may have changed the file itself, which
/// is kept by that.
fn place_of(work: &NameWork) -> String {
    format!("{}-{}-name", work.lsn.0, work.file.ino)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const EARLIER: &str = "others had changed it when an earlier attempt at it was made";
pub(super) const LOST: &str = "others have had it since: this host had been shut out";
const DATA_NAME: &[u8] = b"data";
const ABOUT_NAME: &[u8] = b"about.json";
