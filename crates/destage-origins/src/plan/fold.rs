//! Two changes of one row as one.

use super::{Bucket, Datum, Sets};
use crate::cells::Cell;
use crate::change::Op;
use crate::schema::{Column, Table};
use crate::value::ColumnType;

/// Folds an update into a row of a bucket, if its columns are among the bucket's and no intermediate value can have been
/// rejected. Either all columns or none.
pub(super) fn fold<'a>(
    table: &Table,
    bucket: &mut Bucket<'a>,
    row: usize,
    sets: &Sets<'a>,
) -> bool {
    if bucket.op.removes() || sets.is_empty() {
        return false;
    }
    // A trigger that fires for updates would not fire for what has become a part of an insert.
    if bucket.op == Op::Insert && !table.class.sets.is_empty() {
        return false;
    }
    let base = row * bucket.columns.len();
    if let [(target, cell)] = sets[..] {
        let Some(place) = place(bucket, target.column) else { return false };
        let Some(datum) = folded(table, bucket, base, place, target.increment, cell) else {
            return false;
        };
        bucket.values[base + place] = datum;
        return true;
    }
    let mut folds = Vec::with_capacity(sets.len());
    for &(target, cell) in sets {
        let Some(place) = place(bucket, target.column) else { return false };
        let Some(datum) = folded(table, bucket, base, place, target.increment, cell) else {
            return false;
        };
        folds.push((place, datum));
    }
    for (place, datum) in folds {
        bucket.values[base + place] = datum;
    }
    true
}

fn place(bucket: &Bucket<'_>, column: u16) -> Option<usize> {
    bucket.columns.binary_search_by_key(&column, |t| t.column).ok()
}

/// The value that stands for the one in the bucket and then `cell`.
fn folded<'a>(
    table: &Table,
    bucket: &Bucket<'a>,
    base: usize,
    place: usize,
    increment: bool,
    cell: Cell<'a>,
) -> Option<Datum<'a>> {
    let target = bucket.columns[place];
    let column = &table.columns[usize::from(target.column)];
    let old = bucket.values[base + place].cell();
    if column.structural || column.checked || (column.not_null && old == Cell::Null) {
        return None;
    }
    match (target.increment, increment) {
        (false, false) => Some(Datum::Borrowed(cell)),
        (false, true) => {
            let sum =
                column.ty.is_exact().then(|| column.ty.add(old.value()?, cell.value()?).ok())??;
            Some(Datum::Folded(sum))
        }
        (true, true) => sum(column, old.value()?, cell.value()?).map(Datum::Folded),
        // The bucket's statement adds; a new value needs another statement.
        (true, false) => None,
    }
}

/// The sum of two amounts, where adding it equals adding them one after the other.
fn sum(column: &Column, a: &[u8], b: &[u8]) -> Option<Vec<u8>> {
    match *column.ty.signed() {
        ColumnType::Int { .. } => {
            let sum = integer(a)?.checked_add(integer(b)?)?;
            Some(itoa::Buffer::new().format(sum).as_bytes().to_vec())
        }
        // With a fixed scale each step rounds; amounts that need no rounding add up exactly.
        ColumnType::Numeric { precision, .. } => {
            let fits = |amount| {
                let places = decimal_places(amount);
                precision.is_none_or(|(_, scale)| {
                    places.is_some_and(|p| i64::from(scale) >= i64::from(p))
                })
            };
            (fits(a) && fits(b)).then(|| ColumnType::DECIMAL.add(a, b).ok())?
        }
        _ => None,
    }
}

fn integer(amount: &[u8]) -> Option<i64> {
    std::str::from_utf8(amount).ok()?.parse().ok()
}

/// Digits behind the point of a plain decimal number; `None` for other notations.
fn decimal_places(amount: &[u8]) -> Option<u32> {
    let digits = amount.strip_prefix(b"-").unwrap_or(amount);
    if !digits.iter().all(|b| b.is_ascii_digit() || *b == b'.') {
        return None;
    }
    let point = digits.iter().position(|&b| b == b'.');
    Some(point.map_or(0, |at| (digits.len() - at - 1) as u32))
}
