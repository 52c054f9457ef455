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
    let python = python(&sources.join("python"), &home.join("venv"))?;
    let go_client = go_program(go, &sources.join("go"), &home.join("go-client"))?;
    let node = node(&sources.join("node"), &home.join("node"))?.join("client.mjs");
    let ycsb = java(&sources.join("java"), &home.join("java"), &["Client.java"])?;
    let both = ["Sentinel.java", "Lettuce.java"];
    let sentinel = java(&sources.join("java-sentinel"), &home.join("java-sentinel"), &both)?;
    let recipes = recipes(go, &home.join("recipes"))?;
    let peers = peers(&home.join("peers"))?;
    Ok(vec![
        ("DESTAGE_TEST_PYTHON", python.display().to_string()),
        ("DESTAGE_TEST_GO_CLIENT", go_client.display().to_string()),
        ("DESTAGE_TEST_NODE_CLIENT", node.display().to_string()),
        ("DESTAGE_TEST_JAVA_CLIENT", ycsb.display().to_string()),
        ("DESTAGE_TEST_JAVA_SENTINEL", sentinel.display().to_string()),
        ("DESTAGE_TEST_RECIPES", recipes.display().to_string()),
        ("DESTAGE_TEST_PEERS", peers.display().to_string()),
    ])
}

/// The programs of `destage-bench peers`, with the libraries that it compares.
fn peers(work: &Path) -> Result<PathBuf> {
    let programs =
        ["Acknowledged", "Destages", "Hazelcasts", "Load", "Options", "Peers", "Redissons"];
    let files = [&programs[..], &["Rows", "Side"]].concat();
    let files: Vec<String> = files.iter().map(|name| format!("{name}.java")).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    java(&root().join("crates/destage-bench/peers"), work, &files)
}

/// The recipes with their packages, each as its own files pin them; the folder of all.
fn recipes(go: &Path, home: &Path) -> Result<PathBuf> {
    let sources = root().join("examples/recipes");
    std::fs::create_dir_all(home)
        .map_err(|error| format!("failed to create {}: {error}", home.display()))?;
    python(&sources.join("python"), &home.join("python"))?;
    go_program(go, &sources.join("go"), &home.join("go"))?;
    node(&sources.join("node"), &home.join("node"))?;
    let spring = sources.join("spring");
    let work = home.join("spring");
    libraries(&spring, &work)?;
    let main = spring.join("src/main");
    copied(&main.join("resources"), &work)?;
    let classes = std::fs::read_dir(main.join("java/shop"))
        .map_err(|error| format!("failed to read {}: {error}", main.display()))?;
    let classes = classes.flatten().map(|file| file.path());
    run("javac", compiler(&work).arg("-parameters").args(classes))?;
    Ok(home.to_owned())
}

/// A virtual environment with the packages that `requirements.txt` pins; the path of its interpreter.
///
/// # Errors
/// What could not be installed.
pub(crate) fn python(sources: &Path, environment: &Path) -> Result<PathBuf> {
    let interpreter = environment.join("bin/python");
    let requirements = sources.join("requirements.txt");
    if up_to_date(environment, &requirements)? {
        return Ok(interpreter);
    }
    run("python3", Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    run("pip", Command::new(&interpreter).args(pip).arg(&requirements))?;
    remember(environment, &requirements)?;
    Ok(interpreter)
}

/// A built program.
fn go_program(go: &Path, sources: &Path, program: &Path) -> Result<PathBuf> {
    let mut build = Command::new(go);
    build.args(["build", "-mod=readonly", "-o"]).arg(program).arg(".");
    run("go build", build.env("CGO_ENABLED", "0").current_dir(sources))?;
    Ok(program.to_owned())
}

/// The folder of programs beside their installed packages.
fn node(sources: &Path, work: &Path) -> Result<PathBuf> {
    let work = copied(sources, work)?;
    let manifest = sources.join("package.json");
    if !up_to_date(&work, &manifest)? {
        let quiet = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"];
        run("npm install", Command::new("npm").args(quiet).current_dir(&work))?;
        remember(&work, &manifest)?;
    }
    Ok(work)
}

/// The folder of client programs' classes and the libraries that they need.
fn java(sources: &Path, work: &Path, programs: &[&str]) -> Result<PathBuf> {
    libraries(sources, work)?;
    run("javac", compiler(work).args(programs).current_dir(sources))?;
    Ok(work.to_owned())
}

/// Fills a folder with the libraries that `pom.xml` names.
fn libraries(sources: &Path, work: &Path) -> Result<()> {
    let manifest = sources.join("pom.xml");
    if up_to_date(work, &manifest)? {
        return Ok(());
    }
    let mut copy = Command::new("mvn");
    copy.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    copy.arg(format!("-DoutputDirectory={}", work.display())).current_dir(sources);
    run("mvn", &mut copy)?;
    remember(work, &manifest)
}

/// Compiles into the folder of the libraries.
fn compiler(work: &Path) -> Command {
    let mut compile = Command::new("javac");
    compile.arg("-cp").arg(work.join("*")).arg("-d").arg(work);
    compile
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
