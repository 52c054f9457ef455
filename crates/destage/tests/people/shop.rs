//! The shop of the examples: `destage schema` explains its tables, and its applications sell through an outage of the
//! database, and a kill of the server in it. Then the database has each sale once.

mod applications;
mod ledger;

use crate::harness::server::binary;
use crate::harness::{
    Database, Kind, Launch, OwnServer, PATIENCE, Redis, Scratch, Server, eventually, output,
    seconds,
};
use applications::{Application, applications, example, fastapi};
use ledger::{CUSTOMERS, Ledger, PRODUCTS, STOCK, Worker, differences, in_redis, in_the_database};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Each table, and those that it refers to.
const TABLES: [(&str, &str); 6] = [
    ("customers", ""),
    ("deliveries", "products"),
    ("order_lines", "orders, products"),
    ("orders", "customers"),
    ("payments", "orders"),
    ("products", ""),
];
/// How long the database is away.
const OUTAGE: Duration = seconds(20);
/// Orders of each customer that were begun before an outage.
const BEGUN: usize = 15;

/// The shop in that database.
fn opened(database: Database) -> Database {
    database.execute(&std::fs::read_to_string(example("schema.sql")).expect("the tables"));
    database
}

fn launch(scratch: &Scratch, database: &Database) -> Launch {
    let settings = example("destage.toml").display().to_string();
    Launch::before(scratch, &database.url()).with(&["--config", &settings])
}

#[test]
fn the_schema_explains_each_table_in_a_line_and_none_is_excepted() {
    let Some(database) = Database::postgres().map(opened) else { return };
    let schema = |more: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("schema").args(["--origin", &database.url(), "--config"]);
        output(command.arg(example("destage.toml")).args(more))
    };
    let shown = schema(&[]);
    let said = "6 tables can be reached; writes of all of them are buffered\n";
    assert!(shown.contains(said) && !shown.contains("not reachable"), "{shown}");
    for (table, parents) in TABLES {
        let line = shown.lines().find(|line| line.starts_with(&format!("{table}:{{")));
        let (_, line) = line.expect("a line of the table").split_once("   ").expect("two parts");
        let buffered = "writes are buffered; trigger touched sets updated_at to the time, and does nothing else";
        let refers =
            if parents.is_empty() { String::new() } else { format!("; references {parents}") };
        assert!(line.starts_with(&format!("{buffered}{refers}")), "{table}: {shown}");
    }
    // Nor is any of its CHECKs left to the database.
    let checks: Vec<&str> = shown.lines().filter(|line| line.contains(" CHECK (")).collect();
    assert_eq!(checks.len(), 8, "{shown}");
    assert!(
        checks.iter().all(|line| line.ends_with("judged before the acknowledgement")),
        "{shown}"
    );
    let json = schema(&["--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    for table in json["tables"].as_array().expect("a list") {
        assert!(table["writes_go_through"].is_null() && table["ack_origin"] == false, "{table}");
        let columns = table["columns"].as_array().expect("a list");
        let fixed = columns.iter().filter(|c| c["writable"] == false && c["key"] == false);
        assert_eq!(fixed.count(), 0, "{table}");
    }
}

/// Two customers of each of these applications, and one who comes while the database is away.
struct Customers<'a> {
    regulars: Vec<Worker<'a>>,
    newcomers: Vec<Worker<'a>>,
}

impl<'a> Customers<'a> {
    fn of(applications: &'a [Application]) -> Self {
        let mut numbers = 0..;
        let mut new = |one| Worker::new(one, numbers.next().expect("there is no last"));
        Self {
            regulars: applications.iter().flat_map(|one| [one, one]).map(&mut new).collect(),
            newcomers: applications.iter().map(&mut new).collect(),
        }
    }

    /// What all of them were told.
    fn ledger(&self) -> Ledger {
        let mut all = Ledger::default();
        let workers = self.regulars.iter().chain(&self.newcomers);
        workers.for_each(|worker| all.add(worker.ledger.clone()));
        all
    }

    /// They go on while the database is away, and until it is back.
    ///
    /// # Panics
    /// If an application answers with an error, or too little is sold meanwhile.
    fn sell_without(&mut self, origin: &mut OwnServer, then: impl FnOnce(&mut OwnServer, Instant)) {
        self.regulars.iter_mut().for_each(|worker| worker.begin(BEGUN));
        origin.stop();
        let gone = Instant::now();
        let placed = AtomicUsize::new(0);
        let enough = self.regulars.len() * BEGUN / 4;
        thread::scope(|scope| {
            for worker in &mut self.regulars {
                let placed = &placed;
                scope.spawn(move || {
                    for order in 1.. {
                        if !worker.sell_next() {
                            break;
                        }
                        placed.fetch_add(1, Ordering::Relaxed);
                        // So that there is something to sell all the time.
                        let due = OUTAGE / BEGUN as u32 * order;
                        thread::sleep(due.saturating_sub(gone.elapsed()));
                    }
                });
            }
            for worker in &mut self.newcomers {
                scope.spawn(move || {
                    worker.begin(1);
                    worker.sell_next();
                });
            }
            eventually("enough is sold without the database", PATIENCE, || {
                placed.load(Ordering::Relaxed) >= enough
            });
            then(origin, gone);
        });
    }
}

#[test]
fn the_applications_sell_through_an_outage_and_a_kill_and_nothing_is_lost_or_doubled() {
    let scratch = Scratch::new();
    let Some(mut origin) = OwnServer::start(Kind::Postgres) else { return };
    let database = opened(origin.database());
    let launch = launch(&scratch, &database);
    let mut server = launch.start();
    let launch = launch.listening(&server.listen.to_string());
    let Some(applications) = applications(&scratch, &server.port()) else { return };
    let mut customers = Customers::of(&applications);
    let counted = |server: &Server, what: &str| {
        let status = server.status();
        status["clients"][what].as_u64().expect("it is counted")
    };
    let all_is_there = |customers: &Customers<'_>, server: &Server| {
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 0);
        let ledger = customers.ledger();
        assert_eq!(differences(&ledger.lines(), &in_the_database(&database)), [""; 0]);
        ledger.placed()
    };

    customers.sell_without(&mut origin, |origin, gone| {
        thread::sleep(OUTAGE.saturating_sub(gone.elapsed()));
        origin.restart();
    });
    // redis-py asks each connection for notices of maintenance, which a plain Redis has as little. Nothing else fails: an
    // application passes on any other error, since it sends nothing again.
    let (errors, connections) =
        (counted(&server, "errors_total"), counted(&server, "accepted_total"));
    assert!(errors <= connections, "{errors} commands were answered with an error");
    let in_a_round = customers.regulars.len() * BEGUN + customers.newcomers.len();
    assert_eq!(all_is_there(&customers, &server), in_a_round);

    // Sales that only the journal has.
    let mut next = None;
    customers.sell_without(&mut origin, |origin, _| {
        assert!(server.status()["writes"]["dirty_groups"].as_u64() > Some(0));
        server.kill();
        origin.restart();
        next = Some(launch.start());
    });
    server = next.expect("it was started");
    assert_eq!(all_is_there(&customers, &server), 2 * in_a_round);
}

/// The tests run the applications with the packages that were installed for the recipes.
#[test]
fn the_libraries_are_those_of_the_recipes() {
    let of = |folder: &str, file: &str| {
        let path = example("..").join(folder).join(file);
        std::fs::read_to_string(path).expect("it is there")
    };
    let [shop, recipe] = ["shop", "recipes"].map(|folder| of(folder, "python/requirements.txt"));
    assert!(shop.lines().all(|pinned| recipe.lines().any(|line| line == pinned)), "{shop}");
    let [shop, recipe] = ["shop", "recipes"].map(|folder| -> serde_json::Value {
        serde_json::from_str(&of(folder, "node/package.json")).expect("it is JSON")
    });
    assert_eq!(shop["dependencies"], recipe["dependencies"]);
}

/// The applications are programs for Redis: nothing in them is for Destage alone.
#[test]
fn the_applications_sell_before_a_plain_redis() {
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    let mut client = redis.client();
    for (product, cents) in PRODUCTS {
        let price = format!("{}.{:02}", cents / 100, cents % 100);
        client.run(&format!("HSET products:{product} name some price {price} stock {STOCK}"));
    }
    for customer in CUSTOMERS {
        client.run(&format!("HSET customers:{customer} name somebody points 0"));
    }
    let Some(applications) = applications(&scratch, &redis.port()) else { return };
    let mut customers = Customers::of(&applications);
    for worker in &mut customers.regulars {
        worker.begin(3);
        while worker.sell_next() {}
    }
    let ledger = customers.ledger();
    assert_eq!(ledger.placed(), 18);
    assert_eq!(differences(&ledger.lines(), &in_redis(&mut client, &ledger)), [""; 0]);
}

/// The comparison finds a sale that an application counts twice, and one that is lost with the journal.
#[test]
fn what_is_doubled_or_lost_is_found() {
    let scratch = Scratch::new();
    let Some(database) = Database::postgres().map(opened) else { return };
    let launch = launch(&scratch, &database);
    let server = launch.start();
    // An edition that does not look whether the order is placed already.
    let folder = scratch.folder("forgetful");
    let program = std::fs::read_to_string(example("python/fastapi_app.py")).expect("it is there");
    let look = "        if status == \"placed\":\n            return total\n";
    assert_eq!(program.matches(look).count(), 1);
    std::fs::write(folder.join("fastapi_app.py"), program.replace(look, "")).expect("written");
    std::fs::copy(example("python/shop.py"), folder.join("shop.py")).expect("it can be copied");
    let Some(application) = fastapi(&scratch, &server.port(), &folder.join("")) else { return };
    let applications = [application];
    let mut customers = Customers::of(&applications);
    let found = |customers: &Customers<'_>, server: &Server| {
        server.drain();
        differences(&customers.ledger().lines(), &in_the_database(&database))
    };
    let [worker, _] = &mut customers.regulars[..] else { panic!("there are two") };
    worker.begin(5);
    while worker.sell_next() {}
    let doubled = found(&customers, &server);
    assert!(
        doubled.iter().any(|line| line.starts_with("there, but not told: stock ")),
        "{doubled:?}"
    );

    let [_, worker] = &mut customers.regulars[..] else { panic!("there are two") };
    worker.begin(1);
    server.drain();
    server.client().run("DESTAGE PAUSE").ok();
    worker.sell_next();
    let listen = server.listen.to_string();
    server.kill();
    std::fs::remove_dir_all(launch.data()).expect("the journal can be removed");
    let server = launch.listening(&listen).with(&["--take-over"]).start();
    let lost = found(&customers, &server);
    assert!(lost.iter().any(|line| line.starts_with("told, but not there: payment ")), "{lost:?}");
}
