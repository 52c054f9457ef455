//! A journal's writes go to the origin that they were acknowledged for, and to no other.

use crate::harness::server::binary;
use crate::harness::{Database, Launch, PATIENCE, Proxy, Scratch, shop};
use std::path::Path;
use std::process::Command;

/// `destage serve` in a folder, as the README has it, until it is ready or ends.
fn in_folder(scratch: &Scratch, name: &str) -> Launch {
    Launch::in_folder(scratch, name)
}

fn inspected(data: &Path) -> String {
    let done = Command::new(binary()).args(["journal", "inspect", "--data"]).arg(data).output();
    String::from_utf8(done.expect("it runs").stdout).expect("it is text")
}

/// The same for programs.
fn inspected_json(data: &Path) -> serde_json::Value {
    let mut command = Command::new(binary());
    command.args(["journal", "inspect", "--format", "json", "--data"]).arg(data);
    serde_json::from_slice(&command.output().expect("it runs").stdout).expect("it is JSON")
}

fn stock(database: &Database) -> i64 {
    database.number("SELECT stock FROM products WHERE id = 1")
}

/// The example, with one write that it has decided, in the folder in which another origin comes next.
fn after_the_example(scratch: &Scratch, database: &Database) -> Launch {
    let example = in_folder(scratch, "data");
    let server = example.start();
    assert!(!server.client().run("HINCRBY products:1 stock 5").is_error());
    server.drain();
    server.terminate(PATIENCE).says(0, &[]);
    Launch::before(scratch, &database.url()).at(example.data().to_owned())
}

#[test]
fn the_examples_writes_go_to_no_origin_of_the_user_whatever_flag_is_given() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let before = stock(&database);
    let launch = after_the_example(&scratch, &database);
    for flags in [&[][..], &["--adopt"], &["--take-over"], &["--adopt", "--take-over"]] {
        launch.with(flags).refused().says(14, &["shop.db, and this is", "--change-origin"]);
        assert_eq!(stock(&database), before);
    }
    assert!(inspected(launch.data()).starts_with("writes for the origin sqlite:/"));
    let json = inspected_json(launch.data());
    assert!(json["origin"].as_str().is_some_and(|origin| origin.ends_with("/shop.db")), "{json}");
    let segments = json["segments"].as_array().expect("a list");
    assert!(segments.iter().any(|segment| segment["state"] == "begun"), "{json}");
}

#[test]
fn a_folder_of_an_earlier_build_with_the_example_is_not_adopted_either() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let before = stock(&database);
    let launch = after_the_example(&scratch, &database);
    std::fs::remove_file(launch.data().join("origin")).expect("it is there");
    launch.with(&["--adopt"]).refused().says(14, &["belongs to the origin sqlite:"]);
    assert_eq!(stock(&database), before);
    // Without an origin it goes on.
    in_folder(&scratch, "data").start().terminate(PATIENCE).says(0, &[]);
}

#[test]
fn what_the_old_origin_has_decided_is_not_sent_to_the_one_that_is_named() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let before = stock(&database);
    let launch = after_the_example(&scratch, &database);
    let shop = launch.data().canonicalize().expect("it is there").join("shop.db");
    let to = database.file().canonicalize().expect("it is there");
    let change = format!("sqlite:{}=sqlite:{}", shop.display(), to.display());
    let wrong = format!("sqlite:{}=sqlite:/elsewhere", shop.display());
    launch.with(&["--change-origin", "sqlite:a.db"]).refused().says(2, &["FROM=TO"]);
    launch.with(&["--change-origin", &wrong]).refused().says(14, &["--change-origin"]);
    let server = launch.with(&["--change-origin", &change]).start();
    server.drain();
    assert_eq!(stock(&database), before);
    server.client().run("HINCRBY products:1 stock 1").int();
    server.kill();
    // Nor by a later start.
    let server = launch.start();
    server.drain();
    assert_eq!(stock(&database), before + 1);
}

#[test]
fn after_a_kill_no_other_origin_is_sent_anything() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let before = stock(&database);
    let launch = after_the_example(&scratch, &database);
    let server = in_folder(&scratch, "data").start();
    assert!(!server.client().run("HINCRBY products:1 stock 5").is_error());
    server.kill();
    let shop = launch.data().canonicalize().expect("it is there").join("shop.db");
    let to = database.file().canonicalize().expect("it is there");
    let change = format!("sqlite:{}=sqlite:{}", shop.display(), to.display());
    launch.with(&["--change-origin", &change]).refused().says(14, &["did not end in order"]);
    assert_eq!(stock(&database), before);
}

#[test]
fn what_an_origin_may_have_taken_without_an_answer_is_sent_to_no_other() {
    let scratch = Scratch::new();
    let each = [(shop::postgres(), shop::postgres()), (shop::mariadb(), shop::mariadb())];
    for (from, to) in each.into_iter().filter_map(|(from, to)| from.zip(to)) {
        let (taken, before) = (stock(&from) + 5, stock(&to));
        let (proxy, url) = Proxy::before(&from.url());
        let data = scratch.join(if matches!(from, Database::Postgres(_)) { "one" } else { "two" });
        let lazy = ["--when", "pressure", "--staleness", "1h", "--drain-timeout", "2s"];
        let server = Launch::before(&scratch, &url).at(data.clone()).with(&lazy).start();
        assert!(!server.client().run("HINCRBY products:1 stock 5").is_error());
        proxy.lose_next_commit();
        server.terminate(PATIENCE).says(12, &["stopped with 1 writes"]);
        assert!(proxy.has_lost());
        assert_eq!(stock(&from), taken);
        let json = inspected_json(&data);
        let noted = json["origin"].as_str().expect("it is noted");
        let launch = Launch::before(&scratch, &to.url()).at(data);
        let named = launch.with(&["--change-origin", "a=b"]).refused();
        let flag = named.log.split("--change-origin '").nth(1).and_then(|it| it.split('\'').next());
        let change = flag.expect("the refusal says what to write");
        assert!(change.starts_with(noted), "{change}");
        launch.with(&["--change-origin", change]).refused().says(14, &["had answered", noted]);
        assert_eq!(stock(&to), before);
    }
}

#[test]
fn an_origin_that_was_moved_is_the_same_one() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.start();
    let expected = server.client().run("HINCRBY products:1 stock 5").int();
    server.drain();
    server.terminate(PATIENCE).says(0, &[]);
    let moved = scratch.join("moved.db");
    database.execute(&format!("VACUUM INTO '{}'", moved.display()));
    let url = format!("sqlite:{}", moved.display());
    let launch = Launch::before(&scratch, &url).at(launch.data().to_owned());
    let server = launch.start();
    assert_eq!(server.client().run("HGET products:1 stock").int(), expected);
    server.terminate(PATIENCE).says(0, &[]);
    assert!(inspected(launch.data()).contains("moved.db"));
}

#[test]
fn the_example_has_a_folder_of_its_own() {
    let scratch = Scratch::new();
    let folder = scratch.join("empty");
    std::fs::create_dir(&folder).expect("it can be made");
    let serve = |arguments: &[&str]| {
        let done = Command::new(binary())
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "none", "--run", "true"])
            .args(arguments)
            .env_remove("DESTAGE_ORIGIN")
            .env_remove("DESTAGE_PASSWORD")
            .current_dir(&folder)
            .status();
        assert!(done.expect("it runs").success());
    };
    serve(&[]);
    assert!(folder.join("destage-example/shop.db").is_file());
    assert!(!folder.join("destage-data").exists());
    // As an earlier build has made it.
    std::fs::rename(folder.join("destage-example"), folder.join("destage-data")).expect("moved");
    serve(&[]);
    assert!(!folder.join("destage-example").exists());
}
