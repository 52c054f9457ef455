//! Whether journal and origin belong together, and claiming the origin: at the start.

use super::claims::Claims;
use super::replicated::Replicated;
use super::whose::Whose;
use super::workers::HEARTBEAT_EVERY;
use super::{ServeError, owned};
use crate::domains::Partition;
use crate::origins::{Origin, Owner, Writer};
use crate::settings::{JournalKind, Settings};
use destage_core::Lsn;
use destage_journal::{Journal, Recovery};
use destage_runtime::exit;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often, and how long beyond the time between two heartbeats, it is looked for the next one.
const WATCH_EVERY: Duration = Duration::from_millis(250);
const WATCH_MORE: Duration = Duration::from_millis(1500);

/// The origin is ours.
pub(super) struct Claimed {
    pub(super) epoch: u64,
    /// As it stands since nobody else can move it.
    pub(super) owner: Option<Owner>,
    pub(super) claims: Claims,
    pub(super) whose: Whose,
    /// The journal's groups up to this one are sent nowhere.
    pub(super) floor: u64,
    /// `None` where undecided writes keep the origin this journal's.
    pub(super) unused: Option<Unused>,
}

/// A claim that has come to nothing yet: a start that fails gives it back, so that the next one may be from elsewhere.
pub(super) struct Unused {
    origin: Option<Arc<dyn Origin>>,
    epoch: u64,
}

impl Unused {
    /// The start has succeeded.
    pub(super) fn keep(mut self) {
        self.origin = None;
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        let Some(origin) = self.origin.take() else { return };
        let released = origin.writer().and_then(|mut writer| writer.release(self.epoch));
        if let Err(error) = released {
            tracing::warn!(
                error = error.message,
                "cannot give the origin back, which this start has claimed: for a minute, others take its owner for alive"
            );
        }
    }
}

/// What holds the journal besides the disk here.
pub(super) enum Behind<'a> {
    Nothing,
    /// Nothing any more: it was a copy of a log, and goes on without the log's servers.
    Alone,
    Log(&'a Replicated),
}

/// Claims the origin for the journal, whose numbers go on behind everything that the origin holds.
///
/// # Errors
/// The two do not belong together, or another process has the origin.
pub(super) fn claim(
    settings: &Settings,
    behind: &Behind<'_>,
    origin: &Arc<dyn Origin>,
    writer: &mut dyn Writer,
    partition: &Partition,
    journal: &mut Journal,
    recovery: &Recovery,
) -> Result<Claimed, ServeError> {
    let describe = origin.describe();
    let uuid = journal.uuid().to_owned();
    // The log that it is a copy of must not go on behind what it acknowledges alone.
    let is_alone = matches!(behind, Behind::Alone);
    let claimed_as = if is_alone { format!("{uuid}{ALONE}") } else { uuid.clone() };
    let as_ours = |mut owner: Option<Owner>| {
        if let Some(owner) = owner.as_mut().filter(|owner| owner.journal == claimed_as) {
            owner.journal.clone_from(&uuid);
        }
        owner
    };
    let mut whose = Whose::read(&settings.data, &uuid, &describe)?;
    let mut claims = Claims::read(&settings.data, &uuid)?;
    let mut owner = as_ours(read(writer)?);
    check_not_alone(settings, &describe, &uuid, owner.as_ref())?;
    let other = whose.other().map(str::to_owned);
    let pair =
        Pair { settings, describe: &describe, partition, journal: &uuid, recovery, whose: &whose };
    pair.check(owner.as_ref(), &claims)?;
    let was_ours = owner.as_ref().is_some_and(|owner| owner.journal == uuid);
    let is_sure = owner.as_ref().is_some_and(|owner| claims.are_in_place(owner));
    // Whose the log is, its servers have said.
    let is_sure = is_sure || settings.replicas.is_some();
    if was_ours && !is_sure && !settings.take_over {
        owner = as_ours(pair.watch(writer, owner)?);
        pair.check(owner.as_ref(), &claims)?;
    }
    // Of what another origin was sent, this one gets what that one has not decided, or nothing.
    let floor = match &other {
        Some(_) if !was_ours => pair.floor(owner.as_ref()),
        _ => 0,
    };
    let floor = whose.begin(floor, recovery.last_lsn)?;
    let pair =
        Pair { settings, describe: &describe, partition, journal: &uuid, recovery, whose: &whose };
    let is_clean = recovery.last_lsn <= owned::decided(owner.as_ref()).0;
    let last = owned::newest(owner.as_ref()).max(Lsn(recovery.last_lsn));
    let first = claims.begin(owner.as_ref())?;
    // After the origin's owner was read: one who takes the log over from here on claims the origin later, or was not read.
    if let Behind::Log(log) = behind {
        log.await_lease(settings)?;
    }
    let epoch = owned::claim(writer, partition, &claimed_as, owner, last, first)
        .map_err(|refusal| refusal.in_words(&describe))?;
    let unused = is_clean.then(|| Unused { origin: Some(origin.clone()), epoch });
    // Until the claim shut it out, the owner before may have moved the origin on.
    let owner = as_ours(read(writer)?);
    if owner.as_ref().is_none_or(|owner| owner.epoch != epoch) {
        let message = format!("another process claimed {describe} at the same time");
        return Err(ServeError::new(exit::FENCED, message));
    }
    if was_ours {
        pair.check(owner.as_ref(), &claims)?;
    }
    let newest = owned::newest(owner.as_ref()).0;
    let is_beyond = newest > journal.last();
    claims.made(epoch, if is_beyond { newest } else { 0 }, owned::decided(owner.as_ref()).0)?;
    if is_beyond {
        tracing::warn!(watermark = newest, "adopting the origin; numbering goes on after it");
        journal.skip_to(newest + 1);
    }
    if let Some(other) = other.filter(|_| was_ours) {
        tracing::info!(
            before = other,
            now = whose.found(),
            "the journal's origin has another address than before"
        );
    }
    Ok(Claimed { epoch, owner, claims, whose, floor, unused })
}

/// A start that came to nothing has left no writes that anybody else would have to know.
fn came_to_nothing(owner: &Owner) -> bool {
    owner.released && owned::newest(Some(owner)) == Lsn::ZERO
}

/// Whether a log may be begun on servers of which none holds anything.
///
/// # Errors
/// The origin knows of another journal, which these servers may have held.
pub(super) fn check_new(
    settings: &Settings,
    describe: &str,
    owner: Option<&Owner>,
) -> Result<(), ServeError> {
    let Some(owner) = owner.filter(|owner| !came_to_nothing(owner)) else { return Ok(()) };
    check_forgotten(settings, describe, owner)?;
    if owner.released && !settings.adopt && !settings.take_over {
        return Err(ServeError::new(
            exit::JOURNAL_UNUSABLE,
            format!(
                "no server holds anything of the log that {describe} was used with (journal {}). It ended in order, with \
                 everything destaged: pass --adopt to begin another one; no write will be lost",
                owner.journal
            ),
        ));
    }
    check_left(settings, describe, owner)
}

/// A log on other servers that is new, at an origin whose journal was another one and did not end in order.
fn check_forgotten(settings: &Settings, describe: &str, owner: &Owner) -> Result<(), ServeError> {
    let replicas = match &settings.replicas {
        Some(replicas) if !owner.released && !settings.adopt => replicas,
        _ => return Ok(()),
    };
    let copy = match replicas.journal {
        JournalKind::Both => format!(
            ". A host with the last owner's --data folder may have it on its disk ({} here): start there once with --journal-alone \
             and without --replicas",
            settings.data.display()
        ),
        JournalKind::Replicas => String::new(),
    };
    Err(ServeError::new(
        exit::JOURNAL_UNUSABLE,
        format!(
            "no server holds anything of the log '{}', but {describe} was used with one (journal {}, last seen {} ago), \
             which may hold writes that are not destaged. Either all of these servers have forgotten it, or it is on others, or \
             under another --replica-log: start with those that remember it{copy}. If it is lost, pass --adopt to go on behind write \
             {}; what only the log held stays lost",
            replicas.name,
            owner.journal,
            destage_runtime::human::seconds(owner.heartbeat_age.as_secs_f64()),
            owned::newest(Some(owner)).0
        ),
    ))
}

/// The origin was last written through another journal: whether this one may go on behind it.
fn check_left(settings: &Settings, describe: &str, owner: &Owner) -> Result<(), ServeError> {
    let (age, data) = (owner.heartbeat_age, settings.data.display());
    if owner.may_live() && !settings.take_over {
        return Err(ServeError::new(
            exit::FENCED,
            format!(
                "another process (journal {}) showed itself at {describe} {:.1} s ago. Stop it first; or --take-over: \
                 what it has acknowledged and not destaged yet stays in its journal and is stranded there",
                owner.journal,
                age.as_secs_f64()
            ),
        ));
    }
    if !settings.adopt && !settings.take_over {
        let seen = if owner.released {
            "which stopped cleanly, with everything destaged".to_owned()
        } else {
            format!("last seen {} ago", destage_runtime::human::seconds(age.as_secs_f64()))
        };
        let keep = if owner.released {
            "or pass --adopt to continue with this one; no write will be lost"
        } else {
            "since it may hold writes that are not destaged. If it is lost, pass --adopt to continue with this one"
        };
        return Err(ServeError::new(
            exit::FENCED,
            format!(
                "{describe} was last used with another data folder than {data} (journal {}, {seen}). Use that folder, \
                 {keep}",
                owner.journal
            ),
        ));
    }
    Ok(())
}

/// Stands behind the identity of a journal that goes on without the servers of its log.
const ALONE: &str = "+alone";

/// Refuses a log of which a copy has gone on alone: what the log holds behind that was never acknowledged, or is older than what
/// was acknowledged since.
fn check_not_alone(
    settings: &Settings,
    describe: &str,
    uuid: &str,
    owner: Option<&Owner>,
) -> Result<(), ServeError> {
    let went_on = format!("{uuid}{ALONE}");
    match &settings.replicas {
        Some(replicas) if owner.is_some_and(|owner| owner.journal == went_on) => {
            Err(ServeError::new(
                exit::JOURNAL_UNUSABLE,
                format!(
                    "a journal that is one copy of the log '{}' has gone on without its servers (--journal-alone) and written to {describe}: \
                 what the log holds is out of date. Begin another one: --replica-log NAME, an empty --data folder and --adopt",
                    replicas.name
                ),
            ))
        }
        _ => Ok(()),
    }
}

fn read(writer: &mut dyn Writer) -> Result<Option<Owner>, ServeError> {
    writer.owner().map_err(ServeError::from)
}

/// A journal, and the origin before which it is to be used.
struct Pair<'a> {
    settings: &'a Settings,
    /// The origin.
    describe: &'a str,
    partition: &'a Partition,
    /// The journal's identity.
    journal: &'a str,
    recovery: &'a Recovery,
    whose: &'a Whose,
}

impl Pair<'_> {
    /// Up to where the journal's groups are none of an origin's that never had an owner of this journal's.
    fn floor(&self, owner: Option<&Owner>) -> u64 {
        let is_empty = owner.is_none_or(came_to_nothing);
        let last = self.recovery.last_lsn;
        self.whose.decided(last).filter(|_| is_empty).unwrap_or(last)
    }

    /// The origin knows nothing of the journal, which was used before another one.
    fn check_other(&self, from: &str) -> Result<(), ServeError> {
        let Self { settings, recovery, whose, .. } = self;
        let (data, to) = (settings.data.display(), whose.found());
        let change = whose.change();
        let refused = |message| Err(ServeError::new(exit::ORIGIN_WENT_BACK, message));
        // What is noted here, other hosts do not know: neither does this one know what they have sent since, nor they what is
        // never to be sent.
        if let Some(replicas) = &settings.replicas {
            return refused(format!(
                "the log '{}' on these servers belongs to the origin {from}, and this is {to}, which has never seen it. Use that \
                 origin (--origin). Or let it drain there and stop it (exit 0), and begin another log for this one: --replica-log \
                 NAME and an empty --data folder. --change-origin is for a journal on the disk alone",
                replicas.name
            ));
        }
        if settings.change_origin.is_none() || settings.change_origin != change {
            return refused(format!(
                "the journal in {data} belongs to the origin {from}, and this is {to}, which has never seen it. Use that \
                 origin (--origin), or another --data folder for this one. Only to send here what {from} has not taken of the \
                 writes {} to {}: --change-origin '{}'",
                recovery.first_lsn,
                recovery.last_lsn,
                change.unwrap_or_default()
            ));
        }
        if whose.decided(recovery.last_lsn).is_none() {
            return refused(format!(
                "the journal in {data} does not know how far {from} is, since its server did not end in order, or ended \
                 before that one had answered: what that one has taken would be sent to {to}. Start in front of {from} once and \
                 stop it, or save the writes with `destage journal export --data {data}` and start with an empty data folder"
            ));
        }
        Ok(())
    }

    /// Looks whether an owner with our journal's identity lives: this folder may be a copy of its. As long as it takes to renew
    /// a heartbeat, unless that is old already.
    fn watch(
        &self,
        writer: &mut dyn Writer,
        mut owner: Option<Owner>,
    ) -> Result<Option<Owner>, ServeError> {
        let until = Instant::now() + HEARTBEAT_EVERY + WATCH_MORE;
        let mut age = Duration::ZERO;
        while let Some(found) = owner.as_ref().filter(|owner| owner.may_live()) {
            if found.heartbeat_age < age {
                return Err(ServeError::new(
                    exit::FENCED,
                    format!(
                        "another process shows itself at {} with the journal that {} has a copy of. Stop it first; or \
                         --take-over: what it has acknowledged and not destaged yet stays in its journal and is stranded there",
                        self.describe,
                        self.settings.data.display()
                    ),
                ));
            }
            if Instant::now() >= until {
                break;
            }
            age = found.heartbeat_age;
            thread::sleep(WATCH_EVERY);
            owner = read(writer)?;
        }
        Ok(owner)
    }

    /// Refuses to start where the two do not belong together.
    fn check(&self, owner: Option<&Owner>, claims: &Claims) -> Result<(), ServeError> {
        let Self { settings, describe, recovery, .. } = self;
        let data = settings.data.display();
        let is_foreign = |owner: &&Owner| owner.journal != self.journal;
        let Some(owner) = owner.filter(|o| !(is_foreign(o) && came_to_nothing(o))) else {
            if recovery.last_lsn == 0 {
                return Ok(());
            }
            if let Some(from) = self.whose.other() {
                return self.check_other(from);
            }
            if settings.adopt {
                return Ok(());
            }
            return Err(ServeError::new(
                exit::ORIGIN_WENT_BACK,
                format!(
                    "the journal in {data} belongs to another origin than {describe}, or that origin was restored to a time \
                 before Destage used it. Use the right --origin or another --data folder; --adopt applies all that the \
                 journal holds to this origin, writes {} to {}, also what it may have taken before",
                    recovery.first_lsn, recovery.last_lsn
                ),
            ));
        };
        if owner.journal != self.journal {
            return self.check_foreign(owner, claims);
        }
        if settings.replicas.is_none() && claims.are_of_a_copy(owner) {
            return self.check_copy(owner, claims);
        }
        if let Some(domain) = owned::lacking(owner, self.partition).filter(|_| !settings.adopt) {
            return Err(ServeError::new(
                exit::ORIGIN_WENT_BACK,
                format!(
                    "{describe} has an owner, but does not say how far domain {} is: that was removed from destage_watermark by \
                 hand, or not restored with the rest. Put it back; --adopt applies all that the journal in {data} holds, writes \
                 {} to {}, also what the origin has taken before",
                    domain.0, recovery.first_lsn, recovery.last_lsn
                ),
            ));
        }
        if !owner.epochs_agree && !settings.adopt {
            return Err(ServeError::new(
                exit::ORIGIN_WENT_BACK,
                format!(
                    "{describe} has a destage_watermark of another time than its destage_owner: they were not restored together, so \
                 how far the origin is cannot be told. Restore all tables from one copy; --adopt goes by destage_watermark \
                 as it is, and applies what the journal in {data} holds behind it, also what the origin has taken before"
                ),
            ));
        }
        let newest = owned::newest(Some(owner)).0;
        // A log that has held a write keeps one: none was lost of one that is empty.
        let is_unused = settings.replicas.is_some() && recovery.last_lsn == 0;
        if newest > recovery.last_lsn.max(claims.adopted()) && !settings.adopt && !is_unused {
            return Err(ServeError::new(
                exit::JOURNAL_UNUSABLE,
                format!(
                    "{describe} has writes up to {newest}, but the journal in {data} ends at {}: its end was lost or cut. \
                 --adopt goes on after {newest}; what the journal lost stays lost",
                    recovery.last_lsn
                ),
            ));
        }
        let watermark = owned::decided(Some(owner)).0;
        // From nothing an origin was adopted on demand, and is taken on.
        let is_adopted = watermark == 0 && settings.adopt;
        if watermark.max(self.whose.floor()) + 1 < recovery.first_lsn && !is_adopted {
            return Err(ServeError::new(
                exit::ORIGIN_WENT_BACK,
                format!(
                    "the origin went back: {describe} stands at write {watermark}, but the journal in {data} holds writes only \
                 from {} on (see --retain). It was restored from a copy, or failed over to a replica that lagged. \
                 Restore a copy that is at least as new, or start with an empty data folder and --adopt",
                    recovery.first_lsn
                ),
            ));
        }
        Ok(())
    }

    /// The origin was last written from a copy of our data folder: the writes behind the numbers are others there.
    fn check_copy(&self, owner: &Owner, claims: &Claims) -> Result<(), ServeError> {
        let Self { settings, describe, recovery, .. } = self;
        // In every domain, or what is said to be given up would be applied in one.
        let (data, decided) = (settings.data.display(), owned::decided(Some(owner)).0);
        if settings.adopt && recovery.last_lsn <= decided {
            return Ok(());
        }
        let more = if recovery.last_lsn > decided {
            ""
        } else {
            ", or --adopt gives them up and goes on behind those of the copy"
        };
        Err(ServeError::new(
            exit::FENCED,
            format!(
                "{describe} was last owned by another copy of the journal in {data} (epoch {}; this one's last was {}). What this \
             one acknowledged and had not destaged by then is in it alone, under numbers that mean other writes at the \
             origin: export it with `destage journal export --data {data}`, and start with the other copy's folder{more}",
                owner.epoch,
                claims.epoch()
            ),
        ))
    }

    /// The origin was last written through another journal.
    fn check_foreign(&self, owner: &Owner, claims: &Claims) -> Result<(), ServeError> {
        let Self { settings, describe, recovery, .. } = self;
        if recovery.last_lsn == 0 {
            check_forgotten(settings, describe, owner)?;
        }
        check_left(settings, describe, owner)?;
        let data = settings.data.display();
        // What another journal has decided says nothing of our writes of the same numbers; and those beyond would be applied.
        if recovery.last_lsn > claims.drained().min(owned::decided(Some(owner)).0) {
            return Err(ServeError::new(
                exit::FENCED,
                format!(
                    "the journal in {data} holds writes up to {} of its own and cannot adopt {describe}: it is not known to have \
                 stopped with all of them destaged there, or the origin is behind them. Export them with `destage journal \
                 export --data {data}`, and start with an empty data folder",
                    recovery.last_lsn
                ),
            ));
        }
        Ok(())
    }
}
