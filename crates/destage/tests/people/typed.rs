//! A user who types what the documents say. A page's blocks are what is typed; only places and addresses are the test's own.

use crate::harness::scratch::{adopt, release};
use crate::harness::server::{binary, signal};
use crate::harness::{Database, PATIENCE, Scratch, eventually, output};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A block of a page, as it stands there.
#[derive(Debug)]
pub(crate) struct Block {
    /// `sh` is typed in a shell, `sql` in the database's; `console` shows what is printed, too; `toml` is a file, whose first
    /// line names it.
    pub(crate) language: String,
    pub(crate) lines: Vec<String>,
}

/// The blocks of a page below a heading; of the whole page unless one is named.
pub(crate) fn blocks(page: &str, heading: Option<&str>) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(path).expect("the page is there");
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_in_block, mut is_below) = (false, heading.is_none());
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("```") {
            is_in_block = !is_in_block;
            if is_in_block && is_below {
                blocks.push(Block { language: name.to_owned(), lines: Vec::new() });
            }
        } else if is_in_block && is_below {
            blocks.last_mut().expect("it has begun").lines.push(line.to_owned());
        } else if !is_in_block && line.starts_with("## ") {
            is_below = heading.is_none_or(|heading| line[3..] == *heading);
        }
    }
    assert!(!blocks.is_empty(), "{page}: no blocks below {heading:?}");
    blocks
}

/// What stands in the documents, and what is typed instead: the program is built already.
const BUILT: (&str, &str) = ("cargo run --release -- ", "destage ");
/// These serve until they are ended. Any free ports are theirs, since many tests run at once.
const SERVERS: [&str; 2] = ["destage serve", "destage block serve"];
const PORTS: &str = " --listen 127.0.0.1:0 --admin 127.0.0.1:0";
/// Where servers listen unless told, in their pages and as their ready lines name them.
const ADDRESSES: [(&str, &str); 3] = [
    ("127.0.0.1:6380", "listen="),
    ("127.0.0.1:6381", "admin="),
    ("127.0.0.1:10809", "uri=nbd://"),
];

/// A user's terminals: `destage` is on the path, files are where the test may put them, and one server runs at a time.
pub(crate) struct User {
    folder: PathBuf,
    /// What stands in the documents, and what it is here.
    places: Vec<(String, String)>,
    /// By `export`, for what the first terminal starts.
    exported: Vec<(String, String)>,
    server: Option<Server>,
    /// Each line as it stands in its page, and what came of it.
    typed: Vec<(String, String)>,
}

impl User {
    pub(crate) fn new(scratch: &Scratch) -> Self {
        let folder = scratch.join("home");
        std::fs::create_dir_all(folder.join("bin")).expect("a folder");
        let link = folder.join("bin/destage");
        std::os::unix::fs::symlink(binary(), link).expect("a link");
        let (exported, typed) = (Vec::new(), Vec::new());
        Self { folder, places: Vec::new(), exported, server: None, typed }
    }

    /// From now on, `here` is typed where `there` stands.
    pub(crate) fn place(&mut self, there: &str, here: impl ToString) {
        self.places.retain(|(known, _)| known != there);
        self.places.push((there.to_owned(), here.to_string()));
    }

    /// As it stands in a page, with the places of this test.
    pub(crate) fn here(&self, text: &str) -> String {
        let replaced =
            |text: String, (there, here): &(String, String)| text.replace(there.as_str(), here);
        self.places.iter().fold(text.to_owned(), replaced)
    }

    /// Does what the blocks say, in their order. SQL goes to the database.
    #[track_caller]
    pub(crate) fn follows(&mut self, blocks: &[Block], database: Option<&Database>) {
        for block in blocks {
            match &*block.language {
                "sh" => block.lines.iter().for_each(|line| drop(self.types(line))),
                "console" => self.sees(&block.lines),
                "sql" => {
                    let database = database.expect("a page with SQL is for one with a database");
                    block.lines.iter().for_each(|line| database.execute(line));
                }
                "toml" => {
                    let path = block.lines[0].strip_prefix("# ").expect("the file's name");
                    std::fs::write(self.here(path), self.here(&block.lines.join("\n")))
                        .unwrap_or_else(|error| panic!("{path}: {error}"));
                }
                other => panic!("who types a block of {other}?"),
            }
        }
    }

    /// Types the commands of a block, and sees what the block shows.
    #[track_caller]
    fn sees(&mut self, lines: &[String]) {
        let mut said = String::new();
        for line in lines {
            if let Some(command) = line.strip_prefix("$ ") {
                said = self.types(command);
            } else {
                let shown = self.here(line);
                assert!(
                    said.lines().any(|line| line.trim() == shown),
                    "'{shown}' is not in {said}"
                );
            }
        }
    }

    /// Types a line; what it printed, or a server's words when it is ready.
    #[track_caller]
    pub(crate) fn types(&mut self, line: &str) -> String {
        let here = self.here(&line.replace(BUILT.0, BUILT.1));
        let said = if let Some((name, value)) =
            here.strip_prefix("export ").and_then(|rest| rest.split_once('='))
        {
            self.exported.push((name.to_owned(), value.to_owned()));
            String::new()
        } else if SERVERS.iter().any(|server| here.starts_with(server)) {
            self.starts(&here)
        } else {
            let said = output(&mut self.shell(&here));
            if let Some(how) = here.strip_prefix("kill ") {
                let is_orderly = self.server.take().expect("one runs").ended();
                assert_eq!(is_orderly, !how.starts_with("-9"), "{line}");
                self.forgets_addresses();
            }
            said
        };
        if line.starts_with("losetup --find") {
            self.place("/dev/loop0", said.trim());
        }
        self.typed.push((line.to_owned(), said.clone()));
        said
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        let system = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}/bin:/usr/sbin:/sbin:{system}", self.folder.display());
        command.args(["-c", line]).current_dir(&self.folder).env("PATH", path);
        for name in ["DESTAGE_ADMIN", "DESTAGE_CONFIG", "DESTAGE_ORIGIN", "DESTAGE_PASSWORD"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Starts a server in the first terminal, after Ctrl-C for the one that runs there.
    #[track_caller]
    fn starts(&mut self, line: &str) -> String {
        self.ends();
        let mut command = self.shell(&format!("exec {line}{PORTS}"));
        command.envs(self.exported.iter().map(|(name, value)| (name, value)));
        let server = Server::start(&mut command);
        for (there, name) in ADDRESSES {
            if let Some(address) = server.word(name) {
                let (_, port) = address.rsplit_once(':').expect("an address has a port");
                let (_, usual) = there.rsplit_once(':').expect("an address has a port");
                self.place(&format!("-p {usual}"), format!("-p {port}"));
                self.place(there, &address);
            }
        }
        self.place("$(pidof destage)", server.child.id());
        let said = server.said.clone();
        self.server = Some(server);
        said
    }

    /// Ends the server that runs, if one does, by Ctrl-C.
    #[track_caller]
    pub(crate) fn ends(&mut self) {
        if let Some(server) = self.server.take() {
            signal(server.child.id(), Signal::INT);
            assert!(server.ended(), "it does not end in order");
            self.forgets_addresses();
        }
    }

    /// Where no server listens any more, others may.
    fn forgets_addresses(&mut self) {
        ADDRESSES.iter().for_each(|(there, _)| self.place(there, "127.0.0.1:0"));
    }

    /// What the last time came of this line.
    #[track_caller]
    pub(crate) fn said(&self, line: &str) -> &str {
        let found = self.typed.iter().rev().find(|(typed, _)| typed == line);
        &found.unwrap_or_else(|| panic!("'{line}' was not typed: {:?}", self.lines())).1
    }

    /// All that was typed, as it stands in the pages.
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.typed.iter().map(|(line, _)| &**line).collect()
    }
}

struct Server {
    child: Child,
    /// What it prints from now on is read by nobody, but can be printed.
    printed: BufReader<ChildStdout>,
    /// Its ready line, and what it advises to try.
    said: String,
}

impl Server {
    #[track_caller]
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("bash starts");
        adopt(child.id());
        let printed = BufReader::new(child.stdout.take().expect("piped"));
        let mut server = Self { child, printed, said: String::new() };
        // All that it prints at once; while it serves, it prints nothing more.
        loop {
            let mut line = String::new();
            let read = server.printed.read_line(&mut line).expect("it prints text");
            assert!(read > 0, "{command:?}: it does not get ready: {}", server.said);
            server.said += &line;
            if server.said.contains("destage ready:") && server.printed.buffer().is_empty() {
                return server;
            }
        }
    }

    fn word(&self, name: &str) -> Option<String> {
        let word = self.said.split_whitespace().find_map(|word| word.strip_prefix(name));
        word.map(|word| word.trim_end_matches('/').to_owned())
    }

    /// Waits until it has ended; whether in order.
    #[track_caller]
    fn ended(mut self) -> bool {
        let mut status = None;
        eventually("it ends", PATIENCE, || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        status.is_some_and(|status| status.success())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        release(self.child.id());
    }
}
