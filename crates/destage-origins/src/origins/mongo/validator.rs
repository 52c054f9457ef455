//! What a collection's validator (`$jsonSchema`) says about its fields.

use super::fields::{Field, Fields};
use super::guard;
use super::types::Kind;
use mongodb::bson::{Bson, Document};

/// Whether the validator refuses the guard that every document must carry.
pub(super) fn refuses_guard(schema: &Document) -> bool {
    let is_named = schema
        .get_document("properties")
        .is_ok_and(|properties| properties.contains_key(guard::FIELD));
    !is_named && schema.get("additionalProperties") == Some(&Bson::Boolean(false))
}

/// The fields with a type. Nested documents whose fields are told become paths; what has no type of its own here is
/// `json`.
pub(super) fn fields(schema: &Document) -> Fields {
    let mut found = Fields::default();
    collect(&mut found, schema, "", true);
    found
}

fn collect(found: &mut Fields, schema: &Document, prefix: &str, parent_required: bool) {
    let Ok(properties) = schema.get_document("properties") else { return };
    let required: Vec<&str> = match schema.get_array("required") {
        Ok(names) => names.iter().filter_map(Bson::as_str).collect(),
        Err(_) => Vec::new(),
    };
    for (name, property) in properties {
        let Some(property) = property.as_document() else { continue };
        if prefix.is_empty() && name == guard::FIELD {
            continue;
        }
        let kind = kind(property);
        if prefix.is_empty() && name == "_id" {
            found.id = Some(kind);
            continue;
        }
        let required = parent_required && required.contains(&name.as_str());
        let path = format!("{prefix}{name}");
        let is_nested = kind == Kind::Json
            && types(property) == ["object"]
            && property.get_document("properties").is_ok_and(|inner| !inner.is_empty());
        if is_nested {
            collect(found, property, &format!("{path}."), required);
        } else {
            found.fields.push(Field { path, kind, required });
        }
    }
}

/// The types that a property allows, null left out.
fn types(property: &Document) -> Vec<&str> {
    let given = property.get("bsonType").or_else(|| property.get("type"));
    let all: Vec<&str> = match given {
        Some(Bson::String(name)) => vec![name],
        Some(Bson::Array(names)) => names.iter().filter_map(Bson::as_str).collect(),
        _ => Vec::new(),
    };
    all.into_iter().filter(|name| *name != "null").collect()
}

fn kind(property: &Document) -> Kind {
    let types = types(property);
    let all = |names: &[&str]| !types.is_empty() && types.iter().all(|ty| names.contains(ty));
    match types[..] {
        ["boolean"] => return Kind::Bool,
        [one] if one != "number" => return Kind::named(one).unwrap_or(Kind::Json),
        _ => {}
    }
    if all(&["int", "long"]) {
        return Kind::Long;
    }
    if all(&["int", "long", "decimal"]) {
        return Kind::Decimal;
    }
    if all(&["int", "long", "double", "number"]) {
        return Kind::Double;
    }
    Kind::Json
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::doc;

    #[test]
    fn types_and_paths_are_read() {
        let schema = doc! {
            "bsonType": "object",
            "required": ["name", "at"],
            "properties": {
                "_id": { "bsonType": "objectId" },
                "_destage": { "bsonType": "object" },
                "name": { "bsonType": "string", "maxLength": 10 },
                "stock": { "bsonType": ["int", "null"] },
                "count": { "bsonType": ["int", "long"] },
                "price": { "type": "number" },
                "sold": { "type": "boolean" },
                "exact": { "bsonType": "decimal" },
                "owed": { "bsonType": ["int", "decimal", "null"] },
                "tags": { "bsonType": "array" },
                "parts": { "bsonType": ["array", "null"], "items": { "bsonType": "string" } },
                "any": {},
                "free": { "bsonType": "object" },
                "at": {
                    "bsonType": "object",
                    "required": ["x"],
                    "properties": { "x": { "bsonType": "double" }, "label": { "bsonType": "string" } },
                },
            },
        };
        let found = fields(&schema);
        assert_eq!(found.id, Some(Kind::ObjectId));
        let read: Vec<_> =
            found.fields.iter().map(|f| (f.path.as_str(), f.kind, f.required)).collect();
        assert_eq!(
            read,
            [
                ("name", Kind::String, true),
                ("stock", Kind::Int, false),
                ("count", Kind::Long, false),
                ("price", Kind::Double, false),
                ("sold", Kind::Bool, false),
                ("exact", Kind::Decimal, false),
                ("owed", Kind::Decimal, false),
                ("tags", Kind::Array, false),
                ("parts", Kind::Array, false),
                ("any", Kind::Json, false),
                ("free", Kind::Json, false),
                ("at.x", Kind::Double, true),
                ("at.label", Kind::String, false),
            ]
        );
        assert!(found.check().is_ok());
    }

    #[test]
    fn a_validator_must_leave_room_for_the_guard() {
        let closed = doc! { "properties": { "a": {} }, "additionalProperties": false };
        assert!(refuses_guard(&closed));
        let named = doc! { "properties": { "_destage": {} }, "additionalProperties": false };
        assert!(!refuses_guard(&named));
        assert!(!refuses_guard(&doc! { "properties": {} }));
    }
}
