//! The front end around the core: requests on their way, the journal, batches.
//!
//! It is told things and gives out work: requests come by [`Front::submit`], what has to be done elsewhere leaves by
//! [`Front::take_out`] and comes back by [`Front::commit_ended`] and [`Front::batch_ended`]. It starts no thread and
//! reads no clock; the journal's disk may be a simulated one.

mod batches;
mod giving;
mod journal_room;
mod measured;
pub(crate) mod requests;
mod units;

use super::below::Below;
use super::carry::Controls;
use super::covers::Covers;
use super::looked::Looked;
use super::needs::{Need, Staged};
use super::node::Node;
use super::plan::{Landed, Plan};
use super::record::{Record, encode};
use super::room;
use super::tree::Tree;
use super::views::Views;
use crate::ask::{Answer, Answered, Errno, Handle, Ino, Kind, Listed, Moment, Space};
use crate::origin::{Key, Origin};
use batches::Batches;
use destage_core::{
    Access, BatchId, ClientId, Core, DomainId, Input, Lsn, Mode, Outcome, Policy, Refusal,
    RequestId, Span, StopReason, Time, UnitId,
};
use destage_engine::{
    Append, CommitSettings, Drive, FrontEnd, Load, News, Recovered, write as write_group,
};
use destage_journal::Journal;
use destage_record::RecordedCore;
use destage_runtime::commit::{CommitDone, CommitWork, JournalCommit};
use destage_runtime::mode_log::ModeLog;
use destage_tokens::{FileId, Root};
pub(crate) use giving::Kept;
use hashbrown::HashMap;
use journal_room::Held;
use measured::{Counted, Measured};
use requests::Requests;
pub(crate) use requests::{Pending, Ticket};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use units::Units;

/// The front end: see the module.
pub(crate) struct Front {
    pub(crate) tree: Tree,
    core: RecordedCore,
    now: Time,
    journal: Journal,
    commit: JournalCommit,
    payload: Vec<u8>,
    requests: Requests,
    batches: Batches,
    units: Units,
    listings: HashMap<Handle, Arc<[Listed]>>,
    last_handle: Handle,
    out: Out,
    origin: Arc<dyn Origin>,
    settings: FrontSettings,
    stopped: Option<StopReason>,
    has_lost_origin: bool,
    /// No change begins until it is thawed; those that came meanwhile.
    frozen: Option<Vec<Pending>>,
    /// Changes for which the journal has no room yet.
    held: Held,
    /// Files of which the kernel may hold pages that were stored to.
    mapped: BTreeSet<Ino>,
    /// Bytes that may still be promised to be at the origin once, as far as is known.
    room: Option<u64>,
    modes: ModeLog,
    measured: Measured,
    /// Where several hosts share the origin.
    covers: Option<Arc<dyn Covers>>,
    looked: Looked,
    views: Views,
    /// Handles through whose mappings files may be stored to.
    writers: HashMap<Handle, Ino>,
    /// Files that may be given out again once this group is durable, with which their last names went.
    gone: BTreeSet<(Lsn, Ino)>,
    /// Files made in advance whose numbers are those of other files here, as long as these are not decided.
    refused: Vec<Staged>,
    /// Up to which group changes were sent to the origin since somebody waited for that.
    hurried: Lsn,
    /// Everything up to there is at the origin, and the journal says so durably.
    checkpointed: Lsn,
    pub(crate) counted: Counted,
}

/// What is chosen for a mount.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrontSettings {
    /// An fsync is answered by the origin, not by the journal.
    pub(crate) fsync_origin: bool,
    /// The same for what is in these folders.
    pub(crate) fsync_origin_below: Below,
    /// How long the names count that the origin has listed: so long nothing is seen of what others do to them.
    pub(crate) names_fresh: Span,
    pub(crate) controls: FrontControls,
}

/// Promises to be broken on purpose, to show that tests notice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrontControls {
    /// An fsync is answered at once.
    pub(crate) no_commit: bool,
    /// The origin is touched before the journal says so.
    pub(crate) no_intent: bool,
    /// Whether the origin has room is not looked at.
    pub(crate) no_room: bool,
    /// What is buffered need not fit into the journal's files.
    pub(crate) no_journal_room: bool,
    /// A file is given out again although a crash may bring it back.
    pub(crate) no_wait_for_gone: bool,
    pub(crate) carry: Controls,
}

/// What is to be done elsewhere.
#[derive(Default)]
pub(crate) struct Out {
    pub(crate) answers: Vec<(Box<dyn Answer>, Result<Answered, Errno>)>,
    /// The journal's.
    pub(crate) commits: Vec<CommitWork>,
    /// At the origin.
    pub(crate) batches: Vec<(BatchId, Plan)>,
    /// Requests that have to know more of the origin before they can go on.
    pub(crate) retries: Vec<(Pending, Need)>,
    /// Requests that may begin now.
    pub(crate) again: Vec<Pending>,
    /// Files whose attributes the kernel is to ask for again before anybody is answered.
    pub(crate) outdated: Vec<Ino>,
    /// Files made in advance that were not used.
    pub(crate) unused: Vec<Staged>,
    /// The same by number, of files that are gone.
    pub(crate) free: Vec<u64>,
    /// Files made in advance that were used, and that the origin has as they were made.
    pub(crate) unchanged: Vec<Staged>,
}

/// What comes of a request.
pub(crate) enum Submitted {
    /// It is answered, or will be.
    Taken,
    /// It has to know more of the origin first.
    Needs(Pending, Need),
    /// It has to hold these tokens first.
    NeedsTokens(Pending, BTreeSet<destage_tokens::Need>),
    /// These fragments of a file are to be read and put together.
    Read(Box<dyn Answer>, Key, Vec<super::extents::Fragment>, u64),
}

/// One ordering domain: the whole mount.
const DOMAIN: DomainId = DomainId(0);
/// What the journal adds to a group, bytes.
const RECORD_BYTES: usize = 24;
/// Syncs run on a thread of their own, so that two may be under way.
const COMMIT: CommitSettings = CommitSettings {
    lanes: 1,
    durable_writes: 0,
    here_max: None,
    write_ahead_bytes: 1 << 20,
    write_beside_bytes: 256 << 10,
    mark_after: Some(Span::from_secs(1)),
};

impl Front {
    /// For an origin that has everything up to `decided`.
    pub(crate) fn new(
        now: Time,
        policy: Policy,
        journal: Journal,
        origin: Arc<dyn Origin>,
        decided: Lsn,
        settings: FrontSettings,
    ) -> Self {
        let mut tree = Tree::new(origin.root());
        if let Some(top) = tree.node_mut(origin.root().ino) {
            top.place = settings.fsync_origin_below.top();
        }
        Self {
            tree,
            core: Core::resume(now, policy, decided).counting_writes_only().into(),
            now,
            commit: JournalCommit::new(COMMIT, 0, now),
            journal,
            payload: Vec::new(),
            requests: Requests::default(),
            batches: Batches::default(),
            units: Units::default(),
            listings: HashMap::new(),
            last_handle: 0,
            out: Out::default(),
            origin,
            views: Views::new(settings.names_fresh),
            settings,
            stopped: None,
            has_lost_origin: false,
            frozen: None,
            held: Held::default(),
            mapped: BTreeSet::new(),
            room: None,
            modes: ModeLog::default(),
            measured: Measured::new(now),
            covers: None,
            looked: Looked::default(),
            writers: HashMap::new(),
            gone: BTreeSet::new(),
            refused: Vec::new(),
            hurried: Lsn::ZERO,
            checkpointed: decided,
            counted: Counted::default(),
        }
    }

    /// What is to be done elsewhere now.
    pub(crate) fn take_out(&mut self) -> Out {
        self.count_freed();
        self.release_held();
        while let Some(work) = self.commit.next_due(self.now, &mut self.journal, Load::default()) {
            self.out.commits.push(work);
        }
        if let Some(work) = self.commit.next_ahead(self.now, &mut self.journal, Load::default()) {
            self.out.commits.push(work);
        }
        std::mem::take(&mut self.out)
    }

    /// What memory holds no more does not count as dirty: a write that waits for room may go on.
    fn count_freed(&mut self) {
        let decided = self.core.decided();
        let mut freed = self.tree.freed.take();
        freed.retain(|(lsn, _)| *lsn > decided);
        if freed.is_empty() || self.stopped.is_some() {
            return;
        }
        for (lsn, bytes) in freed {
            self.core.handle(self.now, Input::Shrunk { lsn, bytes });
        }
        self.core.handle(self.now, Input::Tick);
        self.pump();
    }

    /// When to call [`Front::tick`] if nothing else happens before.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let journal = self.commit.next_timeout(&self.journal);
        self.core.next_timeout().into_iter().chain(journal).chain(self.held.next_timeout()).min()
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Time) {
        self.control(now, Input::Tick);
        self.modes.tick(self.now);
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The journal is to say that its end is durable: a start then tells damage there from what a crash has torn.
    pub(crate) fn mark_end(&mut self, now: Time) {
        self.commit_soon(now);
        self.commit.mark_soon();
    }

    /// Whether it says so, or cannot.
    pub(crate) fn is_end_marked(&self) -> bool {
        let is_at_rest = !self.commit.is_busy() && self.journal.buffered_bytes() == 0;
        let cannot = self.commit.has_failed() || self.measured.is_journal_full;
        cannot || (is_at_rest && !self.journal.mark_due())
    }

    pub(crate) fn stopped(&self) -> Option<StopReason> {
        self.stopped
    }

    /// Whether the origin's own mount has ended.
    pub(crate) fn has_lost_origin(&self) -> bool {
        self.has_lost_origin
    }

    /// The origin has answered what it answers once its own mount has ended, by an eviction or because the program is gone that
    /// served it: it will not be back under this process. Nothing is tried again, and what was answered stays in the journal.
    pub(crate) fn lose_origin(&mut self, now: Time, errno: Errno) {
        self.advance(now);
        if std::mem::replace(&mut self.has_lost_origin, true) {
            return;
        }
        tracing::error!(error = %errno, "the origin's own mount has ended: mount it again, then start this mount again");
        self.counted.origin_error = Some(errno.to_string());
        self.stopped.get_or_insert(StopReason::Fenced);
        self.commit_soon(now);
        self.fail_all(Errno::IO);
    }

    pub(crate) fn controls(&self) -> Controls {
        self.settings.controls.carry
    }

    /// From now on changes are made under tokens.
    pub(crate) fn set_covers(&mut self, covers: Arc<dyn Covers>) {
        self.covers = Some(covers);
    }

    /// What covers a token that is given up: its files, and up to which group everything has to be at the origin, with the
    /// journal saying so, before others may have it.
    pub(crate) fn covered(&self, root: &Root, covered: &[FileId]) -> (Vec<Ino>, Lsn) {
        self.tree.covered(root, covered)
    }

    /// Everything up to there is at the origin, and the journal says so durably: it does not come again, whatever crashes.
    pub(crate) fn checkpointed(&self) -> Lsn {
        self.checkpointed
    }

    /// Files that programs have open, with whether they have them for reading alone: their pages stay in the kernel as long as
    /// they are mapped. Those of others are taken back all the time, as of files that are [mapped](Self::take_mapped).
    pub(crate) fn open_files(&self) -> Vec<(Ino, bool)> {
        let is_open = |node: &&Node| node.kind == Kind::File && node.opens > 0;
        let files = self.tree.nodes().filter(is_open);
        files.map(|node| (node.key.ino, node.writers == 0)).collect()
    }

    /// Files whose pages in the kernel may have been stored to since this was last asked.
    pub(crate) fn take_mapped(&mut self) -> BTreeSet<Ino> {
        std::mem::take(&mut self.mapped)
    }

    /// It is to be looked at again.
    pub(crate) fn is_mapped(&mut self, ino: Ino) {
        self.mapped.insert(ino);
    }

    /// What has landed: to be known before the origin is asked for its room.
    pub(crate) fn landed(&self) -> u64 {
        self.tree.landed
    }

    /// The origin has this room, asked for when so much had landed.
    pub(crate) fn set_space(&mut self, space: &Space, landed: u64) {
        let on_its_way = self.tree.on_its_way(landed);
        self.room = room::usable(space).map(|usable| usable.saturating_sub(on_its_way));
    }

    /// No change begins any more.
    pub(crate) fn freeze(&mut self) {
        self.frozen.get_or_insert_default();
    }

    /// Changes may begin.
    pub(crate) fn thaw(&mut self) {
        self.out.again.extend(self.frozen.take().into_iter().flatten());
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Something was done with the journal, or not.
    pub(crate) fn commit_ended(&mut self, now: Time, done: CommitDone) {
        self.advance(now);
        if let Some(error) = done.failure() {
            tracing::error!(%error, "the journal failed");
        }
        if done.is_sync() {
            self.measured.synced(self.now, done.took());
        }
        self.commit.ended(self.now, &mut self.journal, done);
        while let Some(news) = self.commit.poll_news(&mut self.journal) {
            match news {
                News::Durable { upto, .. } if upto > self.core.committed() => {
                    self.measured.committed(self.now, self.uncommitted_age());
                    self.core.handle(self.now, Input::Synced { upto, result: Ok(()) });
                }
                News::Durable { .. } | News::Synced { .. } => {}
                News::HasSpace => self.measured.is_journal_full = false,
                News::Full { is_new } => {
                    self.measured.is_journal_full = true;
                    if is_new {
                        tracing::error!(
                            "the journal's disk is full: nothing is acknowledged until there is space"
                        );
                    }
                }
                News::Failed => {
                    let result = Err(destage_core::Fault::Failed);
                    self.core.handle(self.now, Input::Synced { upto: Lsn::ZERO, result });
                }
            }
        }
        self.reclaim();
        self.give_back();
        self.core.handle(self.now, Input::Tick);
        self.pump();
    }

    /// Writes a group: into the journal's buffer, into the tree, and the core is told.
    fn write(&mut self, access: Access, unit: Option<UnitId>, records: &[Record]) -> Lsn {
        let mut records = Cow::Borrowed(records);
        if let Some(covers) = &self.covers {
            self.tree.note_covers(&**covers, records.to_mut());
        }
        let records = &*records;
        self.payload.clear();
        encode(records, &mut self.payload);
        let Self { journal, payload, core, .. } = self;
        let units: &[(UnitId, u32)] = &unit.map(|unit| (unit, 0)).into_iter().collect::<Vec<_>>();
        let bytes = records.iter().map(data_bytes).sum::<usize>();
        let group = Append {
            domains: &[DOMAIN],
            units,
            bytes: bytes as u32,
            journal_bytes: (payload.len() + RECORD_BYTES) as u32,
            access,
            continues: false,
            builds_on: &[],
        };
        let stamp = self.now;
        let lsn = write_group(core, stamp, &group, |lsn| {
            journal.append(lsn.0, stamp.0, DOMAIN.0, payload);
        });
        self.tree.apply(lsn, records);
        lsn
    }

    /// Writes that a mount begins.
    pub(crate) fn begin(&mut self, now: Time, mount: [u8; 16], epoch: u64) {
        self.advance(now);
        let wall = moment(self.now);
        self.write(Access::Back, None, &[Record::Begin { mount, epoch, wall }]);
        self.commit_soon(now);
    }

    /// Takes up a group that an earlier run left. From within [`destage_engine::recover`].
    pub(crate) fn take_up(&mut self, lsn: Lsn, stamp: Time, payload: usize, records: &[Record]) {
        let unit = None;
        let bytes = records.iter().map(data_bytes).sum::<usize>() as u32;
        self.tree.apply(lsn, records);
        let is_change = |record: &Record| !record.is_own();
        self.counted.recovered_groups += u64::from(records.iter().any(is_change));
        let units: Vec<UnitId> = Vec::from_iter(unit);
        let group = Recovered {
            lsn,
            stamp,
            domains: &[DOMAIN],
            level: 0,
            units: &units,
            bytes,
            journal_bytes: (payload + RECORD_BYTES) as u32,
            is_continued: false,
            builds_on: &[],
        };
        let now = self.now;
        self.tell_recovered(now, &group);
    }
}

/// The time as files have it.
pub(crate) fn moment(now: Time) -> Moment {
    let (seconds, nanos) = (now.0 / NANOS, now.0 % NANOS);
    Moment { seconds: seconds as i64, nanos: nanos as u32 }
}

const NANOS: u64 = 1_000_000_000;

fn data_bytes(record: &Record) -> usize {
    match record {
        Record::Data { bytes, .. } => bytes.len() + RECORD_BYTES,
        // A name or attributes take memory, too.
        Record::Names(_) | Record::Meta { .. } | Record::Xattr { .. } => 128,
        _ => 0,
    }
}

impl FrontEnd for Front {
    fn execute(&mut self, request: RequestId, access: Access, _: Lsn) {
        self.execute_request(request, access);
    }

    fn refuse(&mut self, request: RequestId, refusal: Refusal) {
        let errno = match refusal {
            Refusal::Stale | Refusal::Full => Errno::NOSPC,
            Refusal::Busy => Errno::AGAIN,
            Refusal::Unavailable | Refusal::Denied | Refusal::Stopped => Errno::IO,
        };
        self.fail_request(request, errno);
    }

    fn send_replies(&mut self, client: ClientId) {
        self.finish_request(RequestId(client.0.into()));
    }

    fn wait_ended(&mut self, request: RequestId, _: Outcome) {
        if !self.intent_committed(request) {
            self.finish_request(request);
        }
    }

    fn make_durable(&mut self, upto: Lsn) {
        self.commit.want(upto);
    }

    fn fetch_unit(&mut self, unit: UnitId) {
        // Nothing is ever asked to be fetched: reads do not go through the core.
        self.core.handle(self.now, Input::Fetched { unit, result: Ok(0), identity: 0 });
    }

    fn send_batch(&mut self, batch: BatchId, _: DomainId) {
        self.begin_batch(batch);
    }

    fn write_settled(&mut self, lsn: Lsn, _: bool) {
        if let Some(request) = self.requests.settled(lsn) {
            self.finish_request(request);
        }
    }

    fn forget_groups(&mut self, _: Lsn) {
        self.give_back_units();
    }

    fn evict_unit(&mut self, unit: UnitId) {
        if let Some(ino) = self.units.take(unit) {
            if let Some(node) = self.tree.node_mut(ino) {
                node.unit = None;
            }
            self.tree.drop_if_idle(ino, self.core.decided());
        }
        self.core.handle(self.now, Input::Evicted { identity: 0 });
    }

    fn mode_changed(&mut self, mode: Mode) {
        self.modes.changed(self.now, mode);
    }

    fn stop_serving(&mut self, reason: StopReason) {
        tracing::error!(
            ?reason,
            "stopped: no change is taken any more; what was acknowledged is in the journal"
        );
        self.stopped = Some(reason);
        self.fail_all(Errno::IO);
    }
}

impl Drive for Front {
    type Core = RecordedCore;

    fn core(&self) -> &Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut RecordedCore {
        &mut self.core
    }

    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    fn unheard(&mut self) -> RequestId {
        self.requests.unheard()
    }

    fn recovered_upto(&mut self, upto: Lsn) {
        if upto.0 > self.journal.last() {
            self.journal.skip_to(upto.0);
        }
        self.tree.recovered();
    }
}
