//! The recipes run as they stand: each as a real program, in front of the example shop.

use crate::harness::scratch::{adopt, release};
use crate::harness::{Client, Launch, PATIENCE, Scratch, eventually, output, prepared};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn recipe(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/recipes").join(file)
}

/// The installed packages of the recipe in this language.
pub(crate) fn packages(language: &str) -> Option<PathBuf> {
    Some(Path::new(&prepared("DESTAGE_TEST_RECIPES")?).join(language))
}

/// The interpreter with the packages of the recipes in Python, in their folder.
fn python() -> Option<Command> {
    let mut command = Command::new(packages("python")?.join("bin/python"));
    command.arg("-B").current_dir(recipe("python"));
    Some(command)
}

fn points(client: &mut Client) -> i64 {
    client.run("HGET customers:1 points").text().parse().expect("a number")
}

/// A program that runs until its test ends.
pub(crate) struct Program(Child);

impl Program {
    fn start(command: &mut Command, scratch: &Scratch, server: &str) -> Self {
        Self::logging(command.env("DESTAGE_PORT", server), &scratch.join("recipe.log"))
    }

    /// Starts it; what it prints goes into that file.
    pub(crate) fn logging(command: &mut Command, log: &Path) -> Self {
        let log = std::fs::File::create(log).expect("a file");
        let error = log.try_clone().expect("a second handle");
        let child =
            command.stdin(Stdio::null()).stdout(log).stderr(error).spawn().expect("it starts");
        adopt(child.id());
        Self(child)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        release(self.0.id());
    }
}

/// A port on which nobody listens.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// The points after a visit that the web application is told of under this key.
fn visit(web: u16, key: &str) -> Result<i64, String> {
    let request = ureq::post(format!("http://127.0.0.1:{web}/visits/1"));
    let mut answer =
        request.header("Idempotency-Key", key).send_empty().map_err(|error| error.to_string())?;
    let found: serde_json::Value = answer.body_mut().read_json().map_err(|e| e.to_string())?;
    found["points"].as_i64().ok_or_else(|| found.to_string())
}

/// A web application counts each visit once: also if it is sent twice, and while the server is killed in between.
#[track_caller]
fn counts_once(name: &str, command: impl FnOnce(u16) -> Command) {
    let scratch = Scratch::new();
    let launch = Launch::example(&scratch).with(&["--unmapped", "cache"]);
    let server = launch.start();
    let port = server.port();
    let before = points(&mut server.client());
    let web = free_port();
    let _program = Program::start(&mut command(web), &scratch, &port);
    let log = || std::fs::read_to_string(scratch.join("recipe.log")).unwrap_or_default();
    eventually(&format!("{name} listens"), PATIENCE, || {
        TcpStream::connect(("127.0.0.1", web)).is_ok()
    });
    for _ in 0..2 {
        assert_eq!(visit(web, "first"), Ok(before + 1), "{name}: {}", log());
    }
    server.kill();
    let server = launch.listening(&format!("127.0.0.1:{port}")).start();
    // A connection that broke is noticed by the first request on it, which the recipes send again.
    assert_eq!(visit(web, "second"), Ok(before + 2), "{name}: {}", log());
    assert_eq!(visit(web, "first"), Ok(before + 1), "{name}: {}", log());
    assert_eq!(points(&mut server.client()), before + 2, "{name}");
    let mut page = ureq::get(format!("http://127.0.0.1:{web}/customers/1")).call().expect("a page");
    let page: serde_json::Value = page.body_mut().read_json().expect("JSON");
    assert_eq!(page["row"]["points"], (before + 2).to_string(), "{name}: {page}");
}

#[test]
fn django_counts_once() {
    let Some(mut django) = python() else { return };
    counts_once("django", |port| {
        let address = format!("127.0.0.1:{port}");
        django.args(["django_app.py", "runserver", &address, "--noreload"]);
        django
    });
}

#[test]
fn fastapi_counts_once() {
    let Some(mut fastapi) = python() else { return };
    counts_once("fastapi", |port| {
        fastapi.args(["-m", "uvicorn", "fastapi_app:app", "--port", &port.to_string()]);
        fastapi
    });
}

#[test]
fn node_counts_once() {
    let Some(folder) = packages("node") else { return };
    counts_once("node", |port| {
        let mut node = Command::new("node");
        node.arg(folder.join("app.mjs")).arg(port.to_string());
        node
    });
}

#[test]
fn go_counts_once() {
    let Some(program) = packages("go") else { return };
    counts_once("go", |port| {
        let mut go = Command::new(program);
        go.arg(port.to_string());
        go
    });
}

/// Django's cache and sessions are plain keys.
#[test]
fn django_keeps_cache_and_sessions() {
    let Some(mut django) = python() else { return };
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--unmapped", "cache"]).start();
    let web = free_port();
    django.args(["django_app.py", "runserver", &format!("127.0.0.1:{web}"), "--noreload"]);
    let _program = Program::start(&mut django, &scratch, &server.port());
    let address = ("127.0.0.1", web);
    eventually("django listens", PATIENCE, || TcpStream::connect(address).is_ok());
    let page = format!("http://127.0.0.1:{web}/customers/1");
    let mut first = ureq::get(&page).call().expect("a page");
    let cookie = first.headers()["set-cookie"].to_str().expect("text").to_owned();
    let first: serde_json::Value = first.body_mut().read_json().expect("JSON");
    let cookie = cookie.split(';').next().expect("its name and value");
    let mut second = ureq::get(&page).header("Cookie", cookie).call().expect("a page");
    let second: serde_json::Value = second.body_mut().read_json().expect("JSON");
    assert_eq!([&first["seen"], &second["seen"]], [1, 2]);
    assert_eq!(first["text"], second["text"]);
    let mut stranger = ureq::get(&page).call().expect("a page");
    let stranger: serde_json::Value = stranger.body_mut().read_json().expect("JSON");
    assert_eq!(stranger["seen"], 1);
}

#[test]
fn spring_counts_once_and_caches() {
    let Some(libraries) = packages("spring") else { return };
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--unmapped", "cache"]).start();
    let before = points(&mut server.client());
    let path = format!("{0}/*:{0}", libraries.display());
    let mut spring = Command::new("java");
    spring.args(["-XX:TieredStopAtLevel=1", "-cp", &path, "shop.Application", "1"]);
    let said = output(spring.env("DESTAGE_PORT", server.port()));
    let of = |what: &str| -> Vec<String> {
        let lines = said.lines().filter_map(|line| line.strip_prefix(what));
        lines.map(str::to_owned).collect()
    };
    // Sent twice, under one token.
    let counted = (before + 1).to_string();
    assert_eq!(of("points "), [&*counted, &*counted], "{said}");
    assert!(of("row ")[0].contains(&format!("points={counted}")), "{said}");
    let texts = of("text ");
    assert!(texts.len() == 2 && texts[0] == texts[1], "{said}");
    assert_eq!(points(&mut server.client()), before + 1);
}

/// A task that is given to a worker twice counts once, since its identity is the token.
#[test]
fn celery_counts_once_and_keeps_results() {
    let (Some(mut worker), Some(mut caller)) = (python(), python()) else { return };
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--unmapped", "cache"]).start();
    let before = points(&mut server.client());
    let folder = scratch.join("celery");
    worker.args(["-m", "celery", "-A", "celery_app", "worker", "--pool", "solo"]);
    let worker = worker.env("CELERY_FOLDER", &folder);
    let _program = Program::start(worker, &scratch, &server.port());
    let calls = "from celery_app import visit\n\
                 first = visit.delay(1)\n\
                 print(first.get(timeout=30))\n\
                 visit.apply_async((1,), task_id=first.id)\n\
                 print(visit.delay(1).get(timeout=30))\n";
    let caller = caller.args(["-c", calls]).env("CELERY_FOLDER", &folder);
    let said = output(caller.env("DESTAGE_PORT", server.port()));
    eventually("the first task was done again", PATIENCE, || {
        server.metric("destage_once_replayed_total") >= 1.0
    });
    assert_eq!(said, format!("{}\n{}\n", before + 1, before + 2));
    assert_eq!(points(&mut server.client()), before + 2);
}
