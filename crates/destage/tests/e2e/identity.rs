//! Journal and origin belong together: a lost journal, an origin that went back and a second process are noticed.

use crate::harness::{Database, Launch, PATIENCE, Reply, Scratch, Server, eventually, shop};
use std::path::Path;
use std::process::Command;

/// A server before the shop that has destaged something.
fn used(scratch: &Scratch, database: &Database) -> (Launch, Server) {
    let launch = Launch::before(scratch, &database.url());
    let server = launch.start();
    assert_eq!(server.client().run("HINCRBY products:1 stock 5").int(), 15);
    server.drain();
    (launch, server)
}

/// How to start it again.
fn stopped(scratch: &Scratch, database: &Database) -> Launch {
    let (launch, server) = used(scratch, database);
    server.terminate(PATIENCE).says(0, &[]);
    launch
}

#[test]
fn a_lost_journal_is_refused_and_adopt_goes_on() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let launch = stopped(&folder, &database);
        std::fs::remove_dir_all(launch.data()).expect("the journal can be removed");
        // Right after its last sign of life the owner might still be running somewhere else.
        eventually("the loss is seen for what it is", PATIENCE, || {
            let exit = launch.refused();
            exit.says(11, &["journal"]);
            exit.log.contains("--adopt")
        });
        let server = launch.with(&["--adopt"]).start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 16);
        server.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 16);
        server.kill();
        let server = launch.start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 17);
    }
}

/// Replaces a SQLite origin by a copy.
fn put_back(database: &Database, copy: &Path) {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut file = database.file().clone().into_os_string();
        file.push(suffix);
        let _ = std::fs::remove_file(file);
    }
    std::fs::copy(copy, database.file()).expect("the copy is put in place");
}

/// Destages, sets the origin back to an older state, and starts again.
fn set_back(more: &[&str], payload: usize) -> (Scratch, Database, Launch) {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let (launch, server) = used(&scratch, &database);
    let launch = launch.with(more);
    server.terminate(PATIENCE).says(0, &[]);
    let copy = scratch.join("copy.db");
    database.execute(&format!("VACUUM INTO '{}'", copy.display()));
    let server = launch.start();
    let mut client = server.client();
    for n in 1..=20 {
        assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 15 + n);
        let bulk = format!("labels:{n}:bulk");
        assert_eq!(client.call(&["HSET", &bulk, "note", &"x".repeat(payload)]).int(), 1);
        // Not merged into one group's worth of state: each is a destage of its own.
        assert!(!client.run("DESTAGE WAIT 30000").is_error());
    }
    server.terminate(PATIENCE).says(0, &[]);
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 35);
    put_back(&database, &copy);
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 15);
    (scratch, database, launch)
}

#[test]
fn an_origin_that_went_back_is_replayed_from_what_the_journal_retains() {
    let (_scratch, database, launch) = set_back(&["--retain", "10m"], 10);
    match launch.try_start(PATIENCE) {
        Ok(server) => {
            assert_eq!(server.client().run("HGET products:1 stock").int(), 35);
            server.drain();
            assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 35);
        }
        Err(exit) => exit.says(14, &["went back"]),
    }
}

#[test]
fn an_origin_that_went_back_too_far_is_refused() {
    // What is decided is kept until its segment is full: small segments, much data.
    let small = ["--retain", "0", "--journal-size", "1M"];
    let (_scratch, database, launch) = set_back(&small, 60_000);
    launch.refused().says(14, &["went back"]);
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 15);
}

#[test]
fn a_second_process_with_the_same_data_folder_is_refused() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let (launch, server) = used(&scratch, &database);
    launch.refused().says(13, &["another process"]);
    assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 16);
}

#[test]
fn a_second_process_before_the_same_origin_is_refused_while_the_first_lives() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let (launch, server) = used(&folder, &database);
        launch.elsewhere(&folder, "second").refused().says(11, &["--take-over"]);
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 16);
        server.drain();
    }
}

#[test]
fn take_over_fences_the_first_process_which_stops_acknowledging_and_exits_11() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let (launch, first) = used(&folder, &database);
        let mut client = first.client();
        let second = launch.elsewhere(&folder, "second").with(&["--take-over"]).start();
        assert_eq!(second.client().run("HINCRBY products:1 stock 1").int(), 16);
        second.drain();
        // The first one finds out with its next batch or heartbeat, at the latest.
        eventually("the first process stops acknowledging", PATIENCE, || {
            let reply = client.try_call(&["HINCRBY", "products:2", "stock", "1"]);
            !matches!(reply, Ok(Reply::Int(_)))
        });
        first.ends(PATIENCE).says(11, &["took over"]);
        assert_eq!(second.client().run("HINCRBY products:1 stock 1").int(), 17);
        second.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 17);
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 2"), 4);
        second.terminate(PATIENCE).says(0, &[]);
        // The journal of the first one is not silently applied on top.
        let exit = launch.refused();
        assert!(matches!(exit.code, Some(11 | 13 | 14)), "exit code {:?}: {}", exit.code, exit.log);
    }
}

#[test]
fn a_take_over_goes_on_behind_what_lands_until_it_shuts_the_first_process_out() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let (launch, first) = used(&scratch, &database);
    first.kill();
    // As if eight more writes landed between the look at the origin and the claim.
    database.execute(
        "CREATE TRIGGER landing BEFORE UPDATE OF epoch ON destage_owner BEGIN
           UPDATE destage_watermark SET seq = seq + 8; END",
    );
    let launch = launch.elsewhere(&scratch, "second").with(&["--take-over"]);
    let second = launch.start();
    database.execute("DROP TRIGGER landing");
    assert_eq!(second.client().run("HINCRBY products:1 stock 1").int(), 16);
    second.drain();
    assert_eq!(database.number("SELECT seq FROM destage_watermark"), 10);
    second.kill();
    let second = launch.start();
    assert_eq!(second.client().run("HINCRBY products:1 stock 1").int(), 17);
    second.drain();
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 17);
}

#[test]
fn an_origin_that_goes_back_is_noticed_by_a_server_that_nobody_uses() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let (_launch, server) = used(&folder, &database);
        database.execute("UPDATE destage_watermark SET seq = 0");
        server.ends(PATIENCE).says(14, &["restored"]);
    }
}

/// Replaces the file under the server by a copy from before its last write.
fn replaced(journal_mode: &str) -> (Scratch, Database, Launch, Server) {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    database.execute(&format!("PRAGMA journal_mode = {journal_mode}"));
    let (launch, server) = used(&scratch, &database);
    let copy = scratch.join("copy.db");
    database.execute(&format!("VACUUM INTO '{}'", copy.display()));
    assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 16);
    server.drain();
    put_back(&database, &copy);
    (scratch, database, launch, server)
}

#[test]
fn a_sqlite_file_that_is_replaced_under_the_server_stops_it_and_what_it_lacks_is_replayed() {
    for (journal_mode, writes) in [("WAL", false), ("WAL", true), ("DELETE", true)] {
        let (_scratch, database, launch, server) = replaced(journal_mode);
        if writes {
            // It may have been noticed already.
            if let Ok(mut client) = server.try_client()
                && let Ok(reply) = client.try_call(&["HINCRBY", "products:1", "stock", "0"])
            {
                assert_eq!(reply.int(), 16);
            }
        }
        server.ends(PATIENCE).says(14, &["removed or replaced", "start again"]);
        let server = launch.start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 17);
        server.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 17);
    }
}

#[test]
fn a_sqlite_file_that_was_replaced_is_noticed_by_a_shutdown_too() {
    let (_scratch, database, launch, server) = replaced("WAL");
    server.terminate(PATIENCE).says(14, &["removed or replaced", "start again"]);
    launch.start().drain();
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 16);
}

#[test]
fn a_journal_that_is_removed_under_the_server_ends_it_with_everything_at_the_origin() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    // Nothing is destaged before the end.
    let lazy = ["--when", "pressure", "--staleness", "1h"];
    let launch = Launch::before(&scratch, &database.url()).with(&lazy);
    let server = launch.start();
    assert_eq!(server.client().run("HINCRBY products:1 stock 5").int(), 15);
    // Moving it away is the same to the server, and nothing can be added to it meanwhile.
    std::fs::rename(launch.data(), scratch.join("away")).expect("the journal can be removed");
    server.ends(PATIENCE).says(13, &["was removed", "has taken everything", "--adopt"]);
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 15);
    let server = launch.with(&["--adopt"]).start();
    assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 16);
}

#[test]
fn after_a_clean_stop_another_host_need_not_wait() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let (launch, server) = used(&folder, &database);
        server.kill();
        let elsewhere = launch.elsewhere(&folder, "second");
        elsewhere.with(&["--adopt"]).refused().says(11, &["--take-over"]);
        launch.start().terminate(PATIENCE).says(0, &[]);
        // A folder that was mistaken for another one is still refused.
        elsewhere.refused().says(11, &["with everything destaged", "--adopt"]);
        let server = elsewhere.with(&["--adopt"]).start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 16);
        server.drain();
        // The new owner is alive, although the one before had let go.
        launch.with(&["--adopt"]).refused().says(11, &["--take-over"]);
    }
}

#[test]
fn a_journal_with_a_gap_is_not_replayed_across_it() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let first = stopped(&scratch, &database);
    let copy = scratch.join("copy.db");
    database.execute(&format!("VACUUM INTO '{}'", copy.display()));
    // Another journal writes in between, and then the first one again.
    let second = first.elsewhere(&scratch, "second");
    for launch in [&second, &first] {
        let server = launch.with(&["--adopt"]).start();
        server.client().run("HINCRBY products:1 stock 1").int();
        server.drain();
        server.terminate(PATIENCE).says(0, &[]);
    }
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 17);
    put_back(&database, &copy);
    // The first journal has the first and the third write; a stock of 16 with them never existed.
    first.refused().says(14, &["went back", "another journal"]);
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 15);
}

/// A folder with everything in it, as `cp -a` makes it.
fn copied(from: &Launch, scratch: &Scratch, name: &str) -> Launch {
    let copy = from.elsewhere(scratch, name);
    let done = Command::new("cp").arg("-a").args([from.data(), copy.data()]).status();
    assert!(done.expect("cp runs").success());
    copy
}

#[test]
fn a_copy_of_the_data_folder_is_refused_while_the_first_lives() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let launch = stopped(&folder, &database);
        let before = copied(&launch, &folder, "before");
        let server = launch.start();
        // From before the last start, and with all that the folder knows.
        before.refused().says(11, &["another copy", "journal export"]);
        let now = copied(&launch, &folder, "now");
        now.refused().says(11, &["shows itself", "--take-over"]);
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 16);
        server.drain();
        server.kill();
        // Who was killed need not wait.
        let server = launch.start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 17);
    }
}

#[test]
fn what_a_folder_acknowledged_before_its_copy_took_over_is_not_taken_for_decided() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let launch = stopped(&folder, &database);
        let copy = copied(&launch, &folder, "copy");
        let lazy = launch.with(&["--when", "pressure", "--staleness", "1h"]);
        let server = lazy.start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 100").int(), 115);
        server.kill();
        // The same number for another write.
        copy.refused().says(11, &["another copy"]);
        let second = copy.with(&["--adopt"]).start();
        assert_eq!(second.client().run("HINCRBY products:1 stock 10").int(), 25);
        second.drain();
        second.terminate(PATIENCE).says(0, &[]);
        launch.refused().says(11, &["another copy", "journal export", "gives them up"]);
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 25);
        // The owner is asked for, and may then go on.
        let server = launch.with(&["--adopt"]).start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 26);
        server.drain();
        server.terminate(PATIENCE).says(0, &[]);
        launch.start().terminate(PATIENCE).says(0, &[]);
    }
}

/// Makes a folder forget the origin's owners, as those of builds that did not note them; `epoch` is as those counted.
fn forget(launch: &Launch, database: &Database, epoch: u64) {
    std::fs::remove_file(launch.data().join("owner")).expect("there");
    for table in ["destage_owner", "destage_watermark"] {
        database.execute(&format!("UPDATE {table} SET epoch = {epoch}"));
    }
}

#[test]
fn without_its_note_a_folder_takes_the_writes_of_a_copy_for_its_own() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = stopped(&scratch, &database);
    let copy = copied(&launch, &scratch, "copy");
    let server = launch.with(&["--when", "pressure", "--staleness", "1h"]).start();
    assert_eq!(server.client().run("HINCRBY products:1 stock 100").int(), 115);
    server.kill();
    forget(&copy, &database, 7);
    let second = copy.start();
    assert_eq!(second.client().run("HINCRBY products:1 stock 10").int(), 25);
    second.terminate(PATIENCE).says(0, &[]);
    forget(&launch, &database, 8);
    // The copy's write has the number of the one that was acknowledged here, and is lost.
    let server = launch.start();
    server.drain();
    assert_eq!(server.client().run("HGET products:1 stock").int(), 25);
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 25);
}

#[test]
fn a_watermark_that_was_removed_is_not_taken_for_zero() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let launch = stopped(&folder, &database);
        let seq = database.number("SELECT seq FROM destage_watermark");
        let epoch = database.number("SELECT epoch FROM destage_watermark");
        database.execute("DELETE FROM destage_watermark");
        launch.refused().says(14, &["destage_watermark", "Put it back", "taken before"]);
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 15);
        let row = format!(
            "INSERT INTO destage_watermark (domain, seq, epoch) VALUES (0, {seq}, {epoch})"
        );
        database.execute(&row);
        let server = launch.start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 16);
        server.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 16);
    }
}

#[test]
fn an_origin_that_goes_back_to_before_the_servers_start_was_restored_and_not_taken_over() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let launch = stopped(&folder, &database);
        let seq = database.number("SELECT seq FROM destage_watermark");
        let epoch = database.number("SELECT epoch FROM destage_owner");
        let server = launch.start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 16);
        server.drain();
        // As a copy from between the two has it.
        database.execute("UPDATE products SET stock = 15 WHERE id = 1");
        database.execute(&format!("UPDATE destage_watermark SET seq = {seq}, epoch = {epoch}"));
        database.execute(&format!("UPDATE destage_owner SET epoch = {epoch}"));
        server.ends(PATIENCE).says(14, &["restored", "Start again"]);
        let server = launch.start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 17);
        server.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 17);
    }
}

#[test]
fn a_copy_that_owns_an_origin_which_was_restored_is_told_from_our_own_past() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = stopped(&scratch, &database);
    let copy = copied(&launch, &scratch, "copy");
    let backup = scratch.join("backup.db");
    database.execute(&format!("VACUUM INTO '{}'", backup.display()));
    for _ in 0..3 {
        let server = launch.start();
        server.client().run("HINCRBY products:1 stock 1").int();
        server.terminate(PATIENCE).says(0, &[]);
    }
    put_back(&database, &backup);
    // Its epoch is below the newest one that the first folder knows.
    let server = copy.start();
    assert_eq!(server.client().run("HINCRBY products:1 stock 100").int(), 115);
    server.drain();
    launch.refused().says(11, &["another copy"]);
    server.terminate(PATIENCE).says(0, &[]);
    launch.refused().says(11, &["another copy"]);
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 115);
    // Without the copy it is our own past, and replayed.
    put_back(&database, &backup);
    launch.start().drain();
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 18);
}

#[test]
fn a_journal_with_writes_of_its_own_adopts_no_origin_of_another_journal() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let launch = Launch::before(&folder, &database.url());
        let lazy = launch.with(&["--when", "pressure", "--staleness", "1h"]);
        let server = lazy.start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 11);
        server.kill();
        let other = launch.elsewhere(&folder, "other").with(&["--take-over"]);
        let server = other.start();
        for _ in 0..3 {
            server.client().run("HINCRBY products:1 stock 100").int();
        }
        server.drain();
        server.terminate(PATIENCE).says(0, &[]);
        // The other one has decided more writes, but not this one's.
        launch.with(&["--adopt"]).refused().says(11, &["of its own", "journal export"]);
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 310);
    }
}

#[test]
fn a_watermark_that_was_restored_without_its_owner_is_refused() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let launch = stopped(&folder, &database);
        let seq = database.number("SELECT seq FROM destage_watermark");
        let epoch = database.number("SELECT epoch FROM destage_watermark");
        let server = launch.start();
        server.client().run("HINCRBY products:1 stock 10").int();
        server.terminate(PATIENCE).says(0, &[]);
        let of = |name: &str| database.number(&format!("SELECT {name} FROM destage_watermark"));
        let whole = (of("seq"), of("epoch"));
        let put = |(seq, epoch)| {
            database.execute(&format!("UPDATE destage_watermark SET seq = {seq}, epoch = {epoch}"));
        };
        put((seq, epoch));
        launch.refused().says(14, &["not restored together"]);
        put(whole);
        launch.start().terminate(PATIENCE).says(0, &[]);
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 25);
    }
}

#[test]
fn a_watermark_that_says_less_by_the_right_owner_is_believed() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = stopped(&scratch, &database);
    let seq = database.number("SELECT seq FROM destage_watermark");
    let server = launch.start();
    server.client().run("HINCRBY products:1 stock 10").int();
    server.terminate(PATIENCE).says(0, &[]);
    // Nothing tells it from an origin that is behind: the row keeps increments from counting twice.
    database.execute(&format!("UPDATE destage_watermark SET seq = {seq}"));
    launch.start().terminate(PATIENCE).says(0, &[]);
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 35);
}

#[test]
fn starts_that_fail_do_not_make_a_folder_a_stranger_to_its_origin() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let lazy = ["--when", "pressure", "--staleness", "1h"];
        let launch = Launch::before(&folder, &database.url());
        let server = launch.with(&lazy).start();
        server.client().run("HINCRBY products:1 stock 1").int();
        server.kill();
        // As an earlier build left it, and refused more often than is remembered.
        forget(&launch, &database, 7);
        let config = folder.join("domains.toml");
        std::fs::write(
            &config,
            "[[domain]]\nname = \"p\"\ntables = [\"products\"]\nassume_independent = true\n",
        )
        .expect("written");
        for _ in 0..12 {
            let refused = launch.with(&["--config", &config.display().to_string()]).refused();
            refused.says(2, &["undecided"]);
        }
        let server = launch.start();
        server.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 11);
    }
}

#[test]
fn an_adoption_that_a_crash_follows_need_not_be_repeated() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let launch = stopped(&folder, &database);
        let other = launch.elsewhere(&folder, "other");
        other.with(&["--adopt"]).start().kill();
        let server = other.start();
        assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 16);
        server.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 16);
    }
}

#[test]
fn a_journal_that_is_ahead_of_another_journals_origin_does_not_adopt_it() {
    let scratch = Scratch::new();
    let (first, second) = (shop::sqlite(&scratch), shop::sqlite(&scratch.folder("second")));
    let launch = Launch::before(&scratch, &first.url());
    let server = launch.start();
    for _ in 0..3 {
        server.client().run("HINCRBY products:1 stock 1").int();
    }
    server.terminate(PATIENCE).says(0, &[]);
    stopped(&scratch.folder("other"), &second);
    // Everything is destaged, but at the first one.
    let moved = Launch::before(&scratch, &second.url()).with(&["--adopt"]);
    moved.refused().says(11, &["of its own", "behind them"]);
    assert_eq!(second.number("SELECT stock FROM products WHERE id = 1"), 15);
    launch.start().terminate(PATIENCE).says(0, &[]);
}
