//! An image by the rules of the Open Container Initiative, written without a daemon: one layer with the static binary.
//!
//! It has no shell. It runs as a user of its own, needs to write to `/var/lib/destage` only, and asks itself for its health.

use super::archive::Archive;
use super::stage::gzip;
use super::{Package, hash, read, write};
use crate::Result;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The user inside.
pub(super) const USER: u64 = 10_001;
/// Authorities that vouch for the servers of databases.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Writes the image as one file, as `podman load` and `skopeo copy oci-archive:` take it.
pub(super) fn make(package: &Package) -> Result<PathBuf> {
    let layer = layer(package)?;
    let packed = gzip(&layer)?;
    let config = config(package, &hash(&layer));
    let config = serde_json::to_vec(&config).map_err(|error| error.to_string())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("application/vnd.oci.image.config.v1+json", &config),
        "layers": [described("application/vnd.oci.image.layer.v1.tar+gzip", &packed)],
    });
    let manifest = serde_json::to_vec(&manifest).map_err(|error| error.to_string())?;
    let mut entry = described("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["annotations"] =
        json!({ "org.opencontainers.image.ref.name": format!("destage:{}", package.version) });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });
    let mut archive = Archive::new(package.date);
    archive.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    archive.file("index.json", 0o644, index.to_string().as_bytes())?;
    for blob in [&config, &packed, &manifest] {
        archive.file(&format!("blobs/sha256/{}", hash(blob)), 0o644, blob)?;
    }
    let path = package.out.join(format!("destage-{}-oci.tar", package.version));
    write(&path, &archive.finish()?)?;
    Ok(path)
}

/// What a container runs unless told otherwise.
pub(super) fn command_line() -> Vec<&'static str> {
    [&ENTRYPOINT[..], &COMMAND].concat()
}

/// What a runtime asks whether it is well.
pub(super) fn health_check() -> &'static [&'static str] {
    &HEALTH
}

const ENTRYPOINT: [&str; 1] = ["/usr/bin/destage"];
const COMMAND: [&str; 7] = [
    "serve",
    "--listen",
    "0.0.0.0:6380",
    "--admin",
    "0.0.0.0:6381",
    "--data",
    "/var/lib/destage/data",
];
const HEALTH: [&str; 3] = ["/usr/bin/destage", "status", "--ready"];

fn described(kind: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": kind, "digest": format!("sha256:{}", hash(bytes)), "size": bytes.len() })
}

fn layer(package: &Package) -> Result<Vec<u8>> {
    let mut layer = Archive::new(package.date);
    for folder in
        ["etc", "etc/destage", "etc/ssl", "etc/ssl/certs", "usr", "usr/bin", "var", "var/lib"]
    {
        layer.folder(folder, 0o755, 0)?;
    }
    layer.file("usr/bin/destage", 0o755, &read(&package.out.join("stage/usr/bin/destage"))?)?;
    layer.file(
        "etc/passwd",
        0o644,
        format!("destage:x:{USER}:{USER}::/var/lib/destage:/\n").as_bytes(),
    )?;
    layer.file("etc/group", 0o644, format!("destage:x:{USER}:\n").as_bytes())?;
    if Path::new(AUTHORITIES).is_file() {
        layer.file(&AUTHORITIES[1..], 0o644, &read(Path::new(AUTHORITIES))?)?;
    }
    layer.folder("var/lib/destage", 0o700, USER)?;
    layer.finish()
}

fn config(package: &Package, layer: &str) -> Value {
    let test = [&["CMD"], &HEALTH[..]].concat();
    json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "ExposedPorts": { "6380/tcp": {}, "6381/tcp": {} },
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ENTRYPOINT,
            "Cmd": COMMAND,
            "Volumes": { "/var/lib/destage": {} },
            "WorkingDir": "/var/lib/destage",
            "StopSignal": "SIGTERM",
            // Docker heeds it; Podman is told on its command line; Kubernetes asks /readyz of the admin port.
            "Healthcheck": {
                "Test": test,
                "Interval": 10_000_000_000_u64,
                "Timeout": 5_000_000_000_u64,
                "Retries": 3,
            },
            "Labels": {
                "org.opencontainers.image.title": "Destage",
                "org.opencontainers.image.version": package.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
        "history": [{ "created_by": "cargo xtask package" }],
    })
}
