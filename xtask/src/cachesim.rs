//! libCacheSim, another simulator, built from its published source, and a trace of the ARC paper: both are no part of the project.

use crate::clients::run;
use crate::{Result, target, tools};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Sources that others publish, at one commit.
struct Sources {
    name: &'static str,
    /// Names another repository, such as a mirror or a clone on this machine.
    variable: &'static str,
    repository: &'static str,
    commit: &'static str,
    /// Which files are wanted, as sparse checkouts name them.
    files: &'static [&'static str],
}

const LIBCACHESIM: Sources = Sources {
    name: "libCacheSim",
    variable: "DESTAGE_LIBCACHESIM",
    repository: "https://github.com/1a1a11a/libCacheSim",
    commit: "aa0fc40914b2b786f4b9f4dafb099f8f332b216a",
    // Without its traces and plots, which are larger than all the rest.
    files: &["/*", "!/data/", "!/doc/"],
};

const P3: Sources = Sources {
    name: "cache-trace",
    variable: "DESTAGE_CACHE_TRACE",
    repository: "https://github.com/moka-rs/cache-trace",
    commit: "ef0a9de8cf0202a1f2fee186a0af497774b0f0a9",
    files: &["/arc/README.md", "/arc/P3.lis.zst"],
};
const P3_FILE: &str = "P3.lis.zst";

/// What the benchmark of the simulator finds in its environment. What cannot be had is said and left out.
///
/// # Errors
/// The folder for it cannot be written.
pub(crate) fn prepare(traces: Option<&Path>) -> Result<Vec<(&'static str, String)>> {
    let home = target().join("xtask/sim");
    std::fs::create_dir_all(&home)
        .map_err(|error| format!("failed to create {}: {error}", home.display()))?;
    let home = home
        .canonicalize()
        .map_err(|error| format!("failed to find {}: {error}", home.display()))?;
    let mut variables = Vec::new();
    match LIBCACHESIM.checked_out(&home).and_then(|sources| build(&sources)) {
        Ok(program) => {
            let version = format!("{} of {}", &LIBCACHESIM.commit[..12], LIBCACHESIM.repository);
            variables.push(("DESTAGE_TEST_CACHESIM", program.display().to_string()));
            variables.push(("DESTAGE_TEST_CACHESIM_VERSION", version));
        }
        Err(what) => println!("libCacheSim cannot be had, Destage is measured alone: {what}"),
    }
    match gathered(&home.join("traces"), traces, P3.checked_out(&home)) {
        Ok(folder) => variables.push(("DESTAGE_TRACES", folder.display().to_string())),
        Err(what) => println!("traces of others cannot be had: {what}"),
    }
    Ok(variables)
}

impl Sources {
    /// The folder with the wanted files, fetched if they are not there yet.
    fn checked_out(&self, home: &Path) -> Result<PathBuf> {
        let folder = home.join(format!("{}-{}", self.name, &self.commit[..12]));
        if folder.is_dir() {
            return Ok(folder);
        }
        let named = std::env::var(self.variable);
        let repository = named.as_deref().unwrap_or(self.repository);
        println!("fetching {} from {repository}", self.name);
        // Under its own name only once it is whole.
        let part = folder.with_extension("part");
        if part.exists() {
            std::fs::remove_dir_all(&part)
                .map_err(|error| format!("failed to remove {}: {error}", part.display()))?;
        }
        let mut clone = git(home, &["clone", "--quiet", "--no-checkout", "--filter=blob:none"]);
        run("git", clone.arg(repository).arg(&part))?;
        run("git", git(&part, &["sparse-checkout", "set", "--no-cone"]).args(self.files))?;
        run("git", &mut git(&part, &["checkout", "--quiet", self.commit]))?;
        std::fs::rename(&part, &folder)
            .map_err(|error| format!("failed to rename {}: {error}", part.display()))?;
        Ok(folder)
    }
}

/// A repository that asks for a password is as good as none.
fn git(folder: &Path, arguments: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.current_dir(folder).args(arguments).env("GIT_TERMINAL_PROMPT", "0");
    git
}

/// Builds libCacheSim's simulator, as its own instructions say; the program.
fn build(sources: &Path) -> Result<PathBuf> {
    let work = sources.join("_build");
    let program = work.join("bin/cachesim");
    if program.is_file() {
        return Ok(program);
    }
    tools::ensure_for_libcachesim()?;
    println!("building libCacheSim");
    let mut configure = Command::new("cmake");
    configure.args(["-DCMAKE_BUILD_TYPE=Release", "-DENABLE_TESTS=OFF", "-S"]).arg(sources);
    run("cmake", configure.arg("-B").arg(&work).stdout(Stdio::null()))?;
    let mut make = Command::new("cmake");
    make.arg("--build").arg(&work).args(["--target", "cachesim", "--parallel", "2"]);
    run("cmake", make.stdout(Stdio::null()))?;
    Ok(program)
}

/// A folder with links to the traces that there are.
fn gathered(folder: &Path, others: Option<&Path>, p3: Result<PathBuf>) -> Result<PathBuf> {
    let failed = |error| format!("failed to write {}: {error}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(failed)?;
    }
    std::fs::create_dir_all(folder).map_err(failed)?;
    let others = others.and_then(|others| std::fs::read_dir(others).ok()).into_iter().flatten();
    for file in others.flatten() {
        std::os::unix::fs::symlink(file.path(), folder.join(file.file_name())).map_err(failed)?;
    }
    let own = folder.join(P3_FILE);
    match p3 {
        Ok(sources) if !own.exists() => {
            let file = sources.join("arc").join(P3_FILE);
            std::os::unix::fs::symlink(file, own).map_err(failed)?;
        }
        Err(what) if !own.exists() => println!("{P3_FILE} cannot be had: {what}"),
        _ => {}
    }
    Ok(folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_pinned_in_full() {
        for sources in [LIBCACHESIM, P3] {
            let is_hex = sources.commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(is_hex && sources.commit.len() == 40, "{}", sources.name);
        }
    }
}
