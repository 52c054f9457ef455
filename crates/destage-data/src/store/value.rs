//! Values, rows and keys as programs hold them.
//!
//! Every value is what the origin calls it, in text form (raw bytes for binary columns), or NULL, as Redis clients see it too.

use super::{Error, ErrorKind};
use crate::key_text::encode;
use std::fmt::Write as _;
use std::sync::Arc;

/// A value of a column: `None` is NULL.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(Option<Vec<u8>>);

impl Value {
    /// SQL NULL.
    pub const NULL: Self = Self(None);

    /// The text form; `None` for NULL.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }

    /// Whether it is NULL.
    pub fn is_null(&self) -> bool {
        self.0.is_none()
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self(Some(bytes.to_vec()))
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Some(bytes))
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::NULL, Into::into)
    }
}

macro_rules! values_in_text_form {
    ($($from:ty),+) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self(Some(value.to_string().into_bytes()))
            }
        }
    )+};
}

values_in_text_form!(
    &str,
    String,
    &String,
    bool,
    f32,
    f64,
    bigdecimal::BigDecimal,
    serde_json::Value
);
values_in_text_form!(i8, i16, i32, i64, u8, u16, u32, u64, usize);

/// A row: its columns' values, under their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub(crate) table: Arc<str>,
    pub(crate) fields: Vec<(Arc<str>, Field)>,
}

/// What is known of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Is(Value),
    /// Only the origin can tell, once the session is there.
    Unknown,
}

impl Row {
    fn field(&self, name: &str) -> Result<&Value, Error> {
        let found = self.fields.iter().find(|(field, _)| &**field == name);
        match found {
            Some((_, Field::Is(value))) => Ok(value),
            Some((_, Field::Unknown)) => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{}.{name} is computed by the origin from this session's own changes; ask after the session",
                    self.table
                ),
            )),
            None => Err(Error::new(
                ErrorKind::Invalid,
                format!("{} has no column '{name}'; it has: {}", self.table, self.names()),
            )),
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.fields.iter().map(|(name, _)| &**name).collect();
        names.join(", ")
    }

    /// A column's value.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: there is no such column, its value cannot be known within this session, or it is no `T`.
    pub fn get<T: FromValue>(&self, name: &str) -> Result<T, Error> {
        let value = self.field(name)?;
        T::from_value(value.as_bytes()).ok_or_else(|| {
            let shown = value.as_bytes().map_or_else(|| "NULL".into(), String::from_utf8_lossy);
            let message = format!("{}.{name} is '{shown}', which is no {}", self.table, T::NAME);
            Error::new(ErrorKind::Invalid, message)
        })
    }

    /// The columns with their values, in the table's order, key columns first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        self.fields.iter().map(|(name, field)| match field {
            Field::Is(value) => (&**name, value.as_bytes()),
            Field::Unknown => (&**name, None),
        })
    }
}

/// What a column's value can be read as. NULL is read as `Option`.
pub trait FromValue: Sized {
    /// For messages.
    const NAME: &'static str;

    /// `None` if it is no such value; `value` is `None` for NULL.
    fn from_value(value: Option<&[u8]>) -> Option<Self>;
}

macro_rules! parsed_values {
    ($($to:ty: $name:literal),+) => {$(
        impl FromValue for $to {
            const NAME: &'static str = $name;

            fn from_value(value: Option<&[u8]>) -> Option<Self> {
                std::str::from_utf8(value?).ok()?.parse().ok()
            }
        }
    )+};
}

parsed_values!(i16: "16-bit integer", i32: "32-bit integer", i64: "64-bit integer", u32: "32-bit natural number");
parsed_values!(u64: "64-bit natural number", f64: "number", bigdecimal::BigDecimal: "decimal number");
parsed_values!(String: "text", serde_json::Value: "JSON");

impl FromValue for bool {
    const NAME: &'static str = "truth value";

    fn from_value(value: Option<&[u8]>) -> Option<Self> {
        match value? {
            b"t" | b"true" | b"1" => Some(true),
            b"f" | b"false" | b"0" => Some(false),
            _ => None,
        }
    }
}

impl FromValue for Vec<u8> {
    const NAME: &'static str = "value";

    fn from_value(value: Option<&[u8]>) -> Option<Self> {
        value.map(<[u8]>::to_vec)
    }
}

impl<T: FromValue> FromValue for Option<T> {
    const NAME: &'static str = T::NAME;

    fn from_value(value: Option<&[u8]>) -> Option<Self> {
        match value {
            None => Some(None),
            Some(_) => T::from_value(value).map(Some),
        }
    }
}

/// A row's key: a table and the values of its primary key, written `table:a:b`.
///
/// ```
/// use destage_data::store::Key;
///
/// assert_eq!(Key::from(("accounts", 7)), Key::from("accounts:7"));
/// assert_eq!(Key::from(("order_line", (1, 2, "a:b"))).to_string(), "order_line:1:2:a%3Ab");
/// assert_eq!(Key::from(("pages", "http://a%3Ab")).to_string(), "pages:http://a%3Ab");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub(crate) Arc<str>);

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

impl<P: KeyParts> From<(&str, P)> for Key {
    fn from((table, parts): (&str, P)) -> Self {
        let mut text = String::with_capacity(table.len() + 16);
        escape(table, &mut text);
        parts.write(&mut text);
        Self(text.into())
    }
}

/// The values of a primary key: a number, a text, or several of them.
pub trait KeyParts {
    /// Appends `:value` for each.
    fn write(&self, out: &mut String);
}

/// One of several values of a primary key.
pub trait KeyPart {
    /// Appends it; a `:` in it does not end it.
    fn write(&self, out: &mut String);
}

macro_rules! number_parts {
    ($($from:ty),+) => {$(
        impl KeyPart for $from {
            fn write(&self, out: &mut String) {
                write!(out, "{self}").expect("a String takes what is written to it");
            }
        }

        impl KeyParts for $from {
            fn write(&self, out: &mut String) {
                out.push(':');
                KeyPart::write(self, out);
            }
        }
    )+};
}

number_parts!(i16, i32, i64, u16, u32, u64, usize);

impl KeyPart for &str {
    fn write(&self, out: &mut String) {
        escape(self, out);
    }
}

impl KeyParts for &str {
    fn write(&self, out: &mut String) {
        out.push(':');
        out.push_str(self);
    }
}

impl KeyPart for String {
    fn write(&self, out: &mut String) {
        escape(self, out);
    }
}

impl KeyParts for String {
    fn write(&self, out: &mut String) {
        KeyParts::write(&self.as_str(), out);
    }
}

macro_rules! tuple_parts {
    ($($name:ident)+) => {
        impl<$($name: KeyPart),+> KeyParts for ($($name,)+) {
            #[expect(non_snake_case, reason = "the values are named like their types")]
            fn write(&self, out: &mut String) {
                let ($($name,)+) = self;
                $(
                    out.push(':');
                    $name.write(out);
                )+
            }
        }
    };
}

tuple_parts!(A B);
tuple_parts!(A B C);
tuple_parts!(A B C D);
tuple_parts!(A B C D E);

/// Writes a table's name, or a part of a key of several columns.
fn escape(part: &str, out: &mut String) {
    let mut escaped = Vec::with_capacity(part.len());
    encode(part.as_bytes(), &mut escaped);
    out.push_str(std::str::from_utf8(&escaped).expect("whole characters are escaped by ASCII"));
}
