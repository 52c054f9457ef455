//! MongoDB's protocol, spoken by a FerretDB of the test's own, which `DESTAGE_TEST_FERRETDB` names the program of.

use crate::claimed::{Claimed, change};
use destage_core::{DomainId, Fault, Lsn};
use destage_origins::change::Op;
use destage_origins::contract::{GroupRef, ParkedGroup};
use destage_origins::origins::Mongo;
use destage_origins::parked;
use destage_origins::settings::{DocumentSettings, TableSettings};
use destage_testkit::needs::prepared;
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// A server, which ends when it is stopped.
pub(crate) struct Server {
    address: String,
    child: Mutex<Child>,
    runtime: Runtime,
    _folder: TempDir,
}

impl Server {
    /// `None` (after saying so) where there is no program for it.
    pub(crate) fn start() -> Option<Self> {
        let program = prepared("DESTAGE_TEST_FERRETDB")?;
        let folder = tempfile::tempdir().unwrap();
        // Another process may take the port before the server does.
        let (address, child) = (0..100).find_map(|_| started(&program, &folder)).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        Some(Self { address, child: Mutex::new(child), runtime, _folder: folder })
    }

    pub(crate) fn stop(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn started(program: &str, folder: &TempDir) -> Option<(String, Child)> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let mut child = Command::new(program)
        .arg(&address)
        .arg(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut ready).unwrap();
    if ready.starts_with("mongodb://") {
        return Some((address, child));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// A database of the server's.
pub(crate) struct Database<'s> {
    server: &'s Server,
    name: String,
}

impl<'s> Database<'s> {
    /// One with a collection `items`.
    pub(crate) fn with_items(server: &'s Server, name: String, ids: &[i64]) -> Self {
        let database = Self { server, name };
        let documents: Vec<Document> =
            ids.iter().map(|id| doc! { "_id": Bson::Int64(*id), "n": Bson::Int64(0) }).collect();
        database.command(doc! { "insert": "items", "documents": documents });
        database
    }

    pub(crate) fn origin(&self) -> Mongo {
        let fields = [("n", "long"), ("values", "array")];
        let fields = fields.map(|(name, ty)| (name.to_owned(), ty.to_owned())).into();
        let document =
            DocumentSettings { id: Some("long".to_owned()), fields, required: Vec::new() };
        let settings = TableSettings { document: Some(document), ..TableSettings::default() };
        let url = format!("mongodb://{}/{}", self.server.address, self.name);
        let origin = Mongo::new(&url).unwrap().timeout(Duration::from_secs(60));
        origin.declared(&BTreeMap::from([("items".to_owned(), settings)]))
    }

    pub(crate) fn set_watermark(&self, domain: DomainId, lsn: Lsn) {
        let mut set = Document::new();
        set.insert(format!("watermarks.{}", domain.0), lsn.0.cast_signed());
        let update = doc! { "q": {}, "u": { "$set": set } };
        self.command(doc! { "update": "destage_owner", "updates": [update] });
    }

    /// By a unique index, and a document that has the value of every other one that builds on write 1.
    pub(crate) fn refuse_parking(&self, is_refused: bool) {
        if is_refused {
            let index = doc! { "name": "refused", "key": { "depends_on": 1 }, "unique": true };
            self.command(doc! { "createIndexes": "destage_parked", "indexes": [index] });
            let id = doc! { "domain": 0_i64, "seq": 999_i64 };
            let document = doc! { "_id": id, "depends_on": 1_i64 };
            self.command(doc! { "insert": "destage_parked", "documents": [document] });
        } else {
            self.command(doc! { "dropIndexes": "destage_parked", "index": "refused" });
            let delete = doc! { "q": { "_id.seq": 999_i64 }, "limit": 1 };
            self.command(doc! { "delete": "destage_parked", "deletes": [delete] });
        }
    }

    fn count(&self, collection: &str) -> i32 {
        self.command(doc! { "count": collection }).get_i32("n").unwrap()
    }

    fn command(&self, command: Document) -> Document {
        let reply = self.server.runtime.block_on(async {
            let client = Client::with_uri_str(format!("mongodb://{}", self.server.address)).await;
            client.unwrap().database(&self.name).run_command(command).await.unwrap()
        });
        assert!(!reply.contains_key("writeErrors"), "{reply}");
        reply
    }
}

/// Some text of JSON takes seven times as many bytes as BSON.
#[test]
fn what_is_too_large_as_bson_is_rejected_and_parked_in_pieces() {
    let Some(server) = Server::start() else { return };
    let database = Database::with_items(&server, "large".to_owned(), &[1, 2]);
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("items").clone();
    let list = |count: usize| format!("[{}0]", "0,".repeat(count));
    let set =
        |id: &str, list: &str| change(&table, Op::Update, &[id], &[("values", Some(list))], &[]);
    let much = list(1_500_000);
    let refused = claimed.apply(&[set("1", "[]"), set("2", &much)]).unwrap_err();
    assert_eq!(refused.fault, Fault::Rejected, "{refused}");
    assert!(refused.message.contains("as BSON"), "{refused}");
    // The one in front of it has landed, and it alone is to blame.
    claimed.claim.expected = Lsn(1);
    let group = set("2", &much);
    let refused = claimed.apply(std::slice::from_ref(&group)).unwrap_err();
    assert_eq!(refused.fault, Fault::Rejected, "{refused}");
    let parked = ParkedGroup {
        domain: claimed.claim.domain,
        lsn: Lsn(2),
        depends_on: Some(Lsn(1)),
        reason: refused.in_full(),
        // As that of a document with much text.
        payload: "\u{e9}".repeat(10 << 20),
    };
    claimed.park(Lsn(2), Some(&parked)).unwrap();
    assert_eq!(claimed.writer.parked(u64::MAX).unwrap(), [parked]);
    claimed.claim.expected = Lsn(2);
    claimed.apply(&[set("2", "[7]")]).unwrap();
    let Claimed { claim, schema, writer, .. } = &mut claimed;
    claim.upto(Lsn(3), |claim| writer.unpark(schema, claim, &[Lsn(2)], &[])).unwrap();
    assert_eq!(writer.parked(u64::MAX).unwrap(), []);
    assert_eq!(database.count("destage_parked"), 0);
}

#[test]
fn what_was_parked_in_pieces_and_deleted_by_hand_is_told_and_given_up_whole() {
    let Some(server) = Server::start() else { return };
    let database = Database::with_items(&server, "deleted".to_owned(), &[1]);
    let mut claimed = Claimed::before(&database.origin());
    let parked = ParkedGroup {
        domain: claimed.claim.domain,
        lsn: Lsn(1),
        depends_on: None,
        reason: "no".to_owned(),
        payload: "x".repeat(20 << 20),
    };
    claimed.park(Lsn(1), Some(&parked)).unwrap();
    claimed.claim.expected = Lsn(1);
    let delete = |domain: i64| {
        let delete = doc! { "q": { "_id.seq": 1_i64, "_id.domain": domain }, "limit": 1 };
        let reply = database.command(doc! { "delete": "destage_parked", "deletes": [delete] });
        assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply}");
    };
    delete(-1);
    let found = claimed.writer.parked(u64::MAX).unwrap();
    let error = parked::decode(&claimed.schema, &found[0].payload).unwrap_err();
    assert!(error.to_string().contains("a piece of it is missing"), "{error}");
    delete(0);
    assert_eq!(claimed.writer.parked(u64::MAX).unwrap(), []);
    let group = change(claimed.table("items"), Op::Update, &["1"], &[("n", Some("7"))], &[]);
    let Claimed { claim, schema, writer, .. } = &mut claimed;
    for (groups, left) in [(&[GroupRef { lsn: Lsn(1), bytes: &group }][..], 1), (&[], 0)] {
        let gone = claim.upto(Lsn(2), |claim| writer.unpark(schema, claim, &[Lsn(1)], groups));
        assert_eq!(gone.unwrap_err().fault, Fault::Rejected);
        assert_eq!(database.count("destage_parked"), left);
    }
}

#[test]
fn a_sum_beyond_its_type_is_rejected() {
    let Some(server) = Server::start() else { return };
    let database = Database::with_items(&server, "sums".to_owned(), &[1]);
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("items").clone();
    let add = |n: &str| change(&table, Op::Update, &["1"], &[], &[("n", n)]);
    claimed.apply(&[add("9223372036854775807")]).unwrap();
    let refused = claimed.apply(&[add("1")]).unwrap_err();
    assert_eq!(refused.fault, Fault::Rejected, "{refused}");
    assert!(!refused.message.contains("9223372036854775807"), "{refused}");
}
