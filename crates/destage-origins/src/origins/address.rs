//! URLs of databases, read before the databases' clients read them.
//!
//! A password that was put in as it is, with `@`, `/`, `:`, `?`, `#` or `%` in it, is cut somewhere by each client, and by
//! each elsewhere; what is behind the cut passes for a host, is looked up, shown and logged. So a URL is taken apart here,
//! in every way in which it can be one: if there is one way, each part is written anew as every client reads it; if there is
//! none or there are several, it is refused, and nothing of it is shown.

use crate::contract::OriginError;
use destage_core::Fault;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// The same address with user and password written so that there is one way to read it. `expected` is how it should look.
pub(super) fn unambiguous(url: &str, expected: &str) -> Result<String, OriginError> {
    let denied = |why: &str| {
        let message = format!(
            "the URL of the origin {why}; expected {expected}. In user, password and parameters write @ as %40, : as %3A, / as \
             %2F, ? as %3F, # as %23 and % as %25"
        );
        OriginError::new(Fault::Denied, message)
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(|| denied(MALFORMED))?;
    let mut readings = readings(rest);
    let (user, tail) = match (readings.next(), readings.next()) {
        (Some(only), None) => only,
        (None, _) => return Err(denied(MALFORMED)),
        (Some(_), Some(_)) => {
            return Err(denied(
                "can be read in several ways, since it has an @ in its password or behind it",
            ));
        }
    };
    let Some(user) = user else { return Ok(format!("{scheme}://{}", encoded_ats(tail))) };
    let (name, password) =
        user.split_once(':').map_or((user, None), |(name, password)| (name, Some(password)));
    let part = |text: &str| {
        let text = meant(text).ok_or_else(|| {
            denied("has a % in its user or password that may be an escape or not")
        })?;
        Ok(percent_encode(text.as_bytes(), RESERVED).to_string())
    };
    let name = part(name)?;
    let password = password.map(part).transpose()?;
    let password = password.map(|password| format!(":{password}")).unwrap_or_default();
    Ok(format!("{scheme}://{name}{password}@{}", encoded_ats(tail)))
}

const MALFORMED: &str = "is malformed";

/// What is written as it is: RFC 3986, section 2.3.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Every way to read what stands behind the scheme: user and password, if any, and what stands behind these.
fn readings(rest: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    let without = is_tail(rest).then_some((None, rest));
    let with = rest.match_indices('@').filter_map(|(at, _)| {
        let (user, tail) = (&rest[..at], &rest[at + 1..]);
        let name = user.split(':').next().unwrap_or_default();
        (!name.contains(['/', '?', '#']) && is_tail(tail)).then_some((Some(user), tail))
    });
    without.into_iter().chain(with)
}

/// Whether a text is hosts, a database and parameters, of which the latter two may be missing.
fn is_tail(text: &str) -> bool {
    let (address, query) = text.split_once('?').map_or((text, None), |(a, q)| (a, Some(q)));
    let (hosts, database) = address.split_once('/').map_or((address, None), |(h, d)| (h, Some(d)));
    // Hosts may also stand among the parameters.
    let is_elsewhere = hosts.is_empty() && (database.is_some() || query.is_some());
    let has_hosts = is_elsewhere || hosts.split(',').all(is_host);
    has_hosts
        && database.is_none_or(|name| !name.contains(['/', ':', '@', '#']))
        && query.is_none_or(|query| query.is_empty() || query.split('&').all(is_parameter))
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((address, rest)) => {
            if !address.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.%".contains(&byte)) {
                return false;
            }
            (address, rest)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            let host = &text[..end];
            // A socket's folder may stand here with its slashes encoded.
            if !host.chars().all(|c| c.is_alphanumeric() || ".-_%".contains(c)) {
                return false;
            }
            (host, &text[end..])
        }
    };
    let is_port =
        |port: &str| (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
    !host.is_empty() && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

fn is_parameter(text: &str) -> bool {
    let Some((name, value)) = text.split_once('=') else { return false };
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !name.is_empty() && name.chars().all(is_word) && !value.contains('#')
}

/// The user or password that a text stands for: with its escapes decoded, or as it is if none of its `%` begins one. `None`
/// where both can be meant.
fn meant(text: &str) -> Option<String> {
    let is_escape = |at: usize| {
        let digits = text.as_bytes().get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let (escapes, others): (Vec<usize>, Vec<usize>) =
        text.match_indices('%').map(|(at, _)| at).partition(|&at| is_escape(at));
    let is_raw = !others.is_empty() || text.contains(['@', '/', '?', '#']);
    match (escapes.is_empty(), is_raw) {
        (true, _) => Some(text.to_owned()),
        (false, false) => percent_decode_str(text).decode_utf8().ok().map(Into::into),
        (false, true) => None,
    }
}

/// Parameters in which clients find no end of a password.
fn encoded_ats(tail: &str) -> String {
    tail.replace('@', "%40")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(url: &str) -> Result<String, String> {
        unambiguous(url, "db://user:password@host/database").map_err(|error| error.message)
    }

    #[test]
    fn addresses_that_were_right_stay_what_they_are() {
        for url in [
            "postgres://app:secret@db.example:6000/shop",
            "postgres://app@localhost",
            "postgres:///shop?host=/run/pg&user=app",
            "postgres://?host=/run/pg&user=app",
            "postgres://localhost",
            "postgres://%2Frun%2Fpg/shop",
            "postgres://app:a%40b@h1:1,h2:2/shop?sslmode=verify-full",
            "mysql://root@localhost/shop?socket=/run/mysqld.sock",
            "mysql://app:secret@[::1]:3306/shop",
            "mongodb://a:secret@h1:1,h2:2/shop?tls=true&replicaSet=rs",
            "postgres://app:@h/shop",
        ] {
            assert_eq!(read(url).as_deref(), Ok(url));
        }
    }

    #[test]
    fn a_password_that_can_be_told_is_taken_as_it_is() {
        for (given, password) in [
            ("p@ss", "p%40ss"),
            ("p@s@s", "p%40s%40s"),
            ("p/ss", "p%2Fss"),
            ("12/3", "12%2F3"),
            ("p:ss:", "p%3Ass%3A"),
            ("p?ss", "p%3Fss"),
            ("p#ss", "p%23ss"),
            ("100%", "100%25"),
            ("%zz", "%25zz"),
            ("a@b/c?d#e%", "a%40b%2Fc%3Fd%23e%25"),
            ("p%40ss", "p%40ss"),
            ("p%40s:s", "p%40s%3As"),
            ("\u{e4}", "%C3%A4"),
        ] {
            let url = format!("mysql://app:{given}@db.example:3306/shop?socket=/run/s");
            let expected = format!("mysql://app:{password}@db.example:3306/shop?socket=/run/s");
            assert_eq!(read(&url), Ok(expected), "{given}");
        }
        assert_eq!(read("mysql://me@corp:pw@h/d").as_deref(), Ok("mysql://me%40corp:pw@h/d"));
        let among = "postgres:///shop?user=app&password=p@ss";
        assert_eq!(read(among).as_deref(), Ok("postgres:///shop?user=app&password=p%40ss"));
    }

    #[test]
    fn what_can_be_read_in_two_ways_or_in_none_is_refused_and_not_shown() {
        for url in [
            "postgres://app:12?hush=c@host/db",
            "postgres://app:a@hush?b=1@h/db",
            "postgres://app:a@hush/db?b=c@h/db",
            "postgres://app:hush%41%@h/db",
            "postgres://app:hush@%41@h/db",
            "postgres://app:hush%ff@h/db",
            "postgres://app:hush@h:port/db",
            "postgres://app:hush@h/db#x",
            "postgres://app:hush",
            "postgres:app:hush@h/db",
            "postgres://app:hush@",
        ] {
            let error = read(url).expect_err(url);
            assert!(error.contains("%40") && !error.contains("hush"), "{url}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_what_it_was(password in "\\PC{0,12}") {
            let written = percent_encode(password.as_bytes(), RESERVED).to_string();
            let url = format!("postgres://app:{written}@db.example/shop");
            prop_assert_eq!(read(&url), Ok(url));
        }

        #[test]
        fn a_password_is_taken_right_or_refused(password in "[@/:?#%a-c0-9=&.]{0,10}") {
            let url = format!("postgres://app:{password}@db.example/shop");
            if let Ok(read) = read(&url) {
                let as_it_is = percent_encode(password.as_bytes(), RESERVED).to_string();
                let decoded: Vec<u8> = percent_decode_str(&password).collect();
                let decoded = percent_encode(&decoded, RESERVED).to_string();
                let right = [as_it_is, decoded].map(|pw| format!("postgres://app:{pw}@db.example/shop"));
                prop_assert!(right.contains(&read), "{}", read);
            }
        }
    }
}
