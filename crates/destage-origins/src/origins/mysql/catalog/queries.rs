//! What the information schema tells, as it tells it.

use super::super::connection::{Connection, Texts};
use crate::contract::OriginError;
use crate::origins::bound::Bound;
use crate::origins::ledger;
use std::collections::{HashMap, HashSet};

/// Everything that the schema is built from.
pub(super) struct Facts {
    pub(super) relations: Vec<Relation>,
    /// By table, in the tables' order.
    pub(super) attributes: HashMap<String, Vec<Attribute>>,
    pub(super) indexes: Vec<IndexPart>,
    pub(super) references: Vec<Reference>,
    pub(super) checks: Vec<CheckFacts>,
    pub(super) triggers: Vec<TriggerFacts>,
    /// Whose triggers can be seen; `None` for all tables.
    pub(super) watched: Option<HashSet<String>>,
}

pub(super) struct CheckFacts {
    pub(super) table: String,
    pub(super) name: String,
    pub(super) clause: String,
}

pub(super) struct Relation {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) engine: String,
    pub(super) transactional: bool,
}

#[derive(Clone)]
pub(super) struct Attribute {
    pub(super) name: String,
    /// The default as an expression.
    pub(super) default: Option<String>,
    pub(super) nullable: bool,
    pub(super) data_type: String,
    /// The type with its length, signs and labels.
    pub(super) type_name: String,
    pub(super) chars_max: Option<u32>,
    pub(super) bytes_max: Option<u32>,
    pub(super) precision: u16,
    pub(super) scale: i16,
    pub(super) second_digits: u8,
    pub(super) charset: String,
    pub(super) collation: String,
    pub(super) extra: String,
    pub(super) privileges: String,
}

/// One column of an index.
pub(super) struct IndexPart {
    pub(super) table: String,
    pub(super) name: String,
    pub(super) unique: bool,
    pub(super) column: String,
    /// Only the beginning of the values is indexed.
    pub(super) is_prefix: bool,
    /// It is one in which values stand as they are. A unique index over long texts holds their hashes instead.
    pub(super) is_btree: bool,
}

/// One column of a foreign key.
pub(super) struct Reference {
    /// Schema, table and name of the constraint.
    pub(super) constraint: (String, String, String),
    pub(super) column: String,
    pub(super) parent_schema: String,
    pub(super) parent: String,
    pub(super) parent_column: String,
    /// ON UPDATE or ON DELETE does more than refuse.
    pub(super) acts: bool,
}

pub(super) struct TriggerFacts {
    pub(super) table: String,
    pub(super) name: String,
    /// `BEFORE` or `AFTER`.
    pub(super) timing: String,
    /// `INSERT`, `UPDATE` or `DELETE`.
    pub(super) event: String,
    pub(super) statement: String,
}

/// Reads everything about the connection's database.
pub(super) fn facts(connection: &mut Connection) -> Result<Facts, OriginError> {
    let mut bound = Bound::default();
    let mut ask = |sql: &str| connection.rows_within("read the catalogue", sql, &mut bound);
    let relations: Vec<_> = ask(RELATIONS)?.iter().map(relation).collect();
    let mut attributes: HashMap<String, Vec<Attribute>> = HashMap::new();
    for row in ask(ATTRIBUTES)? {
        attributes.entry(text(&row, 0)).or_default().push(attribute(&row));
    }
    let granted: Vec<_> = ask(TRIGGER_GRANTS)?.iter().map(|row| text(row, 0)).collect();
    let everywhere = granted.iter().any(String::is_empty);
    Ok(Facts {
        relations: relations
            .into_iter()
            .filter(|relation| !ledger::NAMES.contains(&relation.name.as_str()))
            .collect(),
        attributes,
        indexes: ask(INDEXES)?.iter().map(index_part).collect(),
        references: ask(REFERENCES)?.iter().map(reference).collect(),
        checks: ask(CHECKS)?.iter().map(check).collect(),
        triggers: ask(TRIGGERS)?.iter().map(trigger).collect(),
        watched: (!everywhere).then(|| granted.into_iter().collect()),
    })
}

fn relation(row: &Texts) -> Relation {
    Relation {
        name: text(row, 0),
        kind: text(row, 1),
        engine: text(row, 2),
        transactional: text(row, 3) == "YES",
    }
}

fn attribute(row: &Texts) -> Attribute {
    Attribute {
        name: text(row, 1),
        default: row[2].is_some().then(|| text(row, 2)),
        nullable: text(row, 3) == "YES",
        data_type: text(row, 4),
        type_name: text(row, 5),
        chars_max: length(row, 6),
        bytes_max: length(row, 7),
        precision: text(row, 8).parse().unwrap_or(0),
        scale: text(row, 9).parse().unwrap_or(0),
        second_digits: text(row, 10).parse().unwrap_or(0),
        charset: text(row, 11),
        collation: text(row, 12),
        extra: text(row, 13).to_ascii_lowercase(),
        privileges: text(row, 14),
    }
}

fn index_part(row: &Texts) -> IndexPart {
    IndexPart {
        table: text(row, 0),
        name: text(row, 1),
        unique: text(row, 2) == "0",
        column: text(row, 3),
        is_prefix: row[4].is_some(),
        is_btree: text(row, 5) == "BTREE",
    }
}

fn reference(row: &Texts) -> Reference {
    let acts = |rule: String| !matches!(rule.as_str(), "RESTRICT" | "NO ACTION");
    Reference {
        constraint: (text(row, 0), text(row, 1), text(row, 2)),
        column: text(row, 3),
        parent_schema: text(row, 4),
        parent: text(row, 5),
        parent_column: text(row, 6),
        acts: acts(text(row, 7)) || acts(text(row, 8)),
    }
}

fn check(row: &Texts) -> CheckFacts {
    CheckFacts { table: text(row, 0), clause: text(row, 1), name: text(row, 2) }
}

fn trigger(row: &Texts) -> TriggerFacts {
    TriggerFacts {
        table: text(row, 0),
        name: text(row, 1),
        timing: text(row, 2),
        event: text(row, 3),
        statement: text(row, 4),
    }
}

/// A column of a row as text; empty for NULL.
pub(super) fn text(row: &Texts, at: usize) -> String {
    let value = row.get(at).and_then(|value| value.as_deref());
    String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
}

/// A length; those beyond 32 bits are cut to what no packet holds.
fn length(row: &Texts, at: usize) -> Option<u32> {
    let length: u64 = text(row, at).parse().ok()?;
    Some(u32::try_from(length).unwrap_or(u32::MAX))
}

const RELATIONS: &str = "
SELECT t.TABLE_NAME, t.TABLE_TYPE, t.ENGINE, e.TRANSACTIONS
FROM information_schema.TABLES t LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE
WHERE t.TABLE_SCHEMA = database() AND t.TABLE_TYPE <> 'SEQUENCE' AND t.TABLE_TYPE <> 'TEMPORARY'";

const ATTRIBUTES: &str = "
SELECT TABLE_NAME, COLUMN_NAME, COLUMN_DEFAULT, IS_NULLABLE, lower(DATA_TYPE), COLUMN_TYPE,
       CHARACTER_MAXIMUM_LENGTH, CHARACTER_OCTET_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE,
       DATETIME_PRECISION, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA, PRIVILEGES
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = database()
ORDER BY TABLE_NAME, ORDINAL_POSITION";

const INDEXES: &str = "
SELECT TABLE_NAME, INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART, INDEX_TYPE
FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = database()
ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX";

/// Those of this database, and those of others that refer to it.
const REFERENCES: &str = "
SELECT k.TABLE_SCHEMA, k.TABLE_NAME, k.CONSTRAINT_NAME, k.COLUMN_NAME, k.REFERENCED_TABLE_SCHEMA,
       k.REFERENCED_TABLE_NAME, k.REFERENCED_COLUMN_NAME, r.UPDATE_RULE, r.DELETE_RULE
FROM information_schema.KEY_COLUMN_USAGE k
JOIN information_schema.REFERENTIAL_CONSTRAINTS r
  ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA AND r.TABLE_NAME = k.TABLE_NAME
 AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME
WHERE k.REFERENCED_TABLE_NAME IS NOT NULL
  AND (k.TABLE_SCHEMA = database() OR k.REFERENCED_TABLE_SCHEMA = database())
ORDER BY k.TABLE_SCHEMA, k.TABLE_NAME, k.CONSTRAINT_NAME, k.ORDINAL_POSITION";

const CHECKS: &str = "
SELECT TABLE_NAME, CHECK_CLAUSE, CONSTRAINT_NAME FROM information_schema.CHECK_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = database() ORDER BY TABLE_NAME, CONSTRAINT_NAME";

const TRIGGERS: &str = "
SELECT EVENT_OBJECT_TABLE, TRIGGER_NAME, ACTION_TIMING, EVENT_MANIPULATION, ACTION_STATEMENT
FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = database() ORDER BY EVENT_OBJECT_TABLE, TRIGGER_NAME";

/// The tables whose triggers the user may see, an empty name for all: without the privilege, a table with triggers looks
/// like one without. A name of a database in a grant may be a pattern. What a role grants is not seen.
const TRIGGER_GRANTS: &str = r"
WITH me AS (SELECT concat('''', substring_index(current_user(), '@', 1), '''@''',
                          substring_index(current_user(), '@', -1), '''') AS grantee)
SELECT '' FROM me JOIN information_schema.USER_PRIVILEGES p ON p.GRANTEE = me.grantee
WHERE p.PRIVILEGE_TYPE = 'TRIGGER'
UNION SELECT '' FROM me JOIN information_schema.SCHEMA_PRIVILEGES p ON p.GRANTEE = me.grantee
WHERE p.PRIVILEGE_TYPE = 'TRIGGER' AND database() LIKE p.TABLE_SCHEMA ESCAPE '\'
UNION SELECT p.TABLE_NAME FROM me JOIN information_schema.TABLE_PRIVILEGES p ON p.GRANTEE = me.grantee
WHERE p.PRIVILEGE_TYPE = 'TRIGGER' AND p.TABLE_SCHEMA = database()";
