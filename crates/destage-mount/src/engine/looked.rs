//! What lookups have found at the origin a moment ago. The kernel looks a name up and then says what is to be done with it: the
//! origin is not asked for it twice.

use super::needs::Seen;
use crate::ask::{Ino, Name};
use destage_core::{Span, Time};
use hashbrown::HashMap;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Looked(HashMap<(Ino, Name), (Seen, Time)>);

impl Looked {
    pub(super) fn note(&mut self, now: Time, dir: Ino, name: &Name, seen: Seen) {
        if self.0.len() >= NAMES_MAX {
            self.0.retain(|_, (_, at)| is_fresh(now, *at));
            if self.0.len() >= NAMES_MAX {
                self.0.clear();
            }
        }
        self.0.insert((dir, name.clone()), (seen, now));
    }

    /// What a name was, once: the next request looks again.
    pub(super) fn take(&mut self, now: Time, dir: Ino, name: &Name) -> Option<Seen> {
        let (seen, at) = self.0.remove(&(dir, name.clone()))?;
        is_fresh(now, at).then_some(seen)
    }
}

fn is_fresh(now: Time, at: Time) -> bool {
    now.0.saturating_sub(at.0) <= FRESH.0
}

/// What others do at the origin within this time after a lookup counts as done after the request that follows it.
const FRESH: Span = Span::from_millis(100);
const NAMES_MAX: usize = 4_096;
