//! A claimed origin for the tests of origins over the network, and groups to apply there.

use destage_core::{DomainId, Lsn};
use destage_origins::cells::{Cell, Reader as Cells, push_cell};
use destage_origins::change::{GroupWriter, Op, Set};
use destage_origins::contract::{
    Claim, GroupRef, Mark, Origin, OriginError, Owner, ParkedGroup, Reader, Snapshot, WriteClaim,
    Writer,
};
use destage_origins::schema::{Schema, Table};

/// What a write of one domain states about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneDomain {
    pub(crate) domain: DomainId,
    pub(crate) epoch: u64,
    pub(crate) expected: Lsn,
    pub(crate) unsafe_no_watermark: bool,
}

impl OneDomain {
    /// Calls `write` with the claim that moves the watermark to `upto`.
    pub(crate) fn upto<T>(self, upto: Lsn, write: impl FnOnce(&WriteClaim<'_>) -> T) -> T {
        let Self { domain, epoch, expected, unsafe_no_watermark } = self;
        let marks = [Mark { domain, expected, upto }];
        write(&WriteClaim { epoch, marks: &marks, unsafe_no_watermark })
    }
}

/// A claimed writer with its schema, and what comes next.
pub(crate) struct Claimed {
    pub(crate) schema: Schema,
    pub(crate) writer: Box<dyn Writer>,
    pub(crate) reader: Box<dyn Reader>,
    pub(crate) claim: OneDomain,
}

impl Claimed {
    /// Claims the origin as its first owner.
    pub(crate) fn before(origin: &dyn Origin) -> Self {
        let mut writer = origin.writer().unwrap();
        writer.claim(&claim(None, 1)).unwrap();
        Self {
            schema: origin.schema().unwrap(),
            writer,
            reader: origin.reader().unwrap(),
            claim: OneDomain {
                domain: DomainId(0),
                epoch: 1,
                expected: Lsn::ZERO,
                unsafe_no_watermark: false,
            },
        }
    }

    /// Takes the origin over from an owner, behind what that one wrote.
    #[allow(dead_code, reason = "not every crate of tests takes over")]
    pub(crate) fn taken_over(origin: &dyn Origin, owner: &Owner) -> Self {
        let epoch = owner.epoch + 1;
        let mut writer = origin.writer().unwrap();
        writer.claim(&claim(Some(owner.epoch), epoch)).unwrap();
        let domain = DomainId(0);
        let behind = owner.watermarks.iter().find(|(d, _)| *d == domain);
        let expected = behind.map_or(Lsn::ZERO, |(_, lsn)| *lsn);
        Self {
            schema: origin.schema().unwrap(),
            writer,
            reader: origin.reader().unwrap(),
            claim: OneDomain { domain, epoch, expected, unsafe_no_watermark: false },
        }
    }

    pub(crate) fn table(&self, name: &str) -> &Table {
        self.schema.find(name.as_bytes()).unwrap_or_else(|| panic!("no table {name}"))
    }

    /// Applies the groups as one batch behind the last one.
    pub(crate) fn apply(&mut self, groups: &[Vec<u8>]) -> Result<(), OriginError> {
        let first = self.claim.expected.0 + 1;
        let refs: Vec<_> =
            (first..).zip(groups).map(|(lsn, bytes)| GroupRef { lsn: Lsn(lsn), bytes }).collect();
        self.apply_refs(&refs)?;
        self.claim.expected = Lsn(self.claim.expected.0 + groups.len() as u64);
        Ok(())
    }

    /// Applies the groups as the claim has it, which stays.
    pub(crate) fn apply_refs(&mut self, groups: &[GroupRef<'_>]) -> Result<(), OriginError> {
        let upto = groups.last().map_or(self.claim.expected, |last| last.lsn);
        let Self { schema, writer, claim, .. } = self;
        claim.upto(upto, |claim| writer.apply(schema, claim, groups)).map(drop)
    }

    /// Parks a group, or passes it by; the claim stays.
    pub(crate) fn park(
        &mut self,
        lsn: Lsn,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        self.claim.upto(lsn, |claim| self.writer.park(claim, parked))
    }

    pub(crate) fn fetch(&mut self, table: &str, keys: &[&[&str]]) -> Snapshot {
        let keys: Vec<_> = keys.iter().map(|parts| key(parts)).collect();
        let refs: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let table = self.schema.find(table.as_bytes()).unwrap();
        self.reader.fetch(table, &refs).unwrap()
    }
}

pub(crate) fn claim(expected: Option<u64>, epoch: u64) -> Claim {
    Claim {
        journal: format!("journal-{epoch}"),
        expected,
        epoch,
        domain_map: u64::MAX - 7,
        domains: vec![DomainId(0), DomainId(3)],
    }
}

pub(crate) fn key(parts: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        push_cell(&mut out, Cell::Value(part.as_bytes()));
    }
    out
}

/// A row's cells as text; NULL as `~`.
pub(crate) fn shown(row: Option<&[u8]>) -> String {
    let Some(row) = row else { return "none".to_owned() };
    let cell = |cell: Cell<'_>| match cell {
        Cell::Null => "~".to_owned(),
        Cell::Unknown => "?".to_owned(),
        Cell::Value(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    };
    Cells::new(row).map(cell).collect::<Vec<_>>().join("|")
}

/// A group of one change; values by column name, `+n` in the amount list.
pub(crate) fn change(
    table: &Table,
    op: Op,
    key_parts: &[&str],
    sets: &[(&str, Option<&str>)],
    amounts: &[(&str, &str)],
) -> Vec<u8> {
    let mut group = GroupWriter::new();
    push_change(&mut group, table, op, key_parts, sets, amounts);
    group.finish().to_vec()
}

pub(crate) fn push_change(
    group: &mut GroupWriter,
    table: &Table,
    op: Op,
    key_parts: &[&str],
    sets: &[(&str, Option<&str>)],
    amounts: &[(&str, &str)],
) {
    group.begin(table.id, op, &key(key_parts));
    let place = |name: &str| table.column(name.as_bytes()).unwrap_or_else(|| panic!("no {name}"));
    for (name, value) in sets {
        let cell = value.map_or(Cell::Null, |value| Cell::Value(value.as_bytes()));
        group.set(place(name), Set::To(cell));
    }
    for (name, amount) in amounts {
        group.set(place(name), Set::By(amount.as_bytes()));
    }
}
