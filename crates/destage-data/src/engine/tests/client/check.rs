//! Whether what clients are told is true.

use super::*;

impl Sim {
    pub(super) fn check_wait(&self, own: u64, sent: Time, value: &Value) {
        if self.options.rewind.is_some() {
            return;
        }
        let fate = self.origin.fates.get(&own);
        match value {
            Value::Int(0) => {}
            Value::Int(1) => {
                assert!(own == 0 || fate.is_some(), "group {own} is not decided");
                let is_skipped = own > 0 && self.history.entry(own).skipped.is_some();
                assert!(is_skipped || fate != Some(&Fate::Parked), "group {own} is parked");
            }
            Value::Error(error) if error.starts_with("PARKED") => {
                // It may have been applied after all since it was answered.
                let until = self.parked.get(&own).copied().flatten();
                let was_parked = until.is_some_and(|until| until >= sent);
                assert!(was_parked || fate == Some(&Fate::Parked), "group {own}: {fate:?}");
            }
            other => panic!("DESTAGE WAIT: {other:?}"),
        }
    }

    /// Checks the reply to a data command or a transaction; the group that it wrote is returned, 0 for none.
    pub(super) fn check_data(
        &mut self,
        number: u64,
        (low, sent): (u64, Time),
        value: &Value,
    ) -> u64 {
        let issued = self.issued[&number].clone();
        if issued.exec {
            self.check_watched(number, low, value);
            if *value == Value::Nil {
                return 0;
            }
        }
        let mut lsn = self.groups_of.get(&number).copied();
        let tagged = issued.commands.iter().any(Data::is_tagged);
        if lsn.is_none() && !tagged {
            lsn = self.find_untagged(&issued, low, value);
        }
        if let Some(lsn) = lsn {
            self.check_written(lsn, &issued, value);
            return lsn;
        }
        match value {
            Value::Error(error) if is_refusal(error) => self.counts.refused += 1,
            Value::Error(error) if error.contains("FOREIGN KEY") => {
                self.check_orphan(&issued, (low, sent), error);
            }
            Value::Error(error) if error.starts_with("PARKED") => {
                let places: Vec<_> = issued.commands.iter().map(Data::place).collect();
                let is_parked = |(lsn, until): (&u64, &Option<Time>)| {
                    until.is_none_or(|until| until >= sent) && self.history.touches(*lsn, &places)
                };
                assert!(self.parked.iter().any(is_parked), "{error}: {issued:?}");
            }
            _ => self.check_read(&issued, (low, sent), value),
        }
        0
    }

    /// A transaction is not done if and only if a row that it watched has changed, or was fetched again because of a decision
    /// on what is parked: that may have changed it.
    pub(super) fn check_watched(&mut self, number: u64, sent: u64, value: &Value) {
        let Some(watching) = self.watching.get(&number) else {
            return assert_ne!(*value, Value::Nil, "nothing was watched");
        };
        let changes = |after: u64| self.history.changes_after(&watching.places, after);
        let wrote = self.groups_of.get(&number).copied();
        self.counts.watched += 1;
        match value {
            Value::Nil => {
                assert_eq!(wrote, None, "its client was told that it is not done");
                let is_decided = |(lsn, until): (&u64, &Option<Time>)| {
                    until.is_some_and(|until| until >= watching.at)
                        && self.history.touches(*lsn, &watching.places)
                };
                let may_have_gone = self.options.cascades
                    && self.history.may_have_gone(&watching.places, watching.at);
                assert!(
                    !changes(watching.low).is_empty()
                        || self.parked.iter().any(is_decided)
                        || may_have_gone,
                    "nothing has changed: {watching:?}"
                );
                self.counts.not_done += 1;
            }
            Value::Error(_) => {}
            _ => {
                let (high, answered) = watching.high.expect("WATCH was answered before");
                // What went with a group is told of later than the group is at the origin: see below.
                let others =
                    |lsn: &u64| Some(*lsn) != wrote && self.history.touches(*lsn, &watching.places);
                let upto = wrote.unwrap_or(sent);
                let changed = changes(high).into_iter().find(|lsn| *lsn <= upto && others(lsn));
                assert_eq!(changed, None, "a watched row changed before it was done: {watching:?}");
                let done = wrote.map_or(answered, |lsn| self.history.entry(lsn).stamp);
                let turns = self.history.turns_from(&watching.places, answered + Span(1));
                let turn = turns.into_iter().find(|&at| at < done);
                assert_eq!(turn, None, "a watched row became another one: {watching:?}");
            }
        }
    }

    pub(in crate::engine::tests) fn check_written(
        &mut self,
        lsn: u64,
        issued: &Issued,
        value: &Value,
    ) {
        let entry = self.history.entry(lsn);
        if let Value::Error(error) = value {
            assert!(
                error.starts_with("REJECTED") && entry.dropped,
                "{error}, but group {lsn} was written: {issued:?}"
            );
            return;
        }
        assert!(
            !entry.dropped && !entry.hidden,
            "group {lsn} was rejected, its client told {value:?}"
        );
        if entry.through {
            assert_eq!(self.origin.fates.get(&lsn), Some(&Fate::Applied), "group {lsn}");
        }
        self.check_parents(lsn);
        if !issued.expected.is_empty() {
            let story = || self.history.story(issued.commands[0].place());
            let is_expected = issued.expected.contains(value);
            assert!(is_expected, "group {lsn} told {value:?}: {issued:?}; {}", story());
        }
        let now = self.now;
        self.history.entry_mut(lsn).acked.get_or_insert(now);
        self.revealed = self.revealed.max(lsn);
    }

    /// Where parents are looked for, what is acknowledged refers anew to none that was missing.
    fn check_parents(&self, lsn: u64) {
        if !self.options.asks_parents {
            return;
        }
        for change in &self.history.entry(lsn).changes {
            let parent = change.sets.iter().find_map(|(column, set)| match set {
                Set::To(Some(value)) if change.place.0 == CHILD && *column == 1 => Some(value),
                _ => None,
            });
            let Some(parent) = parent else { continue };
            let place = (PARENT, parent.parse().expect("a key"));
            let is_right = |asks_origin: bool| {
                let look = Look { asks_origin, ..Look::NOW };
                let before = self.history.row_as(change.place, lsn - 1, look);
                let is_as_before = before.is_some_and(|row| row[1].as_ref() == Some(parent));
                is_as_before || self.history.row_as(place, lsn, look).is_some()
            };
            assert!(is_right(false) || is_right(true), "group {lsn} refers to no row: {change:?}");
        }
    }

    /// A parent that a client is told is missing was missing at some moment between its sending and now.
    fn check_orphan(&mut self, issued: &Issued, (low, sent): (u64, Time), error: &str) {
        assert!(self.options.asks_parents, "{error}");
        let named =
            error.split("there is no parent:").nth(1).and_then(|rest| rest.split(',').next());
        let parent = named.unwrap_or_else(|| panic!("it names none: {error}"));
        let place = (PARENT, parent.parse().expect("a key"));
        let refers = |command: &Data| match command {
            Data::Set((CHILD, _), sets) => sets.contains(&(1, parent.to_owned())),
            _ => false,
        };
        assert!(issued.commands.iter().any(refers), "{error}: {issued:?}");
        let deletes = |command: &Data| matches!(command, Data::Delete(gone) if *gone == place);
        let mut moments = vec![low];
        moments.extend(self.history.changes_after(&[place], low));
        let looks = self.looks_from(&[place], sent);
        let mut all = looks.iter().flat_map(|&look| moments.iter().map(move |&at| (look, at)));
        let found = all.find(|&(look, at)| self.history.row_as(place, at, look).is_none());
        let found = found.map(|(_, at)| at);
        let is_own = issued.commands.iter().any(deletes);
        assert!(found.is_some() || is_own, "{error}: {}", self.history.story(place));
        if let Some(at) = found {
            self.revealed = self.revealed.max(self.history.revealed(&[place], at));
        }
        self.counts.orphans += 1;
    }

    /// The group of a command that cannot be told from others of its kind.
    pub(super) fn find_untagged(
        &mut self,
        issued: &Issued,
        low: u64,
        value: &Value,
    ) -> Option<u64> {
        let [command] = &issued.commands[..] else { return None };
        let rejected = matches!(value, Value::Error(error) if error.starts_with("REJECTED"));
        let is_done = match command {
            Data::Raise(..) => matches!(value, Value::Text(_)),
            _ => *value == Value::Int(1),
        };
        if !command.is_write() || !(is_done || rejected) {
            return None;
        }
        let lsns = self.history.changes_after(&[command.place()], low);
        let found = lsns.into_iter().find(|&lsn| {
            let entry = self.history.entry(lsn);
            let [change] = &entry.changes[..] else { return false };
            let fits = match command {
                Data::Delete(_) | Data::Leave(_) => change.op == Op::Delete,
                Data::Raise(..) => {
                    let [(sets::SCORE, Set::To(Some(sum)))] = &change.sets[..] else {
                        return false;
                    };
                    *value == Value::Text(sum.clone())
                }
                Data::Clear(_, column) => change.sets == [(*column, Set::To(None))],
                _ => false,
            };
            fits && entry.command.is_none() && entry.dropped == rejected && !entry.hidden
        });
        let lsn =
            found.unwrap_or_else(|| panic!("{command:?} was told {value:?}, without a group"));
        self.history.entry_mut(lsn).command = Some(0);
        Some(lsn)
    }

    /// What wrote nothing must be true of some moment between its sending and now.
    pub(super) fn check_read(&mut self, issued: &Issued, (low, sent): (u64, Time), value: &Value) {
        let places: Vec<Place> = issued.commands.iter().map(Data::place).collect();
        let moments = self.history.changes_after(&places, low);
        let moments: Vec<u64> = std::iter::once(low).chain(moments).collect();
        let looks = self.looks_from(&places, sent);
        for (&look, &at) in looks.iter().flat_map(|look| moments.iter().map(move |at| (look, at))) {
            let before = self.rows_as(&places, at, look);
            let (told, after, may_be_refused) = self.perform(issued, before.clone());
            let fits = match (value, &told) {
                (Value::Error(_), None) => true,
                (Value::Error(error), Some(_)) => may_be_refused && error.contains("a new row"),
                (value, Some(told)) => value == told && before == after,
                _ => false,
            };
            if fits {
                let seen = self.history.revealed(&places, at);
                self.revealed = self.revealed.max(seen);
                return;
            }
        }
        let now = self.rows_as(&places, self.history.last(), Look::NOW);
        panic!(
            "no moment since group {low} explains {value:?} as the reply to {issued:?}; the rows are {now:?}{}",
            self.history.story(places[0])
        );
    }

    /// How those may have looked at rows who asked from then on.
    pub(in crate::engine::tests) fn looks_from(&self, places: &[Place], from: Time) -> Vec<Look> {
        let turns = self.history.turns_from(places, from);
        let befores = std::iter::once(from).chain(turns.into_iter().map(|at| at + Span(1)));
        let look = |before| [false, true].map(|asks_origin| Look { before, asks_origin });
        befores.flat_map(look).collect()
    }

    pub(in crate::engine::tests) fn rows_as(
        &self,
        places: &[Place],
        at: u64,
        look: Look,
    ) -> BTreeMap<Place, Option<Row>> {
        places.iter().map(|&place| (place, self.history.row_as(place, at, look))).collect()
    }

    /// What the commands do upon these rows; no reply if they fail. And whether they may fail although they need not.
    pub(super) fn perform(
        &self,
        issued: &Issued,
        rows: BTreeMap<Place, Option<Row>>,
    ) -> (Option<Value>, BTreeMap<Place, Option<Row>>, bool) {
        let mut rows = Rows::new(&self.history.tables, rows);
        let replies: Option<Vec<Value>> =
            issued.commands.iter().map(|command| rows.execute(command)).collect();
        let replies = replies.filter(|_| rows.are_complete());
        let reply = replies
            .map(|mut replies| if issued.exec { Value::List(replies) } else { replies.remove(0) });
        let may_be_refused = rows.may_be_refused();
        (reply, rows.rows, may_be_refused)
    }
}
