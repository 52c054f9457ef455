use super::*;
use crate::cells::{Cell, push_cell};
use crate::schema::Column;

fn column(name: &str, ty: ColumnType) -> Column {
    Column::named(name, ty)
}

fn schema() -> Schema {
    let int = ColumnType::Int { min: i64::MIN, max: i64::MAX };
    let text = ColumnType::Text { chars_max: None };
    let mut orders = Table::named("orders".into(), "orders".into());
    orders.columns = vec![
        column("id", int.clone()),
        column("region", text),
        column("year", int.clone()),
        column("amount", ColumnType::DECIMAL),
    ];
    orders.key_len = 1;
    let mut prices = Table::named("prices".into(), "prices".into());
    (prices.columns, prices.key_len) = (vec![column("id", int)], 1);
    Schema::new(vec![orders, prices], vec![])
}

fn settings(key: &str, sql: &str) -> QuerySettings {
    QuerySettings {
        key: key.into(),
        sql: sql.into(),
        depends_on: vec!["orders".into()],
        types: BTreeMap::new(),
        matches: BTreeMap::new(),
        max_age: None,
        keep: false,
        deadline: QuerySettings::DEADLINE_DEFAULT,
    }
}

fn matched(settings: QuerySettings, name: &str, place: &str) -> QuerySettings {
    QuerySettings { matches: BTreeMap::from([(name.into(), place.into())]), ..settings }
}

fn refusal(settings: &[QuerySettings]) -> String {
    Queries::new(settings, &schema()).expect_err("the settings are wrong")
}

#[test]
fn a_key_is_read_by_its_pattern() {
    let sql = "SELECT * FROM orders WHERE region = $region AND year = $year";
    let mut given = settings("top:{region}:by:{year}", sql);
    given.types.insert("year".into(), "integer".into());
    let queries = Queries::new(&[given], &schema()).unwrap();
    let canonical = |key: &str| {
        let (index, parts) = queries.find(key.as_bytes())?;
        Some(queries.get(index).canonical(&schema(), &parts).map_err(|message| {
            assert!(message.starts_with("the key's part {year}"), "{message}");
        }))
    };
    let values = |key: &str| -> Vec<String> {
        let values = canonical(key).unwrap().unwrap();
        values.iter().map(|value| String::from_utf8(value.to_vec()).unwrap()).collect()
    };
    assert_eq!(values("top:eu:by:007"), ["eu", "7"]);
    assert_eq!(values("top:a%3Ab%25:by:-1"), ["a:b%", "-1"]);
    assert_eq!(values("top::by:1"), ["", "1"]);
    assert_eq!(canonical("top:eu:by:x"), Some(Err(())));
    for other in ["top", "top:eu", "top:eu:of:7", "top:eu:by:7:8", "tops:eu:by:7"] {
        assert_eq!(canonical(other), None, "{other}");
    }
    assert!(queries.begins(b"top:what:ever").is_some() && queries.begins(b"orders:1").is_none());
}

#[test]
fn wrong_sections_say_what_works() {
    let by_region = "SELECT 1 FROM orders WHERE region = $region";
    let plain = || settings("top:{region}", by_region);
    let undeclared =
        QuerySettings { depends_on: vec!["orders".into(), "nosuch".into()], ..plain() };
    let empty = QuerySettings { depends_on: Vec::new(), ..plain() };
    let kept = QuerySettings { keep: true, ..plain() };
    let mut typed = plain();
    typed.types.insert("region".into(), "date".into());
    let mut contradictory = matched(plain(), "region", "orders.year");
    contradictory.types.insert("region".into(), "text".into());
    for (wrong, part) in [
        (settings("{region}", by_region), "begins with a word"),
        (settings("top:{region}x", by_region), "a whole part of the key"),
        (settings("top:{1}", by_region), "name of a parameter"),
        (settings("top:{region}:{region}", by_region), "stands twice"),
        (settings("orders:{region}", by_region), "the keys of the table orders begin so"),
        (settings("top:{region}:{year}", by_region), "does not use $year"),
        (settings("top", by_region), "no parameter {region}"),
        (settings("top", "SELECT 1; DELETE FROM orders"), "one statement"),
        (settings("top", "SELECT 'a"), "inside of '...'"),
        (settings("top", "SELECT $$a$$"), "not by $...$"),
        (settings("top", "SELECT $1"), "'$1' is no parameter"),
        (settings("top", " ; "), "must begin with SELECT or WITH"),
        (settings("top", "DELETE FROM orders"), "must begin with SELECT or WITH"),
        (undeclared, "'nosuch'"),
        (empty, "depends_on must list"),
        (kept, "needs a max_age"),
        (typed, "use text, integer or number"),
        (contradictory, "contradicts match.region"),
        (matched(plain(), "zone", "orders.region"), "no parameter {zone}"),
        (matched(plain(), "region", "orders.nosuch"), "names no table.column"),
        (matched(plain(), "region", "orders.amount"), "equal in several forms"),
        (matched(plain(), "region", "prices.id"), "which depends_on does not list"),
    ] {
        let message = refusal(std::slice::from_ref(&wrong));
        assert!(message.contains(part), "{part} in {message}");
        assert!(message.contains(&wrong.key), "{message}");
    }
    let twins = [plain(), settings("top:{place}", "SELECT 1 FROM orders WHERE region = $place")];
    assert!(refusal(&twins).contains("means the same keys"));
}

#[test]
fn parameters_stand_outside_of_quotes_and_comments() {
    let names = ["region".to_owned()];
    let render = |sql: &str| {
        let statement = Statement::parse(sql, &names).unwrap();
        statement.render(|out, number| out.push_str(&format!("<{number}>")))
    };
    for (sql, rendered) in [
        ("SELECT $region", "SELECT <0>"),
        ("SELECT '$x', $region ;\n", "SELECT '$x', <0>"),
        ("SELECT 'it''s $x' || $region||\"$y\"", "SELECT 'it''s $x' || <0>||\"$y\""),
        ("SELECT E'\\'$x' || $region", "SELECT E'\\'$x' || <0>"),
        ("SELECT 'a\\' || $region", "SELECT 'a\\' || <0>"),
        ("SELECT a$b -- $x\n, $region", "SELECT a$b -- $x\n, <0>"),
        ("SELECT /* $x; */ $region::text", "SELECT /* $x; */ <0>::text"),
        ("SELECT `$x`, é$x, $region", "SELECT `$x`, é$x, <0>"),
    ] {
        assert_eq!(render(sql), rendered);
    }
    let statement = Statement::parse("SELECT * FROM Orders o, `line items`", &[]).unwrap();
    assert!(statement.mentions("orders") && statement.mentions("line items"));
    assert!(!statement.mentions("order") && !statement.mentions("items2"));
    // The cache's own tables are none of the origin's.
    let mut schema = schema();
    schema.serve_plain_keys(&[]).unwrap();
    assert_eq!(statement.mentioned(&schema), ["orders"]);
}

fn row(region: &str) -> Vec<u8> {
    let mut cells = Vec::new();
    push_cell(&mut cells, Cell::Value(b"1"));
    push_cell(&mut cells, Cell::Value(region.as_bytes()));
    cells
}

fn key(value: &str) -> Vec<u8> {
    let mut cells = Vec::new();
    push_cell(&mut cells, Cell::Value(value.as_bytes()));
    cells
}

#[test]
fn a_matched_result_grows_old_by_its_own_rows_alone() {
    let by_region = settings("top:{region}", "SELECT 1 FROM orders WHERE region = $region");
    let queries =
        Queries::new(&[matched(by_region, "region", "orders.region")], &schema()).unwrap();
    let query = queries.get(0);
    let (orders, prices) = (TableId(0), TableId(1));
    let mut versions = Versions::new(&queries, 2);
    let grown = |versions: &Versions, of: &str| versions.newest(0, query, &key(of));
    versions.row(orders, Some(&row("eu")), Some(&row("us")), Lsn(1));
    let (eu, us) = (grown(&versions, "eu"), grown(&versions, "us"));
    assert!(eu.lsn == Lsn(1) && us.lsn == Lsn(1), "a row left one and came to the other");
    assert_eq!(grown(&versions, "asia"), Version::default());
    versions.row(prices, None, None, Lsn(2));
    assert_eq!(grown(&versions, "eu"), eu, "another table");
    versions.row(orders, None, Some(&row("EU ")), Lsn(3));
    assert_eq!(grown(&versions, "eu").lsn, Lsn(3), "collations may ignore case and blanks");
    assert_eq!(grown(&versions, "us"), us);
    versions.row(orders, Some(&row("\u{e9}u")), None, Lsn(4));
    assert_eq!(grown(&versions, "us").lsn, Lsn(4), "collations may ignore accents");
    versions.row(orders, None, Some(&row("asia")), Lsn(5));
    assert_eq!(grown(&versions, "\u{e9}u").lsn, Lsn(5), "and so they may in the key");
    for (number, change) in
        [Versions::table as fn(&mut Versions, TableId, Lsn), |v, _, lsn| v.everything(lsn)]
            .iter()
            .enumerate()
    {
        let lsn = Lsn(10 + number as u64);
        change(&mut versions, orders, lsn);
        assert_eq!(grown(&versions, "us").lsn, lsn);
    }
    let before = grown(&versions, "us");
    versions.query(0);
    assert!(grown(&versions, "us").count > before.count);
}

#[test]
fn results_are_json() {
    let mut json = Json::new(["n", "t\"x", "b", "j"].into_iter());
    for (n, t, b, j) in [
        ("1.50", "it's \"\u{e9}\"\n", "t", "{\"a\": 1}"),
        ("NaN", "", "false", "[]"),
        ("12345678901234567890123", "x", "t", "null"),
    ] {
        json.push(Kind::Number, Some(n.as_bytes()));
        json.push(Kind::Text, Some(t.as_bytes()));
        json.push(Kind::Bool, Some(b.as_bytes()));
        json.push(Kind::Json, Some(j.as_bytes()));
    }
    json.push(Kind::Number, None);
    json.push(Kind::Text, Some(b"\xff\x00"));
    json.push_bytes(b"a");
    json.push(Kind::Json, None);
    let text = String::from_utf8(json.finish()).unwrap();
    assert!(text.contains("\"n\":1.50,") && text.contains("\"n\":\"NaN\""), "{text}");
    assert!(text.contains("12345678901234567890123"), "{text}");
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(rows[0]["t\"x"], "it's \"\u{e9}\"\n");
    assert_eq!((&rows[0]["b"], &rows[0]["j"]["a"]), (&true.into(), &1.into()));
    assert_eq!((&rows[3]["n"], &rows[3]["t\"x"]), (&serde_json::Value::Null, &"\\xff00".into()));
    assert_eq!(rows[3]["b"], "\\x61");
    assert_eq!(Json::new(["a"].into_iter()).finish(), b"[]");
}
