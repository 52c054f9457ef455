//! `cargo xtask mutants`: puts each fault of a list into the code, one at a time, and shows which of them no test notices.
//!
//! All of it happens in a git worktree of its own under the build folder, which holds what is committed. A run that is killed
//! leaves that behind, and the next one starts it anew.

use crate::faults::{self, Fault};
use crate::programs::{self, Program};
use crate::steps::result_line;
use crate::test::Environment;
use crate::{Result, cargo, root, target};
use clap::Args;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Which ones.
#[derive(Args)]
pub(crate) struct MutantsArgs {
    /// Only faults whose names contain this; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List them, with the tests that are to notice them, and end.
    #[arg(long)]
    list: bool,
}

/// What came of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Caught,
    /// The tests did not end.
    Hangs,
    NotCaught,
    NotCompiled,
    NotApplied,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::Hangs => "caught: the tests do not end",
            Self::NotCaught => "NOT CAUGHT",
            Self::NotCompiled => "DOES NOT COMPILE",
            Self::NotApplied => "DOES NOT APPLY",
        }
    }

    fn is_good(self) -> bool {
        matches!(self, Self::Caught | Self::Hangs)
    }
}

/// Tries all faults, or those asked for. True if the tests notice each of them.
///
/// # Errors
/// What is wrong with the list, and what is missing to try anything.
pub(crate) fn run(arguments: &MutantsArgs) -> Result<bool> {
    let is_wanted = |fault: &Fault| {
        arguments.only.is_empty() || arguments.only.iter().any(|name| fault.name.contains(name))
    };
    let mut faults: Vec<Fault> = faults::read()?.into_iter().filter(is_wanted).collect();
    if faults.is_empty() {
        return Err(format!("no fault is called like that: {}", arguments.only.join(", ")));
    }
    if arguments.list {
        faults.iter().for_each(|fault| println!("{}: {}", fault.name, tests_of(fault)));
        return Ok(true);
    }
    // Those that one test program is to notice, one after the other.
    faults.sort_by(|a, b| (a.package(), &a.test).cmp(&(b.package(), &b.test)));
    let tree = Tree::new(faults.iter().any(|fault| fault.test.is_some()))?;
    let mut verdicts = Vec::new();
    for faults in faults.chunk_by(|a, b| (a.package(), &a.test) == (b.package(), &b.test)) {
        tree.is_sound(faults)?;
        for fault in faults {
            let begun = Instant::now();
            let verdict = tree.try_out(fault)?;
            println!("{}: {} ({} s)", fault.name, verdict.text(), begun.elapsed().as_secs());
            verdicts.push((fault, verdict));
        }
    }
    println!();
    for (fault, verdict) in verdicts.iter().filter(|(_, verdict)| !verdict.is_good()) {
        println!("{}: {}: {}", verdict.text(), fault.name, tests_of(fault));
    }
    let caught = verdicts.iter().filter(|(_, verdict)| verdict.is_good()).count();
    println!("{caught} of {} faults caught", verdicts.len());
    Ok(caught == verdicts.len())
}

fn tests_of(fault: &Fault) -> String {
    let program = fault.test.as_deref().unwrap_or("unit tests");
    format!("{} {program} {}", fault.package(), fault.only.join(" "))
}

/// The worktree that faults are put into.
struct Tree {
    folder: PathBuf,
    build: PathBuf,
    environment: Environment,
}

impl Tree {
    /// A new one of what is committed; the builds of earlier runs are used again. With the servers, if they are needed.
    fn new(needs_servers: bool) -> Result<Self> {
        let home = std::path::absolute(target().join("mutants"));
        let home = home.map_err(|error| format!("failed to find the build folder: {error}"))?;
        let (folder, build) = (home.join("tree"), home.join("build"));
        std::fs::create_dir_all(&home)
            .map_err(|error| format!("failed to create {}: {error}", home.display()))?;
        remove(&folder);
        let path = folder.display().to_string();
        git(&["worktree", "add", "--quiet", "--force", "--detach", &path, "HEAD"])?;
        let environment = Environment::prepare(needs_servers, "debug")?;
        Ok(Self { folder, build, environment })
    }

    /// Runs the tests of these faults without any: what fails then would prove nothing of a fault, nor would no test at all.
    fn is_sound(&self, faults: &[Fault]) -> Result<()> {
        let Some(program) = self.built(&faults[0])? else {
            return Err("what is committed does not compile: see the compiler's words above".into());
        };
        let mut tried: Vec<&[String]> = Vec::new();
        for fault in faults {
            if tried.contains(&&fault.only[..]) {
                continue;
            }
            tried.push(&fault.only);
            let mut command = self.command(&program);
            let output = command.args(&fault.only).stdin(Stdio::null()).output();
            let output = output.map_err(|error| format!("failed to start {command:?}: {error}"))?;
            let said = String::from_utf8_lossy(&output.stdout);
            if !said
                .lines()
                .filter_map(result_line)
                .any(|(passed, failed)| passed > 0 && failed == 0)
            {
                return Err(format!(
                    "no tests, or some that fail without a fault: {}\n{said}",
                    tests_of(fault)
                ));
            }
        }
        Ok(())
    }

    fn try_out(&self, fault: &Fault) -> Result<Verdict> {
        let Ok(before) = fault.apply(&self.folder) else { return Ok(Verdict::NotApplied) };
        let verdict = match self.built(fault)? {
            None => Verdict::NotCompiled,
            Some(program) => self.tested(fault, &program)?,
        };
        let path = self.folder.join(&fault.file);
        std::fs::write(&path, before)
            .map_err(|error| format!("failed to mend {}: {error}", path.display()))?;
        Ok(verdict)
    }

    /// The test program with the fault in it; `None` if it does not compile.
    fn built(&self, fault: &Fault) -> Result<Option<Program>> {
        let mut build = Command::new(cargo());
        build.args(["test", "--package", fault.package(), "--no-run"]);
        match &fault.test {
            Some(test) => build.args(["--test", test]),
            None => build.arg("--lib"),
        };
        build.current_dir(&self.folder).env("CARGO_TARGET_DIR", &self.build);
        // Nobody looks at these with a debugger.
        build.env("CARGO_PROFILE_DEV_DEBUG", "false");
        let Ok(programs) = programs::built_by(&mut build) else { return Ok(None) };
        let is_it = |program: &Program| program.package == fault.package();
        match programs.into_iter().find(is_it) {
            Some(program) => Ok(Some(program)),
            None => Err(format!("{}: cargo has built no such test program", fault.name)),
        }
    }

    /// The program, which starts the `destage` that was built beside it: the one with the fault.
    fn command(&self, program: &Program) -> Command {
        let mut command = program.command(&self.environment);
        command.env_remove("DESTAGE_BIN");
        command
    }

    fn tested(&self, fault: &Fault, program: &Program) -> Result<Verdict> {
        let mut command = self.command(program);
        command.args(&fault.only).arg("--quiet");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Its own children end with it.
        let child = command.process_group(0).spawn();
        let child = child.map_err(|error| format!("failed to start {command:?}: {error}"))?;
        ended(child)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// What the tests say, or that they do not end.
fn ended(mut child: Child) -> Result<Verdict> {
    let begun = Instant::now();
    loop {
        let status =
            child.try_wait().map_err(|error| format!("failed to wait for tests: {error}"))?;
        if let Some(status) = status {
            return Ok(if status.success() { Verdict::NotCaught } else { Verdict::Caught });
        }
        if begun.elapsed() > LASTS_MAX {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = child.wait();
            return Ok(Verdict::Hangs);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Takes a worktree away that may be there, whole or in part.
fn remove(folder: &Path) {
    let mut git = Command::new("git");
    git.args(["worktree", "remove", "--force"]).arg(folder).current_dir(root());
    let _ = git.stdin(Stdio::null()).stderr(Stdio::null()).status();
    let _ = std::fs::remove_dir_all(folder);
}

fn git(arguments: &[&str]) -> Result<()> {
    let mut git = Command::new("git");
    let status = git.args(arguments).current_dir(root()).stdin(Stdio::null()).status();
    if status.map_err(|error| format!("failed to start git: {error}"))?.success() {
        Ok(())
    } else {
        Err(format!("git {} failed: see its output above", arguments.join(" ")))
    }
}

/// Sound tests of one program take a fraction of this.
const LASTS_MAX: Duration = Duration::from_secs(900);
