//! CHECK constraints that can be judged before a write is acknowledged.
//!
//! What a constraint asks is told from its text in the origin's catalogue, and from nothing else. [`read`] knows a small
//! language exactly: comparisons, ranges and lists over the row's own columns and constants. A text that has anything else
//! in it is not understood, and stays with the origin. So does a row of which something is not known that matters.
//!
//! A row that the origin accepts must never be refused here. So a condition has not one outcome but the set of those that
//! are possible by what is known: of a column that is not known, all three of SQL's; of a comparison on which databases or
//! collations differ, true and false. Only where false is the single one is the constraint violated.

mod read;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use read::{Sql, read};
pub(crate) use values::{Kind, Moment, TextRule};

use crate::cells::Cell;
use std::borrow::Cow;
use std::cmp::Ordering;
use values::{By, order};

/// Why a constraint is left to the origin.
pub(crate) type Reason = &'static str;

/// It has another form than those that are known.
pub(crate) const MORE: Reason = "it may be more than comparisons of columns and constants";
/// It would keep each write for long.
pub(crate) const MANY: Reason = "it has more comparisons than are carried out before each write";
/// Comparisons in one condition; and the bytes of its text.
const COMPARISONS_MAX: usize = 1_000;
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Bytes that one condition looks at in a row before the comparison that is its last. What is beyond is not known.
const WORK_BYTES_MAX: u64 = 4 << 20;
/// What a comparison costs besides its bytes.
const COMPARISON_BYTES: u64 = 16;
/// An operator or function in it may do anything.
pub(crate) const FOREIGN: Reason = "its operators or functions are not the database's own";

/// A CHECK constraint of a table, or of the domain of one of its columns.
#[derive(Clone, Debug)]
pub struct Check {
    /// Its name at the origin; of one without a name, its text.
    pub name: String,
    /// Its condition as the catalogue has it.
    pub text: String,
    /// The condition, or why the origin alone can judge it.
    pub condition: Result<Condition, &'static str>,
}

impl Check {
    /// Its text, with its name before it if it has one.
    pub fn shown(&self) -> String {
        let text = self.text.trim();
        let text = match text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
            Some(inside) if is_balanced(inside) => inside,
            _ => text,
        };
        if self.name == self.text {
            return format!("CHECK ({text})");
        }
        format!("{} CHECK ({text})", self.name)
    }
}

/// Whether no parenthesis is closed before it is opened. One in a text may make it wrong, which shows a pair too many.
fn is_balanced(text: &str) -> bool {
    let mut depth = 0;
    text.chars().all(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth >= 0
    })
}

/// A condition on a row's own columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    columns: Vec<usize>,
    test: Test,
}

impl Condition {
    /// One that every value meets which the columns' types let in.
    pub(crate) fn always() -> Self {
        Self { columns: Vec::new(), test: Test::All(Vec::new()) }
    }

    /// The columns that it looks at, by index.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// What may come of it for a row, of which all cells are given.
    pub fn outcomes(&self, cells: &[Cell<'_>]) -> Outcomes {
        self.test.outcomes(cells, &Work::new(WORK_BYTES_MAX))
    }
}

/// Which of true, false and NULL a condition may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcomes(u8);

impl Outcomes {
    // In Kleene's order: AND is the least of the two, OR the greatest.
    /// False alone.
    pub const FALSE: Self = Self(1);
    /// NULL alone.
    pub const NULL: Self = Self(2);
    /// True alone.
    pub const TRUE: Self = Self(4);
    /// True or false.
    const EITHER: Self = Self(5);
    /// Any of the three.
    pub const ANY: Self = Self(7);

    fn of(is_true: bool) -> Self {
        if is_true { Self::TRUE } else { Self::FALSE }
    }

    /// Whether a constraint with this condition refuses the row for certain. NULL passes.
    pub fn is_violated(self) -> bool {
        self == Self::FALSE
    }

    /// Whether this one is among them; `None` is NULL.
    pub fn may_be(self, outcome: Option<bool>) -> bool {
        let one = outcome.map_or(Self::NULL, Self::of);
        self.0 & one.0 != 0
    }

    fn not(self) -> Self {
        Self((self.0 & 1) << 2 | self.0 & 2 | (self.0 & 4) >> 2)
    }

    /// What any two of the outcomes come to together.
    fn with(self, other: Self, both: fn(u8, u8) -> u8) -> Self {
        let ranks = |set: Self| (0..3).filter(move |rank| set.0 >> rank & 1 != 0);
        let each = ranks(self).flat_map(|a| ranks(other).map(move |b| 1 << both(a, b)));
        Self(each.fold(0, |set, one: u8| set | one))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Compare {
        op: Op,
        left: Operand,
        right: Operand,
        by: By,
    },
    IsNull(Operand),
    /// A boolean column.
    Holds(usize),
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Op {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Eq => order.is_eq(),
            Self::Ne => order.is_ne(),
            Self::Lt => order.is_lt(),
            Self::Le => order.is_le(),
            Self::Gt => order.is_gt(),
            Self::Ge => order.is_ge(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operand {
    Column(usize),
    /// A constant; `None` is NULL.
    Constant(Option<Box<[u8]>>),
    /// A number of single precision, as one of double precision.
    Single(Box<Self>),
    /// How many characters a text has.
    Chars(Box<Self>),
    /// How many bytes it has.
    Bytes(Box<Self>),
    /// A text without the blanks around it.
    Trimmed(Box<Self>),
}

enum Value<'a> {
    Unknown,
    Null,
    Is(Cow<'a, [u8]>),
}

impl Test {
    fn outcomes(&self, cells: &[Cell<'_>], work: &Work) -> Outcomes {
        match self {
            Self::Compare { op, left, right, by } => {
                if !work.is_left() {
                    return Outcomes::ANY;
                }
                work.spend(COMPARISON_BYTES);
                match (left.value(cells, work), right.value(cells, work)) {
                    (Value::Null, _) | (_, Value::Null) => Outcomes::NULL,
                    (Value::Unknown, _) | (_, Value::Unknown) => Outcomes::ANY,
                    (Value::Is(left), Value::Is(right)) => {
                        work.spend(left.len() as u64 + right.len() as u64);
                        order(*by, &left, &right)
                            .map_or(Outcomes::EITHER, |order| Outcomes::of(op.holds(order)))
                    }
                }
            }
            Self::IsNull(operand) => match operand.value(cells, work) {
                Value::Unknown => Outcomes::EITHER,
                Value::Null => Outcomes::TRUE,
                Value::Is(_) => Outcomes::FALSE,
            },
            Self::Holds(column) => match cells.get(*column) {
                Some(Cell::Value(b"t")) => Outcomes::TRUE,
                Some(Cell::Value(b"f")) => Outcomes::FALSE,
                Some(Cell::Null) => Outcomes::NULL,
                _ => Outcomes::ANY,
            },
            Self::Not(test) => test.outcomes(cells, work).not(),
            Self::All(tests) => {
                Self::of_each(tests, (cells, work), Outcomes::TRUE, Outcomes::FALSE, u8::min)
            }
            Self::Any(tests) => {
                Self::of_each(tests, (cells, work), Outcomes::FALSE, Outcomes::TRUE, u8::max)
            }
        }
    }

    /// What comes of all of them, up to the one that decides alone.
    fn of_each(
        tests: &[Self],
        (cells, work): (&[Cell<'_>], &Work),
        first: Outcomes,
        last: Outcomes,
        join: fn(u8, u8) -> u8,
    ) -> Outcomes {
        let mut all = first;
        for test in tests {
            all = all.with(test.outcomes(cells, work), join);
            if all == last {
                break;
            }
        }
        all
    }

    /// How many comparisons it has.
    fn comparisons(&self) -> usize {
        match self {
            Self::Not(test) => test.comparisons(),
            Self::All(tests) | Self::Any(tests) => tests.iter().map(Self::comparisons).sum(),
            Self::Compare { .. } | Self::IsNull(_) | Self::Holds(_) => 1,
        }
    }

    /// Adds the columns that it looks at, each once.
    fn columns(&self, columns: &mut Vec<usize>) {
        match self {
            Self::Compare { left, right, .. } => {
                [left, right].into_iter().for_each(|operand| operand.columns(columns));
            }
            Self::IsNull(operand) => operand.columns(columns),
            Self::Holds(column) => push_new(columns, *column),
            Self::Not(test) => test.columns(columns),
            Self::All(tests) | Self::Any(tests) => {
                tests.iter().for_each(|test| test.columns(columns));
            }
        }
    }
}

/// What may still be looked at.
#[derive(Debug)]
struct Work(std::cell::Cell<u64>);

impl Work {
    fn new(bytes: u64) -> Self {
        Self(std::cell::Cell::new(bytes))
    }

    fn is_left(&self) -> bool {
        self.0.get() > 0
    }

    fn spend(&self, bytes: u64) {
        self.0.set(self.0.get().saturating_sub(bytes));
    }
}

impl Operand {
    fn value<'a>(&'a self, cells: &[Cell<'a>], work: &Work) -> Value<'a> {
        type Change = for<'b> fn(Cow<'b, [u8]>) -> Option<Cow<'b, [u8]>>;
        let of = |operand: &'a Self, change: Change| match operand.value(cells, work) {
            Value::Is(value) => {
                work.spend(value.len() as u64);
                change(value).map_or(Value::Unknown, Value::Is)
            }
            other => other,
        };
        match self {
            Self::Column(column) => match cells.get(*column) {
                Some(Cell::Value(value)) => Value::Is(Cow::Borrowed(value)),
                Some(Cell::Null) => Value::Null,
                Some(Cell::Unknown) | None => Value::Unknown,
            },
            Self::Constant(None) => Value::Null,
            Self::Constant(Some(value)) => Value::Is(Cow::Borrowed(value)),
            Self::Single(operand) => of(operand, values::doubled),
            Self::Chars(operand) => of(operand, values::chars),
            Self::Bytes(operand) => of(operand, |value| Some(values::count(value.len()))),
            Self::Trimmed(operand) => of(operand, |value| Some(values::trimmed(value))),
        }
    }

    fn columns(&self, columns: &mut Vec<usize>) {
        match self {
            Self::Column(column) => push_new(columns, *column),
            Self::Constant(_) => {}
            Self::Single(operand)
            | Self::Chars(operand)
            | Self::Bytes(operand)
            | Self::Trimmed(operand) => operand.columns(columns),
        }
    }
}

fn push_new(columns: &mut Vec<usize>, column: usize) {
    if !columns.contains(&column) {
        columns.push(column);
    }
}
