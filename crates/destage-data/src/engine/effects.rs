//! Carrying out what the core asks for.

use super::key::format_key;
use super::{Engine, Groups, Io, overlay};
use crate::cells::Reader;
use crate::change::Op;
use crate::key_text::show;
use crate::origins::{OriginError, ParkedGroup};
use crate::resp::{Code, ReplyError};
use crate::schema::TableId;
use destage_core::{Access, BatchId, DomainId, Fault, Lsn};
use std::collections::BTreeMap;

/// Keys of one write in the log.
const KEYS_LOGGED_MAX: usize = 5;

impl Engine {
    /// The origin has decided a write whose client waits for it.
    pub(super) fn settled(&mut self, lsn: Lsn, applied: bool) {
        let (through, reason) = self.undecided.end_through(lsn);
        if applied && through.access == Access::Through {
            for staged in &through.staged {
                self.rows.set(staged.unit, staged.row.as_deref());
                self.drop_at_end(staged.unit);
            }
        }
        if applied {
            self.settle_members(lsn)
        } else {
            // A fetch under way may have looked before the origin said so.
            through.units.iter().for_each(|&unit| self.overlay.unchain_group(unit, lsn))
        }
        self.undecided.forget_ahead();
        through.units.iter().for_each(|&unit| self.unload_if_absent(unit));
        if applied {
            self.tell_changed(lsn);
            self.keep_beside(through.beside);
        } else {
            self.drop_beside(&through.beside)
        }
        let refusal = (!applied).then(|| {
            let why = reason.as_ref().map_or("no reason given", |error| &error.message);
            ReplyError::new(Code::Rejected, format!("by the origin, nothing was done: {why}"))
        });
        self.decide_token(lsn, refusal.as_ref());
        let Some(mut session) = self.sessions.take_waiting_for(through.client, lsn) else {
            if !applied {
                let why = reason.map(|error| error.message).unwrap_or_default();
                tracing::warn!(
                    lsn = lsn.0,
                    reason = why.as_str(),
                    "the origin rejected a write whose client waited for it no longer; nothing was done"
                );
            }
            return;
        };
        session.waiting = None;
        let client = through.client;
        match refusal {
            None => {
                session.out.extend_from_slice(&through.reply);
                session.lsn = session.lsn.max(lsn);
            }
            Some(message) => self.fail(&mut session, message),
        }
        self.sessions.restore_answered(client, session);
    }

    pub(super) fn forget(&mut self, upto: Lsn) {
        if self.schema.merges_new {
            self.distrust_merged(upto);
        }
        self.overlay.forget(upto);
        self.undecided.unknown_mut().forget(upto);
        let decided = self.core.decided();
        self.undecided.structural_mut().forget(decided);
        self.undecided.claims_mut().forget(decided);
        self.watchers.tell_decided(decided);
        self.reclaim();
    }

    /// New rows of groups up to here are at the origin, which may have merged them with others' rows: what is cached of them
    /// is fetched again.
    fn distrust_merged(&mut self, upto: Lsn) {
        let schema = self.schema.clone();
        let mut merged: BTreeMap<TableId, Vec<Box<[u8]>>> = BTreeMap::new();
        for bytes in self.overlay.upto(upto) {
            for change in overlay::changes(&schema, bytes) {
                if change.op == Op::Insert && schema.table(change.table).merges_new {
                    merged.entry(change.table).or_default().push(change.key.into());
                }
            }
        }
        for (table, keys) in merged {
            self.changed_at_origin(table, Some(&keys));
        }
    }

    pub(super) fn destage(&mut self, batch: BatchId, domain: DomainId) {
        let lsns = self.core.batch(batch);
        let mut groups = Groups::default();
        for &lsn in lsns {
            let group = self.overlay.get(lsn).expect("undecided groups are kept");
            groups.push(lsn, &group.bytes);
        }
        let (first, last) = (lsns[0], *lsns.last().expect("batches hold groups"));
        self.measured.batch_started(self.now, first, last, &self.overlay);
        let core = &self.core;
        let spans = |lsn| core.domains_spanned(lsn);
        let marks = self.domains.begin(lsns, domain, spans, |lsn| core.domain_of(lsn));
        self.jobs.push(Io::Destage { batch, marks, groups });
    }

    pub(super) fn park(&mut self, lsn: Lsn, domain: DomainId, depends_on: Option<Lsn>, keep: bool) {
        let because = |why: String| OriginError::new(Fault::Rejected, why);
        if depends_on.is_none() {
            self.doubt_keys(lsn);
        }
        let reason = match depends_on {
            Some(parked) => because(format!("builds on the rejected write {}", parked.0)),
            None => {
                let known = self.undecided.reason(lsn).cloned();
                known.unwrap_or_else(|| because(String::new()))
            }
        };
        if keep {
            self.overlay.begin_park(lsn);
        } else {
            // Its client is told.
            self.undecided.rejected(lsn, reason.clone());
        }
        let parked = keep.then(|| {
            let group = self.overlay.get(lsn).expect("undecided groups are kept");
            let (keys, why) = (self.keys_of(&group.bytes), &reason.message);
            tracing::warn!(
                lsn = lsn.0,
                keys,
                reason = why,
                "the origin rejected a write; parking it"
            );
            let payload = crate::parked::encode(&self.schema, &group.bytes)
                .expect("groups are checked when they are written or recovered");
            ParkedGroup { domain, lsn, depends_on, reason: reason.in_full(), payload }
        });
        let core = &self.core;
        let spans = |lsn| core.domains_spanned(lsn);
        let marks = self.domains.begin(&[lsn], domain, spans, |lsn| core.domain_of(lsn));
        let park = Io::Park { lsn, marks, parked };
        if keep {
            self.jobs.push(park);
        } else {
            self.give_up_once(lsn, park);
        }
    }

    /// The keys of the rows that a group changes, as many as a line of the log has room for.
    pub(super) fn keys_of(&self, bytes: &[u8]) -> String {
        let mut keys: Vec<String> = Vec::new();
        for change in overlay::changes(&self.schema, bytes) {
            let mut key = Vec::new();
            format_key(self.schema.table(change.table), Reader::new(change.key), &mut key);
            let key = show(&key);
            if !keys.contains(&key) {
                if keys.len() == KEYS_LOGGED_MAX {
                    keys.push("...".to_owned());
                    break;
                }
                keys.push(key);
            }
        }
        if keys.is_empty() { "those of raw SQL".to_owned() } else { keys.join(" ") }
    }
}
