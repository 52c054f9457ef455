//! The test programs: all of them built at once, so that no dependency is built twice with other features, and run one by one.

use crate::test::Environment;
use crate::{Result, root};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A test program that is built.
pub(crate) struct Program {
    /// The package that it belongs to.
    pub(crate) package: String,
    /// Its target's name: of the library, the binary, the example or the integration test.
    pub(crate) target: String,
    /// It is one of the integration tests in the package's folder `tests`.
    pub(crate) is_integration: bool,
    /// Where the package is.
    folder: PathBuf,
    path: PathBuf,
}

impl Program {
    /// A command that runs it as `cargo test` does.
    pub(crate) fn command(&self, environment: &Environment) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        environment.give_to(&mut command);
        command
    }
}

/// Builds every test program of the workspace, and the binaries that they run.
///
/// # Errors
/// What the compiler says goes to standard error; the message says that it failed.
pub(crate) fn build(environment: &Environment, profile: &str) -> Result<Vec<Program>> {
    let mut cargo = environment.cargo(&["test", "--workspace", "--no-run"]);
    built_by(cargo.args(["--profile", profile]))
}

/// The test programs that this cargo command builds.
///
/// # Errors
/// As [`build`].
pub(crate) fn built_by(cargo: &mut Command) -> Result<Vec<Program>> {
    let mut child = cargo
        .args(["--message-format", "json-render-diagnostics"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("failed to start {cargo:?}: {error}"))?;
    let output = child.stdout.take().expect("the output is piped");
    let mut programs = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| format!("failed to read what cargo has built: {error}"))?;
        programs.extend(program(&line));
    }
    let status = child.wait().map_err(|error| format!("failed to wait for cargo: {error}"))?;
    if status.success() { Ok(programs) } else { Err("the tests cannot be built".to_owned()) }
}

/// What a line of cargo's messages says of a test program.
fn program(line: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    let package = if folder == root() {
        "workspace".to_owned()
    } else {
        folder.file_name()?.to_str()?.to_owned()
    };
    Some(Program {
        package,
        target: message["target"]["name"].as_str()?.to_owned(),
        is_integration: message["target"]["kind"][0] == "test",
        path: PathBuf::from(message["executable"].as_str()?),
        folder,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/destage/Cargo.toml","target":{"kind":["test"],
            "name":"e2e"},"profile":{"test":true},"executable":"/w/target/ci/deps/e2e-1"}"#;
        let found = program(line).expect("it is one");
        assert_eq!((found.package.as_str(), found.target.as_str()), ("destage", "e2e"));
        assert!(found.is_integration);
        assert!(program(&line.replace(r#""test":true"#, r#""test":false"#)).is_none());
        assert!(program("warning: unused").is_none());
    }
}
