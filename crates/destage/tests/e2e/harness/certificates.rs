//! PEM files of two authorities and of those for whom they vouch.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};

/// A folder with `ca.pem`, with `server` and `client` for whom it vouches, and with `other-ca.pem` and `stranger`: each of the
/// three as NAME.pem and NAME.key, for `localhost` and `127.0.0.1`.
pub(crate) struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    /// Makes the folder with its files.
    pub(crate) fn make(folder: PathBuf) -> Self {
        std::fs::create_dir_all(&folder).expect("a folder");
        let issuer = authority(&folder, "ca");
        issue(&folder, "server", &issuer);
        issue(&folder, "client", &issuer);
        issue(&folder, "stranger", &authority(&folder, "other-ca"));
        Self { folder }
    }

    /// One of the files.
    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}

fn authority(folder: &Path, name: &str) -> Issuer<'static, KeyPair> {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).expect("it is signed").pem();
    std::fs::write(folder.join(format!("{name}.pem")), pem).expect("a file");
    Issuer::new(params, key)
}

fn issue(folder: &Path, name: &str, issuer: &Issuer<'_, KeyPair>) {
    let key = KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).expect("names");
    // One named as its issuer would pass for its own.
    params.distinguished_name.push(DnType::CommonName, name);
    let signed = params.signed_by(&key, issuer).expect("it is signed");
    std::fs::write(folder.join(format!("{name}.pem")), signed.pem()).expect("a file");
    std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("a file");
}
