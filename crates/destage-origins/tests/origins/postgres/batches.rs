//! A merged batch leaves what its groups leave one by one.

use super::database::Database;
use crate::claimed::{Claimed, push_change};
use destage_origins::change::{GroupWriter, Op};
use destage_origins::contract::Origin;
use destage_origins::schema::Table;

const TABLES: &str = "
CREATE TABLE NAME_p (id int PRIMARY KEY, code int UNIQUE, n int NOT NULL DEFAULT 0, t text DEFAULT 'd');
CREATE TABLE NAME_c (a int, b int, parent int REFERENCES NAME_p, n int2 CHECK (n < 50), m numeric(6,2), f float8, PRIMARY KEY (a, b));
INSERT INTO NAME_p SELECT i, i, i, 'x' FROM generate_series(0, 5) i;
INSERT INTO NAME_c SELECT i, 0, i, 1, 1, 1 FROM generate_series(0, 5) i";

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % bound
    }
}

fn random_change(random: &mut Random, group: &mut GroupWriter, tables: [&Table; 2]) {
    let op = match random.below(16) {
        0 => Op::Delete,
        1..=3 => Op::Insert,
        _ => Op::Update,
    };
    let known = if op == Op::Insert { 6 + random.below(60) } else { random.below(6) };
    let id = if random.below(40) == 0 { random.below(9) } else { known }.to_string();
    let number = random.below(51).to_string();
    let text = if random.below(20) == 0 { random.below(9) } else { 6 + random.below(900) };
    let (text, parent) = (text.to_string(), (text % 6).to_string());
    if random.below(2) == 0 {
        let key = [id.as_str()];
        let sets: &[(&str, Option<&str>)] = match (op, random.below(4)) {
            (Op::Delete | Op::End, _) => &[],
            (Op::Insert, 0) | (Op::Update, 0) => &[("code", Some(&text))],
            (Op::Insert, _) => &[("code", None), ("n", Some(&number))],
            (Op::Update, 1) => &[("n", Some(&number))],
            (Op::Update, _) => &[("t", Some(&text)), ("n", Some(&number))],
        };
        let amounts: &[_] = if op == Op::Update && sets.len() == 1 && sets[0].0 == "code" {
            &[("n", "3")]
        } else {
            &[]
        };
        push_change(group, tables[0], op, &key, sets, amounts);
    } else {
        let key = [id.as_str(), "0"];
        let sets: &[(&str, Option<&str>)] = match (op, random.below(4)) {
            (Op::Delete | Op::End, _) => &[],
            (_, 0) => &[("parent", Some(&parent)), ("n", Some("1"))],
            (Op::Insert, _) => &[("n", Some("2")), ("m", Some("2.00")), ("f", Some("0.1"))],
            (Op::Update, 1) => &[("n", Some(&number))],
            (Op::Update, _) => &[],
        };
        let amounts: &[_] = if op == Op::Update && sets.is_empty() {
            [&[("m", "0.05"), ("f", "0.7")][..], &[("n", "7")], &[("m", "0.005")]]
                [random.below(3) as usize]
        } else {
            &[]
        };
        push_change(group, tables[1], op, &key, sets, amounts);
    }
}

fn contents(database: &Database, name: &str) -> Option<String> {
    database.text(&format!(
        "SELECT concat((SELECT json_agg(p ORDER BY id) FROM {name}_p p), (SELECT json_agg(c ORDER BY a, b) FROM {name}_c c))"
    ))
}

#[test]
fn a_batch_equals_its_groups_one_by_one() {
    let Some(database) = Database::open("batches") else { return };
    database.sql(&TABLES.replace("NAME", "one"));
    database.sql(&TABLES.replace("NAME", "all"));
    let mut one = Claimed::before(&database.origin());
    let mut all = Claimed {
        claim: one.claim,
        writer: database.origin().writer().unwrap(),
        reader: database.origin().reader().unwrap(),
        schema: one.schema.clone(),
    };
    // Two domains, so that each claimed has its own watermark.
    all.claim.domain = destage_core::DomainId(3);
    let schema = one.schema.clone();
    let tables =
        |name: &str| ["p", "c"].map(|t| schema.find(format!("{name}_{t}").as_bytes()).unwrap());
    let (mut applied, mut rejected) = (0, 0);
    for seed in 0..250 {
        let size = 1 + seed % 9;
        let [groups_one, groups_all] = ["one", "all"].map(|name| {
            let mut random = Random(seed);
            let group = |_| {
                let mut group = GroupWriter::new();
                for _ in 0..1 + random.below(2) {
                    random_change(&mut random, &mut group, tables(name));
                }
                group.finish().to_vec()
            };
            (0..size).map(group).collect::<Vec<_>>()
        });
        let singly = groups_one.iter().all(|group| one.apply(std::slice::from_ref(group)).is_ok());
        let merged = all.apply(&groups_all);
        assert_eq!(singly, merged.is_ok(), "seed {seed}: {merged:?}");
        if singly {
            applied += 1;
        } else {
            rejected += 1;
            // Start again from equal contents.
            database.sql("TRUNCATE one_p, one_c, all_p, all_c");
            for name in ["one", "all"] {
                let inserts: Vec<_> = TABLES.split(';').skip(2).collect();
                database.sql(&inserts.join(";").replace("NAME", name));
            }
        }
        assert_eq!(contents(&database, "one"), contents(&database, "all"), "seed {seed}");
    }
    println!("{applied} batches applied, {rejected} rejected, alike");
    assert!(applied > 20 && rejected > 20);
}
