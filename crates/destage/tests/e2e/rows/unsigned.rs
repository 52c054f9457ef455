//! Columns of MariaDB that hold no negative values.

use crate::harness::{Database, Launch, PATIENCE, Scratch};

#[test]
fn unsigned_columns_refuse_negative_values_in_the_reply_and_can_be_decremented() {
    let Some(database) = Database::mariadb() else { return };
    let database = database.with(
        "CREATE TABLE prices (id ID , d DECIMAL(10, 2) UNSIGNED, f FLOAT UNSIGNED, g DOUBLE UNSIGNED)",
    );
    let scratch = Scratch::new();
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.start();
    let mut client = server.client();
    for column in ["d", "f", "g"] {
        let refused = client.run(&format!("HSET prices:1 {column} -0.5"));
        assert!(refused.error().contains("numbers from 0 on"), "{refused:?}");
    }
    assert_eq!(client.run("HSET prices:1 d -0 f 1.5 g 2.5").int(), 3);
    assert_eq!(client.run("HINCRBYFLOAT prices:1 d 7.25").text(), "7.25");
    for column in ["d", "f", "g"] {
        let refused = client.run(&format!("HINCRBYFLOAT prices:1 {column} -100"));
        assert!(refused.error().contains("numbers from 0 on"), "{column}: {refused:?}");
        client.run(&format!("HINCRBYFLOAT prices:1 {column} -0.25")).text();
    }
    let expected = [("d", "7.00"), ("f", "1.25"), ("g", "2.25")];
    let mut read =
        || expected.map(|(column, _)| client.run(&format!("HGET prices:1 {column}")).text());
    assert_eq!(read(), expected.map(|(_, value)| value.to_owned()));
    assert_eq!(server.status()["destage"]["parked_groups"], 0);
    server.drain();
    assert_eq!(database.value("SELECT d FROM prices"), "7.00");
    server.terminate(PATIENCE).says(0, &[]);
    let server = launch.start();
    let mut client = server.client();
    let mut read =
        || expected.map(|(column, _)| client.run(&format!("HGET prices:1 {column}")).text());
    assert_eq!(read(), expected.map(|(_, value)| value.to_owned()));
    assert_eq!(server.status()["destage"]["parked_groups"], 0);
}
