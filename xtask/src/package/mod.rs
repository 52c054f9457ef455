//! `cargo xtask package`: what users install, made and tried out.
//!
//! | file | what |
//! |---|---|
//! | `destage_VERSION-1_amd64.deb` | for Debian and its relatives |
//! | `destage-VERSION-TARGET.tar.gz` | the same for any Linux |
//! | `destage-VERSION-oci.tar` | an image: the static binary, no shell |
//! | `SHA256SUMS` | checksums |
//!
//! The binary is linked statically with musl where the toolchain has it. Dates are those of the last commit, so that the same
//! sources give the same files.

mod archive;
mod crates;
mod deb;
mod oci;
mod stage;
mod try_out;

pub(crate) use crates::check as check_crates;

use crate::test::{Environment, PROFILE};
use crate::{Result, cargo, root, target, tools};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flags of `package`.
#[derive(clap::Args)]
pub(crate) struct PackageArgs {
    /// Pack this binary instead of building one.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// Instead, pack the crates as they are published, and check that they can be built from what was packed.
    #[arg(long, conflicts_with_all = ["binary", "out"])]
    crates: bool,

    /// Where to put the files; `target/package` unless told.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What is packed.
pub(crate) struct Package {
    binary: PathBuf,
    /// Whether the binary needs no library of the system.
    is_static: bool,
    version: String,
    /// Seconds since 1970: the date of everything inside.
    date: u64,
    out: PathBuf,
}

/// The target whose binaries run on every Linux.
pub(crate) const STATIC_TARGET: &str = "x86_64-unknown-linux-musl";

/// Builds, packs and tries out. True if all of it works.
pub(crate) fn run(arguments: &PackageArgs) -> Result<bool> {
    if arguments.crates {
        return check_crates(&Environment::prepare(false, PROFILE)?).map(|()| true);
    }
    tools::ensure_for_packages()?;
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build()?,
    };
    let out = arguments.out.clone().unwrap_or_else(|| target().join("package"));
    let out = std::path::absolute(out).map_err(|error| error.to_string())?;
    make(binary, out).map(|()| true)
}

/// Packs a binary and tries the packages out.
pub(crate) fn make(binary: PathBuf, out: PathBuf) -> Result<()> {
    let package =
        Package { is_static: is_static(&binary)?, binary, version: version()?, date: date(), out };
    let _ = std::fs::remove_dir_all(&package.out);
    create(&package.out)?;
    let stage = stage::make(&package)?;
    let mut made = vec![archive::make(&package, &stage)?, deb::make(&package, &stage)?];
    try_out::units(&stage)?;
    try_out::archive(&made[0])?;
    try_out::deb(&made[1])?;
    if package.is_static {
        let image = oci::make(&package)?;
        try_out::image(&image, &package)?;
        made.push(image);
    } else {
        println!("no image: the binary needs libraries of the system");
    }
    let mut sums = String::new();
    for file in &made {
        let _ = writeln!(sums, "{}  {}", hash(&read(file)?), name_of(file));
    }
    write(&package.out.join("SHA256SUMS"), sums.as_bytes())?;
    let mut check = Command::new("sha256sum");
    succeed(check.args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&package.out))?;
    print!("\n{sums}in {}\n", package.out.display());
    Ok(())
}

/// A static binary where the toolchain has what it takes or rustup brings it, else one for this system.
fn build() -> Result<PathBuf> {
    if let Some(binary) = static_binary("dist", &[])? {
        return Ok(binary);
    }
    println!(
        "not static, and no image: that takes `rustup target add {STATIC_TARGET}`, or your system's package of it"
    );
    succeed(&mut building("dist"))?;
    Ok(target().join("dist/destage"))
}

/// A static binary in the profile of the tests, which have built what build scripts and macros need. Unless it is what users get,
/// nothing of it is optimised, C code neither: that halves the time. `None` where there can be none.
pub(crate) fn static_binary_of_tests(profile: &str) -> Result<Option<PathBuf>> {
    if profile != PROFILE {
        return static_binary(profile, &[]);
    }
    let manifest = manifest()?;
    let optimised = manifest["profile"]["dev"]["package"].as_table();
    let names = optimised.into_iter().flat_map(toml::Table::keys);
    let mut settings: Vec<String> =
        names.map(|name| format!("profile.dev.package.\"{name}\".opt-level=0")).collect();
    settings.push(format!("profile.{profile}.opt-level=0"));
    let flags: Vec<&str> = settings.iter().flat_map(|one| ["--config", one]).collect();
    static_binary(profile, &flags)
}

/// The static binary in this profile; `None` where the toolchain has not what it takes and rustup does not bring it.
fn static_binary(profile: &str, flags: &[&str]) -> Result<Option<PathBuf>> {
    if !has_static_target() && tools::in_path("rustup") {
        // The toolchain that runs this, as long as nobody says another one.
        let mut rustup = Command::new("rustup");
        if let Err(error) = succeed(rustup.args(["target", "add", STATIC_TARGET])) {
            println!("{error}");
        }
    }
    if !has_static_target() {
        return Ok(None);
    }
    succeed(building(profile).args(["--target", STATIC_TARGET]).args(flags))?;
    Ok(Some(target().join(STATIC_TARGET).join(profile).join("destage")))
}

fn building(profile: &str) -> Command {
    let mut command = Command::new(cargo());
    command.args(["build", "--profile", profile, "--locked", "--package", "destage"]);
    command.current_dir(root());
    command
}

fn has_static_target() -> bool {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", STATIC_TARGET]);
    output(&mut rustc).is_ok_and(|said| Path::new(said.trim()).is_dir())
}

fn is_static(binary: &Path) -> Result<bool> {
    let mut readelf = Command::new("readelf");
    let headers = output(readelf.args(["--program-headers", "--wide"]).arg(binary))?;
    Ok(!headers.contains("INTERP"))
}

fn version() -> Result<String> {
    let version = manifest()?["workspace"]["package"]["version"].as_str().map(str::to_owned);
    version.ok_or_else(|| "Cargo.toml names no version".to_owned())
}

/// The workspace's.
fn manifest() -> Result<toml::Table> {
    table(&root().join("Cargo.toml"))
}

fn table(path: &Path) -> Result<toml::Table> {
    let text = String::from_utf8_lossy(&read(path)?).into_owned();
    toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Of the last commit; of now where there is none.
fn date() -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let log = || {
        let mut git = Command::new("git");
        output(git.args(["log", "-1", "--format=%ct"]).current_dir(root())).ok()
    };
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs())
    };
    given.or_else(log).and_then(|text| text.trim().parse().ok()).unwrap_or_else(now)
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn create(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("failed to make {}: {error}", folder.display()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| format!("failed to read {}: {error}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        create(folder)?;
    }
    std::fs::write(path, bytes)
        .map_err(|error| format!("failed to write {}: {error}", path.display()))
}

fn output(command: &mut Command) -> Result<String> {
    let output =
        command.output().map_err(|error| format!("failed to start {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said)))
}

fn succeed(command: &mut Command) -> Result<()> {
    let status =
        command.status().map_err(|error| format!("failed to start {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
