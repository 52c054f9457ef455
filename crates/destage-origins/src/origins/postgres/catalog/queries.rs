//! What is asked of PostgreSQL's catalogue, as plain records. All of it in one snapshot.

use super::super::connection::Bounded;
use crate::origins::ledger;
use crate::triggers::plpgsql;
use std::collections::HashMap;
use tokio_postgres::{Error, Row};

/// The catalogue as far as it matters.
pub(super) struct Facts {
    pub(super) relations: Vec<Relation>,
    pub(super) attributes: HashMap<u32, Vec<Attribute>>,
    pub(super) types: HashMap<u32, TypeFacts>,
    pub(super) constraints: Vec<Constraint>,
    pub(super) domain_checks: Vec<DomainCheck>,
    pub(super) indexes: Vec<Index>,
    /// Rules: the relation, and what it has, in words.
    pub(super) effects: Vec<(u32, String)>,
    pub(super) triggers: Vec<TriggerFacts>,
}

/// A trigger that fires for ordinary sessions.
pub(super) struct TriggerFacts {
    pub(super) relation: u32,
    /// Of the relation as a whole, not of a partition alone.
    pub(super) is_of_table: bool,
    /// In quotes where it needs them.
    pub(super) name: String,
    /// When it fires, as bits.
    pub(super) kind: i16,
    pub(super) has_condition: bool,
    /// It fires only where one of certain columns is among those that are set.
    pub(super) is_of_columns: bool,
    /// The condition uses operators or functions that are not PostgreSQL's own: its text names neither.
    pub(super) has_own_operators: bool,
    /// Its condition as far as the server tells it.
    pub(super) condition: Option<String>,
    pub(super) language: String,
    pub(super) source: String,
    /// The function is run with settings of its own, other than where names are looked for.
    pub(super) has_settings: bool,
    /// Another schema has a function of the name of one that such triggers call.
    pub(super) is_shadowed: bool,
}

pub(super) struct Relation {
    pub(super) oid: u32,
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) sql_name: String,
    /// `r` table, `p` partitioned table, `v` view, `m` materialised view, `f` foreign table.
    pub(super) kind: String,
    pub(super) unlogged: bool,
    pub(super) partition: bool,
    pub(super) visible: bool,
    pub(super) row_security: bool,
    pub(super) inherits: bool,
    pub(super) inherited: bool,
    /// Privileges that the user lacks.
    pub(super) lacking: Vec<String>,
}

pub(super) struct Attribute {
    pub(super) number: i16,
    pub(super) name: String,
    pub(super) sql_name: String,
    pub(super) type_oid: u32,
    pub(super) modifier: i32,
    pub(super) not_null: bool,
    pub(super) generated: bool,
    /// Empty, `a` GENERATED ALWAYS or `d` BY DEFAULT.
    pub(super) identity: String,
    pub(super) default: Option<String>,
    pub(super) deterministic: bool,
    /// The database counts the characters and bytes of its texts as Destage does.
    pub(super) is_utf8: bool,
    /// Whether a sequence of its own hands out its values.
    pub(super) sequence: bool,
    /// Its default is the next number of that sequence, which no other default uses, and which never begins anew.
    pub(super) numbered: bool,
    pub(super) type_name: String,
}

/// A domain, an enum, an array of enums or an extension's type.
pub(super) struct TypeFacts {
    pub(super) kind: String,
    pub(super) name: String,
    /// For SQL, without length or precision.
    pub(super) sql_name: String,
    pub(super) base: u32,
    pub(super) modifier: i32,
    pub(super) not_null: bool,
    pub(super) default: Option<String>,
    pub(super) checked: bool,
    pub(super) labels: Vec<String>,
    /// The type of an array's elements; 0 for other types.
    pub(super) element: u32,
}

pub(super) struct Constraint {
    pub(super) relation: u32,
    pub(super) name: String,
    /// `p` primary, `u` unique, `x` exclusion, `f` foreign, `c` check.
    pub(super) kind: String,
    pub(super) columns: Vec<i16>,
    pub(super) parent: u32,
    pub(super) parent_columns: Vec<i16>,
    /// ON UPDATE or ON DELETE does more than refuse.
    pub(super) acts: bool,
    pub(super) deferred: bool,
    pub(super) relation_name: String,
    /// Of a check that is enforced: what it asks.
    pub(super) condition: Option<String>,
    /// The condition uses operators or functions that are not PostgreSQL's own: its text names neither.
    pub(super) has_own_operators: bool,
}

/// A CHECK constraint of a domain.
pub(super) struct DomainCheck {
    pub(super) domain: u32,
    pub(super) name: String,
    pub(super) condition: String,
    pub(super) has_own_operators: bool,
}

pub(super) struct Index {
    pub(super) relation: u32,
    pub(super) name: String,
    pub(super) unique: bool,
    /// It has neither expressions nor a condition, and no columns beside those that are unique.
    pub(super) is_whole: bool,
    pub(super) columns: Vec<i16>,
    /// The columns whose values, where none is NULL, are those of one row at most at any time; none if it is no such index.
    pub(super) key: Vec<i16>,
    /// Columns in its expressions or condition.
    pub(super) looked_at: Vec<i16>,
}

/// Reads everything. The transaction is the caller's.
pub(super) async fn facts(client: &Bounded) -> Result<Facts, Error> {
    let own: Vec<&str> = ledger::NAMES.to_vec();
    let relations = client.read(RELATIONS, &[&own], |row| relation(&row)).await?;
    let oids: Vec<u32> = relations.iter().map(|relation| relation.oid).collect();
    let mut attributes: HashMap<u32, Vec<Attribute>> = HashMap::new();
    let push = |row: Row| {
        attributes.entry(row.get("relation")).or_default().push(attribute(&row));
    };
    client.read(ATTRIBUTES, &[&oids], push).await?;
    let types = client.read(TYPES, &[], |row| (row.get("oid"), type_facts(&row))).await?;
    Ok(Facts {
        relations,
        attributes,
        types: types.into_iter().collect(),
        constraints: client.read(CONSTRAINTS, &[&oids], |row| constraint(&row)).await?,
        domain_checks: client.read(DOMAIN_CHECKS, &[], |row| domain_check(&row)).await?,
        indexes: client.read(INDEXES, &[&oids], |row| index(&row)).await?,
        effects: client.read(EFFECTS, &[&oids], |row| (row.get(0), row.get(1))).await?,
        triggers: client
            .read(TRIGGERS, &[&oids, &&plpgsql::FUNCTIONS[..]], |row| trigger(&row))
            .await?,
    })
}

fn trigger(row: &Row) -> TriggerFacts {
    TriggerFacts {
        relation: row.get("relation"),
        is_of_table: row.get("is_of_table"),
        name: row.get("name"),
        kind: row.get("kind"),
        has_condition: row.get("has_condition"),
        is_of_columns: row.get("is_of_columns"),
        has_own_operators: row.get("has_own_operators"),
        condition: row.get("condition"),
        language: row.get("language"),
        source: row.get("source"),
        has_settings: row.get("has_settings"),
        is_shadowed: row.get("is_shadowed"),
    }
}

fn relation(row: &Row) -> Relation {
    Relation {
        oid: row.get("oid"),
        schema: row.get("schema"),
        name: row.get("name"),
        sql_name: row.get("sql_name"),
        kind: row.get("kind"),
        unlogged: row.get("unlogged"),
        partition: row.get("partition"),
        visible: row.get("visible"),
        row_security: row.get("row_security"),
        inherits: row.get("inherits"),
        inherited: row.get("inherited"),
        lacking: row.get("lacking"),
    }
}

fn attribute(row: &Row) -> Attribute {
    Attribute {
        number: row.get("number"),
        name: row.get("name"),
        sql_name: row.get("sql_name"),
        type_oid: row.get("type_oid"),
        modifier: row.get("modifier"),
        not_null: row.get("not_null"),
        generated: row.get("generated"),
        identity: row.get("identity"),
        default: row.get("default_expression"),
        deterministic: row.get("deterministic"),
        is_utf8: row.get("is_utf8"),
        sequence: row.get("sequence"),
        numbered: row.get("numbered"),
        type_name: row.get("type_name"),
    }
}

fn type_facts(row: &Row) -> TypeFacts {
    TypeFacts {
        kind: row.get("kind"),
        name: row.get("name"),
        sql_name: row.get("sql_name"),
        base: row.get("base"),
        modifier: row.get("modifier"),
        not_null: row.get("not_null"),
        default: row.get("default_expression"),
        checked: row.get("checked"),
        labels: row.get("labels"),
        element: row.get("element"),
    }
}

fn constraint(row: &Row) -> Constraint {
    Constraint {
        relation: row.get("relation"),
        name: row.get("name"),
        kind: row.get("kind"),
        columns: row.get("columns"),
        parent: row.get("parent"),
        parent_columns: row.get("parent_columns"),
        acts: row.get("acts"),
        deferred: row.get("deferred"),
        relation_name: row.get("relation_name"),
        condition: row.get("condition"),
        has_own_operators: row.get("has_own_operators"),
    }
}

fn domain_check(row: &Row) -> DomainCheck {
    DomainCheck {
        domain: row.get("domain"),
        name: row.get("name"),
        condition: row.get("condition"),
        has_own_operators: row.get("has_own_operators"),
    }
}

fn index(row: &Row) -> Index {
    Index {
        relation: row.get("relation"),
        name: row.get("name"),
        unique: row.get("is_unique"),
        is_whole: row.get("is_whole"),
        columns: row.get("columns"),
        key: row.get("row_key"),
        looked_at: row.get("looked_at"),
    }
}

const RELATIONS: &str = "
SELECT c.oid, n.nspname::text AS schema, c.relname::text AS name,
       format('%I.%I', n.nspname, c.relname) AS sql_name, c.relkind::text AS kind,
       c.relpersistence = 'u' AS unlogged, c.relispartition AS partition,
       pg_table_is_visible(c.oid) AS visible, row_security_active(c.oid) AS row_security,
       EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid) AND NOT c.relispartition
           AS inherits,
       EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid) AND c.relkind = 'r'
           AS inherited,
       array(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p
             WHERE NOT has_table_privilege(c.oid, p)) AS lacking
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (current_schemas(false)) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND c.relpersistence <> 't' AND c.relname <> ALL ($1::text[])
ORDER BY c.oid";

const ATTRIBUTES: &str = "
SELECT a.attrelid AS relation, a.attnum AS number, a.attname::text AS name,
       quote_ident(a.attname) AS sql_name, a.atttypid AS type_oid, a.atttypmod AS modifier,
       a.attnotnull AS not_null, a.attgenerated <> '' AS generated,
       a.attidentity::text AS identity, pg_get_expr(d.adbin, d.adrelid) AS default_expression,
       coalesce(co.collisdeterministic, true) AS deterministic,
       getdatabaseencoding() = 'UTF8' AS is_utf8,
       CASE WHEN a.attidentity <> '' OR pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%'
            THEN pg_get_serial_sequence(format('%I.%I', n.nspname, c.relname), a.attname)
                IS NOT NULL
            ELSE false END AS sequence,
       CASE WHEN a.attidentity = 'd' OR pg_get_expr(d.adbin, d.adrelid)
                ~ '^nextval[(]''([^'']|'''')*''::regclass[)]$'
            THEN EXISTS (SELECT FROM pg_sequence s
                WHERE s.seqrelid = pg_get_serial_sequence(
                          format('%I.%I', n.nspname, c.relname), a.attname)::regclass
                  AND NOT s.seqcycle
                  AND coalesce((SELECT array_agg(DISTINCT u.objid) FROM pg_depend u
                      WHERE u.classid = 'pg_attrdef'::regclass
                        AND u.refclassid = 'pg_class'::regclass AND u.refobjid = s.seqrelid), '{}')
                      = CASE WHEN a.attidentity = '' THEN ARRAY[d.oid] ELSE '{}' END)
            ELSE false END AS numbered,
       format_type(a.atttypid, a.atttypmod) AS type_name
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_collation co ON co.oid = a.attcollation
WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum";

const TYPES: &str = "
SELECT t.oid, t.typtype::text AS kind, t.typname::text AS name,
       format_type(t.oid, -1) AS sql_name, t.typbasetype AS base, t.typtypmod AS modifier,
       t.typnotnull AS not_null, pg_get_expr(t.typdefaultbin, 0) AS default_expression,
       EXISTS (SELECT FROM pg_constraint c WHERE c.contypid = t.oid AND c.contype = 'c')
           AS checked,
       array(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid
             ORDER BY e.enumsortorder) AS labels, t.typelem AS element
FROM pg_type t LEFT JOIN pg_type i ON i.oid = t.typelem AND i.typarray = t.oid
WHERE t.typtype IN ('d', 'e') OR i.typtype = 'e' OR t.typname = 'citext'";

/// Copies that partitions hold of their parent's constraints are left out.
const CONSTRAINTS: &str = "
SELECT c.conrelid AS relation, c.conname::text AS name, c.contype::text AS kind,
       coalesce(c.conkey, '{}') AS columns, c.confrelid AS parent,
       coalesce(c.confkey, '{}') AS parent_columns,
       c.contype = 'f' AND (c.confupdtype NOT IN ('a', 'r') OR c.confdeltype NOT IN ('a', 'r'))
           AS acts,
       c.condeferred AS deferred, c.conrelid::regclass::text AS relation_name,
       CASE WHEN c.contype = 'c' AND pg_get_constraintdef(c.oid) NOT LIKE '% NOT ENFORCED'
            THEN pg_get_expr(c.conbin, c.conrelid) END AS condition,
       EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_constraint'::regclass AND d.objid = c.oid
               AND d.refclassid IN ('pg_operator'::regclass, 'pg_proc'::regclass))
           AS has_own_operators
FROM pg_constraint c
WHERE (c.conrelid = ANY ($1::oid[]) OR c.confrelid = ANY ($1::oid[])) AND c.conparentid = 0
  AND c.contype IN ('p', 'u', 'x', 'f', 'c')
ORDER BY c.oid";

/// PostgreSQL's own operators and functions are pinned: nothing is noted as depending on them.
const DOMAIN_CHECKS: &str = "
SELECT c.contypid AS domain, c.conname::text AS name, pg_get_expr(c.conbin, 0) AS condition,
       EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_constraint'::regclass AND d.objid = c.oid
               AND d.refclassid IN ('pg_operator'::regclass, 'pg_proc'::regclass))
           AS has_own_operators
FROM pg_constraint c WHERE c.contypid <> 0 AND c.contype = 'c'
ORDER BY c.contypid, c.conname";

const INDEXES: &str = "
SELECT i.indrelid AS relation, i.indexrelid::regclass::text AS name,
       i.indisunique AND NOT i.indisprimary AS is_unique,
       i.indisvalid AND i.indexprs IS NULL AND i.indpred IS NULL AND i.indnkeyatts = i.indnatts
           AND NOT EXISTS (
               SELECT FROM unnest(i.indkey::int2[], i.indcollation::oid[]) AS k (place, coll)
               JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.place
               JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
               WHERE k.coll <> a.attcollation OR 'citext' IN (t.typname, b.typname))
           AS is_whole,
       array(SELECT k FROM unnest(i.indkey::int2[]) AS k WHERE k > 0) AS columns,
       array(SELECT u.k FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u (k, n)
             WHERE u.n <= i.indnkeyatts AND i.indisunique AND i.indimmediate AND i.indisvalid
               AND NOT i.indisexclusion AND i.indexprs IS NULL AND i.indpred IS NULL
               AND NOT EXISTS (SELECT FROM pg_opclass o
                               WHERE o.oid = ANY (i.indclass::oid[]) AND NOT o.opcdefault)
               AND NOT EXISTS (
                   SELECT FROM unnest(i.indkey::int2[], i.indcollation::oid[]) AS k (place, coll)
                   JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.place
                   WHERE k.coll <> a.attcollation)
             ORDER BY u.n) AS row_key,
       array(SELECT d.refobjsubid::int2 FROM pg_depend d
             WHERE (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)
               AND d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
               AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid
               AND d.refobjsubid > 0) AS looked_at
FROM pg_index i WHERE i.indrelid = ANY ($1::oid[])
ORDER BY i.indexrelid";

const EFFECTS: &str = "
SELECT w.ev_class, 'rule ' || quote_ident(w.rulename)
FROM pg_rewrite w
WHERE w.ev_class = ANY ($1::oid[]) AND w.ev_enabled IN ('O', 'A') AND w.rulename <> '_RETURN'
ORDER BY 1, 2";

/// What fires for ordinary sessions; a partition's triggers count for the partitioned table. Destage's own change nothing.
/// The server shows a condition only within the whole statement.
const TRIGGERS: &str = "
SELECT r.oid AS relation, t.tgrelid = r.oid AS is_of_table, quote_ident(t.tgname) AS name, t.tgtype AS kind,
       t.tgqual IS NOT NULL AS has_condition, cardinality(t.tgattr::int2[]) > 0 AS is_of_columns,
       EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_trigger'::regclass AND d.objid = t.oid
               AND d.refclassid IN ('pg_operator'::regclass, 'pg_proc'::regclass)
               AND d.refobjid <> t.tgfoid) AS has_own_operators,
       substring(pg_get_triggerdef(t.oid) FROM ' WHEN [(](.*)[)] EXECUTE ') AS condition,
       l.lanname::text AS language, p.prosrc AS source,
       EXISTS (SELECT FROM unnest(p.proconfig) AS c WHERE c NOT LIKE 'search\\_path=%')
           AS has_settings,
       EXISTS (SELECT FROM pg_proc o WHERE o.proname = ANY ($2::text[])
               AND o.pronamespace <> 'pg_catalog'::regnamespace) AS is_shadowed
FROM unnest($1::oid[]) AS r (oid)
CROSS JOIN LATERAL (SELECT r.oid AS relid UNION SELECT p.relid FROM pg_partition_tree(r.oid) p) m
JOIN pg_trigger t ON t.tgrelid = m.relid
JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_language l ON l.oid = p.prolang
WHERE NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
  AND t.tgfoid IS DISTINCT FROM to_regproc('destage_changed')
ORDER BY r.oid, t.tgname, m.relid";
