//! Servers that ask for TLS, a certificate of the client, a user and a password.

use crate::world::World;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::Path;
use std::time::{Duration, Instant};

const JOURNAL_UNUSABLE: i32 = 13;
const PASSWORD: &str = "geheim";
/// A start does not wait for what a person has to mend.
const SOON: Duration = Duration::from_secs(20);

/// Writes a certificate and its key.
fn certificate(folder: &Path, name: &str, issuer: &Issuer<'_, KeyPair>) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    // One named as its issuer would pass for its own.
    params.distinguished_name.push(DnType::CommonName, name);
    let signed = params.signed_by(&key, issuer).expect("it is signed");
    std::fs::write(folder.join(format!("{name}.pem")), signed.pem()).expect("a file");
    std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("a file");
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

#[test]
fn servers_are_reached_by_tls_with_a_user_a_password_and_a_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let issuer = authority(folder.path(), "ca");
    authority(folder.path(), "other-ca");
    certificate(folder.path(), "server", &issuer);
    certificate(folder.path(), "client", &issuer);
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (cert, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let password = format!(">{PASSWORD}");
    // What REPLICAS says that the user needs.
    let mut settings = vec!["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file"];
    settings.extend([&*ca, "--tls-auth-clients", "yes", "--user", "default", "off"]);
    settings.extend(["--user", "app", "on", &password, "~{destage:*", "+evalsha", "+script"]);
    settings.extend(["+info", "+pubsub", "+config|get", "+hmget", "+hget", "+hset", "+hdel"]);
    settings.extend(["+lrange", "+lindex", "+ltrim", "+rpush", "+del"]);
    let mut world = World::new(3, &settings);
    let around = |user: &str, ca: &str, own: &str| {
        let own = match own {
            "" => String::new(),
            own => format!(
                "&sslcert={}&sslkey={}",
                file(&format!("{own}.pem")),
                file(&format!("{own}.key"))
            ),
        };
        (format!("rediss://{user}@"), format!("?sslrootcert={}{own}", file(ca)))
    };
    for (user, ca, own, part) in [
        ("app:falsch", "ca.pem", "client", "user or password"),
        ("app:geheim", "other-ca.pem", "client", "certificate"),
        ("app:geheim", "ca.pem", "", "certificate"),
    ] {
        world.around = around(user, ca, own);
        let began = Instant::now();
        let (code, text) = world.refused(&["--failover", "300ms"]);
        assert_eq!(code, Some(JOURNAL_UNUSABLE), "{text}");
        assert!(text.to_lowercase().contains(part), "{part} in {text}");
        assert!(!text.contains("falsch") && !text.contains(PASSWORD), "{text}");
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
    world.around = around("app:geheim", "ca.pem", "client");
    let flags = ["--when", "periodic:1h", "--staleness", "none"];
    let mut owner = world.start(&flags);
    assert_eq!(owner.client().ask(&["HINCRBY", "t:1", "n", "1"]), ":1");
    owner.kill();
    world.lose_disk(owner);
    let mut next = world.start(&[]);
    assert_eq!(next.client().ask(&["HGET", "t:1", "n"]), "1");
    next.end();
    assert_eq!(world.origin_rows(), [(1, 1)]);
}
