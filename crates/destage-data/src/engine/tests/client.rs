//! Clients: what they send, and whether what they are told is true.

use super::command::{Data, Rows, Value, encode, read_reply};
use super::derived::Asked;
use super::options::Rng;
use super::shop::{self, CHILD, DERIVED, ITEM, KEYS, NAMES, PARENT};
use super::sim::{Event, Sim};
use destage_core::ClientId;
use destage_testkit::origin::{self, Fate, Op, Place, Row, Set};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a client has sent.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Data(u64),
    Multi,
    Queued,
    Exec(u64),
    Discard,
    /// For the transaction of that number, which comes later.
    Watch(u64),
    WaitAof,
    Wait,
    Scan,
    Derived(Asked),
    Ping(String),
    Hello,
    Quit,
}

#[derive(Clone, Debug)]
pub(super) struct Sent {
    request: Request,
    /// The newest group when it was sent.
    low: u64,
}

/// A data command or a transaction.
#[derive(Clone, Debug)]
pub(super) struct Issued {
    commands: Vec<Data>,
    exec: bool,
    /// What it must be told, once its group is known.
    expected: Option<Value>,
    /// Its client has left.
    forgotten: bool,
}

/// The rows that a transaction watches.
#[derive(Clone, Debug)]
pub(super) struct Watching {
    places: Vec<Place>,
    /// The newest group when WATCH was sent.
    low: u64,
    /// The newest group when it was answered.
    high: Option<u64>,
}

/// A scan under way.
#[derive(Debug)]
struct Scan {
    table: usize,
    low: u64,
    cursor: String,
    seen: BTreeSet<i64>,
}

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    rng: Rng,
    resp3: bool,
    sent: VecDeque<Sent>,
    received: Vec<u8>,
    unsent: Vec<u8>,
    scan: Option<Scan>,
    /// The transaction that the rows watched by now are for.
    watch: Option<u64>,
    /// The newest group of its own that it was told of.
    own: u64,
}

impl Client {
    pub(super) fn new(sim: &mut Sim, index: usize) -> Self {
        let id = sim.engine.connect().expect("there is room for a few");
        let rng = Rng::new(sim.rng.next(), index as u64);
        Self {
            id,
            rng,
            resp3: false,
            sent: VecDeque::new(),
            received: Vec::new(),
            unsent: Vec::new(),
            scan: None,
            watch: None,
            own: 0,
        }
    }

    pub(super) fn forget(&mut self) {
        self.sent.clear();
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.sent.is_empty()
    }
}

impl Sim {
    /// A client does something.
    pub(super) fn act(&mut self, index: usize) {
        if self.quiet && self.clients[index].unsent.is_empty() {
            return;
        }
        self.later(self.options.think_ns(), Event::Act(index));
        let id = self.clients[index].id;
        if !self.engine.wants_input(id) {
            return;
        }
        let mut client = std::mem::replace(&mut self.clients[index], placeholder(id));
        let mut bytes = std::mem::take(&mut client.unsent);
        if bytes.is_empty() && client.rng.chance(1) {
            self.clients[index] = client;
            return self.reconnect(index);
        }
        if client.sent.len() < 20 && !self.quiet {
            for _ in 0..=client.rng.below(self.options.pipeline) {
                self.generate(&mut client, &mut bytes);
            }
        }
        if client.rng.chance(15) && !bytes.is_empty() {
            let cut = client.rng.below(bytes.len() as u64) as usize;
            client.unsent = bytes.split_off(cut);
        }
        self.clients[index] = client;
        self.engine.receive(self.now, id, &bytes);
    }

    /// The client leaves in the middle of everything, and another one comes.
    fn reconnect(&mut self, index: usize) {
        let id = self.clients[index].id;
        self.engine.disconnect(self.now, id);
        for sent in std::mem::take(&mut self.clients[index].sent) {
            if let Request::Data(number) | Request::Exec(number) = sent.request
                && let Some(issued) = self.issued.get_mut(&number)
            {
                issued.forgotten = true;
            }
        }
        self.clients[index] = Client::new(self, index);
    }

    fn send(
        &mut self,
        client: &mut Client,
        bytes: &mut Vec<u8>,
        request: Request,
        words: &[String],
    ) {
        bytes.extend(encode(words));
        client.sent.push_back(Sent { request, low: self.engine.last().0 });
    }

    fn generate(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        if client.sent.iter().any(|sent| matches!(sent.request, Request::Quit)) {
            return;
        }
        let word = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        match client.rng.below(100) {
            0..70 if self.options.derives && client.rng.chance(20) => {
                let asked = Asked::choose(&mut client.rng, self.next_command);
                let words = asked.words();
                self.send(client, bytes, Request::Derived(asked), &words);
            }
            0..70 => {
                let number = self.number();
                let command = self.command(&mut client.rng, number);
                let words = command.words();
                self.issue(number, vec![command], false);
                self.send(client, bytes, Request::Data(number), &words);
            }
            70..85 if self.options.watches && client.watch.is_none() => self.watch(client, bytes),
            70..85 => self.transaction(client, bytes),
            85..87 => self.send(client, bytes, Request::WaitAof, &word("WAITAOF 1 0 0")),
            87..89 => {
                let wait = format!("DESTAGE WAIT {}", client.rng.pick(&[0, 5, 100]));
                self.send(client, bytes, Request::Wait, &word(&wait));
            }
            89..95 if client.scan.is_none() => self.begin_scan(client, bytes),
            95..97 => {
                client.resp3 |= client.sent.is_empty();
                let version = if client.resp3 { "HELLO 3" } else { "HELLO 2" };
                self.send(client, bytes, Request::Hello, &word(version));
            }
            97 => self.send(client, bytes, Request::Quit, &word("QUIT")),
            _ => {
                let text = format!("p{}", client.rng.below(1_000));
                let words = word(&format!("PING {text}"));
                self.send(client, bytes, Request::Ping(text), &words);
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.next_command += 1;
        self.next_command
    }

    fn issue(&mut self, number: u64, commands: Vec<Data>, exec: bool) {
        let issued = Issued { commands, exec, expected: None, forgotten: false };
        self.issued.insert(number, issued);
    }

    /// Watches a few rows for a transaction to come.
    fn watch(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        let number = self.number();
        let places: Vec<Place> = (0..=client.rng.below(2))
            .map(|_| {
                let table = client.rng.pick(&[ITEM, PARENT, CHILD, DERIVED]);
                (table, client.rng.below(KEYS[table] as u64) as i64)
            })
            .collect();
        let mut words = vec!["WATCH".to_owned()];
        words.extend(places.iter().map(|(table, key)| format!("{}:{key}", NAMES[*table])));
        if self.options.forgets_to_watch {
            words = vec!["UNWATCH".into()];
        }
        let watching = Watching { places, low: self.engine.last().0, high: None };
        self.watching.insert(number, watching);
        client.watch = Some(number);
        self.send(client, bytes, Request::Watch(number), &words);
    }

    fn transaction(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        let watch = client.watch.take();
        let count = 1 + client.rng.below(5);
        let reads = client.rng.chance(25);
        let mut commands = Vec::new();
        let mut first = None;
        let exec = watch.unwrap_or_else(|| self.number());
        self.send(client, bytes, Request::Multi, &["MULTI".into()]);
        for at in 0..count {
            let number = self.number();
            let command = loop {
                let command = self.command(&mut client.rng, number);
                let fits = match at {
                    _ if reads => !command.is_write(),
                    0 => matches!(command, Data::Set(..)),
                    // The first command's tag must last, since the group is known by it.
                    _ => {
                        let clears = matches!(command, Data::Clear(..) | Data::Delete(_));
                        !clears || first != Some(command.place())
                    }
                };
                if fits {
                    break command;
                }
            };
            first = first.or_else(|| Some(command.place()));
            self.owners.insert(number, exec);
            self.send(client, bytes, Request::Queued, &command.words());
            commands.push(command);
        }
        if client.rng.chance(5) {
            return self.send(client, bytes, Request::Discard, &["DISCARD".into()]);
        }
        self.issue(exec, commands, true);
        self.send(client, bytes, Request::Exec(exec), &["EXEC".into()]);
    }

    fn command(&mut self, rng: &mut Rng, number: u64) -> Data {
        let table = rng.pick(&[ITEM, ITEM, ITEM, PARENT, CHILD, DERIVED]);
        let place = (table, rng.below(KEYS[table] as u64) as i64);
        let (count, tag) = [(2, 3), (1, 5), (1, 2), (2, 1)][table];
        let width = self.history.tables[table].columns.len() as u64;
        match rng.below(20) {
            0..6 => Data::Set(place, self.sets(rng, place, number)),
            6..10 => Data::Add(place, count, number as i64),
            10 => Data::SetAbsent(place, tag, format!("v{number}")),
            11 if table != PARENT => Data::Clear(place, tag),
            12 => Data::Delete(place),
            13..16 => Data::Get(place, rng.below(width) as usize),
            16 => Data::GetSome(place, (0..3).map(|_| rng.below(width) as usize).collect()),
            17 => Data::Exists(place),
            _ => Data::GetAll(place),
        }
    }

    fn sets(&mut self, rng: &mut Rng, (table, _): Place, number: u64) -> Vec<(usize, String)> {
        let tag = format!("v{number}");
        let poison = rng.chance(self.options.poison_percent);
        let mut sets = Vec::new();
        match table {
            CHILD => {
                let parents = if poison { 9 } else { 2 };
                sets.push((3, tag));
                if rng.chance(90) {
                    sets.push((1, rng.below(parents).to_string()));
                    let most = if poison { 2 * shop::QUANTITY_MAX as u64 } else { 100 };
                    sets.push((2, rng.below(most).to_string()));
                }
            }
            DERIVED => {
                sets.extend([(1, rng.below(50).to_string()), (5, tag)]);
                if poison {
                    sets.push((4, format!("u{}", rng.below(2))));
                }
            }
            PARENT => sets.push((1, tag)),
            _ => {
                sets.push((2, tag));
                if rng.chance(20) {
                    sets.push((1, rng.below(5).to_string()));
                }
                if self.options.bulky {
                    sets.push((4, "n".repeat(rng.below(9_000) as usize)));
                }
                if poison {
                    sets.push((3, format!("u{}", rng.below(3))));
                }
            }
        }
        sets
    }

    fn begin_scan(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        let table = client.rng.below(NAMES.len() as u64) as usize;
        let low = self.engine.last().0;
        client.scan = Some(Scan { table, low, cursor: "0".into(), seen: BTreeSet::new() });
        self.send_scan(client, bytes);
    }

    fn send_scan(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        let Some(scan) = &client.scan else { return };
        if client.sent.iter().any(|sent| matches!(sent.request, Request::Quit)) {
            return;
        }
        let words = [
            "SCAN".to_owned(),
            scan.cursor.clone(),
            "MATCH".into(),
            format!("{}:*", NAMES[scan.table]),
            "COUNT".into(),
            client.rng.pick(&[1, 2, 5]).to_string(),
        ];
        self.send(client, bytes, Request::Scan, &words);
    }

    /// Takes every reply that may leave; true if there was one.
    pub(super) fn send_all(&mut self) -> bool {
        let mut ids = Vec::new();
        self.engine.take_sends(&mut ids);
        let any = !ids.is_empty();
        for id in ids {
            let Some((ready, closing)) = self.engine.outgoing(id) else { continue };
            let bytes = std::mem::take(ready);
            let Some(index) = self.clients.iter().position(|client| client.id == id) else {
                continue;
            };
            for &byte in &bytes {
                self.mix(u64::from(byte));
            }
            self.clients[index].received.extend(bytes);
            self.read_replies(index);
            if closing {
                let waits = self.clients[index].is_waiting();
                assert!(!waits, "closed with replies outstanding: {:?}", self.clients[index]);
                self.reconnect(index);
            }
        }
        any
    }

    fn read_replies(&mut self, index: usize) {
        loop {
            let client = &mut self.clients[index];
            if client.received.is_empty() {
                return;
            }
            let read = read_reply(&client.received, client.resp3);
            let read = read.unwrap_or_else(|error| {
                panic!("{error}: {}", String::from_utf8_lossy(&client.received))
            });
            let Some((value, used)) = read else {
                panic!("half a reply: {}", String::from_utf8_lossy(&client.received))
            };
            client.received.drain(..used);
            let sent = client
                .sent
                .pop_front()
                .unwrap_or_else(|| panic!("a reply that nobody waits for: {value:?}"));
            self.counts.replies += 1;
            self.reply(index, sent, value);
        }
    }

    fn reply(&mut self, index: usize, sent: Sent, value: Value) {
        let own = self.clients[index].own;
        let low = sent.low.max(own);
        let ok = |text: &str| Value::Text(text.into());
        match sent.request {
            Request::Multi | Request::Discard | Request::Quit => assert_eq!(value, ok("OK")),
            Request::Queued => assert_eq!(value, ok("QUEUED")),
            Request::Ping(text) => assert_eq!(value, Value::Text(text)),
            Request::Hello => assert!(!matches!(value, Value::Error(_)), "{value:?}"),
            Request::Watch(number) => {
                assert_eq!(value, ok("OK"));
                let last = self.engine.last().0;
                self.watching.get_mut(&number).expect("noted when it was sent").high = Some(last);
            }
            Request::WaitAof => {
                assert_eq!(value, Value::List(vec![Value::Int(1), Value::Int(0)]));
                let durable = self.engine.core.committed().0;
                assert!(own <= durable, "group {own} is not durable as WAITAOF says");
            }
            Request::Wait => self.check_wait(own, &value),
            Request::Scan => self.scan_page(index, value),
            Request::Derived(asked) => self.check_derived(&asked, low, &value),
            Request::Data(number) | Request::Exec(number) => {
                let lsn = self.check_data(number, low, &value);
                self.clients[index].own = own.max(lsn);
            }
        }
    }

    fn check_wait(&self, own: u64, value: &Value) {
        if self.options.rewind.is_some() {
            return;
        }
        let fate = self.origin.fates.get(&own);
        match value {
            Value::Int(0) => {}
            Value::Int(1) => {
                assert!(own == 0 || fate.is_some(), "group {own} is not decided");
                assert_ne!(fate, Some(&Fate::Parked), "group {own} is parked, not applied");
            }
            Value::Error(error) if error.starts_with("PARKED") => {
                assert_eq!(fate, Some(&Fate::Parked), "group {own}");
            }
            other => panic!("DESTAGE WAIT: {other:?}"),
        }
    }

    /// Checks the reply to a data command or a transaction; the group that it wrote is returned, 0 for none.
    fn check_data(&mut self, number: u64, low: u64, value: &Value) -> u64 {
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
            Value::Error(error) if error.starts_with("PARKED") => {
                let parked = self.origin.parked.keys();
                let places: Vec<_> = issued.commands.iter().map(Data::place).collect();
                let touches = |lsn: &u64| {
                    self.history.entry(*lsn).changes.iter().any(|c| places.contains(&c.place))
                };
                assert!(parked.into_iter().any(touches), "{error}: {issued:?}");
            }
            _ => self.check_read(&issued, low, value),
        }
        0
    }

    /// A transaction is not done if and only if a row that it watched has changed.
    fn check_watched(&mut self, number: u64, sent: u64, value: &Value) {
        let Some(watching) = self.watching.get(&number) else {
            return assert_ne!(*value, Value::Nil, "nothing was watched");
        };
        let changes = |after: u64| self.history.changes_after(&watching.places, after);
        let wrote = self.groups_of.get(&number).copied();
        self.counts.watched += 1;
        match value {
            Value::Nil => {
                assert_eq!(wrote, None, "its client was told that it is not done");
                assert!(!changes(watching.low).is_empty(), "nothing has changed: {watching:?}");
                self.counts.not_done += 1;
            }
            Value::Error(_) => {}
            _ => {
                let high = watching.high.expect("WATCH was answered before");
                let own = |lsn: &u64| Some(*lsn) == wrote;
                let upto = wrote.unwrap_or(sent);
                let changed = changes(high).into_iter().find(|lsn| *lsn <= upto && !own(lsn));
                assert_eq!(changed, None, "a watched row changed before it was done: {watching:?}");
            }
        }
    }

    fn check_written(&mut self, lsn: u64, issued: &Issued, value: &Value) {
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
        if let Some(expected) = &issued.expected {
            let story = || self.history.story(issued.commands[0].place());
            assert_eq!(value, expected, "group {lsn}: {issued:?}; {}", story());
        }
        let now = self.now;
        self.history.entry_mut(lsn).acked.get_or_insert(now);
        self.revealed = self.revealed.max(lsn);
    }

    /// The group of a command that cannot be told from others of its kind.
    fn find_untagged(&mut self, issued: &Issued, low: u64, value: &Value) -> Option<u64> {
        let [command] = &issued.commands[..] else { return None };
        let rejected = matches!(value, Value::Error(error) if error.starts_with("REJECTED"));
        if !command.is_write() || (*value != Value::Int(1) && !rejected) {
            return None;
        }
        let lsns = self.history.changes_after(&[command.place()], low);
        let found = lsns.into_iter().find(|&lsn| {
            let entry = self.history.entry(lsn);
            let [change] = &entry.changes[..] else { return false };
            let fits = match command {
                Data::Delete(_) => change.op == Op::Delete,
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
    fn check_read(&mut self, issued: &Issued, low: u64, value: &Value) {
        let places: Vec<Place> = issued.commands.iter().map(Data::place).collect();
        let moments = self.history.changes_after(&places, low);
        for at in std::iter::once(low).chain(moments) {
            let before = self.rows_at(&places, at);
            let (told, after) = self.perform(issued, before.clone());
            let fits = match (value, &told) {
                (Value::Error(_), None) => true,
                (value, Some(told)) => value == told && before == after,
                _ => false,
            };
            if fits {
                let seen = self.history.revealed(&places, at);
                self.revealed = self.revealed.max(seen);
                return;
            }
        }
        let now = self.rows_at(&places, self.history.last());
        panic!(
            "no moment since group {low} explains {value:?} as the reply to {issued:?}; the rows are {now:?}{}",
            self.history.story(places[0])
        );
    }

    fn rows_at(&self, places: &[Place], at: u64) -> BTreeMap<Place, Option<Row>> {
        places.iter().map(|&place| (place, self.history.row(place, at))).collect()
    }

    /// What the commands do upon these rows; no reply if they fail.
    fn perform(
        &self,
        issued: &Issued,
        rows: BTreeMap<Place, Option<Row>>,
    ) -> (Option<Value>, BTreeMap<Place, Option<Row>>) {
        let mut rows = Rows::new(&self.history.tables, rows);
        let replies: Option<Vec<Value>> =
            issued.commands.iter().map(|command| rows.execute(command)).collect();
        let replies = replies.filter(|_| rows.are_complete());
        let reply = replies.map(|mut replies| match issued.exec {
            true => Value::List(replies),
            false => replies.remove(0),
        });
        (reply, rows.rows)
    }

    /// Finds the command that wrote a new group, and checks that it is what the command means.
    pub(super) fn match_group(&mut self, lsn: u64) {
        let changes = self.history.entry(lsn).changes.clone();
        let mut places: Vec<Place> = changes.iter().map(|change| change.place).collect();
        let tag = tag_of(&changes);
        let number = tag.map(|tag| self.owners.get(&tag).copied().unwrap_or(tag));
        let issued = number.map(|number| {
            let issued = self.issued.get(&number);
            issued.unwrap_or_else(|| panic!("group {lsn} comes from nowhere: {changes:?}")).clone()
        });
        places.extend(issued.iter().flat_map(|issued| &issued.commands).map(Data::place));
        let before = self.rows_at(&places, lsn - 1);
        let mut after = before.clone();
        for change in &changes {
            let row = &after[&change.place];
            let exists = row.is_some();
            assert_ne!(exists, change.op == Op::Insert, "group {lsn}: {change:?} meets {row:?}");
            let row = origin::apply(&self.history.tables[change.place.0], row.as_ref(), change);
            after.insert(change.place, row);
        }
        let (Some(number), Some(issued)) = (number, issued) else { return };
        assert!(!issued.forgotten, "group {lsn} is of a client that had left");
        let earlier = self.groups_of.insert(number, lsn);
        assert_eq!(earlier, None, "a command was executed twice, as group {lsn}: {issued:?}");
        let (expected, rows) = self.perform(&issued, before);
        assert!(expected.is_some(), "group {lsn} should have been refused: {issued:?}");
        assert_eq!(rows, after, "group {lsn} is not what was asked for: {issued:?} as {changes:?}");
        if let Some(issued) = self.issued.get_mut(&number) {
            issued.expected = expected;
        }
        self.history.entry_mut(lsn).command = Some(number);
    }

    fn scan_page(&mut self, index: usize, value: Value) {
        let mut scan = self.clients[index].scan.take().expect("a scan is under way");
        let page = match value {
            Value::List(page) => page,
            Value::Error(error) => return assert!(is_refusal(&error), "{error}"),
            other => panic!("SCAN: {other:?}"),
        };
        let [Value::Text(cursor), Value::List(keys)] = &page[..] else { panic!("{page:?}") };
        let prefix = format!("{}:", NAMES[scan.table]);
        for key in keys {
            let Value::Text(key) = key else { panic!("{key:?}") };
            let key = key.strip_prefix(&prefix).and_then(|key| key.parse().ok());
            scan.seen.insert(key.expect("a key of the table"));
        }
        scan.cursor.clone_from(cursor);
        if scan.cursor == "0" {
            self.counts.scans += 1;
            return self.check_scan(&scan);
        }
        let mut client = std::mem::replace(&mut self.clients[index], placeholder(ClientId(0)));
        client.scan = Some(scan);
        let mut bytes = std::mem::take(&mut client.unsent);
        self.send_scan(&mut client, &mut bytes);
        let id = client.id;
        client.unsent = bytes;
        self.clients[index] = client;
        let _ = id;
        self.later(100_000, Event::Act(index));
    }

    /// A scan shows what existed all the time, and nothing that never did.
    fn check_scan(&self, scan: &Scan) {
        let last = self.history.last();
        for key in 0..KEYS[scan.table] {
            let place = (scan.table, key);
            let moments = self.history.changes_after(&[place], scan.low);
            let through = (1..=last).any(|lsn| {
                let entry = self.history.entry(lsn);
                entry.through
                    && !entry.dropped
                    && entry.changes.iter().any(|change| change.place == place)
            });
            if through {
                continue;
            }
            let exists: Vec<bool> = std::iter::once(scan.low)
                .chain(moments)
                .map(|at| self.history.row(place, at).is_some())
                .collect();
            let seen = scan.seen.contains(&key);
            assert!(
                seen || exists.contains(&false),
                "SCAN missed {place:?}: {scan:?}{}",
                self.history.story(place)
            );
            assert!(
                !seen || exists.contains(&true),
                "SCAN invented {place:?}: {scan:?}{}",
                self.history.story(place)
            );
        }
    }

    /// Reads every row as a new client.
    pub(super) fn read_everything(&mut self) {
        let mut client = Client::new(self, 99);
        let index = self.clients.len();
        let mut bytes = Vec::new();
        for (table, keys) in KEYS.into_iter().enumerate() {
            for key in 0..keys {
                let number = self.number();
                let command = Data::GetAll((table, key));
                let words = command.words();
                self.issue(number, vec![command], false);
                self.send(&mut client, &mut bytes, Request::Data(number), &words);
            }
        }
        let id = client.id;
        self.clients.push(client);
        self.engine.receive(self.now, id, &bytes);
        self.step();
        self.run(self.now + destage_core::Span::from_secs(2));
        assert!(
            !self.clients[index].is_waiting(),
            "reads wait for ever: {:?}",
            self.clients[index]
        );
    }
}

fn placeholder(id: ClientId) -> Client {
    Client {
        id,
        rng: Rng::new(0, 0),
        resp3: false,
        sent: VecDeque::new(),
        received: Vec::new(),
        unsent: Vec::new(),
        scan: None,
        watch: None,
        own: 0,
    }
}

fn is_refusal(error: &str) -> bool {
    ["STALE ", "FULL ", "BUSY ", "UNAVAILABLE "].iter().any(|kind| error.starts_with(kind))
}

/// The number of the command that wrote these changes, where they tell.
fn tag_of(changes: &[origin::Change]) -> Option<u64> {
    let sets = || changes.iter().flat_map(|change| &change.sets);
    let text = |set: &Set| match set {
        Set::To(Some(text)) => text.strip_prefix('v')?.parse().ok(),
        _ => None,
    };
    let amount = |set: &Set| match set {
        Set::By(amount) => u64::try_from(*amount).ok(),
        _ => None,
    };
    let tag = sets().find_map(|(_, set)| text(set));
    let tag = tag.or_else(|| sets().find_map(|(_, set)| amount(set)));
    tag.or_else(|| {
        let insert = changes.iter().find(|change| change.op == Op::Insert)?;
        insert.sets.iter().find_map(|(column, set)| match set {
            Set::To(Some(value)) if *column == 1 => value.parse().ok(),
            _ => None,
        })
    })
}
