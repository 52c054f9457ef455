//! Rules across flags: nobody is let in by accident.

use crate::error::CliError;
use crate::server::check_admin;
use destage_data::settings::Settings;
use destage_runtime::sockets::Listen;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Refuses settings that would open the data to people who were not meant to reach them.
pub(crate) fn check(settings: &Settings) -> Result<(), CliError> {
    if let (Listen::Unix(path), Some(_)) = (&settings.listen, &settings.tls) {
        return Err(CliError::usage(format!(
            "--tls-certificate is for clients that come by TCP, and --listen unix:{} is reached from this machine alone: leave \
             one of them out",
            path.display()
        )));
    }
    if settings.password.is_some() || settings.no_auth {
        return Ok(());
    }
    let asks_for_certificates = settings.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let knows_clients = asks_for_certificates || settings.users.is_some();
    if let Listen::Tcp(addr) = &settings.listen
        && !addr.ip().is_loopback()
        && !knows_clients
    {
        return Err(CliError::usage(format!(
            "--listen {addr} can be reached from other machines without a password: set --password \
             (or DESTAGE_PASSWORD) or --users, ask for client certificates (--tls-client-ca), listen on 127.0.0.1, or say --no-auth"
        )));
    }
    check_admin(settings.admin, settings.password.as_deref(), settings.no_auth)?;
    if settings.origin.is_some() && !knows_clients { own_origin(&settings.listen) } else { Ok(()) }
}

fn own_origin(listen: &Listen) -> Result<(), CliError> {
    let path = match listen {
        Listen::Tcp(_) => {
            return Err(CliError::usage(
                "an origin other than the example shop must not be open to every user of this \
                 machine: set --password (or DESTAGE_PASSWORD) or --users, ask for client certificates (--tls-client-ca), listen on \
                 unix:/path in a folder with mode 0700, or say --no-auth",
            ));
        }
        Listen::Unix(path) => path,
    };
    let folder = folder(path);
    let metadata = std::fs::metadata(&folder).map_err(|e| {
        CliError::usage(format!(
            "failed to look at the folder {} of the socket: {e}",
            folder.display()
        ))
    })?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "the folder {} of the socket is open to other users (mode {mode:04o}): 'chmod 700' it, set \
         --password (or DESTAGE_PASSWORD), or say --no-auth",
        folder.display()
    )))
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.into(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_data::users::UsersFile;
    use destage_runtime::tls::{Identity, ServerFiles};

    fn settings(listen: &str, origin: Option<&str>) -> Settings {
        let listen = match listen.strip_prefix("unix:") {
            Some(path) => Listen::Unix(path.into()),
            None => Listen::Tcp(listen.parse().unwrap()),
        };
        Settings { listen, origin: origin.map(Into::into), ..Settings::default() }
    }

    fn refusal(settings: &Settings) -> String {
        let error = check(settings).unwrap_err();
        assert_eq!(error.code, 2);
        error.to_string()
    }

    #[test]
    fn other_machines_are_not_let_in_without_a_password() {
        assert!(check(&settings("127.0.0.1:6380", None)).is_ok());
        assert!(check(&settings("[::1]:6380", None)).is_ok());
        let mut open = settings("0.0.0.0:6380", None);
        let error = refusal(&open);
        assert!(error.contains("--listen 0.0.0.0:6380") && error.contains("--no-auth"), "{error}");
        open.password = Some("secret".into());
        assert!(check(&open).is_ok());
        open.password = None;
        open.no_auth = true;
        assert!(check(&open).is_ok());
        let mut admin = settings("127.0.0.1:6380", None);
        admin.admin = Some("192.0.2.1:80".parse().unwrap());
        assert!(refusal(&admin).contains("--admin 192.0.2.1:80"));
    }

    #[test]
    fn client_certificates_stand_for_the_password_of_clients_and_for_no_other() {
        let identity = Identity { certificate: "c".into(), key: "k".into() };
        let mut settings = settings("0.0.0.0:6380", Some("sqlite:shop.db"));
        settings.tls = Some(ServerFiles { identity, client_ca: None });
        assert!(refusal(&settings).contains("--tls-client-ca"));
        settings.tls.as_mut().unwrap().client_ca = Some("ca".into());
        assert!(check(&settings).is_ok());
        settings.admin = Some("192.0.2.1:80".parse().unwrap());
        assert!(refusal(&settings).contains("--admin 192.0.2.1:80"));
        settings.tls.as_mut().unwrap().client_ca = None;
        settings.users = Some(UsersFile::new("/etc/users".into(), false));
        assert!(refusal(&settings).contains("--admin 192.0.2.1:80"), "the port knows no users");
        settings.admin = None;
        assert!(check(&settings).is_ok());
        settings.listen = Listen::Unix("/run/s".into());
        assert!(refusal(&settings).contains("leave one of them out"));
    }

    #[test]
    fn an_own_origin_needs_a_password_or_a_private_socket() {
        let error = refusal(&settings("127.0.0.1:6380", Some("sqlite:shop.db")));
        assert!(error.contains("--password") && error.contains("0700"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let socket = format!("unix:{}/s", dir.path().display());
        let set_mode = |mode| {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(0o755);
        assert!(refusal(&settings(&socket, Some("sqlite:shop.db"))).contains("mode 0755"));
        set_mode(0o700);
        assert!(check(&settings(&socket, Some("sqlite:shop.db"))).is_ok());
        let missing = format!("unix:{}/no/s", dir.path().display());
        assert!(refusal(&settings(&missing, Some("sqlite:shop.db"))).contains("failed to look"));
    }
}
