//! Members that the origin rejects: seen in their sets, in nobody's way, and decided on.

use super::launch;
use super::sets::mappings;
use crate::harness::{
    Client, Database, Launch, PATIENCE, Proxy, Reply, Scratch, Server, eventually,
};
use crate::parking::{arrives, decided, is_parked, named, ok};

const TABLES: &str = "
CREATE TABLE products (id INTEGER PRIMARY KEY, name VARCHAR(40));
CREATE TABLE tags (
    product_id INTEGER NOT NULL REFERENCES products (id),
    tag VARCHAR(40) NOT NULL,
    PRIMARY KEY (product_id, tag)
);
CREATE TABLE ranks (
    board VARCHAR(20) NOT NULL,
    player VARCHAR(40) NOT NULL,
    points DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (board, player),
    CONSTRAINT ranks_points CHECK (points + 0 < 1000)
);
CREATE TABLE everybody (name VARCHAR(40) PRIMARY KEY, place BIGINT NOT NULL);
INSERT INTO products VALUES (1, 'Lamp');
";

fn databases(scratch: &Scratch) -> Vec<Database> {
    let found = [Some(Database::sqlite(scratch)), Database::postgres(), Database::mariadb()];
    found.into_iter().flatten().map(|database| database.with(TABLES)).collect()
}

/// On every database, with sets that are cached as a whole and with such that are read in parts.
fn on_each(work: impl Fn(&Launch, &Database)) {
    let scratch = Scratch::new();
    for (number, database) in databases(&scratch).into_iter().enumerate() {
        for mappings in [false, true].map(mappings) {
            work(&launch(&scratch, &database, &format!("data-{number}"), &mappings), &database);
            database.execute("DELETE FROM tags");
            database.execute("DELETE FROM ranks");
            database.execute("DELETE FROM products WHERE id <> 1");
        }
    }
}

/// A sorted set's members, in a way that works on large sets, too.
#[track_caller]
fn players(client: &mut Client) -> Vec<String> {
    let reply = ok(client, "ZRANGEBYSCORE rank:a -inf +inf LIMIT 0 10");
    reply.array().iter().map(Reply::text).collect()
}

#[track_caller]
fn tagged(client: &mut Client, tag: &str) -> Vec<String> {
    let reply = ok(client, &format!("SMEMBERS tagged:{tag}"));
    let mut ids: Vec<String> = reply.array().iter().map(Reply::text).collect();
    ids.sort();
    ids
}

#[track_caller]
fn nothing_is_left(server: &Server, database: &Database) {
    server.drain();
    assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 0);
    let status = server.status();
    assert_eq!(status["destage"]["parked_groups"], 0);
    assert_eq!(status["writes"]["pinned_bytes"], 0);
}

#[test]
fn a_rejected_score_is_in_nobodys_way_and_is_edited() {
    on_each(|launch, database| {
        let server = launch.start();
        let (client, other) = (&mut server.client(), &mut server.client());
        arrives(client, "ZADD rank:a 5 ann 7 cid 9 dan 11 eve");
        let bob = is_parked(client, "ZADD rank:a 5000 bob");
        arrives(other, "ZADD rank:a 6 fay");
        assert_eq!(players(client), ["ann", "fay", "cid", "dan", "eve", "bob"]);
        assert_eq!(client.run("ZCARD rank:a").int(), 6);
        let behind = is_parked(client, "ZINCRBY rank:a 1 bob");
        let shown = client.run(&format!("DESTAGE PARKED SHOW {bob}"));
        let payload = named(&shown, "payload").text();
        assert!(payload.contains("bob") && payload.contains("\"insert\""), "{payload}");
        // What it builds on comes first, and the origin still rejects that.
        let early = client.run(&format!("DESTAGE PARKED RETRY {behind}"));
        assert!(early.error().contains("decide on that one first"), "{early:?}");
        let refused = client.run(&format!("DESTAGE PARKED RETRY {bob}"));
        assert!(refused.error().starts_with("REJECTED"), "{refused:?}");
        assert_eq!(client.run("ZSCORE rank:a bob").int(), 5001);

        decided(client, &["SKIP", &behind], &[("skipped", "1"), ("parked", "1")]);
        assert_eq!(client.run("ZSCORE rank:a bob").int(), 5000);
        ok(other, "WATCH rank:a");
        let mended = payload.replace("5000", "8");
        decided(client, &["EDIT", &bob, &mended], &[("applied", "1"), ("parked", "0")]);
        assert_eq!(players(client), ["ann", "fay", "cid", "bob", "dan", "eve"]);
        assert_eq!(client.run("ZCARD rank:a").int(), 6);
        ok(other, "MULTI");
        ok(other, "ZADD rank:a 1 late");
        assert_eq!(other.run("EXEC"), Reply::Nil, "a set that is watched has changed");
        assert_eq!(
            database.number("SELECT CAST(points AS INTEGER) FROM ranks WHERE player = 'bob'"),
            8
        );
        assert_eq!(database.number("SELECT count(*) FROM ranks"), 6);
        arrives(client, "ZINCRBY rank:a 1 bob");
        nothing_is_left(&server, database);
        server.terminate(PATIENCE).says(0, &[]);
    });
}

#[test]
fn a_transaction_that_watched_a_set_is_parked_behind_each_rejected_member_of_it() {
    on_each(|launch, database| {
        let server = launch.start();
        let (client, other) = (&mut server.client(), &mut server.client());
        arrives(client, "ZADD rank:a 5 ann 7 cid");
        let bob = is_parked(client, "ZADD rank:a 5000 bob");
        let dan = is_parked(client, "ZADD rank:a 6000 dan");
        ok(client, "DESTAGE PAUSE");
        ok(client, "ZADD rank:a 7000 eve");
        ok(client, "ZADD rank:a 8 fay");
        ok(other, "WATCH rank:a");
        assert_eq!(players(other).len(), 6);
        ok(other, "MULTI");
        ok(other, "HSET products:1 name watched");
        assert_eq!(ok(other, "EXEC").array().len(), 1);
        // One that watched another set.
        ok(client, "WATCH rank:b");
        ok(client, "MULTI");
        ok(client, "HSET products:2 name other");
        assert_eq!(ok(client, "EXEC").array().len(), 1);
        ok(client, "DESTAGE RESUME");
        assert!(other.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM products WHERE name = 'watched'"), 0);
        assert_eq!(database.number("SELECT count(*) FROM products WHERE name = 'other'"), 1);
        let list = client.run("DESTAGE PARKED LIST");
        let ids: Vec<String> = list.array().iter().map(|one| named(one, "id").text()).collect();
        assert_eq!((ids.len(), &ids[0], &ids[1]), (4, &bob, &dan));
        // It stays until all of them are decided on.
        for (place, id) in ids[..3].iter().enumerate() {
            let early = client.run(&format!("DESTAGE PARKED RETRY {}", ids[3]));
            assert!(early.error().contains("decide on that one first"), "{early:?}");
            decided(client, &["SKIP", id], &[("parked", &(3 - place).to_string())]);
        }
        decided(client, &["RETRY", &ids[3]], &[("applied", "1"), ("parked", "0")]);
        assert_eq!(players(client), ["ann", "cid", "fay"]);
        arrives(client, "HSET products:1 name Lamp");
        nothing_is_left(&server, database);
        server.terminate(PATIENCE).says(0, &[]);
    });
}

#[test]
fn what_is_parked_behind_a_member_that_was_given_up_makes_no_member() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(TABLES);
    let server = launch(&scratch, &database, "data", &mappings(false)).start();
    let client = &mut server.client();
    arrives(client, "ZADD rank:a 5 ann");
    let bob = is_parked(client, "ZADD rank:a 5000 bob");
    let behind = is_parked(client, "HINCRBYFLOAT ranks:a:bob points 1");
    decided(client, &["SKIP", &bob], &[("skipped", "1"), ("parked", "1")]);
    assert_eq!(players(client), ["ann"]);
    assert_eq!(client.run("ZCARD rank:a").int(), 1);
    assert_eq!(client.run("ZSCORE rank:a bob"), Reply::Nil);
    decided(client, &["SKIP", &behind], &[("skipped", "1"), ("parked", "0")]);
    arrives(client, "ZADD rank:a 6 bob");
    assert_eq!(players(client), ["ann", "bob"]);
    nothing_is_left(&server, &database);
}

#[test]
fn a_rejected_member_is_seen_in_both_directions_through_a_crash_until_it_is_decided_on() {
    on_each(|launch, database| {
        let server = launch.start();
        let client = &mut server.client();
        let red = is_parked(client, "SADD tags:99 red");
        // The same set seen from the other side, and nothing that builds on the one above.
        arrives(client, "SADD tags:1 red");
        assert_eq!(tagged(client, "red"), ["1", "99"]);
        let refused = client.run(&format!("DESTAGE PARKED RETRY {red}"));
        assert!(refused.error().starts_with("REJECTED"), "{refused:?}");
        assert_eq!(client.run("SCARD tags:99").int(), 1);
        database.execute("INSERT INTO products VALUES (99, 'found')");
        decided(client, &["RETRY", &red], &[("applied", "1"), ("parked", "0")]);
        assert_eq!(tagged(client, "red"), ["1", "99"]);
        assert_eq!(client.run("SCARD tagged:red").int(), 2);
        assert_eq!(database.number("SELECT count(*) FROM tags"), 2);

        let given_up = is_parked(client, "SADD tags:98 red");
        is_parked(client, "SADD tags:97 red new");
        server.kill();
        let server = launch.start();
        let client = &mut server.client();
        assert_eq!(tagged(client, "red"), ["1", "97", "98", "99"]);
        decided(client, &["SKIP", &given_up], &[("skipped", "1"), ("parked", "1")]);
        assert_eq!(tagged(client, "red"), ["1", "97", "99"]);
        assert_eq!(client.run("EXISTS tags:98").int(), 0);
        database.execute("INSERT INTO products VALUES (97, 'found')");
        decided(client, &["RETRY", "ALL"], &[("applied", "1"), ("parked", "0")]);
        assert_eq!(
            (client.run("SCARD tags:97").int(), client.run("SCARD tagged:red").int()),
            (2, 3)
        );
        assert_eq!(database.number("SELECT count(*) FROM tags"), 4);
        nothing_is_left(&server, database);
        server.terminate(PATIENCE).says(0, &[]);
    });
}

#[test]
fn members_whose_retry_has_an_unknown_outcome_are_counted_once() {
    let databases = [Database::postgres(), Database::mariadb()].into_iter().flatten();
    for database in databases.map(|database| database.with(TABLES)) {
        let scratch = Scratch::new();
        let (proxy, url) = Proxy::before(&database.url());
        let path = scratch.join("destage.toml");
        std::fs::write(&path, mappings(true)).expect("the settings can be written");
        let path = path.to_str().expect("the path is text");
        let server = Launch::before(&scratch, &url).with(&["--config", path]).start();
        let (client, reader) = (&mut server.client(), &mut server.client());
        arrives(client, "ZADD rank:a 5 ann 7 cid 9 dan 11 eve");
        let bob = is_parked(client, "ZADD rank:a 5000 bob");
        database.execute("ALTER TABLE ranks DROP CONSTRAINT ranks_points");
        proxy.lose_next_commit();
        client.send(&["DESTAGE", "PARKED", "RETRY", &bob]).expect("it is sent");
        eventually("it is committed", PATIENCE, || proxy.has_lost());
        // Nobody has asked for this part before: it comes once the server knows.
        let questions = ["ZRANGEBYSCORE rank:a 100 +inf LIMIT 0 3", "ZCARD rank:a"];
        for question in questions {
            reader.send(&question.split(' ').collect::<Vec<_>>()).expect("it is sent");
        }
        proxy.cut();
        let reply = client.receive().expect("the server finds out");
        assert!(reply.pairs().contains(&("applied".into(), "1".into())), "{reply:?}");
        let replies = questions.map(|_| reader.receive().expect("it comes"));
        let [shown, count] = [0, 1].map(|at| answered(reader, questions[at], replies[at].clone()));
        assert_eq!(shown.array().iter().map(Reply::text).collect::<Vec<_>>(), ["bob"]);
        assert_eq!(count.int(), 5);
        nothing_is_left(&server, &database);
    }
}

/// A reply that was on its way while the proxy cut all connections; what was just connecting then is asked for again.
fn answered(client: &mut Client, question: &str, mut reply: Reply) -> Reply {
    eventually(question, PATIENCE, || {
        let is_cut = matches!(&reply, Reply::Error(error) if error.starts_with("UNAVAILABLE"));
        if is_cut {
            reply = client.run(question);
        }
        !is_cut
    });
    reply
}
