//! From write groups to steps: each changes one document, once, at its place in the order.

use crate::cells::Cell;
use crate::change::{Change, Item, Op, Set, items};
use crate::contract::{GroupRef, OriginError};
use crate::schema::{Schema, Table, TableId};
use destage_core::{Fault, Lsn};

/// What happens to one document.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) table: TableId,
    /// The encoded key.
    pub(super) key: &'a [u8],
    pub(super) effect: Effect<'a>,
    /// The groups in it, by index: one, or several that follow each other and only update this document.
    pub(super) groups: std::ops::Range<usize>,
    pub(super) first: Lsn,
    pub(super) last: Lsn,
}

/// How the document changes.
#[derive(Debug, PartialEq)]
pub(super) enum Effect<'a> {
    /// It must not exist, and exists afterwards.
    Insert(Vec<Field<'a>>),
    /// It is made, or, if it exists, merged with: its other fields stay.
    Merge {
        fields: Vec<Field<'a>>,
        /// Whether it exists, as far as was seen last.
        is_there: bool,
    },
    /// It must exist.
    Update(Vec<Field<'a>>),
    /// It must exist; nothing of it is left but its key.
    Replace(Vec<Field<'a>>),
    /// It must exist.
    Delete,
    /// Made and deleted at once.
    Nothing,
}

/// A field's new value or amount.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field<'a> {
    /// The column's index.
    pub(super) column: usize,
    pub(super) value: Value<'a>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    To(std::borrow::Cow<'a, [u8]>),
    By(std::borrow::Cow<'a, [u8]>),
}

/// The steps of groups, in order.
///
/// # Errors
/// [`Fault::Failed`] if a group's bytes do not follow the format, [`Fault::Denied`] if one changes several documents: the
/// journal was written for another origin.
pub(super) fn steps<'a>(
    schema: &Schema,
    groups: &[GroupRef<'a>],
) -> Result<Vec<Step<'a>>, OriginError> {
    let mut steps: Vec<Step<'a>> = Vec::with_capacity(groups.len());
    for (index, group) in groups.iter().enumerate() {
        let Some(step) = step(schema, group, index)? else { continue };
        let table = schema.table(step.table);
        let joined = steps.last_mut().is_some_and(|before| join(table, before, &step));
        if !joined {
            steps.push(step);
        }
    }
    Ok(steps)
}

/// The step of one group; `None` for an empty one.
fn step<'a>(
    schema: &Schema,
    group: &GroupRef<'a>,
    index: usize,
) -> Result<Option<Step<'a>>, OriginError> {
    let key_len = |id: TableId| schema.tables.get(usize::from(id.0)).map(|table| table.key_len);
    let mut found: Option<Step<'a>> = None;
    for item in items(group.bytes, key_len) {
        let change = match item.map_err(|error| OriginError::new(Fault::Failed, error))? {
            Item::Change(change) => change,
            Item::Dml(_) => {
                let message = "raw SQL is among the writes, and the origin takes none";
                return Err(OriginError::new(Fault::Rejected, message));
            }
        };
        let table = schema.table(change.table);
        if change.op == Op::End {
            let message =
                "the end of a row is among the writes: the journal was written for another origin";
            return Err(OriginError::new(Fault::Denied, message));
        }
        let effect = match found.take() {
            None => first_effect(table, &change),
            Some(step) if (step.table, step.key) == (change.table, change.key) => {
                next_effect(table, step.effect, &change).ok_or_else(|| malformed(group.lsn))?
            }
            Some(_) => return Err(several(group.lsn)),
        };
        found = Some(Step {
            table: change.table,
            key: change.key,
            effect,
            groups: index..index + 1,
            first: group.lsn,
            last: group.lsn,
        });
    }
    Ok(found)
}

fn first_effect<'a>(table: &Table, change: &Change<'a>) -> Effect<'a> {
    match change.op {
        Op::Insert if table.merges_new => Effect::Merge { fields: fields(change), is_there: false },
        Op::Insert => Effect::Insert(fields(change)),
        Op::Update => Effect::Update(fields(change)),
        Op::Delete | Op::End => Effect::Delete,
    }
}

/// An effect and then a change, as one effect; `None` where they do not follow each other.
fn next_effect<'a>(table: &Table, effect: Effect<'a>, change: &Change<'a>) -> Option<Effect<'a>> {
    let update = |mut earlier: Vec<Field<'a>>| {
        merge(table, &mut earlier, &fields(change)).then_some(earlier)
    };
    Some(match (effect, change.op) {
        (Effect::Insert(earlier), Op::Update) => Effect::Insert(update(earlier)?),
        (Effect::Merge { fields: earlier, is_there }, Op::Update) => {
            Effect::Merge { fields: update(earlier)?, is_there }
        }
        (Effect::Update(earlier), Op::Update) => Effect::Update(update(earlier)?),
        (Effect::Replace(earlier), Op::Update) => Effect::Replace(update(earlier)?),
        (Effect::Insert(_) | Effect::Merge { .. }, Op::Delete) => Effect::Nothing,
        (Effect::Update(_) | Effect::Replace(_), Op::Delete) => Effect::Delete,
        (Effect::Delete, Op::Insert) => Effect::Replace(fields(change)),
        (Effect::Nothing, Op::Insert) => first_effect(table, change),
        _ => return None,
    })
}

fn fields<'a>(change: &Change<'a>) -> Vec<Field<'a>> {
    let field = |(column, set)| {
        let value = match set {
            Set::To(Cell::Value(bytes)) => Value::To(bytes.into()),
            Set::To(Cell::Null | Cell::Unknown) => Value::Null,
            Set::By(amount) => Value::By(amount.into()),
        };
        Field { column, value }
    };
    change.sets().map(field).collect()
}

/// Joins an update to the update of the same document just before it, if the database can have refused neither of the two
/// states between which it did not see the other.
fn join<'a>(table: &Table, before: &mut Step<'a>, step: &Step<'a>) -> bool {
    let is_judged = table.columns[table.key_len..].iter().any(|c| c.structural || c.checked);
    if is_judged || (before.table, before.key) != (step.table, step.key) {
        return false;
    }
    let (Effect::Update(earlier), Effect::Update(later)) = (&mut before.effect, &step.effect)
    else {
        return false;
    };
    if !merge(table, earlier, later) {
        return false;
    }
    before.groups.end = step.groups.end;
    before.last = step.last;
    true
}

/// Adds later fields to earlier ones: all, or none if the sum of two amounts is not told exactly.
fn merge<'a>(table: &Table, earlier: &mut Vec<Field<'a>>, later: &[Field<'a>]) -> bool {
    let mut merged = earlier.clone();
    for field in later {
        let Some(before) = merged.iter_mut().find(|before| before.column == field.column) else {
            merged.push(field.clone());
            continue;
        };
        let Some(value) = table
            .columns
            .get(field.column)
            .and_then(|column| merged_value(&column.ty, &before.value, &field.value))
        else {
            return false;
        };
        before.value = value;
    }
    *earlier = merged;
    true
}

fn merged_value<'a>(
    ty: &crate::value::ColumnType,
    before: &Value<'a>,
    after: &Value<'a>,
) -> Option<Value<'a>> {
    match (before, after) {
        (_, Value::Null | Value::To(_)) => Some(after.clone()),
        (Value::To(value), Value::By(amount)) => {
            Some(Value::To(ty.add(value, amount).ok()?.into()))
        }
        (Value::By(first), Value::By(second)) => {
            // Sums of fractions depend on their order, those of whole numbers do not.
            let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
            let is_whole = matches!(ty, crate::value::ColumnType::Int { .. });
            let sum = number(first)?.checked_add(number(second)?).filter(|_| is_whole)?;
            Some(Value::By(sum.to_string().into_bytes().into()))
        }
        (Value::Null, Value::By(_)) => None,
    }
}

fn malformed(lsn: Lsn) -> OriginError {
    let message =
        format!("write group {} changes its document in a way that does not add up", lsn.0);
    OriginError::new(Fault::Failed, message)
}

fn several(lsn: Lsn) -> OriginError {
    let message = format!(
        "write group {} changes several documents, which MongoDB takes in transactions only: it was written for another \
         kind of origin",
        lsn.0
    );
    OriginError::new(Fault::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::push_cell;
    use crate::change::GroupWriter;
    use crate::schema::Column;
    use crate::value::ColumnType;

    const T: TableId = TableId(0);

    fn column(name: &str, ty: ColumnType, checked: bool) -> Column {
        Column { checked, ..Column::named(name, ty) }
    }

    fn schema(checked: bool) -> Schema {
        let int = ColumnType::Int { min: i64::MIN, max: i64::MAX };
        let mut table = Table::named("t".into(), "t".into());
        table.key_len = 1;
        table.columns = vec![
            column("_id", int.clone(), false),
            column("n", int, checked),
            column("s", ColumnType::Text { chars_max: None }, checked),
        ];
        Schema::new(vec![table], vec![])
    }

    fn key(id: &str) -> Vec<u8> {
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(id.as_bytes()));
        key
    }

    /// Groups of words: `key op sets`, with `;` between the changes of one group.
    fn bytes(group: &str) -> Vec<u8> {
        let mut writer = GroupWriter::new();
        for change in group.split("; ") {
            let mut words = change.split(' ');
            let id = key(words.next().unwrap());
            let op = match words.next().unwrap() {
                "insert" => Op::Insert,
                "update" => Op::Update,
                _ => Op::Delete,
            };
            writer.begin(T, op, &id);
            for set in words {
                match set.split_once('=') {
                    Some((_, "")) => writer.set(2, Set::To(Cell::Null)),
                    Some((_, value)) => writer.set(2, Set::To(Cell::Value(value.as_bytes()))),
                    None => writer.set(1, Set::By(set.as_bytes())),
                }
            }
        }
        writer.finish().to_vec()
    }

    fn shown(schema: &Schema, groups: &[&str]) -> Result<Vec<String>, OriginError> {
        let all: Vec<Vec<u8>> = groups.iter().map(|group| bytes(group)).collect();
        let refs: Vec<GroupRef<'_>> = all
            .iter()
            .enumerate()
            .map(|(at, bytes)| GroupRef { lsn: Lsn(at as u64 + 1), bytes })
            .collect();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = |fields: &[Field<'_>]| {
            let field = |field: &Field<'_>| match &field.value {
                Value::Null => "null".to_owned(),
                Value::To(value) => format!("={}", text(value)),
                Value::By(amount) => text(amount),
            };
            fields.iter().map(field).collect::<Vec<_>>().join(",")
        };
        let show = |step: &Step<'_>| {
            let effect = match &step.effect {
                Effect::Insert(list) => format!("insert {}", fields(list)),
                Effect::Merge { fields: list, .. } => format!("merge {}", fields(list)),
                Effect::Update(list) => format!("update {}", fields(list)),
                Effect::Replace(list) => format!("replace {}", fields(list)),
                Effect::Delete => "delete".to_owned(),
                Effect::Nothing => "nothing".to_owned(),
            };
            format!("{}-{} {effect}", step.first.0, step.last.0)
        };
        Ok(steps(schema, &refs)?.iter().map(show).collect())
    }

    #[test]
    fn updates_that_follow_each_other_on_one_document_are_one_step() {
        let groups = ["1 update 5 s=a", "1 update -2", "2 update 1", "1 update 1", "1 update s="];
        let steps = shown(&schema(false), &groups).unwrap();
        assert_eq!(steps, ["1-2 update 3,=a", "3-3 update 1", "4-5 update 1,null"]);
    }

    #[test]
    fn a_validator_sees_every_state() {
        let steps = shown(&schema(true), &["1 update 5", "1 update -2"]).unwrap();
        assert_eq!(steps, ["1-1 update 5", "2-2 update -2"]);
    }

    #[test]
    fn only_updates_are_joined() {
        let groups = ["1 insert s=a", "1 update s=b", "1 delete", "1 insert s=c"];
        let steps = shown(&schema(false), &groups).unwrap();
        assert_eq!(steps, ["1-1 insert =a", "2-2 update =b", "3-3 delete", "4-4 insert =c"]);
    }

    #[test]
    fn new_documents_are_merged_where_the_table_says_so() {
        let mut schema = schema(true);
        schema.tables[0].merges_new = true;
        for (group, step) in [
            ("1 insert s=a", "1-1 merge =a"),
            ("1 insert 5; 1 update 4", "1-1 merge 9"),
            ("1 insert s=a; 1 delete", "1-1 nothing"),
            ("1 insert s=a; 1 delete; 1 insert s=b", "1-1 merge =b"),
            ("1 delete; 1 insert s=a", "1-1 replace =a"),
        ] {
            assert_eq!(shown(&schema, &[group]).unwrap(), [step], "{group}");
        }
    }

    #[test]
    fn the_changes_of_one_group_are_one_step() {
        for (group, step) in [
            ("1 delete; 1 insert s=a", "1-1 replace =a"),
            ("1 delete; 1 insert s=a; 1 delete", "1-1 delete"),
            ("1 insert s=a; 1 delete", "1-1 nothing"),
            ("1 insert s=a; 1 delete; 1 insert s=b", "1-1 insert =b"),
            ("1 update 4; 1 update 3", "1-1 update 7"),
        ] {
            assert_eq!(shown(&schema(true), &[group]).unwrap(), [step], "{group}");
        }
    }

    #[test]
    fn groups_of_several_documents_are_refused() {
        let error = shown(&schema(false), &["1 update 1; 2 update 1"]).unwrap_err();
        assert_eq!(error.fault, Fault::Denied);
        let error = shown(&schema(false), &["1 delete; 1 update 1"]).unwrap_err();
        assert_eq!(error.fault, Fault::Failed);
    }
}
