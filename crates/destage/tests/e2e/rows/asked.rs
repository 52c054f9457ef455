//! What the tests of `fk = "ask"` and of `unique = "ask"` share.

use crate::harness::{Database, Launch, Scratch, Server};

/// The launch with a settings file of these sections.
pub(super) fn with_sections(launch: &Launch, scratch: &Scratch, sections: &str) -> Launch {
    let file = scratch.join("destage.toml");
    std::fs::write(&file, sections).expect("the settings can be written");
    launch.with(&["--config", &file.display().to_string()])
}

/// Before each kind of database with these tables, under these sections.
pub(super) fn on_each(tables: &str, sections: &str, body: impl Fn(&Launch, Server, &Database)) {
    let scratch = Scratch::new();
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(tables);
        let launch = Launch::before(&scratch, &database.url());
        let launch = with_sections(&launch, &scratch, sections);
        let launch = launch.elsewhere(&scratch, &format!("data-{number}"));
        let server = launch.start();
        body(&launch, server, &database);
    }
}

/// How many groups the server says are parked.
pub(super) fn parked(server: &Server) -> i64 {
    server.status()["destage"]["parked_groups"].as_i64().expect("a number")
}
