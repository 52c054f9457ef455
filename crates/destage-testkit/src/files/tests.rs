//! The books against a plain folder, and against losses that are put there.

use super::*;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// A client that has worked for so many operations, none of which is durable any more than its last `fsync`.
fn worked(folder: &Path, seed: u64, count: u64) -> Client {
    let mut client = Client::new(folder, seed, Instant::now());
    let ended = client.work(|acknowledged| acknowledged >= count);
    assert!(matches!(ended, Ended::Stopped), "{ended:?}");
    client
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

/// Makes everything so far durable.
fn synced(client: &mut Client) {
    client.books.durable();
}

fn checked(client: &Client) -> Result<Found, String> {
    client.books.check(&look(client.folder()).expect("it can be read"))
}

/// A file that is there and not empty.
fn some_file(client: &Client) -> String {
    let tree = client.books.present();
    let files = tree.names_of(|entry| matches!(entry, Entry::File(_)));
    let full = |name: &&&str| tree.content(name).is_some_and(|one| one.bytes.len() > 100);
    files.iter().find(full).expect("after so many operations").to_string()
}

#[test]
fn a_folder_is_what_the_books_say() {
    for seed in 0..20 {
        let folder = folder();
        let client = worked(folder.path(), seed, 300);
        let found = checked(&client).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        let volatile = client.books.volatile();
        assert!(found.moments.end() + 1 > volatile, "seed {seed}: {found:?}");
    }
}

/// What was there after each operation: all of it may be found again, as long as nothing after it was made durable.
#[test]
fn each_moment_since_the_last_durable_one_is_allowed_and_none_before() {
    let (mut allowed, mut refused) = (0, 0);
    for seed in 0..3 {
        let folder = folder();
        let mut client = worked(folder.path(), seed, 40);
        let mut moments = Vec::new();
        for _ in 0..25 {
            let until = client.books.acknowledged() + 1;
            client.work(|acknowledged| acknowledged >= until);
            moments.push((client.books.operations(), look(folder.path()).expect("it can be read")));
        }
        let durable = client.books.operations() - client.books.volatile();
        for (moment, seen) in &moments {
            let checked = client.books.check(seen);
            match checked {
                Ok(_) if *moment >= durable => allowed += 1,
                // Two operations that cancel each other look like none.
                Ok(found) => {
                    assert!(*found.moments.start() >= durable, "{found:?}, durable are {durable}");
                }
                Err(what) if *moment >= durable => panic!("seed {seed}: {what}"),
                Err(what) => {
                    assert!(what.contains("lost: all is as after "), "seed {seed}: {what}");
                    refused += 1;
                }
            }
        }
    }
    assert!(allowed > 3 && refused > 20, "{allowed} allowed, {refused} refused");
}

#[test]
fn a_durable_file_that_is_lost_is_noticed() {
    let folder = folder();
    let mut client = worked(folder.path(), 2, 300);
    synced(&mut client);
    fs::remove_file(folder.path().join(some_file(&client))).expect("it is there");
    let what = checked(&client).expect_err("a file was lost");
    assert!(what.contains("lost: "), "{what}");
}

#[test]
fn zeros_where_data_belongs_are_noticed() {
    let folder = folder();
    let mut client = worked(folder.path(), 3, 300);
    synced(&mut client);
    let file = File::options().write(true).open(folder.path().join(some_file(&client)));
    file.and_then(|file| file.write_at(&[0; 50], 40)).expect("it can be written");
    let what = checked(&client).expect_err("data was lost");
    assert!(what.contains("zeros: "), "{what}");
}

#[test]
fn a_name_that_returns_is_noticed() {
    let folder = folder();
    let mut client = worked(folder.path(), 4, 300);
    let name = some_file(&client);
    let kept = fs::read(folder.path().join(&name)).expect("it is there");
    fs::remove_file(folder.path().join(&name)).expect("it is there");
    client.books.begin(Change::Unlink { name: name.clone() }, 0);
    client.books.end(0);
    synced(&mut client);
    checked(&client).expect("that is what was done");
    fs::write(folder.path().join(&name), kept).expect("it can be written");
    let what = checked(&client).expect_err("a file returned");
    assert!(what.contains("returned: "), "{what}");
}

#[test]
fn bytes_of_an_older_version_are_noticed() {
    let folder = folder();
    let mut client = worked(folder.path(), 5, 300);
    let name = some_file(&client);
    let path = folder.path().join(&name);
    let old = fs::read(&path).expect("it is there");
    let change = Change::Write { name, offset: 0, len: 60, version: 99 };
    File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.write_at(&bytes(99, 60), 0))
        .expect("it can be written");
    client.books.begin(change, 0);
    client.books.end(0);
    checked(&client).expect("that is what was done");
    // Before it is durable the old version may be there, after it not.
    let new = fs::read(&path).expect("it is there");
    fs::write(&path, &old).expect("it can be written");
    checked(&client).expect("it was not durable");
    fs::write(&path, &new).expect("it can be written");
    synced(&mut client);
    checked(&client).expect("that is what was done");
    fs::write(&path, &old).expect("it can be written");
    let what = checked(&client).expect_err("an older version is there");
    assert!(what.contains("lost: "), "{what}");
}

/// Two files made one after the other: the second one alone is of no moment.
#[test]
fn names_out_of_order_are_noticed() {
    let folder = folder();
    let mut client = Client::new(folder.path(), 6, Instant::now());
    for name in ["f1", "f2"] {
        File::create(folder.path().join(name)).expect("it can be made");
        let mode = fs::metadata(folder.path().join(name)).expect("it is there");
        let mode = std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o7777;
        client.books.begin(Change::Create { name: name.to_owned(), mode }, 0);
        client.books.end(0);
    }
    checked(&client).expect("that is what was done");
    fs::remove_file(folder.path().join("f2")).expect("it is there");
    checked(&client).expect("the first one alone is a moment");
    File::create(folder.path().join("f2")).expect("it can be made");
    fs::remove_file(folder.path().join("f1")).expect("it is there");
    let what = checked(&client).expect_err("the second one alone is none");
    assert!(what.contains("out of order: "), "{what}");
}

/// One client's operation was answered before the other's began.
#[test]
fn clients_out_of_order_are_noticed() {
    let books = |begun, ended| {
        let mut books = Books::default();
        books.begin(Change::MakeDir { name: "d".to_owned() }, begun);
        books.end(ended);
        books
    };
    let (first, second) = (books(1, 2), books(3, 4));
    let (there, lost) = (Found { moments: 1..=1 }, Found { moments: 0..=0 });
    across(&[(&first, &there), (&second, &lost)]).expect("the later one may be lost");
    across(&[(&first, &lost), (&second, &there)]).expect_err("the earlier one alone may not");
    let beside = books(1, 4);
    across(&[(&beside, &lost), (&second, &there)]).expect("they were under way together");
}

#[test]
fn an_operation_without_an_answer_may_be_there_or_not() {
    let folder = folder();
    let mut client = worked(folder.path(), 7, 100);
    synced(&mut client);
    client.books.begin(Change::MakeDir { name: "new".to_owned() }, 0);
    checked(&client).expect("it may not be there");
    fs::create_dir(folder.path().join("new")).expect("it can be made");
    let found = checked(&client).expect("it may be there");
    client.books.go_on(&found);
    checked(&client).expect("from now on it is");
    fs::remove_dir(folder.path().join("new")).expect("it is there");
    checked(&client).expect_err("from now on it is");
}

/// What was synced is durable, and what was done before; what came after it is not.
#[test]
fn only_what_was_synced_is_durable() {
    let folder = folder();
    let mut client = Client::new(folder.path(), 8, Instant::now());
    let make = |client: &mut Client, name: &str| {
        fs::create_dir(folder.path().join(name)).expect("it can be made");
        client.books.begin(Change::MakeDir { name: name.to_owned() }, 0);
        client.books.end(0);
    };
    for name in ["a", "b", "c"] {
        make(&mut client, name);
    }
    client.books.durable_of("b");
    assert_eq!(client.books.volatile(), 1, "a and b are durable");
    fs::remove_dir(folder.path().join("c")).expect("it is there");
    checked(&client).expect("c was not durable");
    fs::remove_dir(folder.path().join("b")).expect("it is there");
    checked(&client).expect_err("b was durable");
    client.books.durable_of("");
    assert_eq!(client.books.volatile(), 0, "all names of the top are durable");
}

#[test]
fn no_byte_that_is_written_is_zero() {
    for version in [0, 1, 127, 128, u64::MAX] {
        assert!(bytes(version, 100).iter().all(|&byte| byte != 0));
    }
    assert_ne!(bytes(1, 8), bytes(2, 8));
}
