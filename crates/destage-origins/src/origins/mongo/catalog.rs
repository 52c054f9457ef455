//! What collections hold. MongoDB keeps no schema, so it is taken from the settings or from a validator; a collection about
//! which neither says anything is not served, since a guess from some documents would be wrong about others.

use super::connection::Connection;
use super::fields::{self, Fields};
use super::types::Kind;
use super::validator;
use crate::contract::OriginError;
use crate::schema::{Column, ColumnDefault, Schema, Table, Unreachable};
use crate::settings::TableSettings;
use crate::value::ColumnType;
use mongodb::bson::{Bson, Document, doc};
use std::collections::BTreeMap;

/// Destage's own collections begin so.
pub(super) const OWN: &str = "destage_";

/// Reads what collections there are. Those that are declared need not exist yet: the first document makes them.
pub(super) fn read(
    connection: &mut Connection,
    declared: &BTreeMap<String, TableSettings>,
) -> Result<Schema, OriginError> {
    const WHAT: &str = "read the catalogue";
    let mut found = BTreeMap::new();
    for description in connection.cursor(WHAT, doc! { "listCollections": 1 })? {
        if let Ok(name) = description.get_str("name") {
            connection.collections().note(name);
            found.insert(name.to_owned(), description.clone());
        }
    }
    for (name, settings) in declared {
        if settings.document.is_some() && !found.contains_key(name) {
            found.insert(name.clone(), Document::new());
        }
    }
    let mut tables = Vec::new();
    let mut unreachable = Vec::new();
    for (name, description) in found {
        if name.starts_with("system.") || name.starts_with(OWN) {
            continue;
        }
        let known = declared.get(&name);
        match table(&name, &description, known) {
            Ok(mut table) => {
                if !description.is_empty() {
                    unique(connection, &mut table)?;
                }
                tables.push(table);
            }
            Err(reason) => unreachable.push(Unreachable { name, reason }),
        }
    }
    if tables.iter().any(|table| first_decimal(table).is_some()) && holds_no_decimals(connection)? {
        tables.retain(|table| {
            let Some(column) = first_decimal(table) else { return true };
            let (name, reason) = (table.name.clone(), without_decimals(&column.name));
            unreachable.push(Unreachable { name, reason });
            false
        });
    }
    let mut schema = Schema::new(tables, unreachable);
    schema.one_row_groups = true;
    Ok(schema)
}

fn first_decimal(table: &Table) -> Option<&Column> {
    table.columns.iter().find(|column| column.ty == ColumnType::Decimal128)
}

/// Whether the server is a FerretDB of version 1, which would refuse every document with a decimal.
fn holds_no_decimals(connection: &mut Connection) -> Result<bool, OriginError> {
    let build = connection.command("ask for the version", doc! { "buildInfo": 1 })?;
    Ok(is_without_decimals(&build))
}

fn is_without_decimals(build: &Document) -> bool {
    // An embedded one may not know its version.
    build.get_str("ferretdbVersion").is_ok_and(|version| !version.starts_with("v2"))
}

fn without_decimals(field: &str) -> String {
    format!(
        "its field '{field}' is of type decimal, which this FerretDB (version 1) does not hold: declare it as long \
         (cents, say), string or double, or use MongoDB"
    )
}

/// A collection as a table; the reason where it cannot be one.
fn table(
    name: &str,
    description: &Document,
    settings: Option<&TableSettings>,
) -> Result<Table, String> {
    match description.get_str("type") {
        Ok("collection") | Err(_) => {}
        Ok(other) => return Err(format!("it is a {other}, not a collection")),
    }
    let empty = Document::new();
    let options = description.get_document("options").unwrap_or(&empty);
    if options.get_bool("capped").unwrap_or(false) {
        return Err("it is capped: documents cannot be deleted or grow there".to_owned());
    }
    let locale = options.get_document("collation").ok().and_then(|c| c.get_str("locale").ok());
    if let Some(locale) = locale.filter(|locale| *locale != "simple") {
        return Err(format!("its collation ({locale}) takes different keys for equal"));
    }
    let validator = options.get_document("validator").ok().filter(|v| !v.is_empty());
    let schema = validator.and_then(|validator| validator.get_document("$jsonSchema").ok());
    if schema.is_some_and(validator::refuses_guard) {
        return Err(format!(
            "its validator allows no fields but its own: add _destage: {{bsonType: \"object\"}} to the properties of {name}"
        ));
    }
    let declared = settings.and_then(|settings| settings.document.as_ref());
    let known = match (declared, schema) {
        (Some(declared), _) => {
            fields::declared(declared).map_err(|error| format!("[table.{name}]: {error}"))?
        }
        (None, Some(schema)) => validator::fields(schema),
        (None, None) => return Err(undeclared(name)),
    };
    let id = known.check()?;
    Ok(made(name, id, known, validator.is_some()))
}

/// Why a collection is not served about which nobody has said anything.
pub(super) fn undeclared(name: &str) -> String {
    format!(
        "nothing says which fields it has: give [table.{name}] an id and fields in the settings file, or the \
         collection a $jsonSchema validator"
    )
}

fn made(name: &str, id: Kind, known: Fields, validated: bool) -> Table {
    let column = |path: String, kind: Kind, required: bool, structural: bool| Column {
        sql_name: path.clone(),
        name: path,
        ty: kind.column_type(),
        type_name: kind.name().to_owned(),
        not_null: required,
        default: ColumnDefault::None,
        generated: false,
        structural,
        // A validator looks at all fields.
        checked: validated,
    };
    let mut table = Table::named(name.to_owned(), name.to_owned());
    table.key_len = 1;
    table.columns = vec![column("_id".to_owned(), id, true, true)];
    let fields = known.fields.into_iter();
    table.columns.extend(fields.map(|field| column(field.path, field.kind, field.required, false)));
    table
}

/// Marks what unique indexes look at.
fn unique(connection: &mut Connection, table: &mut Table) -> Result<(), OriginError> {
    let what = format!("read the indexes of {}", table.name);
    for index in connection.cursor(&what, doc! { "listIndexes": &table.name })? {
        let Ok(keys) = index.get_document("key") else { continue };
        let is_unique = index.get("unique") == Some(&Bson::Boolean(true));
        if !is_unique || keys.keys().eq(["_id"]) {
            continue;
        }
        table.has_unique = true;
        for column in &mut table.columns {
            column.structural |= keys.contains_key(&column.name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::DocumentSettings;

    fn settings() -> TableSettings {
        let document = DocumentSettings {
            id: Some("string".to_owned()),
            fields: BTreeMap::from([("stock".to_owned(), "int".to_owned())]),
            required: vec!["stock".to_owned()],
        };
        TableSettings { document: Some(document), ..TableSettings::default() }
    }

    #[test]
    fn what_cannot_be_served_says_why() {
        let described = |options: Document| doc! { "type": "collection", "options": options };
        for (description, known, reason) in [
            (described(doc! {}), None, "[table.c]"),
            (doc! { "type": "view" }, Some(settings()), "view"),
            (described(doc! { "capped": true }), Some(settings()), "capped"),
            (described(doc! { "collation": { "locale": "de" } }), Some(settings()), "(de)"),
            (described(doc! { "validator": { "a": { "$gt": 1 } } }), None, "[table.c]"),
            (
                described(
                    doc! { "validator": { "$jsonSchema": { "additionalProperties": false } } },
                ),
                Some(settings()),
                "_destage",
            ),
            (
                described(doc! { "validator": { "$jsonSchema": { "properties": { "a": {} } } } }),
                None,
                "_id",
            ),
        ] {
            let error = table("c", &description, known.as_ref()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn only_a_ferretdb_of_version_1_is_without_decimals() {
        for (build, is_without) in [
            (doc! { "version": "7.0.42", "ferretdbVersion": "v1.24.0" }, true),
            (doc! { "version": "7.0.42", "ferretdbVersion": "unknown" }, true),
            (doc! { "version": "7.0.77", "ferretdbVersion": "v2.1.0" }, false),
            (doc! { "version": "7.0.77", "ferretdb": { "version": "v2.1.0" } }, false),
            (doc! { "version": "8.0.4", "modules": [] }, false),
        ] {
            assert_eq!(is_without_decimals(&build), is_without, "{build}");
        }
    }

    #[test]
    fn a_validator_tells_the_fields_and_is_remembered() {
        let schema =
            doc! { "properties": { "_id": { "bsonType": "int" }, "a": { "bsonType": "string" } } };
        let described = doc! { "options": { "validator": { "$jsonSchema": schema } } };
        let validated = table("c", &described, None).unwrap();
        assert_eq!(validated.columns[1].name, "a");
        assert!(validated.columns[1].checked);
        // What is declared comes first.
        let both = table("c", &described, Some(&settings())).unwrap();
        assert_eq!(both.columns[1].name, "stock");
        assert!(both.columns[1].checked && both.columns[1].not_null);
        let bare = table("c", &Document::new(), Some(&settings())).unwrap();
        assert!(!bare.columns[1].checked && bare.is_plain());
    }
}
