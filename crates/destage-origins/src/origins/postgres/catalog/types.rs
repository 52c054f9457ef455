//! From PostgreSQL's types to canonical ones.

use super::queries::{Attribute, TypeFacts};
use crate::checks::{Kind, Moment, TextRule};
use crate::value::ColumnType;
use std::collections::HashMap;
use tokio_postgres::types::{Kind as Shape, Type};

/// What a column's declared type comes down to.
pub(super) struct Resolved {
    pub(super) ty: ColumnType,
    /// The base type's name for SQL, without length or precision.
    pub(super) sql_name: String,
    /// A domain on the way forbids NULL.
    pub(super) not_null: bool,
    /// A domain on the way has a CHECK constraint.
    pub(super) checked: bool,
    /// The domains on the way, outermost first.
    pub(super) domains: Vec<u32>,
    /// The default of the outermost domain that has one.
    pub(super) default: Option<String>,
    /// Why a key may not have this type, beyond what the canonical type says.
    pub(super) folded: bool,
}

/// Follows domains down to the base type.
pub(super) fn resolve(attribute: &Attribute, types: &HashMap<u32, TypeFacts>) -> Resolved {
    let (mut oid, mut modifier) = (attribute.type_oid, attribute.modifier);
    let (mut not_null, mut checked, mut default) = (false, false, None);
    let mut domains = Vec::new();
    while let Some(domain) = types.get(&oid).filter(|facts| facts.kind == "d") {
        domains.push(oid);
        not_null |= domain.not_null;
        checked |= domain.checked;
        default = default.or_else(|| domain.default.clone());
        (oid, modifier) = (domain.base, domain.modifier);
    }
    let facts = types.get(&oid);
    let folded = facts.is_some_and(|facts| facts.name == "citext" && facts.kind != "e");
    let ty = match facts {
        Some(facts) if facts.kind == "e" => ColumnType::Enum(facts.labels.clone()),
        _ if folded => ColumnType::Text { chars_max: None },
        Some(facts) => match types.get(&facts.element).filter(|element| element.kind == "e") {
            Some(element) => ColumnType::Array(Box::new(ColumnType::Enum(element.labels.clone()))),
            None => ColumnType::Opaque,
        },
        None => builtin(oid, modifier),
    };
    let sql_name = match facts {
        Some(facts) => facts.sql_name.clone(),
        None => Type::from_oid(oid).map_or_else(|| "?".to_owned(), |ty| name(&ty)),
    };
    Resolved { ty, sql_name, not_null, checked, domains, default, folded }
}

/// The type's own name, of an array its elements' with brackets.
fn name(ty: &Type) -> String {
    match ty.kind() {
        Shape::Array(element) => format!("{}[]", element.name()),
        _ => ty.name().to_owned(),
    }
}

fn builtin(oid: u32, modifier: i32) -> ColumnType {
    match Type::from_oid(oid).as_ref().map(Type::kind) {
        // Its text is none of an array's.
        _ if oid == Type::INT2_VECTOR.oid() => ColumnType::Opaque,
        // The text of a bytea is not its bytes.
        Some(Shape::Array(element)) => match scalar(element.oid(), modifier) {
            ColumnType::Opaque | ColumnType::Bytes => ColumnType::Opaque,
            element => ColumnType::Array(Box::new(element)),
        },
        _ => scalar(oid, modifier),
    }
}

fn scalar(oid: u32, modifier: i32) -> ColumnType {
    let int = |min: i64, max: i64| ColumnType::Int { min, max };
    let seconds = || u8::try_from(modifier).map_or(6, |precision| precision.min(6));
    // Lengths are stored with four bytes of an old header added.
    let length = u32::try_from(modifier - 4).ok().filter(|_| modifier >= 4);
    match Type::from_oid(oid) {
        Some(Type::INT2) => int(i16::MIN.into(), i16::MAX.into()),
        Some(Type::INT4) => int(i32::MIN.into(), i32::MAX.into()),
        Some(Type::INT8) => int(i64::MIN, i64::MAX),
        Some(Type::FLOAT4) => ColumnType::Float4,
        Some(Type::FLOAT8) => ColumnType::Float8,
        Some(Type::NUMERIC) => {
            ColumnType::Numeric { precision: length.map(numeric_precision), has_nan: true }
        }
        Some(Type::TEXT) => ColumnType::Text { chars_max: None },
        Some(Type::VARCHAR) => ColumnType::Text { chars_max: length },
        Some(Type::BPCHAR) => match length {
            Some(chars) => ColumnType::PaddedText { chars },
            None => ColumnType::Opaque,
        },
        Some(Type::BYTEA) => ColumnType::Bytes,
        Some(Type::BOOL) => ColumnType::Bool,
        Some(Type::UUID) => ColumnType::Uuid,
        Some(Type::DATE) => ColumnType::Date,
        Some(Type::TIME) => ColumnType::Time { precision: seconds() },
        Some(Type::TIMESTAMP) => ColumnType::Timestamp { zone: false, precision: seconds() },
        Some(Type::TIMESTAMPTZ) => ColumnType::Timestamp { zone: true, precision: seconds() },
        Some(Type::JSON) => ColumnType::Json,
        Some(Type::JSONB) => ColumnType::Jsonb,
        _ => ColumnType::Opaque,
    }
}

/// What a column of this type is in conditions; nothing where not even NULL is plain.
pub(super) fn kind(resolved: &Resolved, deterministic: bool) -> Option<Kind> {
    Some(match &resolved.ty {
        ColumnType::Int { max, .. } => Kind::Whole { bits: 65 - max.leading_zeros() },
        ColumnType::Numeric { .. } => Kind::Exact,
        ColumnType::Float8 => Kind::Double,
        ColumnType::Float4 => Kind::Single,
        ColumnType::Text { .. } if deterministic && !resolved.folded => Kind::Text(TextRule::Bytes),
        ColumnType::Bool => Kind::Bool,
        ColumnType::Date => Kind::Moment(Moment::Date),
        ColumnType::Time { .. } => Kind::Moment(Moment::Time),
        ColumnType::Timestamp { zone: false, .. } => Kind::Moment(Moment::Stamp),
        ColumnType::Timestamp { zone: true, .. } => Kind::Moment(Moment::Instant),
        ColumnType::Enum(_) => Kind::Label,
        // Of a composite type NULL is what has nothing but NULL in it.
        ColumnType::Opaque => return None,
        _ => Kind::Other,
    })
}

/// Sixteen bits of precision above eleven bits of scale with its sign.
fn numeric_precision(packed: u32) -> (u16, i16) {
    let scale = ((packed & 0x7ff) ^ 0x400) as i16 - 0x400;
    ((packed >> 16) as u16, scale)
}

/// Why keys may not have this type; `None` if they may.
pub(super) fn key_obstacle(resolved: &Resolved, deterministic: bool) -> Option<&'static str> {
    if resolved.folded {
        return Some("its type citext takes different spellings for one key");
    }
    if !deterministic {
        return Some("its collation takes different spellings for one key");
    }
    match resolved.ty {
        ColumnType::Float4 | ColumnType::Float8 | ColumnType::SqliteReal => {
            Some("equal floating-point numbers may be written differently")
        }
        ColumnType::Numeric { precision: None, .. } => {
            Some("equal numbers of a numeric without scale may be written differently")
        }
        ColumnType::Json | ColumnType::Jsonb => Some("JSON has no single form to be found by"),
        ColumnType::Array(_) => Some("Destage finds no rows by arrays"),
        ColumnType::Opaque => Some("Destage knows no single form of its type"),
        _ => None,
    }
}

/// Whether equality of two columns is equality of their canonical forms.
pub(super) fn compares_exactly(child: &ColumnType, parent: &ColumnType) -> bool {
    use ColumnType::{Int, Text};
    match (child, parent) {
        (Int { .. }, Int { .. }) | (Text { .. }, Text { .. }) => true,
        (ColumnType::Float4 | ColumnType::Float8 | ColumnType::Opaque, _) => false,
        (ColumnType::Jsonb | ColumnType::Json | ColumnType::Array(_), _) => false,
        (ColumnType::Numeric { precision: None, .. }, _) => false,
        _ => child == parent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_and_scale_unpack_with_their_sign() {
        let pack = |p: u32, s: i32| (p << 16) | (s as u32 & 0x7ff);
        for (p, s) in [(10, 2), (2, -2), (3, 5), (1000, 1000), (1000, -1000)] {
            assert_eq!(numeric_precision(pack(p, s)), (p as u16, s as i16));
        }
    }
}
