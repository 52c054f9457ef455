//! A test's own MongoDB server (FerretDB), seen past Destage.

use super::scratch::{Scratch, adopt, release};
use super::server::signal;
use super::{PATIENCE, eventually, prepared};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::FindOneOptions;
use rustix::process::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::runtime::{Builder, Runtime};

/// A server with one database, `shop`. Ended when dropped.
pub(crate) struct Ferret {
    program: String,
    folder: PathBuf,
    address: String,
    running: Option<(Child, ChildStdin)>,
    runtime: Runtime,
}

impl Ferret {
    /// Starts one; `None` (after saying so) where there is no program for it.
    #[track_caller]
    pub(crate) fn start(scratch: &Scratch) -> Option<Self> {
        let program = prepared("DESTAGE_TEST_FERRETDB")?;
        let folder = scratch.join("ferretdb");
        std::fs::create_dir(&folder).expect("a folder can be made");
        let address = free_address();
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut server = Self { program, folder, address, running: None, runtime };
        server.restart();
        Some(server)
    }

    /// As `--origin` takes it.
    pub(crate) fn url(&self) -> String {
        format!("mongodb://{}/shop", self.address)
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) {
        let Some((mut child, _pipe)) = self.running.take() else { return };
        signal(child.id(), Signal::KILL);
        child.wait().expect("the process is ours");
        release(child.id());
    }

    /// Starts it again at the same address.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        eventually("FerretDB starts", PATIENCE, || self.try_start());
    }

    /// False if it has given up, its port being in use, say.
    fn try_start(&mut self) -> bool {
        let log = File::options().create(true).append(true).open(self.folder.join("log"));
        let mut child = Command::new(&self.program)
            .arg(&self.address)
            .arg(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.expect("the log can be written"))
            .spawn()
            .expect("FerretDB starts");
        adopt(child.id());
        let mut ready = String::new();
        let output = child.stdout.take().expect("the output is piped");
        BufReader::new(output).read_line(&mut ready).expect("FerretDB prints its address");
        let pipe = child.stdin.take().expect("the input is piped");
        self.running = Some((child, pipe));
        let is_ready = ready.starts_with("mongodb://");
        if !is_ready {
            self.kill();
        }
        is_ready
    }

    /// Runs a command.
    ///
    /// # Panics
    /// If the server refuses it or any part of it.
    #[track_caller]
    pub(crate) fn command(&self, command: Document) -> Document {
        let shown = command.to_string();
        let reply = self.ask(async |client| client.database("shop").run_command(command).await);
        assert!(!reply.contains_key("writeErrors"), "{shown}: {reply}");
        reply
    }

    /// Gives a collection another name.
    #[track_caller]
    pub(crate) fn rename(&self, from: &str, to: &str) {
        let names = |name: &str| format!("shop.{name}");
        let command = doc! { "renameCollection": names(from), "to": names(to) };
        self.ask(async |client| client.database("admin").run_command(command).await);
    }

    /// Puts documents into a collection.
    #[track_caller]
    pub(crate) fn insert(&self, collection: &str, documents: Vec<Document>) {
        self.command(doc! { "insert": collection, "documents": documents });
    }

    /// A document, without its guard.
    #[track_caller]
    pub(crate) fn document(&self, collection: &str, filter: Document) -> Option<Document> {
        let mut found = self.whole(collection, filter)?;
        found.remove("_destage");
        Some(found)
    }

    /// A document with everything that is in it.
    #[track_caller]
    pub(crate) fn whole(&self, collection: &str, filter: Document) -> Option<Document> {
        self.ask(async |client| {
            let collection = client.database("shop").collection::<Document>(collection);
            collection.find_one(filter).with_options(FindOneOptions::default()).await
        })
    }

    /// A whole number in a document; 0 where it is not.
    #[track_caller]
    pub(crate) fn number(&self, collection: &str, filter: Document, field: &str) -> i64 {
        let found = self.whole(collection, filter);
        let number = found.as_ref().and_then(|found| found.get(field));
        number.and_then(|n| n.as_i64().or_else(|| n.as_i32().map(i64::from))).unwrap_or(0)
    }

    /// How many documents there are.
    #[track_caller]
    pub(crate) fn count(&self, collection: &str) -> i64 {
        self.number_of(self.command(doc! { "count": collection }))
    }

    fn number_of(&self, reply: Document) -> i64 {
        let n = reply.get("n").expect("a count has a number");
        n.as_i64().or_else(|| n.as_i32().map(i64::from)).expect("it is whole")
    }

    #[track_caller]
    fn ask<T>(&self, question: impl AsyncFnOnce(Client) -> mongodb::error::Result<T>) -> T {
        let url = format!("mongodb://{}/?directConnection=true", self.address);
        let answer = self.runtime.block_on(async {
            let client = Client::with_uri_str(&url).await?;
            tokio::time::timeout(PATIENCE, question(client)).await.expect("FerretDB answers")
        });
        answer.expect("FerretDB takes it")
    }
}

/// An address that nobody uses, out of the range from which the kernel gives ports to connections, so that it stays free
/// while the server is down.
fn free_address() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) + std::process::id().wrapping_mul(61);
        let port = 20_000 + (number % 12_000) as u16;
        if let Ok(free) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return free.local_addr().expect("it is bound").to_string();
        }
    }
}

impl Drop for Ferret {
    fn drop(&mut self) {
        self.kill();
    }
}
