//! Which setting wins, and what a wrong file is told.

use super::*;
use clap::FromArgMatches;
use destage_core::{Acknowledge, Span, When};
use destage_data::mapping::ShapeSettings;
use destage_data::settings::Settings;
use destage_data::ttl::TtlUnit;
use destage_runtime::sockets::Listen;

fn merged(text: &str, line: &[&str]) -> Settings {
    let argv = std::iter::once("destage").chain(line.iter().copied());
    let matches = file::command::<ServeArgs>().try_get_matches_from(argv).unwrap();
    let file = parse(text).unwrap();
    let args = file.merged(&matches).map_err(|e| e.to_string()).unwrap();
    args.into_settings().map_err(|e| e.to_string()).unwrap()
}

fn refusal(text: &str) -> String {
    parse(text).err().expect("the file is wrong")
}

#[test]
fn flags_override_the_file_and_the_file_overrides_defaults() {
    let text = r#"
        policy = "write-through"
        commit = "1s"
        when = "periodic:10s"
        listen = "unix:/run/destage/socket"
        dirty-limit = "64M"
        max-clients = 7
        no-auth = true
        take-over = false
    "#;
    let settings = merged(text, &["--commit", "2s", "--max-clients=9", "--adopt"]);
    assert_eq!(settings.policy.acknowledge, Acknowledge::Origin);
    assert_eq!(settings.policy.commit, Span::from_secs(2));
    assert_eq!(settings.policy.when, When::Periodic { every: Span::from_secs(10) });
    assert_eq!(settings.listen, Listen::Unix("/run/destage/socket".into()));
    assert_eq!(settings.policy.limits.dirty_bytes_low, 48 << 20);
    assert_eq!(settings.clients_max, 9);
    assert!(settings.no_auth && settings.adopt && !settings.take_over);
    assert_eq!(settings.policy.staleness, Span::from_secs(30));
}

#[test]
fn defaults_of_the_flags_are_those_of_the_settings() {
    let shown = merged("", &[]);
    let default = Settings::default();
    assert_eq!(shown.policy, default.policy);
    assert_eq!((shown.listen, shown.admin), (default.listen, default.admin));
    assert_eq!((shown.retain, shown.drain_timeout), (default.retain, default.drain_timeout));
    assert_eq!(shown.origin_timeout, default.origin_timeout);
    assert_eq!((shown.client_wait, shown.on_away), (default.client_wait, default.on_away));
    assert_eq!(shown.handshake_timeout, default.handshake_timeout);
    assert_eq!(
        (shown.once_tokens_max, shown.once_bytes_max),
        (default.once_tokens_max, default.once_bytes_max)
    );
    assert_eq!(
        (shown.clients_max, shown.request_bytes_max, shown.pipeline_max, shown.output_bytes_max),
        (
            default.clients_max,
            default.request_bytes_max,
            default.pipeline_max,
            default.output_bytes_max
        )
    );
    assert_eq!(shown.output_total_bytes_max, default.output_total_bytes_max);
    assert!(!shown.no_auth && !shown.take_over && !shown.adopt && !shown.unsafe_flags.any());
}

#[test]
fn table_sections_are_read() {
    let text = r#"
        [table.orders]
        blind = true
        ack = "origin"
        [table.lines]
        triggers = ["stock", "audit"]
        [table.audit]
        triggers = "none"
        ack = "policy"
        [table.prices]
        ttl = "cached-copy"
        [table.items]
        triggers = { sets = ["updated_at", "version"] }
        [table.sessions]
        ttl = "column expires_at ms"
        [table.carts]
        fk = "ask"
        [table.people]
        unique = "ask"
        [table.logs]
        fk = "origin"
        unique = "origin"
    "#;
    let tables = parse(text).map_err(|e| e.to_string()).ok().unwrap().tables;
    assert_eq!(
        tables["orders"],
        TableSettings { blind: true, ack_origin: true, ..Default::default() }
    );
    assert_eq!(tables["lines"].triggers, Some(vec!["stock".into(), "audit".into()]));
    assert_eq!(tables["audit"], TableSettings { triggers: Some(vec![]), ..Default::default() });
    let trigger_sets = vec!["updated_at".into(), "version".into()];
    let items = TableSettings { triggers: Some(vec![]), trigger_sets, ..Default::default() };
    assert_eq!(tables["items"], items);
    assert_eq!(tables["prices"], TableSettings { copies_expire: true, ..Default::default() });
    let ttl = TtlSettings { column: "expires_at".into(), unit: Some(TtlUnit::Milliseconds) };
    assert_eq!(tables["sessions"], TableSettings { ttl: Some(ttl), ..Default::default() });
    let of = |defaults: &str| parse(&format!("[table.t]\ndefaults = '{defaults}'"));
    assert!(of("here").map_err(|e| e.to_string()).ok().unwrap().tables["t"].defaults_here);
    assert!(!of("origin").map_err(|e| e.to_string()).ok().unwrap().tables["t"].defaults_here);
    assert!(of("there").err().unwrap().contains("[table.t]: unknown variant `there`"));
    assert_eq!(tables["carts"], TableSettings { ask_foreign_keys: true, ..Default::default() });
    assert_eq!(tables["people"], TableSettings { ask_unique: true, ..Default::default() });
    assert_eq!(tables["logs"], TableSettings::default());
    let wrong = parse("[table.t]\nttl = 'expires_at'").map_err(|e| e.to_string()).err().unwrap();
    assert!(wrong.contains("[table.t]: ttl: 'expires_at' is none of"), "{wrong}");
    let refused = parse("[table.t]\nttl = 'refuse'").map_err(|e| e.to_string()).ok().unwrap();
    assert_eq!(refused.tables["t"], TableSettings::default());
}

#[test]
fn mappings_are_read_and_kinds_are_tried_in_a_fixed_order() {
    let text = r#"
        [[string]]
        key = "counter:{id}"
        table = "counters"
        value = "n"
        [[string]]
        key = "note:{id}"
        table = "notes"
        value = "text"
        [[hash]]
        key = "{ycsb_key=user*}"
        table = "usertable"
    "#;
    let mappings = parse(text).map_err(|e| e.to_string()).ok().unwrap().mappings;
    let keys: Vec<&str> = mappings.iter().map(|mapping| mapping.key.as_str()).collect();
    assert_eq!(keys, ["counter:{id}", "note:{id}", "{ycsb_key=user*}"]);
    assert_eq!(mappings[0].table, "counters");
    assert_eq!(mappings[0].shape, ShapeSettings::String { value: "n".into() });
    assert_eq!(mappings[2].shape, ShapeSettings::Hash);
}

#[test]
fn wrong_files_name_the_key_and_what_works() {
    for (text, parts) in [
        ("polciy = 'write-back'", vec!["unknown key 'polciy'", "policy", "[table.NAME]"]),
        ("strin = 'x'", vec!["[[string]], [[set]], [[zset]], [[hash]], [[query]], [[domain]] and"]),
        ("staleness = '2d'", vec!["out of range: 100ms to 1d, or none"]),
        ("unsafe-no-fsync = true", vec!["unknown key 'unsafe-no-fsync'"]),
        ("config = 'x'", vec!["unknown key 'config'"]),
        ("commit = '1'", vec!["'1'", "--commit", "has no unit"]),
        ("commit = '2m'", vec!["out of range: 0 to 60s"]),
        ("max-clients = 0", vec!["--max-clients", "1..=1000000"]),
        ("no-auth = 'yes'", vec!["no-auth is true or false"]),
        ("listen = ['a']", vec!["listen takes a text"]),
        ("table = 3", vec!["[table.NAME]"]),
        ("[table.t]\nblnd = true", vec!["[table.t]", "unknown field `blnd`", "`blind`"]),
        ("[table.t]\nack = 'disk'", vec!["[table.t]", "unknown variant `disk`", "`origin`"]),
        ("[table.t]\nfk = 'yes'", vec!["[table.t]", "unknown variant `yes`", "`ask`"]),
        ("[table.t]\nttl = 'row'", vec!["[table.t]: ttl: 'row' is none", "\"cached-copy\""]),
        ("unmapped = 'keep'", vec!["'keep'", "--unmapped", "reject or cache"]),
        ("unmapped = ['keep:*', 'k?y:*']", vec!["'k?y:*'", "--unmapped", "one *, at its end"]),
        ("unmapped = ['*']", vec!["'*'", "--unmapped", "write cache"]),
        ("unmapped = []", vec!["list of unmapped", "one text or more"]),
        ("unmapped = ['a:*', 3]", vec!["list of unmapped", "in quotes"]),
        ("unmapped = ['a,b:*']", vec!["list of unmapped", "without commas"]),
        ("[table.t]\ntriggers = 'all'", vec!["[table.t]", "\"none\" nor a list"]),
        ("[table.t]\ntriggers = { changes = ['a'] }", vec!["[table.t]"]),
        ("[[string]]\nkey = 'a'", vec!["[[string]] number 1", "missing field `table`"]),
        ("[[hash]]\nkey = 'a'\ntable = 't'\nvalue = 'v'", vec!["[[hash]] 'a'", "`value`"]),
        ("[string]\nkey = 'a'", vec!["[[string]]", "double brackets"]),
        ("policy = ", vec!["line 1: string values must be quoted"]),
    ] {
        let error = refusal(text);
        for part in parts {
            assert!(error.contains(part), "{text}: {part} in {error}");
        }
    }
}

#[test]
fn what_is_about_other_servers_needs_them_wherever_they_are_named() {
    let settings = |text: &str, line: &[&str]| {
        let argv = std::iter::once("destage").chain(line.iter().copied());
        let matches = file::command::<ServeArgs>().try_get_matches_from(argv).unwrap();
        let file = parse(text).unwrap();
        let args = file.merged(&matches).map_err(|e| e.to_string()).unwrap();
        args.into_settings().map_err(|e| e.to_string())
    };
    let named = r#"replicas = "redis://a:1,redis://b:1,redis://c:1""#;
    for line in [
        &["--standby"][..],
        &["--copies", "3"],
        &["--replica-log", "other"],
        &["--failover", "1s"],
        &["--advertise", "a:6380"],
    ] {
        let error = settings("", line).err().expect("there are no servers");
        assert!(error.contains(&line[0][2..]) && error.contains("--replicas"), "{error}");
        assert!(settings(named, line).unwrap().replicas.is_some(), "{line:?}");
    }
    // Nothing is kept where there is no journal on the disk, and whoever asks for it is told.
    let error = settings(named, &["--retain", "1h"]).err().expect("there is no journal here");
    assert!(error.contains("--retain") && error.contains("--journal both"), "{error}");
    for line in
        [&["--retain", "0"][..], &["--retain", "1h", "--journal", "both"], &["--retain", "2h"]]
    {
        assert!(settings(named, line).unwrap().replicas.is_some(), "{line:?}");
    }
    let error = settings(named, &["--journal-alone"]).err().expect("there are servers");
    assert!(error.contains("--replicas ''"), "{error}");
    let alone = settings(named, &["--journal-alone", "--replicas", ""]).unwrap();
    assert!(alone.journal_alone && alone.replicas.is_none());
}

#[test]
fn a_policy_that_contradicts_itself_is_refused() {
    for (line, part) in [
        (&["--commit", "5s", "--staleness", "2s"][..], "must exceed the commit interval d"),
        (&["--commit", "1ns"], "d is 0, or 1 ms to 60 s"),
        (&["--commit", "999us"], "d is 0, or 1 ms to 60 s"),
    ] {
        let argv = [&["destage"], line].concat();
        let matches = file::command::<ServeArgs>().try_get_matches_from(argv).unwrap();
        let args = ServeArgs::from_arg_matches(&matches).unwrap();
        let error = args.into_settings().err().expect("the policy is refused").to_string();
        assert!(error.contains(part), "{line:?}: {error}");
    }
}

#[test]
fn passwords_and_origins_stay_out_of_debug_output() {
    let argv = ["destage", "--password", "hush", "--origin", "postgres://u:hush@h/db"];
    let matches = file::command::<ServeArgs>().try_get_matches_from(argv).unwrap();
    let args = ServeArgs::from_arg_matches(&matches).unwrap();
    assert!(!format!("{args:?}").contains("hush"));
}

#[test]
fn none_is_offered_once_where_it_is_taken() {
    for text in ["staleness = '5'", "staleness = '2d'"] {
        let error = refusal(text);
        assert_eq!(error.matches("or none").count(), 1, "{error}");
    }
}
