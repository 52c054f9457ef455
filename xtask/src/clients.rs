//! The client programs of other languages that the end-to-end tests run: each with its library at a pinned version.

use crate::{Result, root, target};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the installed clients are; for the tests' environment.
pub(crate) fn install(go: &Path) -> Result<Vec<(&'static str, String)>> {
    let sources = root().join("tests/clients");
    let home = target().join("xtask");
    std::fs::create_dir_all(&home)
        .map_err(|error| format!("failed to create {}: {error}", home.display()))?;
    let home = home
        .canonicalize()
        .map_err(|error| format!("failed to find {}: {error}", home.display()))?;
    let python = python(&sources.join("python"), &home)?;
    let go = go_client(go, &sources.join("go"), &home)?;
    let node = node(&sources.join("node"), &home)?;
    let ycsb = java(&sources.join("java"), &home.join("java"), "Client.java")?;
    let sentinel =
        java(&sources.join("java-sentinel"), &home.join("java-sentinel"), "Sentinel.java")?;
    Ok(vec![
        ("DESTAGE_TEST_PYTHON", python.display().to_string()),
        ("DESTAGE_TEST_GO_CLIENT", go.display().to_string()),
        ("DESTAGE_TEST_NODE_CLIENT", node.display().to_string()),
        ("DESTAGE_TEST_JAVA_CLIENT", ycsb.display().to_string()),
        ("DESTAGE_TEST_JAVA_SENTINEL", sentinel.display().to_string()),
    ])
}

/// A virtual environment with the pinned packages; the path of its interpreter.
fn python(sources: &Path, home: &Path) -> Result<PathBuf> {
    let environment = home.join("venv");
    let interpreter = environment.join("bin/python");
    let requirements = sources.join("requirements.txt");
    if up_to_date(&environment, &requirements)? {
        return Ok(interpreter);
    }
    run("python3", Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    run("pip", Command::new(&interpreter).args(pip).arg(&requirements))?;
    remember(&environment, &requirements)?;
    Ok(interpreter)
}

/// The built client program.
fn go_client(go: &Path, sources: &Path, home: &Path) -> Result<PathBuf> {
    let program = home.join("go-client");
    let mut build = Command::new(go);
    build.args(["build", "-mod=readonly", "-o"]).arg(&program).arg(".");
    run("go build", build.env("CGO_ENABLED", "0").current_dir(sources))?;
    Ok(program)
}

/// The client program beside its installed packages.
fn node(sources: &Path, home: &Path) -> Result<PathBuf> {
    let work = copied(sources, &home.join("node"))?;
    let manifest = sources.join("package.json");
    if !up_to_date(&work, &manifest)? {
        let quiet = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"];
        run("npm install", Command::new("npm").args(quiet).current_dir(&work))?;
        remember(&work, &manifest)?;
    }
    Ok(work.join("client.mjs"))
}

/// The folder of a client program's classes and the libraries that it needs.
fn java(sources: &Path, work: &Path, program: &str) -> Result<PathBuf> {
    let manifest = sources.join("pom.xml");
    if !up_to_date(work, &manifest)? {
        let mut copy = Command::new("mvn");
        copy.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
        copy.arg(format!("-DoutputDirectory={}", work.display())).current_dir(sources);
        run("mvn", &mut copy)?;
        remember(work, &manifest)?;
    }
    let libraries = work.join("*");
    let mut compile = Command::new("javac");
    compile.arg("-cp").arg(libraries).arg("-d").arg(work).arg(program);
    run("javac", compile.current_dir(sources))?;
    Ok(work.to_owned())
}

/// npm installs beside the manifest: on a copy, so that the sources' folder stays as it is committed.
pub(crate) fn copied(from: &Path, to: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| format!("failed to copy {}: {error}", from.display());
    std::fs::create_dir_all(to).map_err(failed)?;
    for entry in std::fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        std::fs::copy(entry.path(), to.join(entry.file_name())).map_err(failed)?;
    }
    Ok(to.to_owned())
}

/// Whether `folder` was filled from exactly this list of packages.
pub(crate) fn up_to_date(folder: &Path, list: &Path) -> Result<bool> {
    let wanted = read(list)?;
    Ok(std::fs::read_to_string(folder.join(MARK)).is_ok_and(|present| present == wanted))
}

pub(crate) fn remember(folder: &Path, list: &Path) -> Result<()> {
    let mark = folder.join(MARK);
    std::fs::write(&mark, read(list)?)
        .map_err(|error| format!("failed to write {}: {error}", mark.display()))
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file)
        .map_err(|error| format!("failed to read {}: {error}", file.display()))
}

pub(crate) fn run(name: &str, command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("failed to start {name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed: see its output above")) }
}

const MARK: &str = ".installed";
