//! The catalogue: which tables are reachable, and what is known of them.

use super::database::Database;
use destage_core::Fault;
use destage_origins::contract::Origin;
use destage_origins::defaults::Formula;
use destage_origins::origins::Postgres;
use destage_origins::schema::{ColumnDefault, Schema, Table};
use destage_origins::value::ColumnType;

fn find<'a>(schema: &'a Schema, name: &str) -> &'a Table {
    schema.find(name.as_bytes()).unwrap_or_else(|| panic!("no table {name}"))
}

fn reason<'a>(schema: &'a Schema, name: &str) -> &'a str {
    let found = schema.unreachable.iter().find(|u| u.name == name);
    &found.unwrap_or_else(|| panic!("{name} is not listed: {:?}", schema.unreachable)).reason
}

fn constant(table: &Table, column: &str) -> Option<String> {
    match &table.columns[table.column(column.as_bytes()).unwrap()].default {
        ColumnDefault::Constant(value) => Some(String::from_utf8(value.clone()).unwrap()),
        _ => None,
    }
}

#[test]
fn columns_carry_types_defaults_and_constraints() {
    let Some(database) = Database::open("catalog_columns") else { return };
    database.sql(
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad'); CREATE TYPE \"Odd;Type\" AS ENUM ('a''b');
         CREATE DOMAIN positive AS int NOT NULL DEFAULT 7 CHECK (VALUE > 0);
         CREATE DOMAIN narrow AS positive CHECK (VALUE < 100);
         CREATE TABLE everything (
           b int2, id bigint GENERATED ALWAYS AS IDENTITY, c varchar(5) DEFAULT 'x', d char(3) DEFAULT 'y',
           e numeric(8,2) DEFAULT 1, f numeric, g float4, h float8 DEFAULT '-1.5', i bool DEFAULT true,
           j bytea, k uuid DEFAULT gen_random_uuid(), l date DEFAULT '2026-01-31', m time(2),
           n timestamp, o timestamptz(3) DEFAULT now(), p json, q jsonb DEFAULT '{\"b\":1,\"a\":2}', r mood DEFAULT 'ok',
           s inet, t int[], u narrow, v int GENERATED ALWAYS AS (b * 2) STORED, w text NOT NULL,
           x \"Odd;Type\", y int CHECK (y > 0), z int UNIQUE, PRIMARY KEY (id));
         CREATE INDEX ON everything ((lower(c)))",
    );
    let schema = database.origin().schema().unwrap();
    let table = find(&schema, "everything");
    let column = |name: &str| &table.columns[table.column(name.as_bytes()).unwrap()];
    assert_eq!(table.columns[0].name, "id");
    assert_eq!((table.key_len, table.generated_key), (1, Some(0)));
    assert!(table.has_unique && table.class.opaque.is_none() && !table.is_plain());
    let types = [
        ("b", ColumnType::Int { min: -32768, max: 32767 }),
        ("id", ColumnType::Int { min: i64::MIN, max: i64::MAX }),
        ("c", ColumnType::Text { chars_max: Some(5) }),
        ("d", ColumnType::PaddedText { chars: 3 }),
        ("e", ColumnType::Numeric { precision: Some((8, 2)), has_nan: true }),
        ("f", ColumnType::Numeric { precision: None, has_nan: true }),
        ("g", ColumnType::Float4),
        ("h", ColumnType::Float8),
        ("i", ColumnType::Bool),
        ("j", ColumnType::Bytes),
        ("k", ColumnType::Uuid),
        ("l", ColumnType::Date),
        ("m", ColumnType::Time { precision: 2 }),
        ("n", ColumnType::Timestamp { zone: false, precision: 6 }),
        ("o", ColumnType::Timestamp { zone: true, precision: 3 }),
        ("p", ColumnType::Json),
        ("q", ColumnType::Jsonb),
        ("r", ColumnType::Enum(["sad", "ok", "glad"].map(str::to_owned).to_vec())),
        ("s", ColumnType::Opaque),
        (
            "t",
            ColumnType::Array(Box::new(ColumnType::Int {
                min: i32::MIN.into(),
                max: i32::MAX.into(),
            })),
        ),
        ("u", ColumnType::Int { min: i32::MIN.into(), max: i32::MAX.into() }),
        ("x", ColumnType::Enum(vec!["a'b".to_owned()])),
    ];
    for (name, ty) in types {
        assert_eq!(column(name).ty, ty, "{name}");
    }
    for (name, value) in [
        ("c", "x"),
        ("d", "y  "),
        ("e", "1.00"),
        ("h", "-1.5"),
        ("i", "t"),
        ("l", "2026-01-31"),
        ("q", r#"{"a": 2, "b": 1}"#),
        ("r", "ok"),
        ("u", "7"),
    ] {
        assert_eq!(constant(table, name).as_deref(), Some(value), "{name}");
    }
    for name in ["id", "v"] {
        assert_eq!(column(name).default, ColumnDefault::Computed, "{name}");
    }
    assert_eq!(column("k").default, ColumnDefault::Formula(Formula::Uuid));
    assert_eq!(column("o").default, ColumnDefault::Formula(Formula::Time { digits: 6 }));
    assert_eq!(column("w").default, ColumnDefault::None);
    assert!(column("w").not_null && column("u").not_null && !column("c").not_null);
    assert!(column("v").generated && !column("id").generated);
    assert!(column("u").checked && column("y").checked && column("c").checked);
    assert!(!column("w").checked && !column("b").structural);
    assert!(column("z").structural && column("id").structural);
    assert_eq!(
        (column("s").type_name.as_str(), column("t").type_name.as_str()),
        ("inet", "int4[]")
    );
}

/// One table for each function, and what is known of it.
const STAMPS: [(&str, &str, &str, Option<&str>); 10] = [
    ("usual", "BEFORE UPDATE", "NEW.at := now();", None),
    (
        "twice",
        "BEFORE INSERT OR UPDATE OF v",
        "NEW.at = clock_timestamp(); NEW.seen = now();",
        None,
    ),
    ("changed", "BEFORE UPDATE", "NEW.at := CURRENT_TIMESTAMP;", None),
    ("more", "BEFORE UPDATE", "NEW.at := now(); PERFORM 1;", Some("may do more")),
    (
        "other",
        "BEFORE UPDATE",
        "NEW.at := now(); INSERT INTO log DEFAULT VALUES;",
        Some("may do more"),
    ),
    ("maybe", "BEFORE UPDATE", "IF NEW.v > 1 THEN NEW.at := now(); END IF;", Some("may do more")),
    ("counted", "BEFORE UPDATE", "NEW.v := NEW.v + 1;", Some("may do more")),
    ("late", "AFTER UPDATE", "NEW.at := now();", Some("BEFORE INSERT or UPDATE")),
    ("gone", "BEFORE DELETE", "NEW.at := now();", Some("BEFORE INSERT or UPDATE")),
    ("keyed", "BEFORE UPDATE", "NEW.code := now();", Some("unique or in a foreign key")),
];

#[test]
fn triggers_that_only_set_columns_to_the_time_are_told_from_others_and_these_say_why() {
    let Some(database) = Database::open("catalog_stamps") else { return };
    database.sql("CREATE TABLE log (id serial PRIMARY KEY)");
    for (name, when, body, _) in STAMPS {
        let condition = if name == "changed" { "WHEN (OLD.* IS DISTINCT FROM NEW.*)" } else { "" };
        database.sql(&format!(
            "CREATE TABLE {name} (id int PRIMARY KEY, v int, at timestamptz, seen timestamp, code text UNIQUE);
             CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path = '' AS
               $$ BEGIN {body} RETURN NEW; END $$;
             CREATE TRIGGER stamp {when} ON {name} FOR EACH ROW {condition} EXECUTE FUNCTION {name}();"
        ));
    }
    let schema = database.origin().schema().unwrap();
    for (name, when, _, why) in STAMPS {
        let table = find(&schema, name);
        match (&table.class.opaque, why) {
            (None, None) => {}
            (Some(opaque), Some(why)) => assert!(
                opaque.contains("trigger stamp (") && opaque.contains(why),
                "{name}: {opaque}"
            ),
            (opaque, _) => panic!("{name}: {opaque:?}"),
        }
        let at = table.column(b"at").unwrap();
        let is_known = why.is_none();
        assert_eq!(table.is_left_to_origin(at, false), is_known, "{name}");
        assert_eq!(
            table.is_left_to_origin(at, true),
            is_known && when.contains("INSERT"),
            "{name}"
        );
        let merges = table.class.sets.iter().all(|set| set.merges);
        assert_eq!(merges, name != "changed" && name != "twice", "{name}");
    }
    // A function of one of these names may be called in the place of PostgreSQL's own.
    database.sql(
        "DROP SCHEMA IF EXISTS elsewhere CASCADE; CREATE SCHEMA elsewhere; CREATE FUNCTION elsewhere.now() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    );
    let schema = database.origin().schema().unwrap();
    let opaque = find(&schema, "usual").class.opaque.clone().unwrap();
    assert!(opaque.contains("tell the time"), "{opaque}");
    database.sql("DROP SCHEMA elsewhere CASCADE; ALTER FUNCTION usual() SET work_mem = '1MB'");
    let schema = database.origin().schema().unwrap();
    let opaque = find(&schema, "usual").class.opaque.clone().unwrap();
    assert!(opaque.contains("changes settings"), "{opaque}");
}

#[test]
fn triggers_of_partitions_are_each_what_they_are() {
    let Some(database) = Database::open("catalog_partition_stamps") else { return };
    database.sql(
        "CREATE TABLE parted (id int PRIMARY KEY, at timestamptz NOT NULL, made timestamptz NOT NULL)
           PARTITION BY RANGE (id);
         CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10);
         CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20);
         CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.at := now(); RETURN NEW; END $$;
         CREATE FUNCTION make() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.made := now(); RETURN NEW; END $$;
         CREATE TRIGGER touch BEFORE INSERT ON low FOR EACH ROW EXECUTE FUNCTION touch();
         CREATE TRIGGER touch BEFORE UPDATE ON high FOR EACH ROW EXECUTE FUNCTION touch();
         CREATE TRIGGER make BEFORE INSERT ON parted FOR EACH ROW EXECUTE FUNCTION make();",
    );
    let schema = database.origin().schema().unwrap();
    let parted = find(&schema, "parted");
    assert_eq!(parted.class.opaque, None);
    let (at, made) = (parted.column(b"at").unwrap(), parted.column(b"made").unwrap());
    assert!(parted.is_left_to_origin(at, true) && parted.is_left_to_origin(at, false));
    assert!(parted.is_left_to_origin(made, true) && !parted.is_left_to_origin(made, false));
    assert!(parted.is_filled_by_origin(made) && !parted.is_filled_by_origin(at));
    assert_eq!(parted.class.sets.len(), 3, "{:?}", parted.class.sets);
}

#[test]
fn a_condition_by_operators_that_are_not_postgresqls_own_is_not_believed() {
    let Some(database) = Database::open("catalog_own_operators") else { return };
    database.sql(
        "DROP SCHEMA IF EXISTS own_operators CASCADE; CREATE SCHEMA own_operators;
         CREATE FUNCTION own_operators.same(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true';
         CREATE OPERATOR own_operators.= (LEFTARG = text, RIGHTARG = text, FUNCTION = own_operators.same);
         CREATE TABLE judged (id int PRIMARY KEY, body text, at timestamptz);
         CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.at := now(); RETURN NEW; END $$;
         SELECT set_config('own.path', current_setting('search_path'), false);
         SELECT set_config('search_path', 'own_operators, pg_catalog, ' || current_setting('own.path'), false);
         CREATE TRIGGER judge BEFORE UPDATE ON judged FOR EACH ROW
           WHEN (OLD.body IS DISTINCT FROM NEW.body) EXECUTE FUNCTION judge();
         SELECT set_config('search_path', current_setting('own.path'), false);",
    );
    let schema = database.origin().schema().unwrap();
    let opaque = find(&schema, "judged").class.opaque.clone().unwrap();
    assert!(opaque.contains("its condition does more"), "{opaque}");
    database.sql("DROP SCHEMA own_operators CASCADE");
}

#[test]
fn tables_are_classed_by_what_the_origin_does_beyond_storing() {
    let Some(database) = Database::open("catalog_class") else { return };
    database.sql(
        "CREATE TABLE parent (id int PRIMARY KEY, code text UNIQUE);
         CREATE TABLE child (a int, b int, parent int REFERENCES parent ON DELETE CASCADE, PRIMARY KEY (b, a));
         CREATE TABLE plain_child (id int PRIMARY KEY, parent int REFERENCES parent, code varchar(9) REFERENCES parent(code));
         CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree DEFERRABLE INITIALLY DEFERRED);
         CREATE TABLE triggered (id int PRIMARY KEY);
         CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
         CREATE TRIGGER watch BEFORE INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION nothing();
         CREATE TRIGGER asleep BEFORE INSERT ON parent FOR EACH ROW EXECUTE FUNCTION nothing();
         ALTER TABLE parent DISABLE TRIGGER asleep;
         CREATE TABLE ruled (id int PRIMARY KEY);
         CREATE RULE r AS ON DELETE TO ruled DO INSTEAD NOTHING;
         CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
         CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
         CREATE TRIGGER watch BEFORE INSERT ON parted_1 FOR EACH ROW EXECUTE FUNCTION nothing();
         CREATE TABLE excluded (id int PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&))",
    );
    let schema = database.origin().schema().unwrap();
    let (parent, child) = (find(&schema, "parent"), find(&schema, "child"));
    let plain_child = find(&schema, "plain_child");
    assert_eq!(parent.class.cascades_to, [child.id]);
    assert_eq!(parent.class.opaque, None);
    assert_eq!(parent.referenced_by, [child.id, plain_child.id]);
    assert_eq!(child.references, [parent.id]);
    assert_eq!(
        child.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
        ["b", "a", "parent"]
    );
    assert_eq!(child.key_len, 2);
    assert!(child.columns[2].structural && parent.columns[1].structural);
    let link = plain_child.foreign_keys.iter().find(|k| k.parent_columns == [1]).unwrap();
    assert!(link.exact && link.columns == [2] && link.parent == parent.id);
    assert!(plain_child.is_plain() && !parent.is_plain());
    let tree = find(&schema, "tree");
    assert!(tree.class.deferred && tree.references == [tree.id] && tree.referenced_by == [tree.id]);
    for (name, what) in
        [("triggered", "trigger watch"), ("ruled", "rule r"), ("parted", "trigger watch")]
    {
        let opaque = find(&schema, name).class.opaque.clone().unwrap();
        assert!(opaque.contains(what), "{name}: {opaque}");
    }
    let excluded = find(&schema, "excluded");
    assert!(excluded.has_unique && excluded.columns[1].structural);
    assert!(reason(&schema, "parted_1").contains("partition"));
}

#[test]
fn what_no_key_reaches_is_listed_with_its_reason() {
    let Some(database) = Database::open("catalog_unreachable") else { return };
    database.sql(
        "CREATE TABLE keyless (id int); CREATE VIEW seen AS SELECT 1 AS id;
         CREATE MATERIALIZED VIEW kept AS SELECT 1 AS id;
         CREATE UNLOGGED TABLE volatile (id int PRIMARY KEY);
         CREATE TABLE base (id int PRIMARY KEY); CREATE TABLE derived (id int PRIMARY KEY) INHERITS (base);
         CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         CREATE TABLE folded (id text COLLATE nocase PRIMARY KEY);
         CREATE TABLE floating (id float8 PRIMARY KEY); CREATE TABLE loose (id numeric PRIMARY KEY);
         CREATE TABLE addressed (id inet PRIMARY KEY); CREATE TABLE documents (id jsonb PRIMARY KEY);
         CREATE TABLE lists (id int[] PRIMARY KEY);
         CREATE TABLE nullable (id int UNIQUE); CREATE TABLE late (id int NOT NULL UNIQUE DEFERRABLE);
         CREATE TABLE partly (id int NOT NULL); CREATE UNIQUE INDEX ON partly (id) WHERE id > 0;
         CREATE TABLE derives (id int NOT NULL); CREATE UNIQUE INDEX ON derives ((id + 1));
         CREATE TABLE several (id float8 NOT NULL UNIQUE);
         CREATE TABLE otherwise (id text NOT NULL); CREATE UNIQUE INDEX ON otherwise (id COLLATE nocase);
         CREATE TABLE covered (id int NOT NULL, v int); CREATE UNIQUE INDEX held ON covered (id) INCLUDE (v);
         CREATE TABLE exact (id numeric(9,2) PRIMARY KEY);
         CREATE TABLE destage_owner (id int PRIMARY KEY)",
    );
    let schema = database.origin().schema().unwrap();
    for (name, what) in [
        ("keyless", "primary key"),
        ("seen", "view"),
        ("kept", "view"),
        ("volatile", "UNLOGGED"),
        ("base", "inheritance"),
        ("derived", "inheritance"),
        ("folded", "collation"),
        ("floating", "floating"),
        ("loose", "numeric"),
        ("addressed", "form"),
        ("documents", "JSON"),
        ("lists", "arrays"),
        ("nullable", "unique index"),
        ("late", "unique index"),
        ("partly", "unique index"),
        ("derives", "unique index"),
        ("several", "unique index"),
        ("otherwise", "unique index"),
    ] {
        let reason = reason(&schema, name);
        assert!(reason.contains(what), "{name}: {reason}");
    }
    let names: Vec<_> = schema.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["covered", "exact"]);
    let covered = find(&schema, "covered");
    assert_eq!((covered.key_len, covered.key_index.as_deref()), (1, Some("held")));
    assert!(!covered.has_unique && covered.uniques.is_empty() && covered.columns[0].structural);
}

#[test]
fn permissions_are_looked_at_before_the_first_write() {
    let Some(database) = Database::open("catalog_rights") else { return };
    let (name, role) = (database.schema_name(), format!("{}_role", database.schema_name()));
    database.sql(&format!(
        "DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN PASSWORD 'pw'; GRANT USAGE ON SCHEMA {name} TO {role};
         CREATE TABLE open (id int PRIMARY KEY); GRANT ALL ON open TO {role};
         CREATE TABLE shown (id int PRIMARY KEY); GRANT SELECT ON shown TO {role};
         CREATE TABLE rows (id int PRIMARY KEY); GRANT ALL ON rows TO {role};
         ALTER TABLE rows ENABLE ROW LEVEL SECURITY"
    ));
    let base = std::env::var("DESTAGE_TEST_POSTGRES").unwrap();
    let (_, rest) = base.split_once('@').expect("the test URL names a user");
    let url = format!("postgres://{role}:pw@{rest}?options=-csearch_path%3D{name}");
    let origin = Postgres::new(&url).unwrap();
    assert!(!origin.describe().contains("pw"));
    let schema = origin.schema().unwrap();
    assert!(find(&schema, "open").class.opaque.is_none());
    assert!(find(&schema, "rows").class.opaque.as_deref().unwrap().contains("row security"));
    assert!(reason(&schema, "shown").contains("GRANT INSERT, UPDATE, DELETE"));
    let error = origin.writer().err().unwrap();
    assert_eq!(error.fault, Fault::Denied);
    assert!(error.message.contains("CREATE TABLE IF NOT EXISTS destage_owner"), "{error}");
    database.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn hidden_tables_carry_their_schema() {
    let Some(database) = Database::open("catalog_path") else { return };
    let (name, second) = (database.schema_name(), format!("{}_2", database.schema_name()));
    database.sql(&format!(
        "DROP SCHEMA IF EXISTS {second} CASCADE; CREATE SCHEMA {second}; CREATE TABLE t (id int PRIMARY KEY);
         CREATE TABLE {second}.t (id text PRIMARY KEY); CREATE TABLE {second}.u (id int PRIMARY KEY)"
    ));
    let url = database.url.replace(&format!("%3D{name}"), &format!("%3D{name},{second}"));
    let schema = Postgres::new(&url).unwrap().schema().unwrap();
    let names: Vec<_> = schema.tables.iter().map(|t| t.name.as_str()).collect();
    let hidden = format!("{second}.t");
    assert_eq!(names, [hidden.as_str(), "t", "u"]);
    assert_eq!(find(&schema, &hidden).columns[0].ty, ColumnType::Text { chars_max: None });
    database.sql(&format!("DROP SCHEMA {second} CASCADE"));
}
