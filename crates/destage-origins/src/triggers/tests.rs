use super::*;
use crate::schema::{Column, ColumnDefault};
use proptest::prelude::*;

#[test]
fn functions_that_set_columns_to_the_time_are_known() {
    for (source, columns) in [
        ("BEGIN NEW.updated_at := now(); RETURN NEW; END", vec!["updated_at"]),
        ("\nBEGIN\n  NEW.updated_at = NOW();\n  RETURN NEW;\nEND;\n", vec!["updated_at"]),
        (
            "begin new.\"updatedAt\" = CURRENT_TIMESTAMP; new.Seen := clock_timestamp(); return new; end;",
            vec!["updatedAt", "seen"],
        ),
        (
            "BEGIN -- as ever\n NEW.m = (now() AT TIME ZONE 'utc'); /* all */ RETURN NEW; END;",
            vec!["m"],
        ),
        ("BEGIN NEW.m = timezone('utc', now()); RETURN NEW; END;", vec!["m"]),
        (
            "BEGIN NEW.m = current_timestamp(3); NEW.d = current_date; RETURN NEW; END;",
            vec!["m", "d"],
        ),
        (
            "BEGIN NEW.m := transaction_timestamp() AT TIME ZONE 'UTC' AT TIME ZONE 'CET'; RETURN NEW; END",
            vec!["m"],
        ),
    ] {
        let expected: Vec<String> = columns.into_iter().map(str::to_owned).collect();
        assert_eq!(plpgsql::columns(source), Ok(expected), "{source}");
    }
}

#[test]
fn functions_that_do_more_are_not_known() {
    for source in [
        "",
        "BEGIN RETURN NEW; END",
        "BEGIN NEW.a := now(); RETURN OLD; END",
        "BEGIN NEW.a := now(); RETURN NULL; END",
        "BEGIN NEW.a := now(); END",
        "BEGIN NEW.a := now(); RETURN NEW; END; SELECT 1",
        "BEGIN NEW.a := now(); PERFORM f(); RETURN NEW; END",
        "BEGIN PERFORM f(); NEW.a := now(); RETURN NEW; END",
        "BEGIN NEW.a := now(); INSERT INTO log VALUES (1); RETURN NEW; END",
        "BEGIN IF NEW.b <> OLD.b THEN NEW.a := now(); END IF; RETURN NEW; END",
        "BEGIN IF TG_OP = 'UPDATE' THEN NEW.a := now(); END IF; RETURN NEW; END",
        "BEGIN NEW.a := now(); NEW.b := upper(NEW.b); RETURN NEW; END",
        "BEGIN NEW.a := f(now()); RETURN NEW; END",
        "BEGIN NEW.a := now(1); RETURN NEW; END",
        "BEGIN NEW.a := now() + interval '1 day'; RETURN NEW; END",
        "BEGIN NEW.a := now()::text; RETURN NEW; END",
        "BEGIN NEW.a := now; RETURN NEW; END",
        "BEGIN NEW.a := shop.now(); RETURN NEW; END",
        "BEGIN NEW.a := \"now\"(); RETURN NEW; END",
        "BEGIN \"new\".a := now(); RETURN NEW; END",
        "BEGIN NEW.a.b := now(); RETURN NEW; END",
        "BEGIN NEW := now(); RETURN NEW; END",
        "BEGIN OLD.a := now(); RETURN NEW; END",
        "DECLARE x int := f(); BEGIN NEW.a := now(); RETURN NEW; END",
        "<<l>> BEGIN NEW.a := now(); RETURN NEW; END",
        "#variable_conflict use_column\nBEGIN NEW.a := now(); RETURN NEW; END",
        "BEGIN NEW.a := now(); RETURN NEW; EXCEPTION WHEN OTHERS THEN RETURN NEW; END",
        "BEGIN NEW.a := now() AT TIME ZONE f(); RETURN NEW; END",
        "BEGIN NEW.a := now() AT TIME ZONE 'a\\'; PERFORM f(); --'; RETURN NEW; END",
        "BEGIN NEW.a := now() AT TIME ZONE 'a''b'; RETURN NEW; END",
        "BEGIN NEW.a := now(); /* /* */ PERFORM f(); */ */ RETURN NEW; END",
        "BEGIN NEW.a := now(); -- x\r PERFORM f();\n RETURN NEW; END",
        "BEGIN NEW.a := now(); RETURN NEW; END /*",
        "BEGIN NEW.a := now()é; RETURN NEW; END",
        "BEGIN BEGIN NEW.a := now(); END; RETURN NEW; END",
        "BEGIN RETURN NEW; NEW.a := now(); END",
    ] {
        assert_eq!(plpgsql::columns(source), Err(MORE), "{source}");
    }
    assert!(
        plpgsql::columns(&format!("BEGIN NEW.a := {0}now(); RETURN NEW; END", "(".repeat(99_999)))
            .is_err()
    );
}

#[test]
fn conditions_only_compare_the_old_row_with_the_new_one() {
    for condition in [
        "old.* IS DISTINCT FROM new.*",
        "(old.* IS DISTINCT FROM new.*)",
        "((old.a IS DISTINCT FROM new.a) OR (old.\"B\" IS DISTINCT FROM new.\"B\"))",
    ] {
        assert!(plpgsql::is_plain_condition(condition), "{condition}");
    }
    for condition in [
        "",
        "f(new.a)",
        "(old.a IS DISTINCT FROM f(new.a))",
        "(old.a IS DISTINCT FROM new.a) OR f()",
        "old.* IS DISTINCT FROM new.*) EXECUTE ",
        "(old.a ~ new.a)",
    ] {
        assert!(!plpgsql::is_plain_condition(condition), "{condition}");
    }
}

#[test]
fn statements_of_mariadb_that_set_columns_to_the_time_are_known_and_others_are_not() {
    for (statement, columns) in [
        ("SET NEW.updated_at = NOW()", vec!["updated_at"]),
        ("set new.`Changed` = current_timestamp(6), NEW.b = utc_timestamp", vec!["Changed", "b"]),
        ("BEGIN SET NEW.a = NOW(3); SET NEW.b = CURRENT_TIMESTAMP; END", vec!["a", "b"]),
    ] {
        let expected: Vec<String> = columns.into_iter().map(str::to_owned).collect();
        assert_eq!(mariadb::columns(statement), Ok(expected), "{statement}");
    }
    for statement in [
        "SET @a = 1",
        "SET NEW.a = NOW(), @b = 1",
        "SET NEW.a = NOW(), GLOBAL max_connections = 1",
        "SET NEW.a = f()",
        "SET NEW.a = NOW() + INTERVAL 1 DAY",
        "SET NEW.a = now",
        "SET NEW.a = d.now()",
        "SET NEW.a = NOW(); INSERT INTO log VALUES (1)",
        "SET NEW.a = NOW ()",
        "SET NEW.a = NOW(), NEW.b = sysdate\n(6)",
        "BEGIN SET NEW.a = NOW(); INSERT INTO log VALUES (1); END",
        "BEGIN IF NEW.b THEN SET NEW.a = NOW(); END IF; END",
        "SET NEW.a = NOW() /*! , @b = 1 */",
        "BEGIN END",
        "SET OLD.a = NOW()",
    ] {
        assert_eq!(mariadb::columns(statement), Err(MORE), "{statement}");
    }
}

fn table() -> Table {
    let mut table = Table::named("t".into(), "t".into());
    let column = |name: &str| Column {
        name: name.into(),
        sql_name: name.into(),
        ty: ColumnType::Text { chars_max: None },
        type_name: "TEXT".into(),
        not_null: false,
        default: ColumnDefault::None,
        generated: false,
        structural: name == "id" || name == "unique_one",
        checked: false,
    };
    table.columns = ["id", "body", "updated_at", "unique_one"].map(column).to_vec();
    table.key_len = 1;
    table
}

#[test]
fn triggers_of_sqlite_that_set_columns_of_their_own_row_are_known_and_others_are_not() {
    let table = table();
    let read = |sql: &str| sqlite::trigger("x".into(), &format!("CREATE TRIGGER x {sql}"), &table);
    for sql in [
        "AFTER UPDATE ON t BEGIN UPDATE t SET updated_at = CURRENT_TIMESTAMP WHERE id = NEW.id; END",
        "AFTER UPDATE OF body, id ON \"T\" FOR EACH ROW BEGIN UPDATE T SET updated_at = datetime('now') \
         WHERE rowid = OLD.rowid; END",
        "AFTER UPDATE ON t WHEN NEW.updated_at IS OLD.updated_at BEGIN UPDATE [t] SET \
         updated_at = (strftime('%Y-%m-%d %H:%M:%f', 'now')) WHERE id = OLD.id; END",
    ] {
        let trigger = read(sql);
        assert_eq!(trigger.sets, Ok(vec!["updated_at".to_owned()]), "{sql}");
        assert!(trigger.on_update && !trigger.on_insert);
        assert_eq!(trigger.is_conditional, sql.contains("WHEN") || sql.contains(" OF "));
    }
    for sql in [
        "AFTER UPDATE ON t BEGIN UPDATE t SET updated_at = CURRENT_TIMESTAMP; END",
        "AFTER UPDATE ON t BEGIN UPDATE t SET updated_at = CURRENT_TIMESTAMP WHERE body = NEW.body; END",
        "AFTER UPDATE ON t BEGIN UPDATE t SET updated_at = CURRENT_TIMESTAMP WHERE id = NEW.body; END",
        "AFTER UPDATE ON t BEGIN UPDATE t SET updated_at = CURRENT_TIMESTAMP WHERE id = NEW.id OR 1; END",
        "AFTER UPDATE ON t BEGIN UPDATE u SET updated_at = CURRENT_TIMESTAMP WHERE id = NEW.id; END",
        "AFTER UPDATE ON t BEGIN UPDATE t SET updated_at = random() WHERE id = NEW.id; END",
        "AFTER UPDATE ON t BEGIN UPDATE t SET updated_at = datetime(body) WHERE id = NEW.id; END",
        "AFTER UPDATE ON t BEGIN UPDATE t SET updated_at = CURRENT_TIMESTAMP WHERE id = NEW.id; \
         DELETE FROM u; END",
        "BEFORE UPDATE ON t BEGIN UPDATE t SET updated_at = CURRENT_TIMESTAMP WHERE id = NEW.id; END",
        "AFTER DELETE ON t BEGIN UPDATE t SET updated_at = CURRENT_TIMESTAMP WHERE id = OLD.id; END",
        "AFTER UPDATE ON t WHEN f(NEW.body) BEGIN UPDATE t SET updated_at = CURRENT_TIMESTAMP WHERE \
         id = NEW.id; END",
        "AFTER INSERT ON t BEGIN SELECT 1; END",
    ] {
        assert_eq!(read(sql).sets, Err(MORE), "{sql}");
    }
}

fn trigger(sets: Result<Columns, Unknown>) -> Trigger {
    let name = "touch".to_owned();
    Trigger { name, on_insert: false, on_update: true, is_conditional: false, fills: false, sets }
}

#[test]
fn a_table_with_one_trigger_that_is_not_known_is_one_of_which_nobody_knows() {
    let mut known = table();
    classify(&mut known, vec![trigger(Ok(vec!["updated_at".into()]))], |a, b| a == b);
    assert_eq!(known.class.opaque, None);
    assert!(known.is_left_to_origin(2, false) && !known.is_left_to_origin(2, true));
    assert!(known.is_computed(2) && known.has_computed() && !known.is_plain());
    for sets in [
        Err(MORE),
        Ok(vec!["updated_at".into(), "id".into()]),
        Ok(vec!["unique_one".into()]),
        Ok(vec!["missing".into()]),
    ] {
        let mut table = table();
        let triggers = vec![trigger(Ok(vec!["body".into()])), trigger(sets.clone())];
        classify(&mut table, triggers, |a, b| a == b);
        let opaque = table.class.opaque.expect("it is not known");
        assert!(opaque.starts_with("it has trigger touch ("), "{opaque}");
    }
}

#[test]
fn what_is_declared_names_a_column_that_can_be_left_to_a_trigger() {
    let mut table = table();
    declare(&mut table, &["body".into(), "body".into()]).unwrap();
    assert_eq!(table.class.sets.len(), 1);
    assert!(table.is_left_to_origin(1, true) && table.is_left_to_origin(1, false));
    for (name, why) in [("id", "of the key"), ("unique_one", "unique"), ("nope", "does not have")] {
        let refused = declare(&mut table, &[name.into()]).unwrap_err();
        assert!(refused.contains(why) && refused.contains("[table.t]"), "{refused}");
    }
}

/// A statement of a trigger's function, and whether it only sets a column to the time.
fn statement() -> impl Strategy<Value = (String, bool)> {
    let column = prop_oneof![Just("a"), Just("\"B c\""), Just("updated_at")];
    let time = prop_oneof![
        Just("now()"),
        Just("CURRENT_TIMESTAMP"),
        Just("(clock_timestamp() AT TIME ZONE 'utc')"),
        Just("timezone('utc', now())"),
    ];
    let sign = prop_oneof![Just(":="), Just("=")];
    let sets = (column, sign, time)
        .prop_map(|(column, sign, time)| (format!("NEW.{column} {sign} {time};"), true));
    let more = prop_oneof![
        Just("PERFORM pg_notify('a', 'b');"),
        Just("INSERT INTO log SELECT NEW.id;"),
        Just("IF NEW.a IS NULL THEN NEW.a := now(); END IF;"),
        Just("NEW.n := NEW.n + 1;"),
        Just("NEW.a := coalesce(NEW.a, now());"),
        Just("NEW.a := (SELECT max(a) FROM t);"),
        Just("RAISE NOTICE 'x';"),
        Just("RETURN NULL;"),
        Just("NULL;"),
        Just("NEW.a := now() + f();"),
    ];
    prop_oneof![4 => sets, 1 => more.prop_map(|text| (text.to_owned(), false))]
}

/// What can stand in the place of a part of a function, or before it.
fn foreign() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just(" f() "),
        Just(" PERFORM f "),
        Just(" || "),
        Just("; DELETE FROM t;"),
        Just(" NEW.n "),
        Just("'"),
        Just("$$"),
        Just("--"),
        Just("/*"),
        Just(" ELSE NULL "),
        Just("::text"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_function_is_known_exactly_if_each_statement_sets_a_column_to_the_time(
        statements in prop::collection::vec(statement(), 1..5),
        gap in prop_oneof![Just(" "), Just("\n\t"), Just(" -- why\n"), Just("/* PERFORM f(); */")],
        end in prop_oneof![Just("END"), Just("end;"), Just("END ;\n")],
    ) {
        let body: Vec<&str> = statements.iter().map(|(text, _)| text.as_str()).collect();
        let source = format!("BEGIN{gap}{}{gap}RETURN NEW;{gap}{end}", body.join(gap));
        let found = plpgsql::columns(&source);
        prop_assert_eq!(found.is_ok(), statements.iter().all(|(_, sets)| *sets), "{}", source);
        if let Ok(columns) = found {
            prop_assert_eq!(columns.len(), statements.len());
        }
    }

    /// Whatever is put into a function that is known: it is either without meaning (in a comment) or not known any more.
    #[test]
    fn a_function_with_something_put_into_it_is_not_known(
        foreign in foreign(), place in 0_usize..58, cut in 0_usize..4,
    ) {
        let known = "BEGIN NEW.a := now(); NEW.b = CURRENT_TIMESTAMP; RETURN NEW; END";
        prop_assert!(plpgsql::columns(known).is_ok());
        let behind = (place + cut).min(known.len());
        let source = format!("{}{foreign}{}", &known[..place], &known[behind..]);
        prop_assert!(plpgsql::columns(&source).is_err(), "{}", source);
    }

    #[test]
    fn any_text_is_read_without_trouble(source in "(BEGIN|NEW|[.;:=()'\"/*-]|now|RETURN|END| |\\PC){0,60}") {
        let _ = (plpgsql::columns(&source), mariadb::columns(&source));
        let _ = sqlite::trigger("x".into(), &source, &table());
        let _ = plpgsql::is_plain_condition(&source);
    }
}
