//! The applications of the shop as real programs, asked by HTTP.

use crate::harness::scratch::Scratch;
use crate::harness::{PATIENCE, eventually};
use crate::recipes::{Program, free_port, packages};
use serde_json::Value;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the shop.
pub(super) fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/shop").join(file)
}

/// One that runs until its test ends.
pub(super) struct Application {
    name: &'static str,
    port: u16,
    log: PathBuf,
    _program: Program,
}

/// All three, connected to that port of this machine; `None` (after saying so) where their libraries are not installed.
pub(super) fn applications(scratch: &Scratch, server: &str) -> Option<Vec<Application>> {
    Some(vec![
        django(scratch, server)?,
        fastapi(scratch, server, &example("python"))?,
        node(scratch, server)?,
    ])
}

fn django(scratch: &Scratch, server: &str) -> Option<Application> {
    let port = free_port();
    let mut django = python(&example("python"))?;
    django.args(["django_app.py", "runserver", &format!("127.0.0.1:{port}"), "--noreload"]);
    Some(Application::start("django", port, django, scratch, server))
}

/// The application in that folder, which may be another edition of it.
pub(super) fn fastapi(scratch: &Scratch, server: &str, folder: &Path) -> Option<Application> {
    let port = free_port();
    let mut fastapi = python(folder)?;
    fastapi.args(["-m", "uvicorn", "fastapi_app:app", "--port", &port.to_string()]);
    Some(Application::start("fastapi", port, fastapi, scratch, server))
}

fn node(scratch: &Scratch, server: &str) -> Option<Application> {
    let installed = packages("node")?.join("node_modules");
    let port = free_port();
    // Libraries are looked for beside the program.
    let folder = scratch.folder("node");
    std::fs::copy(example("node/app.mjs"), folder.join("app.mjs")).expect("it can be copied");
    symlink(installed, folder.join("node_modules")).expect("a link can be made");
    let mut node = Command::new("node");
    node.arg(folder.join("app.mjs")).arg(port.to_string());
    Some(Application::start("node", port, node, scratch, server))
}

fn python(folder: &Path) -> Option<Command> {
    let mut command = Command::new(packages("python")?.join("bin/python"));
    command.arg("-B").current_dir(folder);
    Some(command)
}

impl Application {
    fn start(
        name: &'static str,
        port: u16,
        mut command: Command,
        scratch: &Scratch,
        server: &str,
    ) -> Self {
        let log = scratch.join(format!("{name}.log"));
        command.env("REDIS_URL", format!("redis://127.0.0.1:{server}"));
        let program = Program::logging(&mut command, &log);
        eventually(&format!("{name} listens"), PATIENCE, || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Self { name, port, log, _program: program }
    }

    /// What it answers.
    ///
    /// # Panics
    /// If that is an error.
    #[track_caller]
    pub(super) fn ask(&self, method: &str, page: &str, body: &Value) -> Value {
        let url = format!("http://127.0.0.1:{}{page}", self.port);
        let config = ureq::Agent::config_builder().proxy(None).timeout_global(Some(PATIENCE));
        // A connection that was kept may be at its end when it is used.
        let config = config.http_status_as_error(false).max_idle_connections(0);
        let agent: ureq::Agent = config.build().into();
        let answer = match method {
            "GET" => agent.get(&url).call(),
            "PUT" => agent.put(&url).send_json(body),
            _ => agent.post(&url).send_empty(),
        };
        let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
        let asked = format!("{} {method} {page} {body}", self.name);
        let mut answer = answer.unwrap_or_else(|error| panic!("{asked}: {error}\n{}", log()));
        let text = answer.body_mut().read_to_string().expect("a text");
        assert_eq!(answer.status(), 200, "{asked}: {text}\n{}", log());
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{asked}: {text}"))
    }
}
