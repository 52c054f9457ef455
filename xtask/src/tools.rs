//! The programs that the tests need from outside, and how to get them on Debian and its relatives.

use crate::Result;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program, and the package that brings it.
struct Tool {
    package: &'static str,
    present: fn() -> bool,
}

const TOOLS: &[Tool] = &[
    Tool { package: "redis-server", present: || in_path("redis-server") },
    Tool { package: "redis-tools", present: || in_path("redis-cli") && in_path("redis-benchmark") },
    Tool { package: "postgresql", present: || postgres_folder().is_some() },
    Tool { package: "postgresql-client", present: || in_path("psql") },
    // Without the packages around these, which would start a server of the system's own.
    Tool { package: "mariadb-server-core", present: || Path::new("/usr/sbin/mariadbd").is_file() },
    Tool { package: "mariadb-client-core", present: || in_path("mariadb") },
    Tool { package: "openssl", present: || in_path("openssl") },
    Tool { package: "nbdkit", present: || in_path("nbdkit") },
    Tool { package: "libnbd-bin", present: || in_path("nbdinfo") && in_path("nbdcopy") },
    Tool { package: "python3-libnbd", present: || in_path("nbdsh") && python_knows_nbd() },
    Tool { package: "nbd-client", present: || Path::new("/usr/sbin/nbd-client").is_file() },
    Tool { package: "qemu-system-x86", present: || in_path("qemu-system-x86_64") },
    Tool { package: "qemu-utils", present: || in_path("qemu-img") && in_path("qemu-io") },
    Tool { package: "fuse3", present: || in_path("fusermount3") },
    Tool { package: "e2fsprogs", present: || in_path("mkfs.ext4") && in_path("e2fsck") },
    Tool { package: "xfsprogs", present: || in_path("mkfs.xfs") && in_path("xfs_repair") },
    Tool { package: "btrfs-progs", present: || in_path("mkfs.btrfs") && in_path("btrfs") },
    Tool { package: "util-linux", present: || in_path("losetup") && in_path("fstrim") },
    Tool { package: "dmsetup", present: || Path::new("/usr/sbin/dmsetup").is_file() },
    Tool { package: "mount", present: || in_path("mount") && in_path("umount") },
    Tool { package: "fio", present: || in_path("fio") },
    // The load balancer of an example, which is in no folder of a user's path.
    Tool { package: "haproxy", present: || Path::new("/usr/sbin/haproxy").is_file() },
    Tool { package: "rsync", present: || in_path("rsync") },
    Tool { package: "git", present: || in_path("git") },
    Tool { package: "vim", present: || in_path("vim") },
    // What the suites of others are built with, and what their scripts call.
    Tool { package: "make", present: || in_path("make") },
    Tool { package: "autoconf", present: || in_path("autoconf") },
    Tool { package: "automake", present: || in_path("automake") },
    Tool { package: "libtool-bin", present: || in_path("libtool") },
    Tool { package: "bison", present: || in_path("bison") },
    Tool { package: "flex", present: || in_path("flex") },
    Tool { package: "bc", present: || in_path("bc") },
    Tool { package: "attr", present: || in_path("setfattr") },
    Tool { package: "acl", present: || in_path("setfacl") },
    Tool { package: "libattr1-dev", present: || is_header("attr/libattr.h") },
    Tool { package: "libacl1-dev", present: || is_header("sys/acl.h") },
    Tool { package: "libaio-dev", present: || is_header("libaio.h") },
    Tool { package: "libgdbm-dev", present: || is_header("gdbm.h") },
    Tool { package: "uuid-dev", present: || is_header("uuid/uuid.h") },
    Tool { package: "xfslibs-dev", present: || is_header("xfs/xfs.h") },
    // A shared file system for `destage mount`.
    Tool { package: "ceph-mon", present: || in_path("ceph-mon") },
    Tool { package: "ceph-mgr", present: || in_path("ceph-mgr") },
    Tool { package: "ceph-osd", present: || in_path("ceph-osd") },
    Tool { package: "ceph-mds", present: || in_path("ceph-mds") },
    Tool { package: "ceph-fuse", present: || in_path("ceph-fuse") },
    Tool { package: "ceph-common", present: || in_path("ceph") },
    // By which several hosts share one.
    Tool { package: "etcd-server", present: || in_path("etcd") },
    Tool { package: "uuid-runtime", present: || in_path("uuidgen") },
    Tool { package: "python3-venv", present: python_makes_environments },
    Tool { package: "golang-go", present: || in_path("go") },
    Tool { package: "nodejs", present: || in_path("node") },
    Tool { package: "npm", present: || in_path("npm") },
    Tool { package: "default-jdk-headless", present: || in_path("java") && in_path("javac") },
    Tool { package: "maven", present: || in_path("mvn") },
    Tool { package: "chromium", present: || in_path("chromium") },
    Tool { package: "zsh", present: || in_path("zsh") },
    Tool { package: "fish", present: || in_path("fish") },
    Tool { package: "prometheus", present: || in_path("promtool") },
];

/// What packages are made and looked at with.
const PACKAGING: &[Tool] = &[
    Tool { package: "binutils", present: || in_path("readelf") && in_path("strip") },
    Tool { package: "lintian", present: || in_path("lintian") },
    Tool { package: "systemd", present: || in_path("systemd-analyze") },
    Tool { package: "adduser", present: || Path::new("/usr/sbin/adduser").is_file() },
    // The C code in a static binary is built with it.
    Tool { package: "musl-tools", present: || in_path("musl-gcc") },
];

/// What only the benchmark of the simulator needs: libCacheSim is built with it.
const LIBCACHESIM: &[Tool] = &[
    Tool { package: "git", present: || in_path("git") },
    Tool { package: "cmake", present: || in_path("cmake") },
    Tool { package: "make", present: || in_path("make") },
    Tool { package: "g++", present: || in_path("g++") },
    Tool { package: "pkg-config", present: || in_path("pkg-config") },
    Tool { package: "libglib2.0-dev", present: || is_header("glib-2.0/glib.h") },
    Tool { package: "libzstd-dev", present: || is_header("zstd.h") },
];

/// Installs what is missing for the tests.
///
/// # Errors
/// Names the packages to install by hand where this user may not, or where the installation failed.
pub(crate) fn ensure() -> Result<()> {
    install_missing(&[TOOLS, PACKAGING])
}

/// Installs what is missing for `cargo xtask package`.
///
/// # Errors
/// As [`ensure`].
pub(crate) fn ensure_for_packages() -> Result<()> {
    install_missing(&[PACKAGING])
}

/// Installs what building libCacheSim takes.
///
/// # Errors
/// As [`ensure`].
pub(crate) fn ensure_for_libcachesim() -> Result<()> {
    install_missing(&[LIBCACHESIM])
}

/// Whether [`ensure`] can do what it has to: asked first, so that nobody waits for a build to hear of it.
///
/// # Errors
/// Names the packages to install by hand where this user may not.
pub(crate) fn can_ensure() -> Result<()> {
    may_install(&missing(&[TOOLS, PACKAGING]))
}

fn may_install(missing: &[&str]) -> Result<()> {
    if missing.is_empty() || is_root() {
        return Ok(());
    }
    let list = missing.join(" ");
    Err(format!("these packages are missing; install them first: apt-get install {list}"))
}

fn install_missing(tools: &[&[Tool]]) -> Result<()> {
    let missing = missing(tools);
    if missing.is_empty() {
        return Ok(());
    }
    may_install(&missing)?;
    println!("installing: {}", missing.join(" "));
    // The package lists may be fresh enough; refreshing them costs more than trying.
    if !apt_get(&install(&missing)) {
        refresh();
        apt_get(&install(&missing));
    }
    let left = self::missing(tools);
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("failed to install {}: see the output of apt-get above", left.join(" ")))
    }
}

/// Has apt-get read the package lists anew.
pub(crate) fn refresh() {
    apt_get(&["update".to_owned()]);
}

fn missing(tools: &[&[Tool]]) -> Vec<&'static str> {
    let tools = tools.iter().copied().flatten();
    tools.filter(|tool| !(tool.present)()).map(|tool| tool.package).collect()
}

fn install(packages: &[&str]) -> Vec<String> {
    let options = ["install", "--yes", "--no-install-recommends"];
    options.iter().chain(packages).map(|part| (*part).to_owned()).collect()
}

fn apt_get(arguments: &[String]) -> bool {
    // `policy-rc.d` would be the other way to keep the packaged servers from starting; RUNLEVEL suffices in containers.
    Command::new("apt-get")
        .arg("--quiet=2")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn is_header(name: &str) -> bool {
    Path::new("/usr/include").join(name).is_file()
}

fn python_makes_environments() -> bool {
    python_imports("python3", "venv, ensurepip")
}

/// The system's own Python, whatever comes first in the path.
fn python_knows_nbd() -> bool {
    python_imports("/usr/bin/python3", "nbd")
}

fn python_imports(python: &str, modules: &str) -> bool {
    Command::new(python)
        .args(["-c", &format!("import {modules}")])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether a program of that name can be run.
pub(crate) fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0".as_slice())
}

/// The folder of PostgreSQL's server programs; the newest version where there are several.
pub(crate) fn postgres_folder() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, folder)| holds_server(folder))
        .collect();
    versions.sort();
    versions.pop().map(|(_, folder)| folder).or_else(folder_by_pg_config)
}

fn folder_by_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    holds_server(&folder).then_some(folder)
}

fn holds_server(folder: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| folder.join(program).is_file())
}
