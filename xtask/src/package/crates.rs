//! The crates as they are published: packed, unpacked beside one another, and built from what was packed alone.
//!
//! `cargo package` verifies each crate by a build of its own, each with all dependencies anew. Here one check of all crates does:
//! whatever the packages lack (a file that a source includes, a dependency that only the workspace names) is missing for it.

use super::{create, manifest, name_of, output, read, table, write};
use crate::test::Environment;
use crate::{Result, root, target};
use std::path::{Path, PathBuf};
use std::process::Command;

/// These are not published.
const OWN: [&str; 2] = ["xtask", "destage-bench"];
/// A file that a source includes: without it, the check must fail.
const INCLUDED: &str = "src/sample/serve.toml";
/// What a registry shows or asks for.
const METADATA: [&str; 6] =
    ["description", "license", "keywords", "categories", "rust-version", "version"];

/// Packs the crates and checks them from their packages.
pub(crate) fn check(environment: &Environment) -> Result<()> {
    let folder = target().join("crates");
    let _ = std::fs::remove_dir_all(&folder);
    let mut package = environment.cargo(&["package", "--workspace", "--no-verify"]);
    package.args(["--allow-dirty", "--quiet", "--target-dir"]).arg(&folder);
    output(package.args(OWN.iter().flat_map(|name| ["--exclude", name])))?;
    let sources = folder.join("sources");
    create(&sources)?;
    let mut names = Vec::new();
    for packed in packages(&folder.join("package"))? {
        // Not with the times in the package, which are always the same: cargo would take what it has built for up to date.
        output(Command::new("tar").arg("-xmzf").arg(&packed).arg("-C").arg(&sources))?;
        names.push(named(&sources, &name_of(&packed))?);
    }
    workspace(&sources, &names)?;
    checked(environment, &sources, &[])?;
    println!("{} crates are built from their packages", names.len());
    // What is not in a package is noticed.
    let (_, program) =
        names.iter().find(|(name, _)| name == "destage").ok_or("no crate destage")?;
    let included = sources.join(program).join(INCLUDED);
    std::fs::remove_file(&included).map_err(|error| format!("{}: {error}", included.display()))?;
    match checked(environment, &sources, &["--package", "destage"]) {
        Err(said) if said.contains("serve.toml") => Ok(()),
        Err(said) => Err(format!("without {INCLUDED} something else is missing: {said}")),
        Ok(()) => Err(format!("without {INCLUDED} the check is content: it checks nothing")),
    }
}

fn packages(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut packages: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    packages.retain(|path| path.extension().is_some_and(|extension| extension == "crate"));
    packages.sort();
    Ok(packages)
}

/// The name of an unpacked crate, and its folder. Its manifest says all that a registry wants.
fn named(sources: &Path, package: &str) -> Result<(String, String)> {
    let folder = package.trim_end_matches(".crate").to_owned();
    let manifest = table(&sources.join(&folder).join("Cargo.toml"))?;
    let said = &manifest["package"];
    if let Some(key) = METADATA.iter().find(|key| said.get(key).is_none()) {
        return Err(format!("{package}: its manifest names no {key}"));
    }
    let name = said["name"].as_str().ok_or("a package without a name")?;
    Ok((name.to_owned(), folder))
}

/// Makes one workspace of the unpacked crates: each takes the others from beside it instead of from the registry. Versions and
/// profiles are those of the project, so that what it has built for them can be used.
fn workspace(sources: &Path, names: &[(String, String)]) -> Result<()> {
    let text = |text: &str| toml::Value::String(text.to_owned());
    let mut workspace = toml::Table::new();
    workspace.insert("resolver".into(), text("3"));
    let members: Vec<toml::Value> = names.iter().map(|(_, folder)| text(folder)).collect();
    workspace.insert("members".into(), members.into());
    let mut beside = toml::Table::new();
    for (name, folder) in names {
        beside.insert(name.clone(), toml::Table::from_iter([("path".into(), text(folder))]).into());
    }
    let together = toml::Table::from_iter([
        ("workspace".into(), workspace.into()),
        ("patch".into(), toml::Table::from_iter([("crates-io".into(), beside.into())]).into()),
        ("profile".into(), manifest()?["profile"].clone()),
    ]);
    write(&sources.join("Cargo.toml"), together.to_string().as_bytes())?;
    write(&sources.join("Cargo.lock"), &read(&root().join("Cargo.lock"))?)
}

/// Whether they can be built; without the network, and with what clippy has checked of the dependencies.
fn checked(environment: &Environment, sources: &Path, which: &[&str]) -> Result<()> {
    let profile = environment.profile;
    let mut check = environment.cargo(&["check", "--quiet", "--offline", "--profile", profile]);
    check.args(if which.is_empty() { &["--workspace"] } else { which });
    output(check.current_dir(sources).env("CARGO_TARGET_DIR", target())).map(drop)
}
