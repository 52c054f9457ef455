//! The origin's tables change while writes are in the journal: each write says by names what it changes, so it arrives where
//! it belongs, or the start says which writes have lost their place.

use crate::harness::{Database, Launch, PATIENCE, Scratch, Server, shop};

/// Destages nothing by itself.
const HELD_BACK: [&str; 4] = ["--when", "pressure", "--staleness", "1h"];

/// Leaves these writes in the journal.
fn leave(launch: &Launch, commands: &[&str]) {
    let server: Server = launch.start();
    let mut client = server.client();
    for command in commands {
        let reply = client.run(command);
        assert!(!reply.is_error(), "{command}: {reply:?}");
    }
    server.kill();
}

fn on_each_shop(body: impl Fn(&Launch, &Database)) {
    let scratch = Scratch::new();
    for (number, database) in shop::each(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url()).with(&HELD_BACK);
        body(&launch.elsewhere(&scratch, &format!("data-{number}")), &database);
    }
}

#[test]
fn a_column_that_vanished_is_refused_at_the_start_with_the_writes_that_need_it() {
    on_each_shop(|launch, database| {
        leave(
            launch,
            &[
                "HSET customers:1 name b",
                "HSET orders:1 note c",
                "HSET customers:2 name d",
                "HSET orders:1 note e",
                "HSET orders:1 status f",
            ],
        );
        database.execute("ALTER TABLE orders DROP COLUMN note");
        let said = "write 2 needs what is not there: the column orders.note is gone; \
                    1 later ones do not fit either: 4";
        launch.refused().says(13, &[said, "journal export"]);
        let names = "SELECT name FROM customers WHERE id < 3 ORDER BY id";
        assert_eq!(database.rows(names), [["Ada"], ["Grace"]], "nothing was done");
        database.execute("ALTER TABLE orders ADD COLUMN note TEXT");
        let server = launch.start();
        server.drain();
        assert_eq!(database.rows(names), [["b"], ["d"]]);
        assert_eq!(database.rows("SELECT note, status FROM orders WHERE id = 1"), [["e", "f"]]);
        server.terminate(PATIENCE).says(0, &[]);
    });
}

#[test]
fn a_column_whose_type_takes_no_increments_any_more_is_refused_at_the_start() {
    on_each_shop(|launch, database| {
        let (to_text, to_number) = match database {
            // SQLite changes no types.
            Database::Sqlite(_) => return,
            Database::Postgres(_) => {
                ("ALTER COLUMN stock TYPE TEXT", "ALTER COLUMN stock TYPE INTEGER USING stock::int")
            }
            Database::Mariadb(_) => ("MODIFY stock TEXT", "MODIFY stock INTEGER"),
        };
        leave(launch, &["HSET customers:1 name b", "HINCRBY products:1 stock 5"]);
        database.execute(&format!("ALTER TABLE products {to_text}"));
        let said = "write 2 needs what is not there: the column products.stock was int";
        launch.refused().says(13, &[said, "has no place in", "journal export"]);
        database.execute(&format!("ALTER TABLE products {to_number}"));
        let server = launch.start();
        assert_eq!(server.client().run("HGET products:1 stock").text(), "15");
        server.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 15);
    });
}

#[test]
fn writes_find_their_columns_by_name_where_others_came_and_went() {
    on_each_shop(|launch, database| {
        leave(launch, &["HSET orders:1 note kept", "HINCRBY products:1 stock 5"]);
        // The columns behind it have other places now.
        database.execute("ALTER TABLE orders DROP COLUMN status");
        database.execute("ALTER TABLE products ADD COLUMN colour TEXT");
        let server = launch.start();
        let mut client = server.client();
        assert_eq!(client.run("HGET orders:1 note").text(), "kept");
        assert_eq!(client.run("HSET products:1 colour red").int(), 1);
        server.drain();
        assert_eq!(database.value("SELECT note FROM orders WHERE id = 1"), "kept");
        let row = database.rows("SELECT stock, colour FROM products WHERE id = 1");
        assert_eq!(row, [["15", "red"]]);
    });
}
