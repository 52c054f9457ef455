//! What to write into the settings file about collections of which nothing says what they hold: sections that are made from
//! some of their documents, for a person to correct. What those documents lack, or what others have otherwise, nobody knows
//! but the user, so no start goes by it.

use super::connection::{Connection, Query};
use super::fields::{Field, Fields};
use super::types::Kind;
use crate::contract::OriginError;
use mongodb::bson::{Bson, Document};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Documents of each collection that are looked at.
pub(super) const DOCUMENTS: i64 = 20;
/// Collections that are written out.
const COLLECTIONS_MAX: usize = 50;
/// How deep the paths of fields go; what is below is JSON.
const DEPTH_MAX: usize = 4;

/// The sections for these collections.
pub(super) fn sections(
    connection: &mut Connection,
    collections: &[&str],
) -> Result<String, OriginError> {
    let mut out = String::new();
    for name in collections.iter().take(COLLECTIONS_MAX) {
        let what = format!("look at documents of {name}");
        let query = Query { limit: DOCUMENTS, ..Query::default() };
        let documents = connection.find(&what, name, query)?;
        let _ = writeln!(out, "{}", section(name, &documents));
    }
    if let Some(more) = collections.get(COLLECTIONS_MAX..).filter(|more| !more.is_empty()) {
        let _ = writeln!(out, "# and so on for {}", more.join(", "));
    }
    if collections.is_empty() {
        let _ = writeln!(out, "{EXAMPLE}");
    }
    Ok(out)
}

/// Where there is no collection yet.
const EXAMPLE: &str =
    "[table.products]\nid = \"objectId\"\nfields = { name = \"string\", stock = \"int\" }";

fn section(name: &str, documents: &[Document]) -> String {
    let mut seen = BTreeMap::new();
    documents.iter().for_each(|document| note(&mut seen, document, 1));
    let id = match seen.remove("_id") {
        Some(Seen::One(kind)) if kind.is_key() => Some(kind),
        None => Some(Kind::ObjectId),
        Some(Seen::One(_) | Seen::Inside(_)) => None,
    };
    let Some(id) = id else {
        return format!(
            "# {name}: its _id is no string, int, long or objectId, so no key reaches it"
        );
    };
    let mut paths = Vec::new();
    list(&seen, "", &mut paths);
    let required = false;
    let is_usable = |(path, kind): &(String, Kind)| {
        let field = Field { path: path.clone(), kind: *kind, required };
        Fields { id: Some(id), fields: vec![field] }.check().is_ok()
    };
    paths.retain(is_usable);
    let fields = paths.iter().map(|(path, kind)| format!("{} = \"{}\"", word(path), kind.name()));
    let fields: Vec<String> = fields.collect();
    format!("[table.{}]\nid = \"{}\"\nfields = {{ {} }}", word(name), id.name(), fields.join(", "))
}

/// What the values of a field were.
enum Seen {
    One(Kind),
    /// Documents, with these fields.
    Inside(BTreeMap<String, Self>),
}

fn note(seen: &mut BTreeMap<String, Seen>, document: &Document, depth: usize) {
    for (name, value) in document {
        let inside = match value {
            Bson::Null => continue,
            // A dot in a name could not be told from a path.
            Bson::Document(inside)
                if depth < DEPTH_MAX
                    && !inside.is_empty()
                    && !inside.keys().any(|name| name.contains('.')) =>
            {
                Some(inside)
            }
            _ => None,
        };
        let Some(inside) = inside else {
            let kind = kind_of(value);
            seen.entry(name.clone()).and_modify(|one| one.meet(kind)).or_insert(Seen::One(kind));
            continue;
        };
        match seen.entry(name.clone()).or_insert_with(|| Seen::Inside(BTreeMap::new())) {
            Seen::Inside(fields) => note(fields, inside, depth + 1),
            one @ Seen::One(_) => *one = Seen::One(Kind::Json),
        }
    }
}

impl Seen {
    /// Takes in a further value's kind.
    fn meet(&mut self, kind: Kind) {
        let both = match self {
            Self::One(known) if *known == kind => kind,
            Self::One(Kind::Int | Kind::Long) if matches!(kind, Kind::Int | Kind::Long) => {
                Kind::Long
            }
            Self::One(Kind::Int | Kind::Long | Kind::Double)
                if matches!(kind, Kind::Int | Kind::Long | Kind::Double) =>
            {
                Kind::Double
            }
            // Whole numbers are read as decimals, doubles are not: most of them have no short decimal.
            Self::One(Kind::Int | Kind::Long | Kind::Decimal)
                if matches!(kind, Kind::Int | Kind::Long | Kind::Decimal) =>
            {
                Kind::Decimal
            }
            Self::One(_) | Self::Inside(_) => Kind::Json,
        };
        *self = Self::One(both);
    }
}

fn kind_of(value: &Bson) -> Kind {
    match value {
        Bson::String(_) => Kind::String,
        Bson::Int32(_) => Kind::Int,
        Bson::Int64(_) => Kind::Long,
        Bson::Double(_) => Kind::Double,
        Bson::Decimal128(_) => Kind::Decimal,
        Bson::Boolean(_) => Kind::Bool,
        Bson::DateTime(_) => Kind::Date,
        Bson::ObjectId(_) => Kind::ObjectId,
        Bson::Binary(_) => Kind::Binary,
        Bson::Array(_) => Kind::Array,
        _ => Kind::Json,
    }
}

fn list(seen: &BTreeMap<String, Seen>, prefix: &str, paths: &mut Vec<(String, Kind)>) {
    for (name, seen) in seen {
        let path = format!("{prefix}{name}");
        match seen {
            Seen::One(kind) => paths.push((path, *kind)),
            Seen::Inside(fields) => list(fields, &format!("{path}."), paths),
        }
    }
}

/// A name as TOML has it, bare where it can be.
fn word(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.chars().all(is_bare) {
        name.to_owned()
    } else {
        // The escapes of JSON are among those of TOML.
        serde_json::Value::from(name).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::oid::ObjectId;
    use mongodb::bson::{Decimal128, doc};

    #[test]
    fn a_section_has_what_the_documents_have() {
        let documents = [
            doc! { "_id": 1, "a": 1, "b": "x", "n": 1, "w": Bson::Null, "at": { "x": 1.5 }, "m": 1, "p": 1 },
            doc! { "_id": 2_i64, "a": 5_i64, "n": 0.5, "at": { "y": [1] }, "m": { "z": 1 }, "_destage": 7,
            "p": "1.50".parse::<Decimal128>().unwrap(), "q": "1.50".parse::<Decimal128>().unwrap() },
            doc! { "_id": 3, "q": 0.5 },
        ];
        assert_eq!(
            section("c", &documents),
            "[table.c]\nid = \"long\"\nfields = { a = \"long\", \"at.x\" = \"double\", \"at.y\" = \"array\", b = \"string\", \
             m = \"json\", n = \"double\", p = \"decimal\", q = \"json\" }"
        );
    }

    #[test]
    fn names_that_are_no_words_are_quoted_and_those_of_no_field_left_out() {
        let id = ObjectId::parse_str("65a0c3d2e1f0a1b2c3d4e5f6").unwrap();
        let documents = [doc! { "_id": id, "a b\"": true, "$x": 1, "x.y": { "z": 1 } }];
        let text = section("my.logs", &documents);
        assert!(text.starts_with("[table.\"my.logs\"]\nid = \"objectId\"\n"), "{text}");
        assert!(text.contains("\"a b\\\"\" = \"bool\"") && !text.contains("$x"), "{text}");
    }

    #[test]
    fn a_collection_that_no_key_reaches_is_told_of() {
        assert!(section("c", &[doc! { "_id": { "a": 1 } }]).starts_with("# c: its _id"));
        assert!(section("c", &[doc! { "_id": 1 }, doc! { "_id": "x" }]).starts_with("# c"));
        assert_eq!(section("c", &[]), "[table.c]\nid = \"objectId\"\nfields = {  }");
    }
}
