//! Tokens of several hosts that share an origin, live: the protocol of `destage-tokens` among threads, with etcd as its store.
//!
//! Five kinds of threads: one asks etcd, one renews the lease, one listens to what changes there, some carry out what
//! follows, and some shut silent hosts out, which may take long. None of them waits for a request of a program.

mod address;
mod ceph;
mod etcd;
mod fence;
mod wire;

pub use address::{EtcdAddress, EtcdTls};
pub use ceph::CephCommand;
pub(crate) use ceph::Client;
pub use fence::FenceBy;
pub(crate) use fence::Fences;

use crossbeam_channel::{Receiver, Sender, unbounded};
use destage_core::{Span, Time};
use destage_runtime::ServeError;
use destage_tokens::{
    AskId, Controls, Effect, FileId, Host, HostId, Kept, LeaseId, Need, Rev, Root, Settings, Stage,
    Txn,
};
use etcd::{Etcd, Watch};
use hashbrown::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// Whoever holds files by tokens.
pub(crate) trait Holder: Send + Sync {
    /// Brings what changed under a token to the origin, and forgets what is known by it. False if that cannot be: then it is
    /// not given up.
    fn give_up(&self, root: &Root, covered: &[FileId]) -> bool;
    /// Looks whether it may serve again, or never will.
    fn look(&self);
    /// Others have shut this host out.
    fn fenced(&self);
}

/// What is done once a request may be carried out.
pub(crate) type Begin = Box<dyn FnOnce(AskId) + Send>;

/// The tokens of a mount: see the module.
pub(crate) struct Tokens {
    host: Mutex<Host>,
    /// Requests that wait.
    waiting: Mutex<HashMap<u64, Begin>>,
    last_ask: AtomicU64,
    /// How many there were.
    watches: AtomicU64,
    etcd: Arc<Etcd>,
    fences: Fences,
    lease_seconds: u64,
    store: Sender<StoreWork>,
    lease: Sender<LeaseWork>,
    tasks: Sender<Task>,
    fencing: Sender<HostId>,
    holder: OnceLock<Weak<dyn Holder>>,
    current: Mutex<Option<LeaseId>>,
    /// It did not do what it was asked the last time, and the log says so.
    is_away: AtomicBool,
}

enum StoreWork {
    Load,
    Txn(Txn),
}

enum LeaseWork {
    Ask,
    Renew(LeaseId),
}

enum Task {
    Begin(u64),
    GiveUp(Root, Vec<FileId>),
    Fenced,
}

/// What is chosen for the tokens of a mount.
#[derive(Clone)]
pub struct TokenSettings {
    /// The store.
    pub etcd: EtcdAddress,
    /// How long a lease lasts; 3 s to 10 min.
    pub lease: Span,
    /// What shuts a silent host out whose lock at the origin is held; without one it is waited for.
    pub fence: Option<FenceBy>,
    /// Tokens are given up with what changed under them left where it is: a control for tests.
    pub no_revocation: bool,
}

/// The time of leases: it goes on while the machine sleeps, and nobody sets it.
fn now() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Time(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

impl Tokens {
    /// Starts to ask for tokens of a volume. `client` is the origin's of CephFS, if it is one: etcd is told.
    ///
    /// # Errors
    /// The files for TLS cannot be used, or the system has no threads.
    pub(crate) fn start(
        settings: &TokenSettings,
        volume: &str,
        host: HostId,
        fences: Fences,
        client: Option<Client>,
    ) -> Result<Arc<Self>, ServeError> {
        let call_limit = Duration::from_nanos(settings.lease.0 / 3);
        let etcd = Etcd::new(settings.etcd.clone(), volume, call_limit)?.with_client(client);
        Self::begin(settings, host, etcd, fences).map_err(|error| ServeError::internal(&error))
    }

    fn begin(
        settings: &TokenSettings,
        host: HostId,
        etcd: Etcd,
        fences: Fences,
    ) -> io::Result<Arc<Self>> {
        let (store, store_work) = unbounded();
        let (lease, lease_work) = unbounded();
        let (tasks, task_work) = unbounded();
        let (fencing, fence_work) = unbounded();
        let lasts = settings.lease;
        let protocol = Settings {
            host,
            lease: lasts,
            margin: Span(lasts.0 / MARGIN_SHARE),
            renew_every: Span(lasts.0 / 3),
            retry_after: RETRY_AFTER,
            tokens_max: TOKENS_MAX,
            controls: Controls::default(),
        };
        let lease_seconds = lasts.0.div_ceil(1_000_000_000);
        let tokens = Arc::new(Self {
            host: Mutex::new(Host::new(protocol)),
            waiting: Mutex::default(),
            last_ask: AtomicU64::default(),
            watches: AtomicU64::default(),
            etcd: Arc::new(etcd),
            fences,
            lease_seconds,
            store,
            lease,
            tasks,
            fencing,
            holder: OnceLock::new(),
            current: Mutex::default(),
            is_away: AtomicBool::default(),
        });
        spawn("tokens-store", &tokens, store_work, Self::ask_store)?;
        spawn("tokens-lease", &tokens, lease_work, Self::ask_lease)?;
        for _ in 0..TASK_THREADS {
            spawn("tokens", &tokens, task_work.clone(), Self::carry_out)?;
        }
        for _ in 0..FENCE_THREADS {
            spawn("tokens-fence", &tokens, fence_work.clone(), |tokens, host| {
                let is_done = tokens.fences.shut_out(host, &tokens.etcd);
                tokens.with(|own| own.fence_ended(now(), host, is_done));
            })?;
        }
        let keeper = Arc::downgrade(&tokens);
        thread::Builder::new().name("tokens-history".into()).spawn(move || {
            let mut forget = None;
            while let Some(tokens) = keeper.upgrade() {
                forget = tokens.forget_history(forget);
                drop(tokens);
                thread::sleep(FORGET_EVERY);
            }
        })?;
        let clock = Arc::downgrade(&tokens);
        thread::Builder::new().name("tokens-clock".into()).spawn(move || {
            while let Some(tokens) = clock.upgrade() {
                tokens.look();
                drop(tokens);
                thread::sleep(LOOK_EVERY);
            }
        })?;
        tokens.with(|host| host.start(now()));
        Ok(tokens)
    }

    fn look(&self) {
        self.with(|host| host.tick(now()));
        if let Some(holder) = self.holder.get().and_then(Weak::upgrade) {
            holder.look();
        }
    }

    /// etcd keeps all that its keys ever held, until it is told to forget it. What a watch may still ask for is left. Returns
    /// up to which revision it is to forget the next time.
    fn forget_history(&self, upto: Option<Rev>) -> Option<Rev> {
        if let Some(error) = upto.and_then(|upto| self.etcd.compact(upto).err()) {
            // Another host has, or this one may not: then somebody else sees to it.
            tracing::debug!(%error, "etcd does not forget the history of tokens");
        }
        self.etcd.revision().ok()
    }

    /// Whom to tell.
    pub(crate) fn set_holder(&self, holder: Weak<dyn Holder>) {
        // Once.
        let _ = self.holder.set(holder);
    }

    fn lock(&self) -> MutexGuard<'_, Host> {
        // A panic ends the process: see the program's `main`.
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Begin>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Host) -> T) -> T {
        let mut host = self.lock();
        let result = work(&mut host);
        while let Some(effect) = host.poll() {
            self.heed(effect);
        }
        result
    }

    /// The threads live as long as this does.
    fn heed(&self, effect: Effect) {
        let _ = match effect {
            Effect::Lease => self.lease.send(LeaseWork::Ask).ok(),
            Effect::Renew(lease) => self.lease.send(LeaseWork::Renew(lease)).ok(),
            Effect::Load => self.store.send(StoreWork::Load).ok(),
            Effect::Txn(txn) => self.store.send(StoreWork::Txn(txn)).ok(),
            Effect::Admit(ask) => self.tasks.send(Task::Begin(ask.0)).ok(),
            Effect::Revoke { root, covered, .. } => {
                self.tasks.send(Task::GiveUp(root, covered)).ok()
            }
            Effect::Fence(host) => self.fencing.send(host).ok(),
            Effect::Fenced => self.tasks.send(Task::Fenced).ok(),
            Effect::Entered | Effect::Left => Some(()),
        };
    }

    fn ask_store(tokens: &Arc<Self>, work: StoreWork) {
        match work {
            StoreWork::Load => match tokens.told(tokens.etcd.load(), "the tokens cannot be read") {
                Some(loaded) => {
                    let watch = loaded.watch;
                    // Of what an earlier watch may still tell, nothing counts from now on.
                    let number = tokens.with(|host| {
                        host.loaded(now(), Some(loaded.all));
                        tokens.watches.fetch_add(1, Ordering::Relaxed) + 1
                    });
                    let weak = Arc::downgrade(tokens);
                    let listens = move || Self::listen(&weak, number, watch);
                    if thread::Builder::new().name("tokens-watch".into()).spawn(listens).is_err() {
                        tokens.with(|host| host.unwatched(now()));
                    }
                }
                None => tokens.with(|host| host.loaded(now(), None)),
            },
            StoreWork::Txn(txn) => {
                let what = "a change of tokens may not have been made";
                let reply = tokens.told(tokens.etcd.txn(&txn), what);
                tokens.with(|host| host.replied(now(), reply));
            }
        }
    }

    /// Passes on what changes at the store, until nothing more can be heard, or another watch has taken its place.
    fn listen(weak: &Weak<Self>, number: u64, mut watch: Watch) {
        loop {
            let heard = watch.next();
            let Some(tokens) = weak.upgrade() else { return };
            let is_over = tokens.with(|host| {
                if tokens.watches.load(Ordering::Relaxed) != number {
                    return true;
                }
                match heard {
                    Some(events) => {
                        events.into_iter().for_each(|event| host.event(now(), event));
                        false
                    }
                    None => {
                        host.unwatched(now());
                        true
                    }
                }
            });
            if is_over {
                return;
            }
        }
    }

    fn ask_lease(tokens: &Arc<Self>, work: LeaseWork) {
        let asked = now();
        match work {
            LeaseWork::Ask => {
                let lease = tokens.etcd.lease(tokens.lease_seconds);
                let lease = tokens.told(lease, "no lease: nothing is served until there is one");
                *tokens.current.lock().unwrap_or_else(PoisonError::into_inner) = lease;
                tokens.with(|host| host.leased(now(), asked, lease));
            }
            LeaseWork::Renew(lease) => {
                let kept = tokens.told(tokens.etcd.renew(lease), "the lease is not renewed yet");
                let kept = kept.unwrap_or(Kept::Failed);
                if kept == Kept::Gone {
                    tracing::warn!(
                        "the lease has ended: nothing is served until there is another one"
                    );
                }
                tokens.with(|host| host.kept(now(), asked, lease, kept));
            }
        }
    }

    /// What etcd has answered. That it does not answer the log is told once, until it does: it is asked several times a second.
    fn told<T, E: std::fmt::Display>(&self, answered: Result<T, E>, what: &str) -> Option<T> {
        let was_away = self.is_away.swap(answered.is_err(), Ordering::Relaxed);
        match answered {
            Err(error) => {
                if !was_away {
                    tracing::warn!(%error, "{what}");
                }
                None
            }
            Ok(answer) => {
                if was_away {
                    tracing::info!("etcd answers again");
                }
                Some(answer)
            }
        }
    }

    fn carry_out(tokens: &Arc<Self>, task: Task) {
        let holder = || tokens.holder.get().and_then(Weak::upgrade);
        match task {
            Task::Begin(ask) => {
                let begin = tokens.waiting().remove(&ask);
                match begin {
                    Some(begin) => begin(AskId(ask)),
                    None => tokens.ended(AskId(ask)),
                }
            }
            Task::GiveUp(root, covered) => {
                // What is not at the origin is not given up: others have to shut this host out.
                if holder().is_some_and(|holder| holder.give_up(&root, &covered)) {
                    tokens.with(|host| host.drained(now(), &root));
                }
            }
            Task::Fenced => {
                tokens.fail_waiting();
                if let Some(holder) = holder() {
                    holder.fenced();
                }
            }
        }
    }

    /// Carries a request out once all of this is held. Here and now, if it is.
    pub(crate) fn ask(&self, needs: Vec<Need>, begin: Begin) {
        let id = self.last_ask.fetch_add(1, Ordering::Relaxed) + 1;
        let mut host = self.lock();
        host.ask(now(), AskId(id), needs);
        let mut is_admitted = false;
        while let Some(effect) = host.poll() {
            if effect == Effect::Admit(AskId(id)) {
                is_admitted = true;
            } else {
                self.heed(effect);
            }
        }
        if is_admitted {
            drop(host);
            return begin(AskId(id));
        }
        // Before anybody can admit it.
        self.waiting().insert(id, begin);
    }

    /// A request has ended.
    pub(crate) fn ended(&self, ask: AskId) {
        self.with(|host| host.ended(now(), ask));
    }

    /// Whether what was admitted may be carried out, and answered.
    pub(crate) fn may_serve(&self) -> bool {
        self.lock().may_serve(now())
    }

    /// Whether the origin may be changed.
    pub(crate) fn may_change(&self) -> bool {
        self.lock().may_change(now())
    }

    /// The token that covers a change of a file.
    pub(crate) fn cover_of(&self, file: &FileId) -> Option<Root> {
        self.lock().cover(file)
    }

    /// The way from a file to that token, by the directories in which it was made.
    pub(crate) fn way_of(&self, file: &FileId) -> Vec<Root> {
        self.lock().way(file)
    }

    /// Whether another token covers a file while this one is given up.
    pub(crate) fn stays_covered(&self, file: &FileId, root: &Root) -> bool {
        self.lock().stays(file, root)
    }

    /// A file was made in a directory.
    pub(crate) fn made(&self, file: &FileId, dir: &FileId) {
        self.lock().born(file, dir);
    }

    /// It was moved to another one.
    pub(crate) fn moved_to(&self, file: &FileId, dir: &FileId) {
        self.lock().moved(file, dir);
    }

    /// It has a further name, or none any more.
    pub(crate) fn linked(&self, file: &FileId) {
        self.lock().not_born(file);
    }

    /// Why silent hosts are not shut out yet.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let silent: Vec<HostId> = self.lock().fencing().collect();
        silent.into_iter().filter_map(|host| self.fences.trouble(host)).collect()
    }

    pub(crate) fn stage(&self) -> Stage {
        self.lock().stage()
    }

    /// Whether what an earlier life changed under a token may be brought to the origin.
    pub(crate) fn is_confirmed(&self, cover: &Root) -> bool {
        self.lock().is_confirmed(cover)
    }

    /// What an earlier life has left is taken up.
    pub(crate) fn recovered(&self) {
        self.with(|host| host.recovered(now()));
    }

    /// Whoever waits gets an error.
    pub(crate) fn fail_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        drop(waiting);
    }

    /// Others have shut this host out.
    pub(crate) fn is_fenced(&self) -> bool {
        self.stage() == Stage::Fenced
    }

    /// Serves nothing any more, whatever comes, and gives nothing back: its lease ends, and others have to shut it out.
    pub(crate) fn stop(&self) {
        self.lock().stop();
        self.fail_waiting();
        self.end_lease();
    }

    fn end_lease(&self) {
        let lease = self.current.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(error) = lease.and_then(|lease| self.etcd.end(lease).err()) {
            tracing::debug!(%error, "the lease ends by itself");
        }
    }

    /// Gives everything back, for as long as that may take.
    pub(crate) fn leave(&self, limit: Duration) {
        self.with(|host| host.leave(now()));
        let until = std::time::Instant::now() + limit;
        while self.stage() != Stage::Left && std::time::Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        self.end_lease();
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    tokens: &Arc<Tokens>,
    work: Receiver<T>,
    run: impl Fn(&Arc<Tokens>, T) + Send + 'static,
) -> io::Result<()> {
    let tokens = Arc::downgrade(tokens);
    thread::Builder::new().name(name.into()).spawn(move || {
        for item in work {
            let Some(tokens) = tokens.upgrade() else { return };
            run(&tokens, item);
        }
    })?;
    Ok(())
}

/// One part in so many of a lease is for clocks that differ, and for what takes its time.
const MARGIN_SHARE: u64 = 5;
const RETRY_AFTER: Span = Span::from_millis(200);
/// Tokens of files that a host keeps.
const TOKENS_MAX: usize = 50_000;
/// Requests and revocations that are carried out at a time.
const TASK_THREADS: usize = 8;
/// Hosts that are shut out at a time.
const FENCE_THREADS: usize = 4;
/// How often etcd is told to forget; what changed in the last such time it keeps.
const FORGET_EVERY: Duration = Duration::from_secs(300);
/// How often it is looked whether something is due.
const LOOK_EVERY: Duration = Duration::from_millis(20);
