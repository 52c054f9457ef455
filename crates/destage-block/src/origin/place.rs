//! Origins as users name them.

use super::nbd::NbdOptions;
use super::{FileOrigin, NbdOrigin, Origin, OriginIoError, OriginIoErrorKind, SnapshotOrigin};
use crate::nbd::uri::Uri;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// What a user names, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file or a block device: a path, or `file:` and a path.
    File(PathBuf),
    /// Another server's export: `nbd://`, `nbds://`, `nbd+unix://`, `nbds+unix://`.
    Nbd(Uri),
}

impl FromStr for Place {
    type Err = OriginIoError;

    fn from_str(text: &str) -> Result<Self, OriginIoError> {
        let denied = |why: String| OriginIoError::new(OriginIoErrorKind::Denied, why);
        if let Some(path) = text.strip_prefix("file:") {
            // RFC 8089: file:///path and file:/path are the same; a host in between is none of ours.
            let path = path.strip_prefix("//").map_or(Ok(path), |rest| {
                if rest.starts_with('/') {
                    Ok(rest)
                } else {
                    Err(denied(format!("\"{text}\" names another host: write file:/PATH")))
                }
            })?;
            return Self::of_path(text, path);
        }
        match text.split_once("://") {
            None => Self::of_path(text, text),
            Some((scheme, _)) if scheme.to_ascii_lowercase().starts_with("nbd") => {
                text.parse().map(Self::Nbd).map_err(|e| denied(format!("{e}")))
            }
            Some((scheme, _)) => Err(denied(format!(
                "\"{scheme}://\" is no kind of origin: name a path, file:/PATH, nbd://HOST/EXPORT, nbds://HOST/EXPORT or \
                 nbd+unix:///EXPORT?socket=PATH"
            ))),
        }
    }
}

impl Place {
    fn of_path(text: &str, path: &str) -> Result<Self, OriginIoError> {
        if path.is_empty() {
            let message = format!("\"{text}\" names no origin: give a path or an address");
            return Err(OriginIoError::new(OriginIoErrorKind::Denied, message));
        }
        Ok(Self::File(path.into()))
    }

    /// Opens it.
    ///
    /// # Errors
    /// What is wrong with it: see [`FileOrigin::open`], [`NbdOrigin::open`].
    pub fn open(&self, options: &NbdOptions) -> Result<Arc<dyn Origin>, OriginIoError> {
        match self {
            Self::File(path) => Ok(Arc::new(FileOrigin::open(path)?)),
            Self::Nbd(uri) if uri.tls && options.client.tls.is_none() => {
                let message = format!(
                    "{uri} is reached by TLS, and nobody said who vouches for its server: name the authority by \
                     --origin-tls-ca"
                );
                Err(OriginIoError::new(OriginIoErrorKind::Denied, message))
            }
            Self::Nbd(uri) => Ok(Arc::new(NbdOrigin::open(uri, options.clone())?)),
        }
    }
}

/// Opens what a user names.
///
/// # Errors
/// What is wrong with it.
pub fn open(place: &str, options: &NbdOptions) -> Result<Arc<dyn Origin>, OriginIoError> {
    place.parse::<Place>()?.open(options)
}

/// Opens what a user names for [`Origin::replace`].
///
/// # Errors
/// What is wrong with it, or why it cannot be replaced: see [`SnapshotOrigin::open`].
pub fn open_replaceable(place: &str) -> Result<SnapshotOrigin, OriginIoError> {
    match place.parse()? {
        Place::File(path) => SnapshotOrigin::open(&path),
        Place::Nbd(uri) => Err(OriginIoError::new(
            OriginIoErrorKind::Denied,
            format!(
                "{uri} is another server's export, of which no copy can be made here: use --atomic redo"
            ),
        )),
    }
}

/// As [`open`]; a file that is absent is made with so many bytes.
///
/// # Errors
/// What is wrong with it.
pub fn open_or_create(
    place: &str,
    bytes: u64,
    options: &NbdOptions,
) -> Result<Arc<dyn Origin>, OriginIoError> {
    match place.parse()? {
        Place::File(path) if !path.exists() => Ok(Arc::new(FileOrigin::create(&path, bytes)?)),
        other => other.open(options),
    }
}

/// The file that [`open_or_create`] would make for this place.
pub fn absent(place: &str) -> Option<PathBuf> {
    match place.parse() {
        Ok(Place::File(path)) if !path.exists() => Some(path),
        _ => None,
    }
}

/// Where a file origin's redo store is unless told.
pub fn sidecar(place: &str) -> Option<String> {
    let Ok(Place::File(path)) = place.parse() else { return None };
    is_file(&path).then(|| format!("{}.destage", path.display()))
}

/// Beside a device there is no room: its folder is in memory.
fn is_file(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file())
}

/// Whether nothing was ever written to the head of an origin.
///
/// # Errors
/// As the origin reports them.
pub fn is_blank(origin: &dyn Origin) -> Result<bool, OriginIoError> {
    let mut head = vec![0; 8_192.min(origin.size() as usize)];
    origin.read(0, &mut head)?;
    Ok(head.iter().all(|&byte| byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_paths_files_and_exports() {
        let parse = |text: &str| text.parse::<Place>().unwrap();
        for text in ["/srv/disk.img", "file:/srv/disk.img", "file:///srv/disk.img"] {
            assert_eq!(parse(text), Place::File("/srv/disk.img".into()));
        }
        assert_eq!(parse("disk.img"), Place::File("disk.img".into()));
        for text in ["nbd://storage/vol1", "nbds://storage", "nbd+unix:///vol1?socket=/run/nbd"] {
            assert!(matches!(parse(text), Place::Nbd(_)), "{text}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused_with_what_would_be_one() {
        let cases = [
            ("", "names no origin"),
            ("file:", "names no origin"),
            ("file://storage/disk.img", "another host"),
            ("iscsi://storage/1", "nbd://HOST/EXPORT"),
            ("nbdx://storage/1", "scheme"),
            ("nbd+unix:///vol1", "socket"),
        ];
        for (text, why) in cases {
            let refused = text.parse::<Place>().unwrap_err();
            assert_eq!(refused.kind, OriginIoErrorKind::Denied);
            assert!(refused.message.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn what_cannot_be_an_origin_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("empty"), b"").unwrap();
        std::fs::write(path("disk"), [1; 8_192]).unwrap();
        let refused = |place: &str| {
            let error = open(place, &NbdOptions::default()).unwrap_err();
            assert_eq!(error.kind, OriginIoErrorKind::Denied, "{error}");
            error.message
        };
        assert!(refused(&path("absent")).contains("does not exist"));
        assert!(refused(&path("")).contains("is a directory"));
        assert!(refused(&path("empty")).contains("is empty"));
        assert!(refused("/dev/null").contains("neither a file nor a block device"));
        let held = open(&path("disk"), &NbdOptions::default()).unwrap();
        assert!(refused(&path("disk")).contains("locked by another process"));
        assert!(!is_blank(&*held).unwrap());
        drop(held);
        open(&path("disk"), &NbdOptions::default()).unwrap();
        assert!(refused("nbds://storage/vol1").contains("--origin-tls-ca"));
    }

    #[test]
    fn a_file_gets_a_sidecar_and_other_origins_none() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk").display().to_string();
        std::fs::write(&disk, [1; 8_192]).unwrap();
        let beside = sidecar(&disk).unwrap();
        assert_eq!(beside, format!("{disk}.destage"));
        for other in ["/dev/null", "nbd://storage/vol1", "/absent"] {
            assert_eq!(sidecar(other), None);
        }
        let options = NbdOptions::default();
        let made = open_or_create(&beside, 65_536, &options).unwrap();
        assert_eq!(made.size(), 65_536);
        assert!(is_blank(&*made).unwrap());
        drop(made);
        let again = open_or_create(&beside, 1 << 20, &options).unwrap();
        assert_eq!(again.size(), 65_536, "never made twice");
    }
}
