//! Everyday programs, unmodified, on a mount: what they made is whole through the mount and, drained, at the origin.

use crate::applications::{Application, Steps};
use crate::harness::{PATIENCE, Random, Scratch, eventually, has, output, prepared, seconds};
use crate::mounted::{Launch, Unmounting};
use crate::origin::{Kind, Origin};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// Files of a tree to copy, build and pack.
const FILES: usize = 200;

fn sh(folder: &Path, script: &str) -> String {
    let mut command = Command::new("timeout");
    command.args(["400", "sh", "-e", "-c", script]).current_dir(folder);
    // Git asks for a name, and must not find that of whoever runs this.
    command.env("HOME", "/nonexistent").env("GIT_CONFIG_NOSYSTEM", "1");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "A Test").env(format!("GIT_{who}_EMAIL"), "a@test");
    }
    output(&mut command)
}

/// Works on a mount, ends it, and looks at the origin.
fn on_a_mount(kind: Kind, work: impl Fn(&Path, &Path), look: impl Fn(&Path)) {
    let scratch = Scratch::for_at_most(seconds(900));
    let Some(origin) = Origin::new(kind, &scratch) else { return };
    let mounted = Launch::before(&scratch, &origin).start();
    let _unmounting = Unmounting(mounted.folder().to_owned());
    let beside = scratch.join("beside");
    fs::create_dir(&beside).expect("a folder can be made");
    work(mounted.folder(), &beside);
    mounted.stop();
    look(origin.folder());
}

/// A program of many small files, with what builds it.
fn sources(folder: &Path) {
    fs::create_dir(folder).expect("a folder can be made");
    let write =
        |name: &str, text: String| fs::write(folder.join(name), text).expect("it is written");
    let mut main = "#include <stdio.h>\n".to_owned();
    let mut sum = "0".to_owned();
    for number in 0..FILES {
        write(
            &format!("part{number}.c"),
            format!("int part{number}(void) {{ return {number}; }}\n"),
        );
        main += &format!("int part{number}(void);\n");
        sum += &format!(" + part{number}()");
    }
    write("main.c", format!("{main}int main(void) {{ printf(\"%d\\n\", {sum}); return 0; }}\n"));
    let make = "O = $(patsubst %.c,%.o,$(wildcard *.c))\nsum: $(O)\n\tcc -o $@ $(O)\n%.o: %.c\n\tcc -O0 -c -o $@ $<\n";
    write("Makefile", make.to_owned());
}

fn sum() -> String {
    format!("{}\n", (0..FILES).sum::<usize>())
}

fn git(kind: Kind) {
    if !has("git") {
        return;
    }
    let work = |mount: &Path, beside: &Path| {
        sources(&beside.join("source"));
        sh(beside, "cd source; git init -q; git add .; git commit -qm one");
        sh(mount, &format!("git clone -q --no-local {}/source copy", beside.display()));
        sh(
            mount,
            "cd copy; git fsck --full --strict; echo two > two; git add .; git commit -qm two; git gc -q",
        );
        assert_eq!(sh(mount, "cd copy; git status --porcelain; git log --oneline | wc -l"), "2\n");
    };
    on_a_mount(kind, work, |origin| {
        sh(origin, "git -c safe.directory='*' -C copy fsck --full --strict");
        assert_eq!(sh(origin, "cat copy/two"), "two\n");
    });
}

#[test]
fn git_clones_and_commits_in_front_of_a_local_folder() {
    git(Kind::Local);
}

#[test]
fn git_clones_and_commits_in_front_of_ceph_fuse() {
    git(Kind::Ceph);
}

fn make(kind: Kind) {
    let work = |mount: &Path, beside: &Path| {
        sources(&beside.join("source"));
        sh(beside, "tar -cf source.tar source");
        sh(mount, &format!("tar -xf {}/source.tar; make -s -j4 -C source", beside.display()));
        assert_eq!(sh(mount, "source/sum; make -q -C source"), sum(), "built and up to date");
    };
    on_a_mount(kind, work, |origin| assert_eq!(sh(origin, "source/sum"), sum()));
}

#[test]
fn two_hundred_files_are_unpacked_and_built_in_front_of_a_local_folder() {
    make(Kind::Local);
}

#[test]
fn two_hundred_files_are_unpacked_and_built_in_front_of_ceph_fuse() {
    make(Kind::Ceph);
}

fn copies(kind: Kind) {
    if !has("rsync") {
        return;
    }
    let work = |mount: &Path, beside: &Path| {
        sources(&beside.join("source"));
        sh(
            beside,
            "cd source; ln -s part0.c link; ln part1.c second; chmod 711 part2.c; touch -d 2001-02-03T04:05:06.7 part3.c",
        );
        let beside = beside.display();
        sh(
            mount,
            &format!("rsync -aH {beside}/source .; rm source/part5.c; echo more >> source/part6.c"),
        );
        sh(mount, &format!("rsync -aH --checksum --delete {beside}/source ."));
        // What rsync would still change is nothing.
        assert_eq!(sh(mount, &format!("rsync -aHni --checksum --delete {beside}/source .")), "");
        sh(
            mount,
            &format!(
                "tar -cf {beside}/back.tar source; mkdir {beside}/back; tar -xpf {beside}/back.tar -C {beside}/back"
            ),
        );
        assert_eq!(
            sh(mount, &format!("rsync -aHni --checksum --delete {beside}/source {beside}/back")),
            ""
        );
        assert_eq!(sh(mount, "stat -c %h source/second"), "2\n");
    };
    let look = |origin: &Path| {
        assert_eq!(sh(origin, "cd source; stat -c %a part2.c; readlink link"), "711\npart0.c\n");
        assert_eq!(
            sh(origin, "TZ=UTC stat -c %y source/part3.c | cut -c1-21"),
            sh(origin, "TZ=UTC date -d 2001-02-03T04:05:06.7 '+%F %T.7'")
        );
    };
    on_a_mount(kind, work, look);
}

#[test]
fn rsync_and_tar_copy_a_tree_there_and_back_in_front_of_a_local_folder() {
    copies(Kind::Local);
}

#[test]
fn rsync_and_tar_copy_a_tree_there_and_back_in_front_of_ceph_fuse() {
    copies(Kind::Ceph);
}

#[test]
fn vim_and_ex_edit_a_file_with_their_swap_and_backup_files() {
    if !has("vim") {
        return;
    }
    let work = |mount: &Path, _: &Path| {
        fs::write(mount.join("letter"), "one\ntwo\nthree\n").expect("it is written");
        let vim = "vim -es -N -u NONE -i NONE --cmd 'set backupskip= swapfile backup writebackup fsync backupcopy=no'";
        sh(mount, &format!("{vim} -c '%s/two/2/' -c wq letter"));
        sh(mount, &format!("{vim} -c 'set backupcopy=yes' -c '%s/three/3/' -c wq letter"));
        assert_eq!(sh(mount, "cat letter letter~"), "one\n2\n3\none\n2\nthree\n");
    };
    on_a_mount(Kind::Local, work, |origin| {
        assert_eq!(
            sh(origin, "cat letter; ls -A | grep -v '^.destage$'"),
            "one\n2\n3\nletter\nletter~\n"
        )
    });
}

/// So many steps are durable before a kill, at the least.
const STEPS_MIN: u64 = 20;

/// Steps until the daemon is killed, three times; the newest that was noted is there, and all of it is whole.
fn killed(kind: Kind, application: Application) {
    let scratch = Scratch::new();
    let Some(origin) = Origin::new(kind, &scratch) else { return };
    let launch = Launch::before(&scratch, &origin);
    let mut mounted = launch.start();
    let _unmounting = Unmounting(mounted.folder().to_owned());
    let check = |folder: &Path, least: u64| {
        let newest = application.check(folder);
        let newest = newest.unwrap_or_else(|what| panic!("{application:?}: {what}"));
        assert!(newest >= least, "{application:?}: {newest} is there, {least} was durable");
    };
    let mut durable = Vec::new();
    for round in 0..3 {
        let folder = mounted.folder().join(format!("round{round}"));
        fs::create_dir(&folder).expect("a folder can be made");
        let steps = Steps::default();
        thread::scope(|scope| {
            scope.spawn(|| application.work(&folder, &steps, &mut Random::new(round, 9)));
            eventually("enough is durable", PATIENCE, || steps.done() >= STEPS_MIN);
            mounted.kill();
        });
        mounted = launch.start();
        check(&folder, steps.done());
        durable.push(steps.done());
    }
    mounted.stop();
    for (round, least) in durable.into_iter().enumerate() {
        check(&origin.folder().join(format!("round{round}")), least);
    }
}

#[test]
fn sqlite_with_a_rollback_journal_keeps_what_it_committed_through_kills() {
    killed(Kind::Local, Application::SqliteRollback);
    killed(Kind::Ceph, Application::SqliteRollback);
}

#[test]
fn sqlite_with_a_write_ahead_log_keeps_what_it_committed_through_kills() {
    killed(Kind::Local, Application::SqliteWal);
    killed(Kind::Ceph, Application::SqliteWal);
}

/// The log's index is memory that both map.
fn shared_log(kind: Kind) {
    let work = |mount: &Path, _: &Path| {
        let open = || {
            let opened = rusqlite::Connection::open(mount.join("shared.db")).expect("it opens");
            let mode =
                opened.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
            assert_eq!(mode.as_deref(), Ok("wal"));
            opened.busy_timeout(PATIENCE).expect("it can be set");
            opened
        };
        let (one, two) = (open(), open());
        one.execute("CREATE TABLE numbers (number INTEGER)", []).expect("it is made");
        for number in 0..100_i64 {
            let (writer, reader) = if number % 2 == 0 { (&one, &two) } else { (&two, &one) };
            writer.execute("INSERT INTO numbers VALUES (?1)", [number]).expect("it is written");
            let seen =
                reader.query_row("SELECT max(number) FROM numbers", [], |row| row.get::<_, i64>(0));
            assert_eq!(seen, Ok(number), "the other one sees it at once");
        }
        let sound = one.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
        assert_eq!(sound.as_deref(), Ok("ok"));
    };
    on_a_mount(kind, work, |origin| {
        // A copy, since without shared mappings, as at ceph-fuse, no program can open what has such a log.
        let folder = tempfile::tempdir().expect("a folder can be made");
        let copy = folder.path().join("shared.db");
        fs::copy(origin.join("shared.db"), &copy).expect("it can be read");
        let opened = rusqlite::Connection::open(copy).expect("it opens");
        let count =
            opened.query_row("SELECT count(*) FROM numbers", [], |row| row.get::<_, i64>(0));
        assert_eq!(count, Ok(100));
    });
}

/// Which ceph-fuse alone cannot: without the page cache it has no shared mappings.
#[test]
fn two_connections_share_the_write_ahead_log_of_sqlite() {
    shared_log(Kind::Local);
    shared_log(Kind::Ceph);
}

#[test]
fn files_that_are_replaced_durably_survive_kills() {
    killed(Kind::Local, Application::Files);
    killed(Kind::Ceph, Application::Files);
}

/// PostgreSQL's programs, run as its user.
struct Postgres {
    programs: PathBuf,
    user: String,
    data: PathBuf,
    sockets: PathBuf,
}

impl Postgres {
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("timeout");
        command.arg("300");
        if !self.user.is_empty() {
            command.args(["runuser", "-u", &self.user, "--"]);
        }
        output(command.arg(self.programs.join(program)).args(arguments).current_dir("/"))
    }

    fn control(&self, how: &[&str]) {
        let data = self.data.display().to_string();
        let log = self.sockets.join("log").display().to_string();
        let mut arguments = vec!["-D", &*data, "-l", &*log, "-s", "-w", "-t", "120"];
        arguments.extend(how);
        self.run("pg_ctl", &arguments);
    }

    fn start(&self) {
        let options = format!("-c listen_addresses= -k {}", self.sockets.display());
        self.control(&["-o", &options, "start"]);
    }

    fn ask(&self, question: &str) -> String {
        let sockets = self.sockets.display().to_string();
        self.run("psql", &["-h", &sockets, "-d", "postgres", "-Atc", question])
    }
}

fn postgres(kind: Kind) {
    let Some(programs) = prepared("DESTAGE_TEST_POSTGRES_PROGRAMS") else { return };
    let Some(user) = prepared("DESTAGE_TEST_POSTGRES_USER") else { return };
    let scratch = Scratch::new();
    let Some(origin) = Origin::new(kind, &scratch) else { return };
    let launch = Launch::before(&scratch, &origin);
    let mounted = launch.start();
    let _unmounting = Unmounting(mounted.folder().to_owned());
    let server = Postgres {
        programs: programs.into(),
        user,
        data: mounted.folder().join("pg"),
        sockets: scratch.join("sockets"),
    };
    for folder in [&server.data, &server.sockets] {
        fs::create_dir(folder).expect("a folder can be made");
    }
    if !server.user.is_empty() {
        sh(
            Path::new("/"),
            &format!(
                "chown {0} {1} {2}; chmod 711 {3}",
                server.user,
                server.data.display(),
                server.sockets.display(),
                scratch.join("").display()
            ),
        );
    }
    let (data, sockets) = (server.data.display().to_string(), server.sockets.display().to_string());
    server.run("initdb", &["-D", &data, "-A", "trust", "--locale=C.UTF-8"]);
    server.start();
    let user = if server.user.is_empty() { Vec::new() } else { vec!["-h", &*sockets] };
    let bench = |more: &[&str]| {
        let mut arguments = user.clone();
        arguments.extend(more);
        server.run("pgbench", &[&arguments[..], &["postgres"]].concat())
    };
    bench(&["-i", "-q", "-s", "1"]);
    bench(&["-c", "2", "-T", "3"]);
    let sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history), count(*) from pgbench_history";
    let before = server.ask(sums);
    assert!(before.starts_with("t|") && before != "t|0\n", "{before}");
    // With the mount gone nothing that it writes succeeds any more.
    mounted.kill();
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        server.control(&["-m", "immediate", "stop"])
    }));
    let killed = postmaster(&server.sockets);
    eventually("PostgreSQL has ended", PATIENCE, || {
        killed.iter().all(|id| !Path::new(&format!("/proc/{id}")).exists())
    });
    let mounted = launch.start();
    server.start();
    assert_eq!(server.ask(sums), before, "after a crash");
    bench(&["-c", "2", "-T", "1"]);
    server.control(&["-m", "fast", "stop"]);
    mounted.stop();
    assert!(origin.folder().join("pg/PG_VERSION").is_file());
}

/// The server's process, told to end: where its folder is gone its own program cannot find it.
fn postmaster(sockets: &Path) -> Vec<u32> {
    let lock = fs::read_to_string(sockets.join(".s.PGSQL.5432.lock")).unwrap_or_default();
    let id = lock.lines().next().and_then(|line| line.trim().parse().ok());
    id.inspect(|&id| crate::harness::server::signal(id, rustix::process::Signal::QUIT))
        .into_iter()
        .collect()
}

#[test]
fn postgresql_keeps_its_sums_through_a_kill_in_front_of_a_local_folder() {
    postgres(Kind::Local);
}

#[test]
#[ignore = "takes minutes: `cargo xtask suites` runs it"]
fn postgresql_keeps_its_sums_through_a_kill_in_front_of_ceph_fuse() {
    postgres(Kind::Ceph);
}
