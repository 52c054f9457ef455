//! Values of MongoDB as text: compact JSON, and relaxed Extended JSON for what JSON has no form for.
//!
//! One renderer makes the canonical form of what clients write and of what the database holds, so a value is the same text
//! before and after its destage. It keeps the order of fields. What changes on the way is little, and changes for good: a
//! long that fits is an int, zero has no sign, and `_id` comes first in a document, which is what FerretDB makes of it, too.
//!
//! *Source:* MongoDB Extended JSON (v2), relaxed format, of MongoDB's specifications.

use super::json::{Parser, escape};
use super::{ValueError, float, refused};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mongodb::bson::{Bson, DateTime, Document, deserialize_from_document};
use std::fmt::Write as _;

/// The one text of a value.
///
/// # Errors
/// As for [`parse`]; also for null, which is no value of a field, and for what is no array where that is asked for.
pub(super) fn canonical(input: &[u8], is_array: bool) -> Result<String, ValueError> {
    let value = parse(input).map_err(|error| {
        if is_array { ValueError(format!("{error} (an array)")) } else { error }
    })?;
    match value {
        Bson::Array(_) => {}
        _ if is_array => return Err(refused("arrays in JSON such as [\"a\", 1]", input)),
        Bson::Null => return Err(refused("JSON other than null (HDEL removes a field)", input)),
        _ => {}
    }
    Ok(text(&value))
}

/// The value of a text.
///
/// # Errors
/// It is no JSON, or of a type that not all servers hold (FerretDB has neither decimals nor numbers that are not finite).
pub(crate) fn parse(input: &[u8]) -> Result<Bson, ValueError> {
    super::text::utf8(input)?;
    let mut parser = Parser::of_characters(input);
    let value = read(&mut parser, 0)?;
    parser.end()?;
    Ok(value)
}

/// A value as text, which [`parse`] reads back unless the value is of a type that it refuses.
pub(crate) fn text(value: &Bson) -> String {
    let mut out = String::new();
    write(&mut out, value);
    out
}

fn read(parser: &mut Parser<'_>, depth: usize) -> Result<Bson, ValueError> {
    if depth > DEPTH_MAX {
        return Err(ValueError(format!("takes JSON nested at most {DEPTH_MAX} deep")));
    }
    parser.blanks();
    match parser.peek() {
        Some(b'{') => document(parser, depth),
        Some(b'[') => array(parser, depth),
        Some(b'"') => Ok(Bson::String(parser.string()?)),
        Some(b'-' | b'0'..=b'9') => number(parser.number_text()?),
        _ => Ok(match parser.constant()? {
            "null" => Bson::Null,
            word => Bson::Boolean(word == "true"),
        }),
    }
}

fn array(parser: &mut Parser<'_>, depth: usize) -> Result<Bson, ValueError> {
    parser.expect(b'[', "a bracket")?;
    let mut elements = Vec::new();
    parser.blanks();
    if parser.skip(b']') {
        return Ok(Bson::Array(elements));
    }
    loop {
        elements.push(read(parser, depth + 1)?);
        parser.blanks();
        if parser.skip(b']') {
            return Ok(Bson::Array(elements));
        }
        parser.expect(b',', "a comma or the array's end")?;
    }
}

/// A document, or the value that Extended JSON writes as one.
fn document(parser: &mut Parser<'_>, depth: usize) -> Result<Bson, ValueError> {
    parser.expect(b'{', "a brace")?;
    let mut fields = Document::new();
    parser.blanks();
    if parser.skip(b'}') {
        return Ok(Bson::Document(fields));
    }
    loop {
        parser.blanks();
        if parser.peek() != Some(b'"') {
            return Err(parser.error("a key in double quotes"));
        }
        let name = parser.string()?;
        parser.blanks();
        parser.expect(b':', "a colon")?;
        // Of equal names the last one counts.
        fields.insert(name, read(parser, depth + 1)?);
        parser.blanks();
        if parser.skip(b'}') {
            break;
        }
        parser.expect(b',', "a comma or the object's end")?;
    }
    match fields.keys().find(|name| EXTENDED.contains(&name.as_str())).cloned() {
        None => Ok(Bson::Document(fields)),
        Some(name) => extended(fields)
            .ok_or_else(|| ValueError(format!("takes no such value of Extended JSON: {name}"))),
    }
}

/// The value that a document of one such name stands for; `None` if it is none, or not to be written.
fn extended(document: Document) -> Option<Bson> {
    if document.len() != 1 {
        return None;
    }
    let value: Bson = deserialize_from_document(document).ok()?;
    let is_held = match &value {
        Bson::Double(number) => number.is_finite(),
        Bson::Int32(_) | Bson::Int64(_) | Bson::ObjectId(_) | Bson::DateTime(_) => true,
        Bson::Binary(_) | Bson::RegularExpression(_) | Bson::Timestamp(_) => true,
        _ => false,
    };
    is_held.then_some(value)
}

/// Whole as it is written, or else a double.
fn number(written: &[u8]) -> Result<Bson, ValueError> {
    if written.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
        return Ok(Bson::Double(float::parse8(written)?));
    }
    let whole = std::str::from_utf8(written).ok().and_then(|text| text.parse::<i64>().ok());
    let whole = whole.ok_or_else(|| refused("whole numbers of 64 bits", written))?;
    Ok(i32::try_from(whole).map_or(Bson::Int64(whole), Bson::Int32))
}

fn write(out: &mut String, value: &Bson) {
    match value {
        Bson::Null => out.push_str("null"),
        Bson::Boolean(value) => out.push_str(if *value { "true" } else { "false" }),
        Bson::Int32(number) => push(out, number),
        Bson::Int64(number) => push(out, number),
        Bson::Double(number) => write_double(out, *number),
        Bson::String(text) => escape(out, text),
        Bson::Array(elements) => {
            separated(out, '[', elements.iter(), write);
            out.push(']');
        }
        Bson::Document(fields) => {
            let (ids, others): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| *name == ID);
            separated(out, '{', ids.into_iter().chain(others), |out, (name, value)| {
                escape(out, name);
                out.push(':');
                write(out, value);
            });
            out.push('}');
        }
        Bson::DateTime(instant) => write_date(out, *instant),
        Bson::Binary(binary) => {
            let (bytes, subtype) = (STANDARD.encode(&binary.bytes), u8::from(binary.subtype));
            push(
                out,
                format_args!(r#"{{"$binary":{{"base64":"{bytes}","subType":"{subtype:02x}"}}}}"#),
            );
        }
        // The rest has but one form, which the driver knows.
        other => match serde_json::to_string(other) {
            Ok(text) => out.push_str(&text),
            Err(_) => escape(out, &other.to_string()),
        },
    }
}

fn separated<T>(
    out: &mut String,
    open: char,
    items: impl Iterator<Item = T>,
    write: impl Fn(&mut String, T),
) {
    out.push(open);
    for (at, item) in items.enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(out, item);
    }
}

/// Always with a fraction or exponent, which tells it from a whole number.
fn write_double(out: &mut String, number: f64) {
    match number {
        number if number.is_nan() => out.push_str(r#"{"$numberDouble":"NaN"}"#),
        f64::INFINITY => out.push_str(r#"{"$numberDouble":"Infinity"}"#),
        f64::NEG_INFINITY => out.push_str(r#"{"$numberDouble":"-Infinity"}"#),
        // Without the sign of a zero.
        number => push(out, format_args!("{:?}", number + 0.0)),
    }
}

fn write_date(out: &mut String, instant: DateTime) {
    let millis = instant.timestamp_millis();
    let written = (0..=LAST_MILLIS_WRITTEN).contains(&millis);
    match instant.try_to_rfc3339_string().ok().filter(|_| written) {
        Some(text) => push(out, format_args!(r#"{{"$date":"{text}"}}"#)),
        None => push(out, format_args!(r#"{{"$date":{{"$numberLong":"{millis}"}}}}"#)),
    }
}

fn push(out: &mut String, what: impl std::fmt::Display) {
    let _ = write!(out, "{what}");
}

/// Deeper values are refused: the parser recurses, and servers take documents of a hundred levels.
const DEPTH_MAX: usize = 64;
const ID: &str = "_id";
/// The last millisecond of the year 9999; dates behind it and before 1970 are written as numbers.
const LAST_MILLIS_WRITTEN: i64 = 253_402_300_799_999;
/// The names by which Extended JSON tells a value from a document.
const EXTENDED: [&str; 17] = [
    "$oid",
    "$date",
    "$binary",
    "$uuid",
    "$numberInt",
    "$numberLong",
    "$numberDouble",
    "$numberDecimal",
    "$regularExpression",
    "$timestamp",
    "$symbol",
    "$code",
    "$scope",
    "$dbPointer",
    "$minKey",
    "$maxKey",
    "$undefined",
];

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::oid::ObjectId;
    use mongodb::bson::spec::BinarySubtype;
    use mongodb::bson::{Binary, Timestamp, deserialize_from_slice, doc, serialize_to_vec};
    use proptest::prelude::*;

    fn shown(input: &str) -> Result<String, String> {
        let once = canonical(input.as_bytes(), false).map_err(|error| error.0)?;
        assert_eq!(canonical(once.as_bytes(), false).as_ref(), Ok(&once), "{input}");
        Ok(once)
    }

    /// Any value that is taken, with those whose type changes.
    fn value() -> impl Strategy<Value = Bson> {
        let millis = prop_oneof![any::<i64>(), 0..=LAST_MILLIS_WRITTEN];
        let leaf = prop_oneof![
            Just(Bson::Null),
            any::<bool>().prop_map(Bson::Boolean),
            any::<i32>().prop_map(Bson::Int32),
            any::<i64>().prop_map(Bson::Int64),
            any::<i32>().prop_map(|whole| Bson::Int64(whole.into())),
            proptest::num::f64::ANY
                .prop_filter("finite", |number| number.is_finite())
                .prop_map(Bson::Double),
            any::<i32>().prop_map(|whole| Bson::Double(whole.into())),
            name().prop_map(Bson::String),
            any::<[u8; 12]>().prop_map(|bytes| Bson::ObjectId(ObjectId::from_bytes(bytes))),
            millis.prop_map(|millis| Bson::DateTime(DateTime::from_millis(millis))),
            (any::<Vec<u8>>(), 0_u8..=255).prop_map(|(bytes, subtype)| {
                Bson::Binary(Binary { subtype: BinarySubtype::from(subtype), bytes })
            }),
            any::<(u32, u32)>()
                .prop_map(|(time, increment)| { Bson::Timestamp(Timestamp { time, increment }) }),
        ];
        leaf.prop_recursive(4, 48, 6, |inner| {
            let names = prop_oneof![4 => name(), 1 => Just("_id".to_owned())];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Bson::Array),
                prop::collection::vec((names, inner), 0..6)
                    .prop_map(|fields| Bson::Document(fields.into_iter().collect())),
            ]
        })
    }

    /// Texts without NUL; as names none of Extended JSON's.
    fn name() -> impl Strategy<Value = String> {
        "[^\\x00$]{0,8}"
    }

    /// The value as a server hands it out that was sent it.
    fn through_the_wire(value: &Bson) -> Bson {
        let bytes = serialize_to_vec(&doc! { "v": value.clone() }).unwrap();
        let mut read: Document = deserialize_from_slice(&bytes).unwrap();
        read.remove("v").unwrap()
    }

    proptest! {
        #[test]
        fn a_value_is_the_same_text_before_and_after_its_destage(array in prop::collection::vec(value(), 0..6)) {
            let held = Bson::Array(array);
            let written = canonical(text(&held).as_bytes(), true).unwrap();
            let sent = parse(written.as_bytes()).unwrap();
            prop_assert_eq!(text(&through_the_wire(&sent)), written.clone());
            // And written back it is what it was, as far as one can tell by its text.
            prop_assert_eq!(text(&held), written);
        }

        #[test]
        fn only_what_is_said_to_change_changes(held in value()) {
            let back = parse(text(&held).as_bytes()).unwrap();
            prop_assert_eq!(back, plain(held));
        }
    }

    /// What the module says changes, changed.
    fn plain(value: Bson) -> Bson {
        match value {
            Bson::Int64(number) => i32::try_from(number).map_or(value, Bson::Int32),
            Bson::Double(number) => Bson::Double(number + 0.0),
            Bson::Array(elements) => Bson::Array(elements.into_iter().map(plain).collect()),
            Bson::Document(fields) => {
                let id = fields.get(ID).cloned().map(|id| (ID.to_owned(), plain(id)));
                let others = fields.into_iter().filter(|(name, _)| name != ID);
                let others = others.map(|(name, value)| (name, plain(value)));
                Bson::Document(id.into_iter().chain(others).collect())
            }
            other => other,
        }
    }

    #[test]
    fn values_have_one_form() {
        for (input, output) in [
            ("[ ]", "[]"),
            (r#" ["a", 1, 1.0, true, null] "#, r#"["a",1,1.0,true,null]"#),
            ("[2147483648, -0, -0.0, 1E2, 5e-7]", "[2147483648,0,0.0,100.0,5e-7]"),
            (r#"[{"b":1,"a":[[]]},{}]"#, r#"[{"b":1,"a":[[]]},{}]"#),
            (r#"[{"b":1,"_id":2,"b":3}]"#, r#"[{"_id":2,"b":3}]"#),
            (r#"["\u00e4\ud83e\udd80\/\n"]"#, "[\"\u{e4}\u{1f980}/\\n\"]"),
            (
                r#"[{"$oid":"65A0C3D2E1F0A1B2C3D4E5F6"}]"#,
                r#"[{"$oid":"65a0c3d2e1f0a1b2c3d4e5f6"}]"#,
            ),
            (r#"{"$numberLong":"5"}"#, "5"),
            (r#"{"$numberDouble":"5"}"#, "5.0"),
            (
                r#"{"$date":"2026-01-31T13:37:00.250+02:00"}"#,
                r#"{"$date":"2026-01-31T11:37:00.25Z"}"#,
            ),
            (r#"{"$date":{"$numberLong":"-1"}}"#, r#"{"$date":{"$numberLong":"-1"}}"#),
            (r#"{"$date":{"$numberLong":"0"}}"#, r#"{"$date":"1970-01-01T00:00:00Z"}"#),
            (
                r#"{"$uuid":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}"#,
                r#"{"$binary":{"base64":"oO68mZwLTvi7bWu5vTgKEQ==","subType":"04"}}"#,
            ),
            (
                r#"{"$regularExpression":{"pattern":"^a","options":"xi"}}"#,
                r#"{"$regularExpression":{"pattern":"^a","options":"ix"}}"#,
            ),
            (
                r#"{"$timestamp":{"t":4294967295,"i":1}}"#,
                r#"{"$timestamp":{"t":4294967295,"i":1}}"#,
            ),
            // A reference is a document like others.
            (r#"[{"$ref":"c","$id":1}]"#, r#"[{"$ref":"c","$id":1}]"#),
        ] {
            assert_eq!(shown(input).as_deref(), Ok(output), "{input}");
        }
    }

    #[test]
    fn what_cannot_be_held_is_refused() {
        for (input, is_array, names) in [
            ("", true, "(an array)"),
            ("[1", true, "(an array)"),
            ("[1,]", true, "a value is missing"),
            ("a,b", true, "(an array)"),
            ("[1] [2]", true, "the end"),
            (r#"{"a":1}"#, true, "arrays in JSON"),
            ("\"[]\"", true, "arrays in JSON"),
            ("null", true, "arrays in JSON"),
            ("null", false, "HDEL"),
            ("[9223372036854775808]", true, "64 bits"),
            ("[1e400]", true, "range"),
            ("[01]", true, "missing"),
            ("[NaN]", true, "a value"),
            ("[\"\\u0000\"]", true, "escape"),
            (r#"[{"$numberDouble":"NaN"}]"#, true, "$numberDouble"),
            (r#"[{"$numberDecimal":"1"}]"#, true, "$numberDecimal"),
            (r#"[{"$minKey":1}]"#, true, "$minKey"),
            (r#"[{"$oid":"65a0"}]"#, true, "$oid"),
            (r#"[{"$oid":"65a0c3d2e1f0a1b2c3d4e5f6","a":1}]"#, true, "$oid"),
            (r#"[{"$date":"yesterday"}]"#, true, "$date"),
            (r#"[{"$code":"x"}]"#, true, "$code"),
        ] {
            let error = canonical(input.as_bytes(), is_array).unwrap_err();
            assert!(error.0.contains(names), "{input}: {error}");
        }
        canonical(b"[\xff]", true).unwrap_err();
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(canonical(deep(DEPTH_MAX).as_bytes(), true).is_ok());
        assert!(canonical(deep(100_000).as_bytes(), true).is_err());
    }

    #[test]
    fn what_others_wrote_is_shown_though_it_cannot_be_written() {
        for (value, output) in [
            (Bson::Double(f64::NAN), r#"{"$numberDouble":"NaN"}"#),
            (Bson::MinKey, r#"{"$minKey":1}"#),
            (Bson::Decimal128("1.50".parse().unwrap()), r#"{"$numberDecimal":"1.50"}"#),
            (Bson::Symbol("s".into()), r#"{"$symbol":"s"}"#),
        ] {
            assert_eq!(text(&value), output);
            canonical(output.as_bytes(), false).unwrap_err();
        }
    }
}
