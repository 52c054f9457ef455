//! Three users, who type what the quick starts say and nothing else. Only places and addresses are this test's own.

use crate::harness::scratch::{adopt, release};
use crate::harness::server::binary;
use crate::harness::{Database, PATIENCE, Scratch, eventually, has, output};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What stands in the blocks of a page, line by line: the block's language and the line.
fn typed(page: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(path).expect("the page is there");
    let mut language: Option<String> = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        match (line.trim().strip_prefix("```"), &language) {
            (Some(name), None) => language = Some(name.to_owned()),
            (Some(_), Some(_)) => language = None,
            (None, Some(language)) => lines.push((language.clone(), line.trim().to_owned())),
            (None, None) => {}
        }
    }
    lines
}

/// The lines to type in a shell.
fn commands(page: &str) -> Vec<String> {
    typed(page).into_iter().filter(|(language, _)| language == "sh").map(|(_, line)| line).collect()
}

/// A user's shell: `destage` is on the path, files are where the test may put them.
struct User {
    folder: PathBuf,
    /// What stands in the documents, and what it is here.
    places: Vec<(String, String)>,
    commands: usize,
}

impl User {
    fn new(scratch: &Scratch) -> Self {
        let folder = scratch.join("home");
        std::fs::create_dir_all(folder.join("bin")).expect("a folder");
        let link = folder.join("bin/destage");
        std::os::unix::fs::symlink(binary(), link).expect("a link");
        Self { folder, places: Vec::new(), commands: 0 }
    }

    fn place(&mut self, there: &str, here: impl ToString) {
        self.places.push((there.to_owned(), here.to_string()));
    }

    fn command(&mut self, line: &str) -> Command {
        self.commands += 1;
        let line = self
            .places
            .iter()
            .fold(line.to_owned(), |line, (there, here)| line.replace(there, here));
        let mut command = Command::new("bash");
        let path = format!(
            "{}/bin:/usr/sbin:/sbin:{}",
            self.folder.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        command.args(["-c", &line]).current_dir(&self.folder).env("PATH", path);
        command.env_remove("DESTAGE_ADMIN").stdin(Stdio::null());
        command
    }

    /// Types a line; what it printed.
    #[track_caller]
    fn types(&mut self, line: &str) -> String {
        output(&mut self.command(line))
    }

    /// Types a line that starts a server; its ready line.
    #[track_caller]
    fn starts(&mut self, line: &str, password: Option<&str>) -> Server {
        let mut command = self.command(&format!("exec {line}"));
        match password {
            Some(password) => command.env("DESTAGE_PASSWORD", password),
            None => command.env_remove("DESTAGE_PASSWORD"),
        };
        let mut child = command.stdout(Stdio::piped()).spawn().expect("bash starts");
        adopt(child.id());
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.map_while(Result::ok).find(|line| line.starts_with("destage ready:"));
        Server { ready: ready.unwrap_or_else(|| panic!("{line}: it does not get ready")), child }
    }
}

struct Server {
    child: Child,
    ready: String,
}

impl Server {
    fn word(&self, name: &str) -> String {
        let rest = self.ready.split_once(name).expect("the ready line has it").1;
        rest.split(' ').next().expect("a word").to_owned()
    }

    fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        release(self.child.id());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_counter_in_an_own_database_survives_kill_9() {
    let Some(database) = Database::postgres() else { return };
    if !has("redis-cli") {
        return;
    }
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    user.place("postgres://user:password@localhost/shop", database.url());
    for (_, line) in typed("START-ROWS.md").iter().filter(|(language, _)| language == "sql") {
        database.execute(line);
    }
    let lines = commands("START-ROWS.md");
    let password = lines.iter().find_map(|line| line.strip_prefix("export DESTAGE_PASSWORD="));
    let serve = lines.iter().find(|line| line.starts_with("destage serve")).expect("it is said");
    let serve = format!("{serve} --listen 127.0.0.1:0 --admin 127.0.0.1:0");
    let schema = lines.iter().find(|line| line.starts_with("destage schema")).expect("it is said");
    assert!(user.types(schema).contains("counters"));
    let asks: Vec<&String> = lines.iter().filter(|line| line.starts_with("redis-cli")).collect();
    let [count, show, again] = asks[..] else { panic!("{asks:?}") };
    let server = user.starts(&serve, password);
    user.place(
        "-p 6380",
        format!("-p {}", server.word("listen=").rsplit(':').next().expect("a port")),
    );
    for _ in 0..5 {
        user.types(count);
    }
    assert!(user.types(show).contains('5'));
    server.kill();
    let server = user.starts(&serve, password);
    user.places.retain(|(there, _)| there != "-p 6380");
    user.place(
        "-p 6380",
        format!("-p {}", server.word("listen=").rsplit(':').next().expect("a port")),
    );
    assert_eq!(user.types(again).trim(), "5");
    eventually("the database has it", PATIENCE, || {
        database.number("SELECT n FROM counters WHERE id = 'visits'") == 5
    });
    assert!(user.commands <= 12, "{} commands", user.commands);
}

#[test]
fn a_file_system_on_a_volume_survives_kill_9() {
    if !["losetup", "mkfs.ext4", "mount", "fusermount3"].into_iter().all(has) {
        return;
    }
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    for (there, here) in [("/mnt/slow", "slow"), ("/ssd", "ssd"), ("/mnt/fast", "fast")] {
        std::fs::create_dir_all(scratch.join(here)).expect("a folder");
        user.place(there, scratch.join(here).display());
    }
    user.place("/run/destage", scratch.join("volumes").display());
    let lines = commands("START-VOLUMES.md");
    let line = |start: &str| {
        lines.iter().find(|line| line.starts_with(start)).expect("it is said").clone()
    };
    user.types(&line("truncate"));
    let serve = format!("{} --listen 127.0.0.1:0 --admin 127.0.0.1:0", line("destage block serve"));
    let server = user.starts(&serve, None);
    let device = user.types(&line("losetup --find")).trim().to_owned();
    user.place("/dev/loop0", &device);
    let detach = Detach(device);
    user.types(&line("mkfs.ext4"));
    user.types(&line("mount /dev/loop0"));
    user.types("echo survived > /mnt/fast/file && sync /mnt/fast/file");
    // The server first: what is in the page cache of the file system must not save it.
    server.kill();
    user.types(&line("umount -l"));
    let _ = user.command(&line("losetup -d")).output();
    drop(detach);
    let _ =
        output(Command::new("sh").args([
            "-c",
            &format!("fusermount3 -uz {} || true", scratch.join("volumes").display()),
        ]));
    let _server = user.starts(&serve, None);
    let device = user.types(&line("losetup --find")).trim().to_owned();
    user.places.retain(|(there, _)| there != "/dev/loop0");
    user.place("/dev/loop0", &device);
    let _detach = Detach(device);
    user.types(&line("mount /dev/loop0"));
    let found = user.types("cat /mnt/fast/file");
    let _ = user.types("umount /mnt/fast");
    assert_eq!(found, "survived\n");
}

/// A loop device is given back with its test.
struct Detach(String);

impl Drop for Detach {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).stderr(Stdio::null()).output();
    }
}

#[test]
fn a_trace_leads_to_an_advice() {
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    let lines = commands("START-TRACES.md");
    assert_eq!(lines.len(), 4, "{lines:?}");
    let mut last = String::new();
    for line in &lines {
        last = user.types(line);
    }
    assert!(last.contains("destage block serve") || last.contains("journaled"), "{last}");
    assert_eq!(user.commands, 4);
}
