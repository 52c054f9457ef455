//! Clients: what they send, and whether what they are told is true.

mod check;
mod load;
pub(super) mod raw;
mod scan;

use super::command::{Data, Rows, Value, encode, read_reply};
use super::derived::Asked;
use super::history::Look;
use super::options::Rng;
use super::sets;
use super::shop::{self, CHILD, DERIVED, ITEM, KEYS, NAMES, PARENT};
use super::sim::{Event, Sim};
use destage_core::{ClientId, Span, Time};
use destage_engine::Drive;
use destage_testkit::origin::{self, Fate, Op, Place, Row, Set};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a client has sent.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Data(u64),
    /// A command that is carried out once.
    Once(u64),
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
    Members(sets::Asked),
    Ping(String),
    Hello,
    Quit,
}

#[derive(Clone, Debug)]
pub(super) struct Sent {
    request: Request,
    /// The newest group when it was sent.
    low: u64,
    at: Time,
}

/// A data command or a transaction.
#[derive(Clone, Debug)]
pub(super) struct Issued {
    commands: Vec<Data>,
    exec: bool,
    /// What it must be told, once its group is known: one of these.
    expected: Vec<Value>,
    /// Its client has left.
    forgotten: bool,
}

impl Issued {
    /// The only one.
    pub(super) fn command(&self) -> &Data {
        &self.commands[0]
    }
}

/// The rows that a transaction watches.
#[derive(Clone, Debug)]
pub(super) struct Watching {
    pub(super) places: Vec<Place>,
    /// The newest group when WATCH was sent.
    low: u64,
    at: Time,
    /// The newest group when it was answered, and when that was.
    high: Option<(u64, Time)>,
}

/// A scan under way.
#[derive(Debug)]
struct Scan {
    table: usize,
    low: u64,
    began: Time,
    cursor: String,
    seen: BTreeSet<i64>,
}

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) rng: Rng,
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
        let id = if sim.options.raw { sim.engine.connect_trusted() } else { sim.engine.connect() };
        let id = id.expect("there is room for a few");
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
                self.watching.get_mut(&number).expect("noted when it was sent").high =
                    Some((last, self.now));
            }
            Request::WaitAof => {
                assert_eq!(value, Value::List(vec![Value::Int(1), Value::Int(0)]));
                let durable = self.engine.core.committed().0;
                assert!(own <= durable, "group {own} is not durable as WAITAOF says");
            }
            Request::Wait => self.check_wait(own, sent.at, &value),
            Request::Scan => self.scan_page(index, value),
            Request::Derived(asked) => self.check_derived(&asked, low, &value),
            Request::Members(asked) => self.check_members(&asked, (low, sent.at), &value),
            Request::Once(number) => {
                // The newest of its writes, for DESTAGE WAIT, is the one that it was answered about last.
                self.clients[index].own = self.check_once(number, &value).unwrap_or(own);
            }
            Request::Data(number) | Request::Exec(number) => {
                let lsn = self.check_data(number, (low, sent.at), &value);
                self.clients[index].own = own.max(lsn);
            }
        }
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
        // Where rows went with others at the origin, whoever wrote the group may have known or not.
        let asks = Look { asks_origin: true, ..Look::NOW };
        let knows = |look: &Look| {
            let rows = self.rows_as(&places, lsn - 1, *look);
            changes
                .iter()
                .all(|c| c.op == Op::Delete || rows[&c.place].is_some() == (c.op == Op::Update))
        };
        let look = if knows(&Look::NOW) { Look::NOW } else { asks };
        let before = self.rows_as(&places, lsn - 1, look);
        let mut after = before.clone();
        for change in &changes {
            let row = &after[&change.place];
            let exists = row.is_some();
            let fits = exists != (change.op == Op::Insert) || change.op == Op::UpdateIfThere;
            let story = || self.history.story(change.place);
            assert!(fits, "group {lsn}: {change:?} meets {row:?}; {}", story());
            let row = origin::apply(&self.history.tables[change.place.0], row.as_ref(), change);
            after.insert(change.place, row);
        }
        let (Some(number), Some(issued)) = (number, issued) else { return };
        assert!(!issued.forgotten, "group {lsn} is of a client that had left");
        let earlier = self.groups_of.insert(number, lsn);
        // What the origin rejected leaves no token.
        let earlier = earlier.filter(|&earlier| !self.history.entry(earlier).dropped);
        assert_eq!(earlier, None, "a command was executed twice, as group {lsn}: {issued:?}");
        let (expected, rows, _) = self.perform(&issued, before);
        assert!(expected.is_some(), "group {lsn} should have been refused: {issued:?}");
        assert_eq!(rows, after, "group {lsn} is not what was asked for: {issued:?} as {changes:?}");
        // What the group did not change, it may have read as somebody else did.
        let others = [Look::NOW, asks].map(|look| self.rows_as(&places, lsn - 1, look));
        let others = others.into_iter().filter_map(|rows| self.perform(&issued, rows).0);
        let expected = expected.into_iter().chain(others).collect();
        if let Some(issued) = self.issued.get_mut(&number) {
            issued.expected = expected;
        }
        self.history.entry_mut(lsn).command = Some(number);
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
        if self.options.sets.is_some() {
            let asked = sets::Asked::everything();
            let words = asked.words();
            self.send(&mut client, &mut bytes, Request::Members(asked), &words);
        }
        let id = client.id;
        self.clients.push(client);
        self.engine.receive(self.now, id, &bytes);
        self.step();
        self.run(self.now + Span::from_secs(2));
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

pub(super) fn is_refusal(error: &str) -> bool {
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
