//! What a command that is started with the server is told of it.

use destage_runtime::sockets::Listener;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use std::path::Path;

/// The variables; `None` where there is no such thing.
pub(super) fn environment(
    listener: Option<&Listener>,
    is_encrypted: bool,
) -> [(&'static str, Option<String>); 3] {
    let (url, host_and_port) = match listener {
        None => (None, None),
        Some(Listener::Unix(_, file)) => (Some(unix_url(file.path())), None),
        Some(listener @ Listener::Tcp(_)) => {
            let address = listener.address();
            let parts = address.rsplit_once(':').map(|(h, p)| (h.to_owned(), p.to_owned()));
            let scheme = if is_encrypted { "rediss" } else { "redis" };
            (Some(format!("{scheme}://{address}")), parts)
        }
    };
    let (host, port) = host_and_port.unzip();
    [("DESTAGE_URL", url), ("DESTAGE_HOST", host), ("DESTAGE_PORT", port)]
}

/// As Redis clients take it, from whatever folder.
fn unix_url(path: &Path) -> String {
    let absolute = std::path::absolute(path);
    let shown = absolute.as_deref().unwrap_or(path).to_string_lossy();
    format!("unix://{}", utf8_percent_encode(&shown, NOT_IN_PATHS))
}

const NOT_IN_PATHS: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

#[cfg(test)]
mod tests {
    use super::*;
    use destage_runtime::sockets::Listen;

    #[test]
    fn an_encrypted_address_says_so() {
        let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Listener::bind(&listen).unwrap();
        let url = |is_encrypted| environment(Some(&listener), is_encrypted)[0].1.clone().unwrap();
        assert_eq!(url(true), format!("rediss://{}", listener.address()));
        assert_eq!(url(false), format!("redis://{}", listener.address()));
    }

    #[test]
    fn paths_are_absolute_and_read_as_urls() {
        assert_eq!(unix_url(Path::new("/run/a b%.sock")), "unix:///run/a%20b%25.sock");
        let folder = std::env::current_dir().unwrap();
        let url = unix_url(Path::new("d.sock"));
        assert!(url.starts_with("unix:///") && url.ends_with("/d.sock"), "{url} in {folder:?}");
    }
}
