//! The catalogue: which tables are reachable, and what is known of them.

use super::database::Database;
use destage_core::Fault;
use destage_origins::contract::Origin;
use destage_origins::defaults::Formula;
use destage_origins::origins::Mysql;
use destage_origins::schema::{ColumnDefault, Schema, Table};
use destage_origins::value::{ColumnType, MysqlType};

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
    let Some(mut database) = Database::open("catalog_columns") else { return };
    database.sql(
        "CREATE TABLE everything (
           b smallint, id bigint AUTO_INCREMENT, c varchar(5) DEFAULT 'x', d char(3) DEFAULT 'y',
           e decimal(8,2) DEFAULT 1, f tinyint(1) DEFAULT true, g float, h double DEFAULT -1.5, i bigint unsigned,
           j blob, k uuid DEFAULT uuid(), l date DEFAULT '2026-01-31', m time(2), n datetime(6),
           o timestamp(3) NULL DEFAULT current_timestamp(3), p json, q text DEFAULT 'its', r enum('sad','ok') DEFAULT 'ok',
           s inet6, t set('a','b') DEFAULT 'b,a', u timestamp NULL ON UPDATE current_timestamp, v int AS (b * 2) STORED,
           w text NOT NULL, x bit(3) DEFAULT b'101', y int CHECK (y > 0), z int UNIQUE, aa binary(16),
           ab varbinary(7), ac year DEFAULT 2026, ad int(5) unsigned zerofill, ae varchar(9) DEFAULT NULL,
           af mediumint unsigned, PRIMARY KEY (id), CONSTRAINT both_sides CHECK (b < e))",
    );
    let schema = database.origin().schema().unwrap();
    let table = find(&schema, "everything");
    let column = |name: &str| &table.columns[table.column(name.as_bytes()).unwrap()];
    assert_eq!(table.columns[0].name, "id");
    assert_eq!((table.key_len, table.generated_key), (1, Some(0)));
    assert!(table.has_unique && table.class.opaque.is_none() && !table.is_plain());
    let mysql = ColumnType::Mysql;
    let int = |min: i64, max: i64| ColumnType::Int { min, max };
    let types = [
        ("b", int(-32768, 32767)),
        ("id", int(i64::MIN, i64::MAX)),
        ("c", ColumnType::Text { chars_max: Some(5) }),
        ("d", mysql(MysqlType::Trimmed { chars_max: 3 })),
        ("e", ColumnType::Numeric { precision: Some((8, 2)), has_nan: false }),
        ("f", int(-128, 127)),
        ("g", mysql(MysqlType::Float)),
        ("h", mysql(MysqlType::Double)),
        ("i", int(0, i64::MAX)),
        ("j", mysql(MysqlType::Bytes { bytes_max: 65_535 })),
        ("k", ColumnType::Uuid),
        ("l", ColumnType::Date),
        ("m", ColumnType::Time { precision: 2 }),
        ("n", ColumnType::Timestamp { zone: false, precision: 6 }),
        ("o", mysql(MysqlType::Timestamp { precision: 3 })),
        ("p", ColumnType::Json),
        ("q", mysql(MysqlType::Text { bytes_max: 65_535 })),
        ("r", ColumnType::Enum(["sad", "ok"].map(str::to_owned).to_vec())),
        ("s", ColumnType::Opaque),
        ("t", mysql(MysqlType::Set(["a", "b"].map(str::to_owned).to_vec()))),
        ("x", int(0, 7)),
        ("aa", mysql(MysqlType::PaddedBytes { bytes: 16 })),
        ("ab", mysql(MysqlType::Bytes { bytes_max: 7 })),
        ("ac", int(1901, 2155)),
        ("ad", int(0, i64::from(u32::MAX))),
        ("af", int(0, (1 << 24) - 1)),
    ];
    for (name, ty) in types {
        assert_eq!(column(name).ty, ty, "{name}");
    }
    for (name, value) in [
        ("c", "x"),
        ("d", "y"),
        ("e", "1.00"),
        ("f", "1"),
        ("h", "-1.5"),
        ("l", "2026-01-31"),
        ("q", "its"),
        ("r", "ok"),
        ("ac", "2026"),
    ] {
        assert_eq!(constant(table, name).as_deref(), Some(value), "{name}");
    }
    for name in ["id", "x"] {
        assert_eq!(column(name).default, ColumnDefault::Computed, "{name}");
    }
    assert_eq!(column("k").default, ColumnDefault::Formula(Formula::Uuid));
    assert_eq!(column("o").default, ColumnDefault::Formula(Formula::Time { digits: 3 }));
    for name in ["w", "ae", "b"] {
        assert_eq!(column(name).default, ColumnDefault::None, "{name}");
    }
    assert!(column("w").not_null && !column("c").not_null);
    assert!(column("v").generated && column("u").generated && !column("id").generated);
    assert!(!column("o").generated);
    assert!(column("y").checked && column("b").checked && column("e").checked);
    assert!(!column("w").checked && !column("p").checked && !column("b").structural);
    assert!(column("z").structural && column("id").structural);
}

#[test]
fn tables_are_classed_by_what_the_origin_does_beyond_storing() {
    let Some(mut database) = Database::open("catalog_class") else { return };
    let elsewhere = format!("{}_2", database.name());
    database.sql(&format!(
        "CREATE TABLE parent (id int PRIMARY KEY, code varchar(9) UNIQUE);
         CREATE TABLE child (a int, b int, parent int REFERENCES parent (id) ON DELETE CASCADE, PRIMARY KEY (b, a));
         CREATE TABLE plain_child (id int PRIMARY KEY, parent int REFERENCES parent (id),
           code varchar(9) REFERENCES parent (code));
         CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree (id));
         CREATE TABLE triggered (id int PRIMARY KEY);
         CREATE TRIGGER watch BEFORE INSERT ON triggered FOR EACH ROW SET @a = 1;
         CREATE TABLE stamped (id int PRIMARY KEY, v int, at datetime(6));
         CREATE TRIGGER stamp BEFORE UPDATE ON stamped FOR EACH ROW SET NEW.at = NOW(6);
         CREATE TRIGGER first_stamp BEFORE INSERT ON stamped FOR EACH ROW SET NEW.At = CURRENT_TIMESTAMP;
         CREATE TABLE spread (id int PRIMARY KEY);
         DROP DATABASE IF EXISTS {elsewhere}; CREATE DATABASE {elsewhere};
         CREATE TABLE {elsewhere}.far (id int PRIMARY KEY, up int, FOREIGN KEY (up) REFERENCES
           {}.spread (id) ON DELETE CASCADE)",
        database.name()
    ));
    let schema = database.origin().schema().unwrap();
    database.sql(&format!("DROP DATABASE {elsewhere}"));
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
    let link = |columns: &[usize]| {
        plain_child.foreign_keys.iter().find(|k| k.parent_columns == columns).unwrap()
    };
    // A text under a collation that takes spellings for one another is no exact link, a number is.
    assert!(!link(&[1]).exact && link(&[1]).columns == [2] && link(&[1]).parent == parent.id);
    assert!(link(&[0]).exact);
    assert!(plain_child.is_plain() && !parent.is_plain());
    let tree = find(&schema, "tree");
    assert!(tree.references == [tree.id] && tree.referenced_by == [tree.id]);
    let stamped = find(&schema, "stamped");
    assert_eq!((&stamped.class.opaque, stamped.class.sets.len()), (&None, 2));
    assert!(stamped.is_left_to_origin(2, false) && stamped.is_left_to_origin(2, true));
    assert!(stamped.is_filled_by_origin(2));
    for (name, what) in [("triggered", "trigger watch ("), ("spread", "out of reach")] {
        let opaque = find(&schema, name).class.opaque.clone().unwrap();
        assert!(opaque.contains(what), "{name}: {opaque}");
    }
}

#[test]
fn what_no_key_reaches_is_listed_with_its_reason() {
    let Some(mut database) = Database::open("catalog_unreachable") else { return };
    database.sql(
        "CREATE TABLE keyless (id int); CREATE TABLE nullable (id int UNIQUE);
         CREATE TABLE cased (id varchar(9) NOT NULL UNIQUE) COLLATE utf8mb4_general_ci;
         CREATE TABLE hashed (id text COLLATE utf8mb4_bin NOT NULL UNIQUE);
         CREATE TABLE begun (id varbinary(9) NOT NULL, UNIQUE (id(3)));
         CREATE VIEW seen AS SELECT 1 AS id; CREATE SEQUENCE numbers;
         CREATE TABLE fast (id int PRIMARY KEY) ENGINE = MyISAM;
         CREATE TABLE versioned (id int PRIMARY KEY) WITH SYSTEM VERSIONING;
         CREATE TABLE folded (id varchar(9) COLLATE utf8mb4_general_ci PRIMARY KEY);
         CREATE TABLE narrow (id varchar(9) CHARACTER SET latin1 COLLATE latin1_bin PRIMARY KEY);
         CREATE TABLE cut (id text COLLATE utf8mb4_bin, PRIMARY KEY (id(5)));
         CREATE TABLE floating (id double PRIMARY KEY); CREATE TABLE addressed (id inet6 PRIMARY KEY);
         CREATE TABLE exact (id decimal(9,2) PRIMARY KEY);
         CREATE TABLE spaced (id varchar(9) COLLATE utf8mb4_bin PRIMARY KEY);
         CREATE TABLE unspaced (id varchar(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY);
         CREATE TABLE destage_owner (id int PRIMARY KEY)",
    );
    let schema = database.origin().schema().unwrap();
    for (name, what) in [
        ("keyless", "primary key"),
        ("nullable", "unique index"),
        ("cased", "unique index"),
        ("begun", "unique index"),
        ("hashed", "unique index"),
        ("seen", "view"),
        ("fast", "transactions"),
        ("versioned", "system-versioned"),
        ("folded", "utf8mb4_bin"),
        ("narrow", "latin1"),
        ("cut", "beginning"),
        ("floating", "floating"),
        ("addressed", "form"),
    ] {
        let reason = reason(&schema, name);
        assert!(reason.contains(what), "{name}: {reason}");
    }
    let names: Vec<_> = schema.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["exact", "spaced", "unspaced"]);
    let key = |name: &str| find(&schema, name).columns[0].ty.clone();
    assert_eq!(key("spaced"), ColumnType::Mysql(MysqlType::Trimmed { chars_max: 9 }));
    assert_eq!(key("unspaced"), ColumnType::Text { chars_max: Some(9) });
}

#[test]
fn permissions_are_looked_at_before_the_first_write() {
    let Some(mut database) = Database::open("catalog_rights") else { return };
    let name = database.name().to_owned();
    let user = format!("reader_{}", std::process::id());
    database.sql(&format!(
        "CREATE OR REPLACE USER '{user}'@'%' IDENTIFIED BY 'pw';
         CREATE TABLE open (id int PRIMARY KEY); GRANT ALL ON {name}.open TO '{user}'@'%';
         CREATE TABLE shown (id int PRIMARY KEY); GRANT SELECT ON {name}.shown TO '{user}'@'%';
         CREATE TABLE blind (id int PRIMARY KEY);
         GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.blind TO '{user}'@'%'"
    ));
    let (_, rest) = database.url.split_once('@').expect("the test URL names a user");
    let origin = Mysql::new(&format!("mysql://{user}:pw@{rest}")).unwrap();
    assert!(!origin.describe().contains("pw"));
    let schema = origin.schema().unwrap();
    assert!(find(&schema, "open").class.opaque.is_none());
    let unseen = find(&schema, "blind").class.opaque.as_deref().unwrap();
    assert!(unseen.contains("GRANT TRIGGER"), "{unseen}");
    assert!(reason(&schema, "shown").contains("GRANT INSERT"));
    let error = origin.writer().err().unwrap();
    assert_eq!(error.fault, Fault::Denied);
    assert!(error.message.contains("CREATE TABLE IF NOT EXISTS destage_owner"), "{error}");
    let wrong = Mysql::new(&format!("mysql://{user}:no@{rest}")).unwrap().schema().unwrap_err();
    assert_eq!(wrong.fault, Fault::Denied, "{wrong}");
    database.sql(&format!("DROP USER '{user}'@'%'"));
}
