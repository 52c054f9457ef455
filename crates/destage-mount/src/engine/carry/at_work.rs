//! When this mount last changed files, by the origin's own clock.
//!
//! While it changes files, it says so in a file of its own there. What has changed a good while after that was changed by
//! others: so a start tells its own traces of a batch that did not end from theirs.

use super::super::plan::{FileWork, Plan, Unsure};
use super::super::record::Base;
use super::super::traces::Judged;
use super::{Carrier, is_lasting};
use crate::ask::{Errno, Ino, Kind, Make, Moment, Stat};
use crate::origin::{Attributes, Key, Result};
use destage_core::{Span, Time};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Until when, by this process's clock, what it said last of changing files says enough.
#[derive(Debug, Default)]
pub(crate) struct AtWork(Mutex<Option<Time>>);

/// What an attempt has done to files.
#[derive(Debug, Default)]
pub(super) struct Touched {
    changed: BTreeSet<Ino>,
    /// Others have changed these meanwhile, which was found out in time.
    others: BTreeSet<Ino>,
}

/// What is known of a file that may have been changed.
enum Found {
    Left(Base),
    Others,
    /// It is gone, or nobody else can see it.
    Nothing,
}

impl Carrier<'_> {
    /// To be called before each effect on a file. The origin says durably by then that there are some about now, and the file is
    /// looked at if this attempt fails.
    pub(super) fn touch(&self, ino: Ino) -> Result<()> {
        self.is_at_work()?;
        self.touched().changed.insert(ino);
        Ok(())
    }

    /// Others have changed a file since this attempt began.
    pub(super) fn is_changed(&self, ino: Ino) {
        self.touched().others.insert(ino);
    }

    fn touched(&self) -> MutexGuard<'_, Touched> {
        // A panic ends the process: see the program's `main`.
        self.touched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same once more, where a while may have passed since.
    pub(super) fn is_at_work(&self) -> Result<()> {
        // Whoever comes meanwhile waits, for nothing is said yet.
        let mut said_until = self.at_work.0.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..SAY_TIMES {
            let now = (self.clock)();
            if said_until.is_some_and(|until| now < until) {
                return Ok(());
            }
            // It says nothing of the file that is to be changed.
            match self.say(now) {
                Ok(()) => {}
                Err(error) if error.is_end_of_mount() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "cannot say at the origin, in .destage/at-work, that files are changed");
                    return Err(Errno::IO);
                }
            }
            let took = Span((self.clock)().0 - now.0);
            *said_until = Some(now + Span(2 * took.0).clamp(SAY_EVERY, SAID_MAX));
        }
        Ok(())
    }

    fn say(&self, now: Time) -> Result<()> {
        let (folder, name) = &self.own.at_work;
        // Somebody may have deleted it.
        let file = match self.origin.lookup(folder, name) {
            Err(Errno::NOENT) => {
                let (file, _) = self.origin.make(folder, name, &Make::File)?;
                self.origin.sync(folder)?;
                file
            }
            found => found?.0,
        };
        // Which takes no room: an origin that is full is to hear of what gives some back.
        let mtime = Moment { seconds: (now.0 / NANOS) as i64, nanos: (now.0 % NANOS) as u32 };
        self.origin.set(&file, &Attributes { mtime: Some(mtime), ..Attributes::default() })?;
        self.origin.sync(&file)
    }

    /// What has changed by then may be what attempts before this process have left; `None` if nothing says so.
    fn traces_until(&self) -> Result<Option<Moment>> {
        let (folder, name) = &self.own.at_work;
        match self.origin.lookup(folder, name) {
            Ok((_, stat)) => Ok(Some(later(stat.ctime, TRACES_MAX))),
            Err(Errno::NOENT | Errno::STALE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Before anything is changed: what attempts that did not end have left of files, and what others have changed.
    pub(super) fn judge(&self, plan: &Plan) -> Result<Judged> {
        let mut judged = Judged::default();
        if self.controls.no_base {
            return Ok(judged);
        }
        // Among hosts with tokens nobody else has had these files: else they are lost. And what the server of CephFS does to
        // the times of files after an eviction comes later.
        let until =
            if plan.unsure.is_empty() || plan.is_shared { None } else { self.traces_until()? };
        // What is found is what stays, whatever dies next.
        let syncs = self.syncs_each(plan.unsure.len());
        if !syncs {
            self.origin.sync_all()?;
        }
        for (ino, found) in self.each(&plan.unsure, |file| self.left_of(file, until, syncs))? {
            match found {
                Found::Left(base) => judged.left.push((ino, base)),
                Found::Others => judged.others.push(ino),
                Found::Nothing => judged.rest.push(ino),
            }
        }
        let known: Vec<_> =
            plan.files.iter().filter_map(|file| Some((file, file.judged_by()?))).collect();
        for (ino, found) in self.each(&known, |(file, base)| self.is_as_known(file, *base, plan))? {
            match found {
                Some(Found::Others) => judged.others.push(ino),
                Some(Found::Left(base)) => judged.left.push((ino, base)),
                Some(Found::Nothing) | None => {}
            }
        }
        Ok(judged)
    }

    /// What is there instead of what is known of a file.
    fn is_as_known(
        &self,
        file: &FileWork,
        base: Base,
        plan: &Plan,
    ) -> Result<(Ino, Option<Found>)> {
        let ino = file.key.ino;
        let found = self.found(&file.key)?.filter(|found| !base.is_of(found, plan.is_shared));
        let Some(found) = found else { return Ok((ino, None)) };
        let is_ours = self.is_only_here(file)?;
        Ok((ino, Some(if is_ours { Found::Left(Base::of(&found)) } else { Found::Others })))
    }

    fn left_of(&self, file: &Unsure, until: Option<Moment>, syncs: bool) -> Result<(Ino, Found)> {
        let ino = file.key.ino;
        if file.kind != Kind::File {
            return Ok((ino, Found::Nothing));
        }
        let synced = if syncs { self.origin.sync(&file.key) } else { Ok(()) };
        let found = match synced {
            Err(Errno::STALE | Errno::NOENT) => None,
            // Whoever brings it finds that out.
            Err(error) if is_lasting(error) => self.found(&file.key)?,
            synced => synced.and_then(|()| self.found(&file.key))?,
        };
        let Some(found) = found else { return Ok((ino, Found::Nothing)) };
        let is_ours = self.controls.no_traces
            || until.is_none_or(|until| found.ctime <= until)
            || file.base.is_some_and(|base| base.is_of(&found, false));
        let found = match (is_ours, file.staged) {
            (true, _) => Found::Left(Base::of(&found)),
            (false, Some(staged))
                if self.is_staged(&file.key, file.kind, staged)? == Some(true) =>
            {
                Found::Nothing
            }
            (false, _) => Found::Others,
        };
        Ok((ino, found))
    }

    /// What a file is like; `None` where that is found out once it is brought.
    fn found(&self, key: &Key) -> Result<Option<Stat>> {
        match self.origin.stat(key) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::STALE | Errno::NOENT) => Ok(None),
            Err(error) if is_lasting(error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the files are like now that this attempt has changed, of some, where the origin says so. The journal may only be told
    /// of what stays there, whatever dies next (`durable`).
    pub(super) fn changed(
        &self,
        plan: &Plan,
        is_asked: impl Fn(Ino) -> bool,
        durable: bool,
    ) -> Vec<(Ino, Option<Base>)> {
        let touched = self.touched();
        let changed = touched.changed.difference(&touched.others);
        let changed = changed.filter(|ino| is_asked(**ino));
        let changed: Vec<(Ino, &Key)> =
            changed.filter_map(|ino| Some((*ino, plan.may_touch.get(ino)?))).collect();
        let look = |&(ino, key): &(Ino, &Key)| {
            let synced = if durable { self.origin.sync(key) } else { Ok(()) };
            match synced.and_then(|()| self.origin.stat(key)) {
                Err(Errno::STALE | Errno::NOENT) => Ok(None),
                found => Ok(Some((ino, found.ok().map(|stat| Base::of(&stat))))),
            }
        };
        let looked = self.each(&changed, look).unwrap_or_default();
        looked.into_iter().flatten().collect()
    }
}

fn later(moment: Moment, span: Span) -> Moment {
    Moment { seconds: moment.seconds + (span.0 / NANOS) as i64, ..moment }
}

const NANOS: u64 = 1_000_000_000;
/// How often the origin is told, where that does not take long.
const SAY_EVERY: Span = Span::from_secs(5);
/// For so long it says enough that it was told once, and so often it is tried to be within that.
const SAID_MAX: Span = Span::from_secs(15);
const SAY_TIMES: usize = 3;
/// How long after it was told an effect may show: that takes its time, too, and clocks are coarse.
const TRACES_MAX: Span = Span::from_secs(30);
