//! What a server does, as a model: the scripts on a real server do the same, which a test shows.

use crate::log::Run;
use crate::{Address, Beat, Config, Controls, Entry, Epoch, Position, Reply, Request, View};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A server's memory of one log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    beat: Beat,
    place: Address,
    config: Option<Arc<Config>>,
    admitted: Epoch,
    run: Run,
    controls: Controls,
}

impl Default for Server {
    fn default() -> Self {
        Self::new(Controls::default())
    }
}

impl Server {
    /// One that knows nothing.
    pub fn new(controls: Controls) -> Self {
        Self {
            beat: Beat::default(),
            place: "".into(),
            config: None,
            admitted: Epoch::NONE,
            run: Run::default(),
            controls: controls.in_force(),
        }
    }

    /// Does what it is asked.
    pub fn handle(&mut self, request: &Request) -> Reply {
        match request {
            Request::Look => Reply::Seen(self.view()),
            Request::Promise { epoch, unless_since, place } => {
                self.promise(*epoch, *unless_since, place)
            }
            Request::Configure { epoch, config, admitted } => {
                self.configure(*epoch, config, *admitted)
            }
            Request::Append {
                epoch,
                admitted,
                after,
                after_epoch,
                entries,
                base,
                begins,
                beat,
            } => {
                if self.is_fenced(*epoch) {
                    return self.fenced();
                }
                if self.admitted != *admitted {
                    return Reply::Stranger;
                }
                if !self.joins((*after, *after_epoch), *begins) {
                    return Reply::Gap { last: self.run.last() };
                }
                self.append(*after, entries);
                self.run.trim((*base).min(after.plus(entries.len()).next()));
                self.beat.count = self.beat.count.max(*beat);
                Reply::Appended
            }
            Request::Read { epoch, from, bytes_max } => {
                if epoch.is_some_and(|epoch| epoch != self.beat.promise) {
                    return self.fenced();
                }
                let from = (*from).max(self.run.base());
                // The first one shows that both logs are the same up to there, and would be all for ever if it were large.
                let mut entries = self.run.take(from, 0);
                entries.extend(self.run.take(from.next(), *bytes_max));
                Reply::Entries { from, entries, view: self.view() }
            }
            Request::GiveUp { epoch } => {
                if *epoch != self.beat.promise {
                    return self.fenced();
                }
                self.beat = Beat { promise: epoch.given_up(), count: 0 };
                Reply::GivenUp
            }
        }
    }

    /// How it stands.
    pub fn view(&self) -> View {
        View {
            beat: self.beat,
            place: self.place.clone(),
            config: self.config.clone(),
            admitted: self.admitted,
            base: self.run.base(),
            base_epoch: self.run.base_epoch(),
            last: self.run.last(),
            last_epoch: self.run.last_epoch(),
        }
    }

    /// Its entries, for checks.
    pub fn entries(&self) -> impl Iterator<Item = (Position, &Entry)> {
        self.run.iter()
    }

    fn promise(&mut self, epoch: Epoch, unless_since: Option<Beat>, place: &Address) -> Reply {
        if self.beat.promise > epoch {
            return self.fenced();
        }
        // Asked again, by whom it has promised already.
        if self.beat.promise == epoch {
            return Reply::Promised(self.view());
        }
        if unless_since.is_some_and(|beat| beat != self.beat) {
            return Reply::Lively(self.view());
        }
        self.beat = Beat { promise: epoch, count: 0 };
        self.place = place.clone();
        Reply::Promised(self.view())
    }

    fn configure(&mut self, epoch: Epoch, config: &Arc<Config>, admitted: Epoch) -> Reply {
        if self.is_fenced(epoch) {
            return self.fenced();
        }
        if self.config.as_ref().is_none_or(|known| known.rank() < config.rank()) {
            self.config = Some(config.clone());
        }
        self.admitted = admitted;
        Reply::Configured
    }

    /// Whether what is to be appended follows what is there.
    fn joins(&mut self, (after, after_epoch): (Position, Epoch), begins: bool) -> bool {
        // What is before the base is decided, and equal everywhere.
        let is_decided = after < self.run.base().before();
        if is_decided || self.run.epoch_at(after) == Some(after_epoch) {
            return true;
        }
        if begins {
            self.run = Run::at(after.next(), after_epoch);
        }
        begins
    }

    fn append(&mut self, after: Position, entries: &[Entry]) {
        let mut at = after;
        for entry in entries {
            at = at.next();
            if at < self.run.base() || self.run.epoch_at(at) == Some(entry.epoch) {
                continue;
            }
            self.run.cut(at);
            self.run.push(entry.clone());
        }
    }

    fn is_fenced(&self, epoch: Epoch) -> bool {
        epoch != self.beat.promise && !self.controls.no_fence
    }

    fn fenced(&self) -> Reply {
        Reply::Fenced { promise: self.beat.promise, place: self.place.clone() }
    }

    /// Bytes of its entries.
    pub fn bytes(&self) -> u64 {
        self.run.bytes()
    }

    /// All entries, for checks.
    pub fn to_vec(&self) -> Vec<Entry> {
        self.run.iter().map(|(_, entry)| entry.clone()).collect()
    }
}
