//! Connections that are encrypted, and servers that are not who they should be.

use super::database::Database;
use destage_origins::contract::Origin;
use destage_origins::origins::Mysql;
use std::fs;
use std::path::PathBuf;

/// Opens a connection with these parameters.
fn opened(url: &str, parameters: &str) -> Result<(), String> {
    let origin = Mysql::new(&format!("{url}?{parameters}")).map_err(|error| error.message)?;
    origin.reader().map(drop).map_err(|error| error.message)
}

/// The certificate that the server shows, which vouches for itself.
fn certificate(database: &mut Database) -> PathBuf {
    PathBuf::from(database.text("SELECT @@ssl_cert").unwrap())
}

#[test]
fn connections_are_encrypted_as_the_url_says() {
    let Some(mut database) = Database::open("encrypted") else { return };
    let authority = certificate(&mut database);
    let user = format!("secure_{}", std::process::id());
    // The server itself refuses this user where the connection is not encrypted.
    database.sql(&format!(
        "CREATE OR REPLACE USER '{user}'@'%' IDENTIFIED BY 'pw' REQUIRE SSL;
         GRANT ALL ON {}.* TO '{user}'@'%'",
        database.name()
    ));
    let (_, rest) = database.url.split_once('@').unwrap();
    let url = format!("mysql://{user}:pw@{rest}");
    for parameters in [
        "sslmode=prefer".to_owned(),
        "sslmode=require".to_owned(),
        format!("sslmode=verify-full&sslrootcert={}", authority.display()),
    ] {
        assert_eq!(opened(&url, &parameters), Ok(()), "{parameters}");
    }
    assert!(opened(&url, "sslmode=disable").unwrap_err().contains("Access denied"));
    database.sql(&format!("DROP USER '{user}'@'%'"));
}

#[test]
fn whoever_nobody_vouches_for_is_not_told_the_password() {
    let Some(mut database) = Database::open("stranger") else { return };
    let authority = certificate(&mut database);
    let folder = tempfile::tempdir().unwrap();
    let stranger = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let other = folder.path().join("other.pem");
    fs::write(&other, stranger.cert.pem()).unwrap();
    let verified = |path: &PathBuf| format!("sslmode=verify-full&sslrootcert={}", path.display());
    let error = opened(&database.url, &verified(&other)).unwrap_err();
    assert!(error.contains("certificate") && !error.contains("pw-"), "{error}");
    // The certificate is for the address, not for the name.
    let named = database.url.replace("@127.0.0.1:", "@localhost:");
    let error = opened(&named, &verified(&authority)).unwrap_err();
    assert!(error.contains("certificate"), "{error}");
}
