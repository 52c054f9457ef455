//! The recipes run as they stand, in front of the example shop.

use crate::harness::{Launch, PATIENCE, Scratch, eventually, has, output, prepared};
use std::path::{Path, PathBuf};
use std::process::Command;

fn recipe(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/recipes").join(file)
}

/// Runs a recipe, which counts one point.
#[track_caller]
fn counts(command: impl FnOnce(&Scratch, &str) -> Command) {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let points = |client: &mut crate::harness::Client| {
        let reply = client.run("HGET customers:1 points");
        reply.text().parse::<i64>().expect("a number")
    };
    let mut client = server.client();
    let before = points(&mut client);
    let said = output(&mut command(&scratch, &server.port()));
    assert!(said.contains("points"), "{said}");
    eventually("it has counted once", PATIENCE, || points(&mut client) == before + 1);
}

#[test]
fn python_counts_once() {
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    counts(|_, port| {
        let mut command = Command::new(python);
        command.arg("-B").arg(recipe("python/visits.py")).arg(port);
        command
    });
}

#[test]
fn node_counts_once() {
    let Some(client) = prepared("DESTAGE_TEST_NODE_CLIENT") else { return };
    counts(|_, port| {
        // Beside the installed packages, where they are found.
        let program = Path::new(&client).with_file_name("recipe-visits.mjs");
        std::fs::copy(recipe("node/visits.mjs"), &program).expect("it can be copied");
        let mut command = Command::new("node");
        command.arg(program).arg(port);
        command
    });
}

#[test]
fn go_counts_once() {
    if prepared("DESTAGE_TEST_GO_CLIENT").is_none() || !has("go") {
        return;
    }
    counts(|scratch, port| {
        let folder = scratch.join("go");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::copy(recipe("go/main.go"), folder.join("main.go")).expect("it can be copied");
        for file in ["go.mod", "go.sum"] {
            let from =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/go").join(file);
            std::fs::copy(from, folder.join(file)).expect("it can be copied");
        }
        output(
            Command::new("go")
                .args(["build", "-mod=readonly", "-o", "visits", "."])
                .current_dir(&folder),
        );
        let mut command = Command::new(folder.join("visits"));
        command.arg(port);
        command
    });
}

#[test]
fn java_counts_once() {
    let Some(libraries) = prepared("DESTAGE_TEST_JAVA_CLIENT") else { return };
    counts(|scratch, port| {
        let classes = scratch.join("classes");
        let path = format!("{libraries}/*:{}", classes.display());
        output(
            Command::new("javac")
                .args(["-cp", &path, "-d"])
                .arg(&classes)
                .arg(recipe("java/Visits.java")),
        );
        let mut command = Command::new("java");
        command.args(["-cp", &path, "Visits", port]);
        command
    });
}
