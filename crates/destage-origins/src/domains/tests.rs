//! Which partitions are taken, and which are refused with what words.

use super::*;
use crate::cells::{Cell, push_cell};
use crate::mapping::{MappingSettings, ShapeSettings};
use crate::schema::{Column, ForeignKey, Unique};
use crate::value::ColumnType;

fn column(name: &str) -> Column {
    Column {
        not_null: true,
        ..Column::named(name, ColumnType::Int { min: i64::MIN, max: i64::MAX })
    }
}

fn table(name: &str, key_len: usize, columns: &[&str]) -> Table {
    let mut table = Table::named(name.into(), name.into());
    table.columns = columns.iter().map(|name| column(name)).collect();
    table.key_len = key_len;
    table
}

/// Orders refer to customers, both of a warehouse; notes refer to nothing.
fn schema() -> Schema {
    let customers = table("customers", 2, &["warehouse", "id", "mail"]);
    let mut orders = table("orders", 2, &["w", "id", "customer"]);
    orders.foreign_keys = vec![ForeignKey {
        name: Some("orders_customer".into()),
        columns: vec![0, 2],
        parent: TableId(0),
        parent_columns: vec![0, 1],
        exact: true,
    }];
    orders.references = vec![TableId(0)];
    let notes = table("notes", 1, &["id"]);
    // In the order of their names, as catalogues give them.
    let mut tables = vec![customers, notes, orders];
    tables[2].foreign_keys[0].parent = TableId(0);
    Schema::new(tables, Vec::new())
}

fn whole(name: &str, tables: &[&str]) -> DomainSettings {
    let tables = tables.iter().map(|&table| table.to_owned()).collect();
    DomainSettings { name: name.into(), tables, count: 1, ..DomainSettings::default() }
}

fn by_warehouse() -> DomainSettings {
    DomainSettings {
        name: "warehouse".into(),
        column: Some("warehouse".into()),
        columns: BTreeMap::from([("orders".to_owned(), "w".to_owned())]),
        count: 8,
        ..DomainSettings::default()
    }
}

fn partition(schema: &Schema, domains: &[DomainSettings]) -> Result<Partition, String> {
    Partition::new(schema, domains, &BTreeMap::new())
}

fn key(values: &[&str]) -> Vec<u8> {
    let mut key = Vec::new();
    values.iter().for_each(|value| push_cell(&mut key, Cell::Value(value.as_bytes())));
    key
}

#[test]
fn rows_of_one_value_are_in_one_domain_whatever_their_table_calls_it() {
    let schema = schema();
    let partition = partition(&schema, &[by_warehouse()]).unwrap();
    assert_eq!(partition.len(), 9);
    let mut seen = std::collections::BTreeSet::new();
    for warehouse in 0..100 {
        let warehouse = warehouse.to_string();
        let customer = partition.of_row(TableId(0), &key(&[&warehouse, "7"]));
        let order = partition.of_row(TableId(2), &key(&[&warehouse, "31"]));
        assert_eq!(customer, order);
        seen.insert(customer);
    }
    assert_eq!(seen.len(), 8, "a hundred values are in every one of eight domains");
    assert_eq!(partition.name(partition.of_row(TableId(1), &key(&["1"]))), REST);
}

#[test]
fn a_foreign_key_that_crosses_domains_is_refused_by_its_name() {
    let schema = schema();
    let apart = [whole("a", &["customers"]), whole("b", &["orders"])];
    let refusal = partition(&schema, &apart).unwrap_err();
    assert!(refusal.contains("orders_customer, orders (w, customer) to customers"), "{refusal}");
    assert!(refusal.contains("assume_independent"), "{refusal}");
    // The rest is a domain too.
    assert!(partition(&schema, &[whole("a", &["customers"])]).is_err());
    partition(&schema, &[whole("a", &["customers", "orders"])]).unwrap();
    let mut independent = apart.clone();
    independent[0].assume_independent = true;
    partition(&schema, &independent).unwrap();
}

#[test]
fn a_unique_index_without_the_column_is_refused_by_its_name() {
    let mut schema = schema();
    schema.tables[0].has_unique = true;
    schema.tables[0].uniques =
        vec![Unique { name: "one_mail".into(), columns: vec![2], is_whole: true }];
    let refusal = partition(&schema, &[by_warehouse()]).unwrap_err();
    assert!(refusal.contains("one_mail"), "{refusal}");
    schema.tables[0].uniques[0].columns = vec![0, 2];
    partition(&schema, &[by_warehouse()]).unwrap();
}

#[test]
fn triggers_are_refused_until_their_effects_are_declared_inside_the_domain() {
    let mut schema = schema();
    schema.tables[1].class.opaque = Some("it has trigger t".into());
    let domains = [whole("notes", &["notes"])];
    let refusal = partition(&schema, &domains).unwrap_err();
    assert!(refusal.contains("trigger t") && refusal.contains("[table.notes]"), "{refusal}");
    let declared = |tables: &[&str]| {
        let triggers = Some(tables.iter().map(|&table| table.to_owned()).collect());
        BTreeMap::from([(
            "notes".to_owned(),
            TableSettings { triggers, ..TableSettings::default() },
        )])
    };
    assert!(Partition::new(&schema, &domains, &declared(&["orders"])).is_err());
    Partition::new(&schema, &domains, &declared(&[])).unwrap();
}

/// Tags of a warehouse, as members of a set.
fn tagged(key: &str, member: &str) -> Schema {
    let mut schema = Schema::new(vec![table("tags", 2, &["warehouse", "tag"])], Vec::new());
    let shape = ShapeSettings::Set { member: member.into(), score: None, members_max: 10 };
    let mapping = MappingSettings { key: key.into(), table: "tags".into(), shape };
    schema.map_keys(&[mapping]).unwrap();
    schema
}

#[test]
fn a_set_is_in_the_domain_of_its_members() {
    let schema = tagged("tags:{warehouse}", "tag");
    let split = DomainSettings { columns: BTreeMap::new(), ..by_warehouse() };
    for domains in [[split], [whole("tags", &["tags"])]] {
        let partition = partition(&schema, &domains).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for warehouse in (0..20).map(|number| number.to_string()) {
            let domain = partition.of_row(TableId(0), &key(&[&warehouse, "5"]));
            for part in schema.collections[0].parts {
                assert_eq!(partition.of_row(part, &key(&[&warehouse])), domain);
            }
            seen.insert(domain);
        }
        assert_eq!(seen.len(), partition.len() - 1);
    }
}

#[test]
fn a_set_whose_members_are_divided_is_refused() {
    let schema = tagged("tagged:{tag}", "warehouse");
    let split = DomainSettings { columns: BTreeMap::new(), ..by_warehouse() };
    let refusal = partition(&schema, &[split]).unwrap_err();
    assert!(refusal.contains("by warehouse, which is the member"), "{refusal}");
    partition(&schema, &[whole("tags", &["tags"])]).unwrap();
}

#[test]
fn settings_that_do_not_fit_are_told_what_to_do() {
    let schema = schema();
    let refusal = |domains: &[DomainSettings]| partition(&schema, domains).unwrap_err();
    assert!(refusal(&[whole("a", &["nothing"])]).contains("'nothing' is not reachable"));
    assert!(refusal(&[whole("a", &[])]).contains("it needs tables"));
    assert!(refusal(&[whole(REST, &["notes"])]).contains("name of its own"));
    let twice = [whole("a", &["notes"]), whole("b", &["notes"])];
    assert!(refusal(&twice).contains("in two domains, a and b"));
    let mut outside = by_warehouse();
    outside.tables = vec!["notes".into()];
    assert!(refusal(&[outside]).contains("the key of notes has no column warehouse"));
    let many = DomainSettings { count: DOMAINS_MAX, ..by_warehouse() };
    assert!(refusal(&[many]).contains("the most is 64"));
}

#[test]
fn the_number_of_a_partition_depends_on_the_settings_alone() {
    let schema = schema();
    let map = |domains: &[DomainSettings]| partition(&schema, domains).unwrap().map();
    let one = Partition::one(&schema).map();
    let many = map(&[by_warehouse()]);
    assert_eq!((one, map(&[])), (MAP_OF_ONE, MAP_OF_ONE));
    assert_ne!(many, one);
    assert_ne!(many, map(&[DomainSettings { count: 9, ..by_warehouse() }]));
    assert_eq!(many, map(&[DomainSettings { assume_independent: true, ..by_warehouse() }]));
    // Written down at origins: it may never change.
    assert_eq!(many, 2_469_736_193_127_984_545);
}
