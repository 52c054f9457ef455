//! Connections that are encrypted, and servers that are not who they should be.

use super::database::Database;
use destage_origins::contract::Origin;
use destage_origins::origins::Postgres;
use std::fs;
use std::path::PathBuf;

/// Opens a connection with these parameters. How the server says that it is encrypted, or why there is none.
fn version(database: &Database, name: &str, parameters: &str) -> Result<Option<String>, String> {
    let url = format!("{}&application_name={name}&{parameters}", database.url);
    let origin = Postgres::new(&url).map_err(|error| error.message)?;
    let _reader = origin.reader().map_err(|error| error.message)?;
    Ok(database.text(&format!(
        "SELECT version FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
         WHERE application_name = '{name}' LIMIT 1"
    )))
}

/// The certificate that the server shows, which vouches for itself, where any user may read it.
fn certificate(database: &Database) -> (tempfile::TempDir, PathBuf) {
    let data = database.text("SHOW data_directory").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("authority.pem");
    fs::copy(PathBuf::from(data).join("server.crt"), &path).unwrap();
    (folder, path)
}

#[test]
fn connections_are_encrypted_as_the_url_says() {
    let Some(database) = Database::open("encrypted") else { return };
    let (_folder, authority) = certificate(&database);
    let authority = authority.display();
    for (index, parameters) in [
        "sslmode=prefer".to_owned(),
        "sslmode=require".to_owned(),
        format!("sslmode=require&sslrootcert={authority}"),
        format!("sslmode=verify-ca&sslrootcert={authority}"),
        format!("sslmode=verify-full&sslrootcert={authority}"),
    ]
    .iter()
    .enumerate()
    {
        let found = version(&database, &format!("encrypted_{index}"), parameters);
        assert_eq!(found, Ok(Some("TLSv1.3".to_owned())), "{parameters}");
    }
    assert_eq!(version(&database, "plain", "sslmode=disable"), Ok(None));
}

#[test]
fn whoever_nobody_vouches_for_is_not_told_the_password() {
    let Some(database) = Database::open("stranger") else { return };
    let (_folder, authority) = certificate(&database);
    let stranger = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let other = authority.with_file_name("other.pem");
    fs::write(&other, stranger.cert.pem()).unwrap();
    for (parameters, expected) in [
        (format!("sslmode=verify-full&sslrootcert={}", other.display()), "certificate"),
        (format!("sslmode=verify-ca&sslrootcert={}", other.display()), "certificate"),
        (format!("sslmode=require&sslrootcert={}", other.display()), "certificate"),
    ] {
        let error = version(&database, "stranger", &parameters).unwrap_err();
        assert!(error.contains(expected) && !error.contains("pw-"), "{parameters}: {error}");
    }
    // The certificate is for the address, not for the name.
    let named = database.url.replace("@127.0.0.1:", "@localhost:");
    let open = |mode: &str| {
        let url = format!("{named}&sslmode={mode}&sslrootcert={}", authority.display());
        Postgres::new(&url).unwrap().reader().map(drop).map_err(|error| error.message)
    };
    assert!(open("verify-full").unwrap_err().contains("certificate"));
    assert_eq!(open("verify-ca"), Ok(()));
}
