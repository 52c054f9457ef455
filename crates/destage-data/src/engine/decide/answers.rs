//! What the origin has answered to a decision.

use super::super::Engine;
use super::ParkedCommand;
use super::view::{in_short, shown};
use crate::origins::{Applied, OriginError, ParkedGroup};
use destage_core::{Fault, Lsn, Time};

impl Engine {
    /// Everything parked was read, or not.
    pub fn parked_listed(&mut self, request: u64, result: Result<Vec<ParkedGroup>, OriginError>) {
        let Some((command, asker)) = self.decisions.end_list(request) else { return };
        let answer =
            result.map_err(|error| self.refusal(&error)).and_then(|groups| match command {
                ParkedCommand::Show(lsn) => shown(&groups, lsn),
                _ => Ok(groups.iter().map(|group| in_short(&groups, group)).collect()),
            });
        self.answer_parked(asker, answer);
        self.run_ready();
    }

    /// The transaction took effect, or nothing of it did.
    pub fn unparked(&mut self, now: Time, result: Result<Applied, OriginError>) {
        self.now = self.now.max(now);
        let (mut active, mut sent) = self.decisions.take_sent();
        // What raw SQL among it has made, nobody tells.
        self.forget_keys(&sent.tables, Lsn::ZERO);
        let is_skip = matches!(active.command, ParkedCommand::Skip(_));
        let refused = match result {
            // Someone has removed it by hand, which is what was asked for.
            Err(error) if is_skip && error.fault == Fault::Rejected => None,
            Err(error) => Some((error.fault, self.refusal(&error))),
            Ok(_) => None,
        };
        match &refused {
            None => {
                active.applied += sent.lsns.len() as u64;
                self.find_edited(&active.command, &mut sent);
                self.let_go(&sent);
            }
            // Units that were made for it alone are dropped again.
            Some(_) => sent.edited.all().for_each(|unit| self.invalidate(unit)),
        }
        sent.held_back.into_iter().for_each(|job| self.jobs.fetch(job));
        let goes_on = refused.as_ref().is_none_or(|(fault, _)| *fault == Fault::Rejected);
        let error = refused.map(|(_, error)| error);
        if goes_on && active.command == ParkedCommand::Retry(None) {
            active.upto = sent.root;
            active.refused = active.refused.or(error);
            self.decisions.go_on(active);
        } else {
            self.end_decision(active, error);
        }
        self.pump();
        self.next_decision();
        self.run_ready();
    }
}
