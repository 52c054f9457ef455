//! Where an export is: `nbd://host[:port]/export`, `nbds://...` for TLS, `nbd+unix:///export?socket=PATH`, `nbds+unix`.

use crate::nbd::wire::{PORT, STRING_MAX};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use std::ffi::OsString;
use std::fmt::{self, Display};
use std::net::Ipv6Addr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

/// An export's address.
///
/// ```
/// use destage_block::nbd::uri::Uri;
/// let uri: Uri = "nbd://storage/vol%201".parse()?;
/// assert_eq!(uri.export, "vol 1");
/// assert_eq!(uri.to_string(), "nbd://storage:10809/vol%201");
/// # Ok::<(), destage_block::nbd::uri::UriError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Uri {
    /// Where the server listens.
    pub place: Place,
    /// The export's name; may be empty.
    pub export: String,
    /// Whether nothing but the start of TLS may be said in the clear.
    pub tls: bool,
    /// The name that the server's certificate must have, if it is not the host's.
    pub tls_hostname: Option<String>,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// TCP.
    Tcp {
        /// A name or an address.
        host: String,
        /// [`PORT`] unless said otherwise.
        port: u16,
    },
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(formatter, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(formatter, "{host}:{port}"),
            Self::Unix(path) => write!(formatter, "{}", path.display()),
        }
    }
}

/// Why an address is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid NBD address {uri:?}: {why}")]
pub struct UriError {
    uri: String,
    why: String,
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        parse(text).map_err(|why| match text.split_once("://") {
            // It may hold a password, and so may the reason.
            Some((scheme, rest)) if rest.contains('@') => UriError {
                uri: format!("{scheme}://..."),
                why: "a user before the host is not supported; in the export's name write @ as %40"
                    .to_owned(),
            },
            _ => UriError { uri: text.to_owned(), why },
        })
    }
}

impl Display for Uri {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.tls { "nbds" } else { "nbd" })?;
        let export = percent_encode(self.export.as_bytes(), UNRESERVED);
        let mut separator = '?';
        match &self.place {
            Place::Tcp { host, port } if host.contains(':') => {
                write!(formatter, "://[{host}]:{port}/{export}")?;
            }
            Place::Tcp { host, port } => {
                let host = percent_encode(host.as_bytes(), UNRESERVED);
                write!(formatter, "://{host}:{port}/{export}")?;
            }
            Place::Unix(path) => {
                let path = percent_encode(path.as_os_str().as_bytes(), UNRESERVED_OR_SLASH);
                write!(formatter, "+unix:///{export}?socket={path}")?;
                separator = '&';
            }
        }
        let Some(name) = &self.tls_hostname else {
            return Ok(());
        };
        let name = percent_encode(name.as_bytes(), UNRESERVED);
        write!(formatter, "{separator}tls-hostname={name}")
    }
}

/// RFC 3986, section 2.3: everything else is encoded.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const UNRESERVED_OR_SLASH: &AsciiSet = &UNRESERVED.remove(b'/');

#[derive(Default)]
struct Parameters {
    socket: Option<Vec<u8>>,
    tls_hostname: Option<String>,
}

fn parse(text: &str) -> Result<Uri, String> {
    let (scheme, rest) = text.split_once("://").ok_or("it has no scheme such as nbd://")?;
    let (tls, unix) = match scheme.to_ascii_lowercase().as_str() {
        "nbd" => (false, false),
        "nbds" => (true, false),
        "nbd+unix" => (false, true),
        "nbds+unix" => (true, true),
        _ => {
            return Err(format!("its scheme {scheme:?} is none of nbd, nbds, nbd+unix, nbds+unix"));
        }
    };
    if rest.contains('#') {
        return Err("a fragment (#) means nothing here; write # as %23".to_owned());
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let export = decoded(path)?;
    if export.contains('\0') || export.len() > STRING_MAX {
        return Err(format!("the export's name has a NUL or more than {STRING_MAX} bytes"));
    }
    let Parameters { socket, tls_hostname } = parameters(query)?;
    let place = if unix {
        socket_place(authority, socket)?
    } else if socket.is_some() {
        return Err("a socket needs the scheme nbd+unix".to_owned());
    } else {
        tcp_place(authority)?
    };
    if tls_hostname.is_some() && !tls {
        return Err("tls-hostname needs the scheme nbds or nbds+unix".to_owned());
    }
    Ok(Uri { place, export, tls, tls_hostname })
}

fn parameters(query: &str) -> Result<Parameters, String> {
    let mut parameters = Parameters::default();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let again = match decoded(key)?.as_str() {
            "socket" => parameters.socket.replace(decoded_bytes(value)?).is_some(),
            "tls-hostname" => parameters.tls_hostname.replace(decoded(value)?).is_some(),
            other => {
                return Err(format!("unknown parameter {other:?}; there are socket, tls-hostname"));
            }
        };
        if again {
            return Err(format!("parameter {key:?} is given twice"));
        }
    }
    Ok(parameters)
}

fn socket_place(authority: &str, socket: Option<Vec<u8>>) -> Result<Place, String> {
    if !authority.is_empty() {
        return Err(format!(
            "a unix socket has no host {authority:?}: nbd+unix:///EXPORT?socket=PATH has three slashes"
        ));
    }
    let path = socket.filter(|path| !path.is_empty()).ok_or("it lacks ?socket=PATH")?;
    if path.contains(&0) {
        return Err(
            "a socket outside the file system (NUL in its path) is not supported".to_owned()
        );
    }
    Ok(Place::Unix(PathBuf::from(OsString::from_vec(path))))
}

fn tcp_place(authority: &str) -> Result<Place, String> {
    if authority.contains('@') {
        return Err("a user before the host is not supported".to_owned());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(literal) => {
            let (host, rest) = literal.split_once(']').ok_or("it lacks the ] of its address")?;
            host.parse::<Ipv6Addr>().map_err(|_| format!("{host:?} is no IPv6 address"))?;
            let colon = rest.is_empty() || rest.starts_with(':');
            colon.then_some(()).ok_or_else(|| format!("{rest:?} is no port"))?;
            (host.to_owned(), rest.strip_prefix(':').unwrap_or(""))
        }
        None => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            if port.contains(':') {
                return Err("an IPv6 address is written in brackets".to_owned());
            }
            (decoded(host)?, port)
        }
    };
    if host.is_empty() {
        return Err("it names no host".to_owned());
    }
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.parse().ok().filter(|port| digits && *port > 0);
    let port = match (port, number) {
        ("", _) => PORT,
        (_, Some(number)) => number,
        (_, None) => return Err(format!("{port:?} is no port (1 to 65535)")),
    };
    Ok(Place::Tcp { host, port })
}

fn decoded(text: &str) -> Result<String, String> {
    String::from_utf8(decoded_bytes(text)?).map_err(|_| format!("{text:?} is no UTF-8"))
}

fn decoded_bytes(text: &str) -> Result<Vec<u8>, String> {
    let is_hex = |digit: Option<u8>| digit.is_some_and(|digit| digit.is_ascii_hexdigit());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' && !(is_hex(rest.next()) && is_hex(rest.next())) {
            return Err(format!("in {text:?}, % is not followed by two hexadecimal digits"));
        }
    }
    Ok(percent_decode_str(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tcp(host: &str, port: u16, export: &str) -> Uri {
        let place = Place::Tcp { host: host.to_owned(), port };
        Uri { place, export: export.to_owned(), tls: false, tls_hostname: None }
    }

    #[test]
    fn addresses_mean_what_the_format_says() {
        let cases = [
            ("nbd://example.com", tcp("example.com", PORT, "")),
            ("nbd://example.com/", tcp("example.com", PORT, "")),
            ("nbd://example.com:99/disk", tcp("example.com", 99, "disk")),
            ("nbd://example.com//disk", tcp("example.com", PORT, "/disk")),
            ("nbd://example.com/hello%20world", tcp("example.com", PORT, "hello world")),
            ("NBD://[::1]:99/a/../b", tcp("::1", 99, "a/../b")),
            ("nbds://h/x", Uri { tls: true, ..tcp("h", PORT, "x") }),
            (
                "nbds+unix:///x?socket=/run/a%20b+c&tls-hostname=storage",
                Uri {
                    place: Place::Unix(PathBuf::from("/run/a b+c")),
                    export: "x".to_owned(),
                    tls: true,
                    tls_hostname: Some("storage".to_owned()),
                },
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_says_why() {
        let cases = [
            ("storage/vol", "no scheme"),
            ("http://storage/vol", "none of nbd"),
            ("nbd:///vol", "names no host"),
            ("nbd://storage:0/vol", "no port"),
            ("nbd://storage:65536/vol", "no port"),
            ("nbd://::1/vol", "brackets"),
            ("nbd://[::1/vol", "lacks the ]"),
            ("nbd://[::x]/vol", "no IPv6"),
            ("nbd://[::1]99/vol", "no port"),
            ("nbd://storage/%zz", "hexadecimal"),
            ("nbd://storage/%f", "hexadecimal"),
            ("nbd://storage/%ff", "UTF-8"),
            ("nbd://storage/%00", "NUL"),
            ("nbd://storage/a#b", "fragment"),
            ("nbd://storage/a?socket=/b", "nbd+unix"),
            ("nbd://storage/a?tls-hostname=b", "nbds"),
            ("nbd://storage/a?color=blue", "unknown parameter"),
            ("nbd+unix:///a", "lacks ?socket"),
            ("nbd+unix:///a?socket=", "lacks ?socket"),
            ("nbd+unix:///a?socket=b&socket=c", "twice"),
            ("nbd+unix:///a?socket=%00b", "not supported"),
            ("nbd+unix://a?socket=b", "three slashes"),
        ];
        for (text, why) in cases {
            let error = text.parse::<Uri>().expect_err(text).to_string();
            assert!(error.contains(why) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn what_may_be_a_password_is_not_shown() {
        for text in ["nbd://me:hush@storage/vol", "nbd://me:hush/@storage/v", "nbd://x:hush@[::1/v"]
        {
            let error = text.parse::<Uri>().expect_err(text).to_string();
            assert!(error.contains("a user before the host") && !error.contains("hush"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_parsed_to_the_same(
            export in "[^\0]{0,20}", host in "[a-z%é.-]{1,9}|::1", port in 1u16..,
            path in "[^\0]{1,20}", unix in any::<bool>(), tls in any::<bool>(),
            name in proptest::option::of("[a-z&=?.]{1,9}"),
        ) {
            let place = if unix { Place::Unix(PathBuf::from(path)) } else { Place::Tcp { host, port } };
            let uri = Uri { place, export, tls, tls_hostname: name.filter(|_| tls) };
            prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        }

        #[test]
        fn no_text_panics(text in "(nbds?(\\+unix)?://)?[\\[\\]:/?&=%a-f0-9@#+]{0,30}") {
            let _ = text.parse::<Uri>();
        }
    }
}
