//! What every origin has to pass: one body of checks of what [`crate::contract`] promises. An origin's tests call [`run`]
//! with a [`Store`] of their own, and [`run_control`], which shows that the suite would notice an origin that does not
//! compare watermarks.
//!
//! The store holds one table, `items`, with the rows [`ROWS`], whose column `n` is 0: whole numbers, of which the first is
//! the key. Each check begins with a new store.

mod owners;
mod parking;
mod reads;
mod writes;

use crate::cells::{self, Cell, push_cell};
use crate::change::{GroupWriter, Op, Set};
use crate::contract::{
    ALL_DOMAINS, Applied, Claim, GroupRef, Mark, Origin, OriginError, ParkedGroup, Reader,
    WriteClaim, Writer,
};
use crate::schema::{Schema, Table};
use destage_core::{DomainId, Fault, Lsn};

/// The keys of the rows.
pub const ROWS: [i64; 3] = [1, 2, 10];

/// A store behind an origin, with what the suite does past it.
pub trait Store: Sync {
    /// Opens the store as an origin. It is called several times, and each time means the same store.
    fn origin(&self) -> Box<dyn Origin>;

    /// Puts the watermark of a domain elsewhere, as a backup that is restored does.
    fn set_watermark(&self, domain: DomainId, lsn: Lsn);

    /// Has the store refuse every row that is parked from now on, or take it again.
    fn refuse_parking(&self, is_refused: bool);

    /// A password with which it is opened, which no message may hold.
    fn password(&self) -> Option<&str> {
        None
    }

    /// Whether a batch of several domains can be applied, which takes transactions.
    fn has_transactions(&self) -> bool {
        true
    }
}

/// Runs every check, each on a store of its own.
///
/// # Panics
/// The origin breaks a promise: the message names the check and what it saw.
pub fn run(new_store: &dyn Fn() -> Box<dyn Store>) {
    for (name, check) in CHECKS {
        println!("conformance: {name}");
        check(&Checked::new(&*new_store()));
    }
}

/// The control: an origin that does not look at watermarks counts a repeated batch twice, and the suite sees it.
///
/// # Panics
/// It counts once all the same, so that the suite proves nothing.
pub fn run_control(new_store: &dyn Fn() -> Box<dyn Store>) {
    let store = new_store();
    let checked = Checked::new(&*store);
    assert_eq!(writes::count_of_repeated_batch(&checked, false), 2, "with a look at the watermark");
    let store = new_store();
    let checked = Checked::new(&*store);
    assert_eq!(writes::count_of_repeated_batch(&checked, true), 4, "without");
}

type Check = fn(&Checked<'_>);

const CHECKS: &[(&str, Check)] = &[
    ("a claim replaces the owner that was read and no other", owners::claims),
    ("of two claims at once one succeeds", owners::claims_at_once),
    ("a fenced owner can do nothing", owners::fenced),
    ("release and heartbeat are seen", owners::release_and_heartbeat),
    ("the mark of all domains moves while no domain went back", owners::mark_of_all),
    ("a batch lands once", writes::lands_once),
    ("what had landed of a batch is left out", writes::landed_in_part),
    ("a watermark that is elsewhere is noticed", writes::watermark_elsewhere),
    ("a new row that meets one is rejected, or merged once where that is said", writes::merged),
    ("a rejected group leaves nothing, nor do those behind it", writes::rejected),
    ("several domains move together or not at all", writes::several_domains),
    ("what does not follow the format has failed", writes::malformed),
    ("parked groups are kept in order, once", parking::kept),
    ("a group whose parking is refused waits until it is parked", parking::refused),
    ("several domains pass a parked group by together", parking::in_several_domains),
    ("parked groups are taken back once", parking::taken_back),
    ("an outcome in doubt is found out", parking::in_doubt),
    ("rows and watermarks are of one snapshot", reads::of_one_snapshot),
    ("keys are scanned in their order", reads::in_order),
    ("reserved keys are unique", reads::reserved_keys),
];

/// The domains that a claim names besides the mark of all.
const FIRST: DomainId = DomainId(0);
const OTHER: DomainId = DomainId(3);

/// A store under test.
struct Checked<'s> {
    store: &'s dyn Store,
    origin: Box<dyn Origin>,
    schema: Schema,
}

impl<'s> Checked<'s> {
    fn new(store: &'s dyn Store) -> Self {
        let origin = store.origin();
        let schema = origin.schema().expect("the catalogue can be read");
        Self { store, origin, schema }
    }

    fn table(&self) -> &Table {
        self.schema.find(b"items").expect("the store has the table")
    }

    fn writer(&self) -> Box<dyn Writer> {
        self.origin.writer().expect("a writer is opened")
    }

    fn reader(&self) -> Box<dyn Reader> {
        self.origin.reader().expect("a reader is opened")
    }

    /// A writer that has claimed the store as its first owner.
    fn owner(&self) -> Owned {
        let (schema, writer) = (self.schema.clone(), self.writer());
        let mut owner = Owned { schema, writer, epoch: 1, ignored: false };
        owner.writer.claim(&claim(None, 1)).expect("nobody owns the store yet");
        owner
    }

    /// A group that adds 1 to a row.
    fn increment(&self, id: i64) -> Vec<u8> {
        let mut group = GroupWriter::new();
        group.begin(self.table().id, Op::Update, &key(id));
        group.set(1, Set::By(b"1"));
        group.finish().to_vec()
    }

    /// A group that makes a row, with a number or without one.
    fn insert(&self, id: i64, number: Option<&[u8]>) -> Vec<u8> {
        let mut group = GroupWriter::new();
        group.begin(self.table().id, Op::Insert, &key(id));
        number.iter().for_each(|number| group.set(1, Set::To(Cell::Value(number))));
        group.finish().to_vec()
    }

    /// The number in a row.
    fn count(&self, id: i64) -> i64 {
        let rows = self.reader().fetch(self.table(), &[&key(id)]).expect("the row is read").rows;
        number(rows[0].as_deref().expect("the row is there"))
    }

    /// The fault of an error, which must tell no secret.
    fn fault<T>(&self, result: Result<T, OriginError>) -> Option<Fault> {
        let error = result.err()?;
        if let Some(password) = self.store.password() {
            assert!(
                !error.in_full().contains(password),
                "it holds the password: {:?}",
                error.fault
            );
        }
        Some(error.fault)
    }
}

/// A writer of an owner, and what it states about its writes.
struct Owned {
    schema: Schema,
    writer: Box<dyn Writer>,
    epoch: u64,
    /// The watermarks are not looked at.
    ignored: bool,
}

impl Owned {
    /// Takes the store over from the owner with this epoch.
    fn taken_over(checked: &Checked<'_>, from: u64) -> Self {
        let epoch = from + 4;
        let mut writer = checked.writer();
        writer.claim(&claim(Some(from), epoch)).expect("the owner is as it was read");
        Self { schema: checked.schema.clone(), writer, epoch, ignored: false }
    }

    /// Applies groups of the first domain, which stands at `expected`.
    fn apply(&mut self, expected: u64, groups: &[(u64, &[u8])]) -> Result<Applied, OriginError> {
        let upto = groups.last().map_or(expected, |(lsn, _)| *lsn);
        self.apply_in(&[mark(FIRST, expected, upto)], groups)
    }

    fn apply_in(
        &mut self,
        marks: &[Mark],
        groups: &[(u64, &[u8])],
    ) -> Result<Applied, OriginError> {
        let groups = refs(groups);
        let claim = WriteClaim { epoch: self.epoch, marks, unsafe_no_watermark: self.ignored };
        self.writer.apply(&self.schema, &claim, &groups)
    }

    fn park(&mut self, marks: &[Mark], parked: Option<&ParkedGroup>) -> Result<(), OriginError> {
        let claim = WriteClaim { epoch: self.epoch, marks, unsafe_no_watermark: false };
        self.writer.park(&claim, parked)
    }

    fn unpark(&mut self, parked: &[u64], groups: &[(u64, &[u8])]) -> Result<Applied, OriginError> {
        let (parked, groups) = (lsns(parked), refs(groups));
        let claim = WriteClaim { epoch: self.epoch, marks: &HOLD, unsafe_no_watermark: false };
        self.writer.unpark(&self.schema, &claim, &parked, &groups)
    }

    fn settle(&mut self, parked: &[u64], groups: &[(u64, &[u8])]) -> Result<bool, OriginError> {
        let (parked, groups) = (lsns(parked), refs(groups));
        let claim = WriteClaim { epoch: self.epoch, marks: &HOLD, unsafe_no_watermark: false };
        self.writer.settle_unpark(&self.schema, &claim, &parked, &groups)
    }

    fn mark_all(
        &mut self,
        expected: u64,
        upto: u64,
        floors: &[(DomainId, Lsn)],
    ) -> Result<(), OriginError> {
        let marks = [mark(ALL_DOMAINS, expected, upto)];
        let claim = WriteClaim { epoch: self.epoch, marks: &marks, unsafe_no_watermark: false };
        self.writer.mark_all(&claim, floors)
    }

    /// Where the domain's watermark stands.
    fn watermark(&mut self, domain: DomainId) -> u64 {
        let found = self.writer.heartbeat(self.epoch).expect("it is the owner");
        found.iter().find(|(d, _)| *d == domain).expect("the domain was claimed").1.0
    }
}

const HOLD: [Mark; 1] = [Mark { domain: FIRST, expected: Lsn::ZERO, upto: Lsn::ZERO }];

fn claim(expected: Option<u64>, epoch: u64) -> Claim {
    Claim {
        journal: format!("journal-{epoch}"),
        expected,
        epoch,
        domain_map: u64::MAX - 7,
        domains: vec![FIRST, OTHER, ALL_DOMAINS],
    }
}

fn mark(domain: DomainId, expected: u64, upto: u64) -> Mark {
    Mark { domain, expected: Lsn(expected), upto: Lsn(upto) }
}

fn refs<'a>(groups: &[(u64, &'a [u8])]) -> Vec<GroupRef<'a>> {
    groups.iter().map(|&(lsn, bytes)| GroupRef { lsn: Lsn(lsn), bytes }).collect()
}

fn lsns(numbers: &[u64]) -> Vec<Lsn> {
    numbers.iter().copied().map(Lsn).collect()
}

fn key(id: i64) -> Vec<u8> {
    let mut key = Vec::new();
    push_cell(&mut key, Cell::Value(id.to_string().as_bytes()));
    key
}

/// The number in a row's second cell.
fn number(row: &[u8]) -> i64 {
    let cell = cells::Reader::new(row).nth(1).expect("a row has two cells");
    let text = cell.value().and_then(|value| std::str::from_utf8(value).ok());
    text.and_then(|text| text.parse().ok()).expect("the column holds a number")
}

fn parked_group(lsn: u64, depends_on: Option<u64>) -> ParkedGroup {
    ParkedGroup {
        domain: FIRST,
        lsn: Lsn(lsn),
        depends_on: depends_on.map(Lsn),
        reason: format!("because of {lsn}: 'it' \\ broke \u{1f600}"),
        payload: "{\"changes\":[{\"table\":\"items\",\"key\":{\"id\":\"\u{e9}\"}}]}".to_owned(),
    }
}
