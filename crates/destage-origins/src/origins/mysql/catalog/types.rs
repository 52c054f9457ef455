//! From MariaDB's types to canonical ones.

use super::super::literal::BIT;
use super::queries::Attribute;
use crate::checks::{Kind, Moment, TextRule};
use crate::value::{ColumnType, MysqlType};

/// What a column's declared type comes down to. `key`: it is part of the primary key. `json`: a constraint says that it
/// holds JSON.
pub(super) fn resolve(attribute: &Attribute, key: bool, json: bool) -> ColumnType {
    let unsigned = attribute.type_name.contains("unsigned");
    let int = |bits: u32| match (unsigned, bits) {
        // Greater ones can be read.
        (true, 64) => ColumnType::Int { min: 0, max: i64::MAX },
        (true, bits) => ColumnType::Int { min: 0, max: (1 << bits) - 1 },
        (false, bits) => {
            ColumnType::Int { min: i64::MIN >> (64 - bits), max: i64::MAX >> (64 - bits) }
        }
    };
    // Whole numbers have a least value anyway.
    let real = |ty: ColumnType| {
        if unsigned { ColumnType::Mysql(MysqlType::Unsigned(Box::new(ty))) } else { ty }
    };
    let bytes_max = attribute.bytes_max.unwrap_or(u32::MAX);
    let chars_max = attribute.chars_max.unwrap_or(u32::MAX);
    let precision = attribute.second_digits;
    match attribute.data_type.as_str() {
        "tinyint" => int(8),
        "smallint" => int(16),
        "mediumint" => int(24),
        "int" => int(32),
        "bigint" => int(64),
        BIT => {
            let max = 1i64
                .checked_shl(u32::from(attribute.precision))
                .map_or(i64::MAX, |n| n.wrapping_sub(1));
            ColumnType::Int { min: 0, max: if max < 0 { i64::MAX } else { max } }
        }
        "year" => ColumnType::Int { min: 1901, max: 2155 },
        "decimal" => {
            let precision = Some((attribute.precision, attribute.scale));
            real(ColumnType::Numeric { precision, has_nan: false })
        }
        // With a scale of its own it is rounded as only the server does.
        "float" if attribute.type_name.starts_with("float(") => ColumnType::Opaque,
        "double" if attribute.type_name.starts_with("double(") => ColumnType::Opaque,
        "float" => real(ColumnType::Mysql(MysqlType::Float)),
        "double" => real(ColumnType::Mysql(MysqlType::Double)),
        "char" => ColumnType::Mysql(MysqlType::Trimmed { chars_max }),
        "varchar" if key && !attribute.collation.contains("_nopad_") => {
            ColumnType::Mysql(MysqlType::Trimmed { chars_max })
        }
        "varchar" => ColumnType::Text { chars_max: Some(chars_max) },
        "longtext" if json => ColumnType::Json,
        "tinytext" | "text" | "mediumtext" | "longtext" => {
            ColumnType::Mysql(MysqlType::Text { bytes_max })
        }
        "binary" => ColumnType::Mysql(MysqlType::PaddedBytes { bytes: bytes_max }),
        "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => {
            ColumnType::Mysql(MysqlType::Bytes { bytes_max })
        }
        "uuid" => ColumnType::Uuid,
        "date" => ColumnType::Date,
        "time" => ColumnType::Time { precision },
        "datetime" => ColumnType::Timestamp { zone: false, precision },
        "timestamp" => ColumnType::Mysql(MysqlType::Timestamp { precision }),
        "enum" => ColumnType::Enum(labels(&attribute.type_name)),
        "set" => ColumnType::Mysql(MysqlType::Set(labels(&attribute.type_name))),
        _ => ColumnType::Opaque,
    }
}

/// What a column is in conditions.
pub(super) fn kind(attribute: &Attribute, ty: &ColumnType) -> Kind {
    match attribute.data_type.as_str() {
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "decimal" => Kind::Exact,
        "double" if *ty != ColumnType::Opaque => Kind::Double,
        "date" => Kind::Moment(Moment::Date),
        "datetime" => Kind::Moment(Moment::Stamp),
        // In a key their blanks at the end are not known.
        "varchar" if matches!(ty, ColumnType::Mysql(MysqlType::Trimmed { .. })) => Kind::Other,
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" => {
            text_rule(attribute).map_or(Kind::Other, Kind::Text)
        }
        _ => Kind::Other,
    }
}

/// How texts of a column are compared, where that is known. Letters of UTF-8 take as many bytes here as there.
fn text_rule(attribute: &Attribute) -> Option<TextRule> {
    let charset = attribute.charset.as_str();
    if !matches!(charset, "utf8mb4" | "utf8mb3") {
        return None;
    }
    let collation = attribute.collation.strip_prefix(charset)?;
    match collation {
        "_nopad_bin" => Some(TextRule::Bytes),
        "_bin" => Some(TextRule::Padded),
        "_general_ci" | "_unicode_ci" | "_unicode_520_ci" | "_uca1400_ai_ci" | "_uca1400_as_ci" => {
            Some(TextRule::Folded)
        }
        _ => None,
    }
}

/// Where the statements are told, for all tables at once: see [`crate::schema::Schema::key_changes`].
const SEE_CHANGES: &str = "the whole change: destage schema";

/// Why keys may not have this column; `None` if they may.
pub(super) fn key_obstacle(attribute: &Attribute, ty: &ColumnType) -> Option<String> {
    let text = |words: &str| Some(words.to_owned());
    match ty.signed() {
        ColumnType::Opaque => text("Destage knows no single form of its type"),
        ColumnType::Mysql(MysqlType::Float | MysqlType::Double) => {
            text("equal floating-point numbers may be written differently")
        }
        ColumnType::Json => text("JSON has no single form to be found by"),
        ColumnType::Mysql(MysqlType::Set(_) | MysqlType::Text { .. }) | ColumnType::Enum(_)
            if attribute.charset != "utf8mb4" =>
        {
            wrong_charset(attribute)
        }
        ColumnType::Enum(_) | ColumnType::Mysql(MysqlType::Set(_)) => None,
        _ if attribute.collation.is_empty() => None,
        _ if attribute.charset != "utf8mb4" => wrong_charset(attribute),
        _ if attribute.collation.ends_with("_bin") => None,
        _ => Some(format!(
            "its collation {} takes different spellings for one key; utf8mb4_bin does not ({SEE_CHANGES})",
            attribute.collation
        )),
    }
}

fn wrong_charset(attribute: &Attribute) -> Option<String> {
    let charset = &attribute.charset;
    Some(format!("its character set {charset} holds not every text; utf8mb4 does ({SEE_CHANGES})"))
}

/// Whether equality of two columns is equality of their canonical forms.
pub(super) fn compares_exactly(
    (child, child_collation): (&ColumnType, &str),
    (parent, parent_collation): (&ColumnType, &str),
) -> bool {
    use ColumnType::{Date, Int, Text, Uuid};
    match (child, parent) {
        (Int { .. }, Int { .. }) | (Date, Date) | (Uuid, Uuid) => true,
        (Text { .. }, Text { .. }) => {
            [child_collation, parent_collation].iter().all(|c| c.ends_with("_nopad_bin"))
        }
        (
            ColumnType::Mysql(MysqlType::PaddedBytes { bytes: a }),
            ColumnType::Mysql(MysqlType::PaddedBytes { bytes: b }),
        ) => a == b,
        _ => false,
    }
}

/// The labels in `enum('a','it''s')`.
fn labels(type_name: &str) -> Vec<String> {
    let mut labels = Vec::new();
    let mut rest = type_name;
    while let Some((_, body)) = rest.split_once('\'') {
        let mut label = String::new();
        let mut after = body;
        loop {
            let Some((text, behind)) = after.split_once('\'') else { return labels };
            label.push_str(text);
            match behind.strip_prefix('\'') {
                Some(behind) => {
                    label.push('\'');
                    after = behind;
                }
                None => {
                    rest = behind;
                    break;
                }
            }
        }
        labels.push(label);
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_with_their_quotes() {
        assert_eq!(labels("enum('a','it''s','','x,y')"), ["a", "it's", "", "x,y"]);
        assert_eq!(labels("set('''')"), ["'"]);
    }
}
