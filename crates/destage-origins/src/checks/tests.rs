use super::*;

const BYTES: Kind = Kind::Text(TextRule::Bytes);

/// The columns a, b, n, f, g, s, w, d, t, flag, mood, x of each database.
fn find(sql: Sql) -> impl Fn(&str) -> Option<(usize, Kind)> {
    move |name| {
        let whole = Kind::Whole { bits: 32 };
        let of = |ours: Kind, other: Kind| if sql == Sql::Sqlite { other } else { ours };
        let folded = if sql == Sql::MariaDb { Kind::Text(TextRule::Folded) } else { BYTES };
        let columns = [
            ("a", of(whole, Kind::Affine)),
            ("b", of(whole, Kind::Affine)),
            ("n", of(Kind::Exact, Kind::Affine)),
            ("f", of(Kind::Double, Kind::Affine)),
            ("g", of(Kind::Single, Kind::Affine)),
            ("s", folded),
            ("w", BYTES),
            ("d", of(Kind::Moment(Moment::Date), Kind::Affine)),
            ("t", of(Kind::Moment(Moment::Stamp), BYTES)),
            ("flag", Kind::Bool),
            ("mood", Kind::Label),
            ("x", Kind::Other),
            ("current_date", Kind::Moment(Moment::Date)),
            ("value", whole),
        ];
        let at = columns.iter().position(|(column, _)| column.eq_ignore_ascii_case(name))?;
        Some((at, columns[at].1))
    }
}

fn of(sql: Sql, text: &str) -> Result<Condition, Reason> {
    read(sql, text, &find(sql))
}

/// What comes of a condition where these columns are given, and the others are NULL.
fn outcome(sql: Sql, text: &str, given: &[(&str, &str)]) -> Outcomes {
    let condition = of(sql, text).unwrap_or_else(|why| panic!("{text}: {why}"));
    let mut cells = vec![Cell::Null; 14];
    for (column, value) in given {
        let (at, _) = find(sql)(column).unwrap();
        cells[at] = if *value == "?" { Cell::Unknown } else { Cell::Value(value.as_bytes()) };
    }
    condition.outcomes(&cells)
}

#[test]
fn conditions_of_postgresql_are_read_as_its_catalogue_writes_them() {
    const T: Outcomes = Outcomes::TRUE;
    const F: Outcomes = Outcomes::FALSE;
    const N: Outcomes = Outcomes::NULL;
    for (text, given, expected) in [
        ("(a > 0)", &[("a", "1")][..], T),
        ("(a > 0)", &[("a", "0")], F),
        ("(a > 0)", &[], N),
        ("(a > '-1'::integer)", &[("a", "-1")], F),
        ("((a >= 1) AND (a <= 5))", &[("a", "6")], F),
        ("((a > 0) OR (b IS NOT NULL))", &[("a", "-1")], F),
        ("((a > 0) OR (b > 0))", &[("a", "-1")], N),
        ("((a > 0) AND (b > 0))", &[("a", "-1")], F),
        ("(NOT (a > 0))", &[("a", "1")], F),
        ("(NOT (a > 0))", &[], N),
        ("(n >= (0)::numeric)", &[("n", "-0.01")], F),
        ("(n < 10.5)", &[("n", "10.50")], F),
        ("(n < 10.5)", &[("n", "9.99")], T),
        ("(n > '-1.5'::numeric)", &[("n", "-1.5")], F),
        ("((a)::numeric <= n)", &[("a", "2"), ("n", "1.99")], F),
        ("(f >= (0)::double precision)", &[("f", "-1e-20")], F),
        ("(f < '0.5'::double precision)", &[("f", "0.5")], F),
        ("(g < (0.1)::double precision)", &[("g", "0.1")], F),
        ("(s <> ''::text)", &[("s", "")], F),
        ("(char_length((s)::text) >= 3)", &[("s", "äö")], F),
        ("(octet_length(s) <= 3)", &[("s", "äö")], F),
        ("(length(TRIM(BOTH FROM s)) > 0)", &[("s", "  ")], F),
        ("(btrim(s) <> ''::text)", &[("s", "  ")], F),
        (
            "((s)::text = ANY ((ARRAY['new'::character varying, 'it''s'::character varying])::text[]))",
            &[("s", "New")],
            F,
        ),
        ("(s = ANY (ARRAY['new'::text, 'it''s'::text]))", &[("s", "it's")], T),
        ("(a <> ALL (ARRAY[1, 2]))", &[("a", "2")], F),
        ("(a = ANY (ARRAY[1, 2]))", &[], N),
        ("(d >= '2020-02-29'::date)", &[("d", "2020-02-28")], F),
        (
            "(t > '2020-01-01 00:00:00'::timestamp without time zone)",
            &[("t", "2020-01-01 00:00:00.5")],
            T,
        ),
        ("flag", &[("flag", "f")], F),
        ("(flag OR (a > 0))", &[("a", "0"), ("flag", "f")], F),
        ("(flag = true)", &[("flag", "f")], F),
        ("(mood <> 'sad'::shop.mood)", &[("mood", "sad")], F),
        ("(x IS NOT NULL)", &[], F),
        ("(VALUE > 0)", &[("value", "0")], F),
        ("(\"a\" = b)", &[("a", "1"), ("b", "2")], F),
    ] {
        assert_eq!(outcome(Sql::Postgres, text, given), expected, "{text} {given:?}");
    }
}

#[test]
fn what_is_not_known_makes_no_constraint_violated_unless_the_rest_does() {
    for (text, given, may_be) in [
        ("(a > 0)", &[("a", "?")][..], [true, true, true]),
        ("((a > 0) AND (b > 0))", &[("a", "?"), ("b", "0")], [false, true, false]),
        ("((a > 0) AND (b > 0))", &[("a", "?"), ("b", "1")], [true, true, true]),
        ("((a > 0) OR (b > 0))", &[("a", "?"), ("b", "1")], [true, false, false]),
        ("(a IS NULL)", &[("a", "?")], [true, true, false]),
        ("(a > b)", &[("a", "?")], [false, false, true]),
        ("(n < 1.0)", &[("n", "NaN")], [true, true, false]),
        ("(f < (1)::double precision)", &[("f", "Infinity")], [true, true, false]),
        ("(d > '2020-01-01'::date)", &[("d", "infinity")], [true, true, false]),
        ("(d > '2020-01-01'::date)", &[("d", "0044-03-15 BC")], [true, true, false]),
        ("(NOT flag)", &[("flag", "?")], [true, true, true]),
    ] {
        let outcomes = outcome(Sql::Postgres, text, given);
        let found = [Some(true), Some(false), None].map(|outcome| outcomes.may_be(outcome));
        assert_eq!(found, may_be, "{text} {given:?}");
        assert_eq!(outcomes.is_violated(), may_be == [false, true, false]);
    }
}

#[test]
fn conditions_of_mariadb_and_sqlite_are_read_as_they_write_them() {
    for (sql, text, given, is_violated) in [
        (Sql::MariaDb, "\"a\" > 0 and \"b\" < 5", &[("a", "1"), ("b", "5")][..], true),
        (Sql::MariaDb, "`a` between 1 and 5 or `b` is null", &[("a", "0"), ("b", "1")], true),
        (Sql::MariaDb, "`a` not between 1 and 5", &[("a", "3")], true),
        (Sql::MariaDb, "`s` in ('new','paid')", &[("s", "old")], true),
        (Sql::MariaDb, "`s` in ('new','paid')", &[("s", "PAID ")], false),
        (Sql::MariaDb, "`s` in ('new','paid')", &[("s", "n\u{e9}w")], false),
        (Sql::MariaDb, "`s` <> ''", &[("s", "")], true),
        (Sql::MariaDb, "`w` <> 'a'", &[("w", "A")], false),
        (Sql::MariaDb, "`f` >= 0.5", &[("f", "0.25")], true),
        (Sql::MariaDb, "length(`w`) = 2", &[("w", "\u{e4}")], false),
        (Sql::MariaDb, "char_length(`w`) = 2", &[("w", "\u{e4}")], true),
        (Sql::MariaDb, "`d` >= '2020-01-01'", &[("d", "2019-12-31")], true),
        (Sql::MariaDb, "`a` not in (1,NULL)", &[("a", "1")], true),
        (Sql::MariaDb, "`a` not in (1,NULL)", &[("a", "2")], false),
        (Sql::Sqlite, "A > 0", &[("a", "0")], true),
        (Sql::Sqlite, "a > 0 -- positive\n AND [b] == 1", &[("a", "1"), ("b", "2")], true),
        (Sql::Sqlite, "NOT a IN (1, 2)", &[("a", "2")], true),
        (Sql::Sqlite, "a NOTNULL", &[], true),
        (Sql::Sqlite, "n < 5", &[("n", "many")], true),
        (Sql::Sqlite, "n < '5'", &[("n", "10")], true),
        (Sql::Sqlite, "f > 9007199254740992", &[("f", "9007199254740992.0")], true),
        (Sql::Sqlite, "f < 1", &[("f", "-Inf")], false),
        (Sql::Sqlite, "w < 'b'", &[("w", "c")], true),
        (Sql::Sqlite, "w <> 'it''s'", &[("w", "it's")], true),
        (Sql::Sqlite, "length(w) BETWEEN 1 AND 2", &[("w", "abc")], true),
        (Sql::Sqlite, "trim(w) <> ''", &[("w", " ")], true),
        (Sql::Sqlite, "d >= '2020-01-01'", &[("d", "2019-12-31")], true),
    ] {
        assert_eq!(outcome(sql, text, given).is_violated(), is_violated, "{text} {given:?}");
    }
}

#[test]
fn what_may_mean_more_is_left_to_the_origin() {
    let deep = format!("{}a > 0{}", "(".repeat(99_999), ")".repeat(99_999));
    for (sql, text) in [
        (Sql::Postgres, ""),
        (Sql::Postgres, "(a > 0) ;"),
        (Sql::Postgres, "((a + b) > 0)"),
        (Sql::Postgres, "(a > '0')"),
        (Sql::Postgres, "(a = '1.5'::integer)"),
        (Sql::Postgres, "(s > 'a'::text)"),
        (Sql::Postgres, "(s ~ '^a'::text)"),
        (Sql::Postgres, "(s = 'a'::text COLLATE \"C\")"),
        (Sql::Postgres, "(lower(s) = s)"),
        (Sql::Postgres, "(a OPERATOR(public.=) 1)"),
        (Sql::Postgres, "(d <= CURRENT_DATE)"),
        (Sql::Postgres, "(d > t)"),
        (Sql::Postgres, "((n)::integer > 0)"),
        (Sql::Postgres, "((n)::numeric(5,1) > 0.5)"),
        (Sql::Postgres, "((f)::numeric > 0.5)"),
        (Sql::Postgres, "(mood > 'sad'::mood)"),
        (Sql::Postgres, "('10:00'::interval = '600 min'::interval)"),
        (Sql::Postgres, "((a > 0) IS TRUE)"),
        (Sql::Postgres, "(s = E'a\\\\b'::text)"),
        (Sql::Postgres, "(x = 'a'::bpchar)"),
        (Sql::Postgres, "a"),
        (Sql::Postgres, "(missing > 0)"),
        (Sql::MariaDb, "a > 0"),
        (Sql::MariaDb, "`a` > '0'"),
        (Sql::MariaDb, "`a` <=> 1"),
        (Sql::MariaDb, "`a` > 1 xor `b` > 1"),
        (Sql::MariaDb, "`s` = 'a' collate utf8mb4_bin"),
        (Sql::MariaDb, "`s` = _latin1'a'"),
        (Sql::MariaDb, "`s` > 'a'"),
        (Sql::MariaDb, "`s` = `w`"),
        (Sql::MariaDb, "`g` > 0.1"),
        (Sql::MariaDb, "`d` > '20200101'"),
        (Sql::MariaDb, "`a` = 1 /*! or 1 */"),
        (Sql::Sqlite, "a"),
        (Sql::Sqlite, "a > b > 0"),
        (Sql::Sqlite, "a = \"text\""),
        (Sql::Sqlite, "w > 5"),
        (Sql::Sqlite, "w = a"),
        (Sql::Sqlite, "x > 0"),
        (Sql::Sqlite, "w GLOB 'a*'"),
        (Sql::Sqlite, "w = 'a' COLLATE NOCASE"),
        (Sql::Sqlite, "a > 1e3"),
        (Sql::Sqlite, "a > 0x10"),
        (Sql::Sqlite, "a % 2 = 0"),
        (Sql::Sqlite, "t.a > 0"),
        (Sql::Sqlite, "d <= current_date"),
        (Sql::Sqlite, "a IN (b, 1)"),
        (Sql::Sqlite, "a IN (SELECT 1)"),
        (Sql::Sqlite, "typeof(a) = 'integer'"),
        (Sql::Sqlite, &deep),
    ] {
        assert!(of(sql, text).is_err(), "{}", &text[..text.len().min(80)]);
    }
}

#[test]
fn constraints_are_shown_with_their_names() {
    let shown = |name: &str, text: &str| {
        Check { name: name.into(), text: text.into(), condition: Err(MORE) }.shown()
    };
    assert_eq!(shown("t_a_check", "(a > 0)"), "t_a_check CHECK (a > 0)");
    assert_eq!(shown("k", "(a > 0) or (b > 0)"), "k CHECK ((a > 0) or (b > 0))");
    assert_eq!(shown("a > 0", "a > 0"), "CHECK (a > 0)");
}

/// A list of so many texts.
fn list(count: usize) -> String {
    let items: Vec<String> = (0..count).map(|item| format!("'{item}'")).collect();
    format!("w IN ({})", items.join(", "))
}

#[test]
fn long_conditions_are_left_to_the_origin() {
    assert!(of(Sql::Sqlite, &list(COMPARISONS_MAX)).is_ok());
    assert_eq!(of(Sql::Sqlite, &list(COMPARISONS_MAX + 1)), Err(MANY));
    let long = format!("w <> '{}'", "x".repeat(TEXT_BYTES_MAX));
    assert_eq!(of(Sql::Sqlite, &long), Err(MANY));
}

#[test]
fn long_values_are_not_compared_with_everything() {
    let condition = format!("{} AND length(w) < 9", list(COMPARISONS_MAX - 1));
    assert_eq!(outcome(Sql::Sqlite, &condition, &[("w", "none of them")]), Outcomes::FALSE);
    let long = "x".repeat(1 << 20);
    assert_eq!(outcome(Sql::Sqlite, &condition, &[("w", &long)]), Outcomes::ANY);
    // One comparison always is.
    let longer = "x".repeat(2 * WORK_BYTES_MAX as usize);
    assert_eq!(outcome(Sql::Sqlite, "length(w) < 9", &[("w", &longer)]), Outcomes::FALSE);
}
