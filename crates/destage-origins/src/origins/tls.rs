//! What an origin's URL says about encryption, as libpq's clients know it.

use percent_encoding::percent_decode_str;

/// The parameters as they stand in the URL.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    pub(super) mode: Option<String>,
    pub(super) authorities: Option<String>,
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
}

impl Parameters {
    /// Takes the parameters out of a URL; what is left is returned with them.
    pub(super) fn split(url: &str) -> (String, Self) {
        let mut parameters = Self::default();
        let Some((address, query)) = url.split_once('?') else {
            return (url.to_owned(), parameters);
        };
        let mut rest = Vec::new();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match name {
                "sslmode" => &mut parameters.mode,
                "sslrootcert" => &mut parameters.authorities,
                "sslcert" => &mut parameters.certificate,
                "sslkey" => &mut parameters.key,
                _ => {
                    rest.push(pair);
                    continue;
                }
            };
            *place = Some(percent_decode_str(value).decode_utf8_lossy().into_owned());
        }
        let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        (format!("{address}{query}"), parameters)
    }
}

/// Whether a host, by name or address, is this machine, so that nothing leaves it.
pub(super) fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_out_and_the_others_left() {
        let url = "postgres://u@h/db?sslmode=verify-full&user=a%20b&sslrootcert=%2Fca.pem";
        let (rest, parameters) = Parameters::split(url);
        assert_eq!(rest, "postgres://u@h/db?user=a%20b");
        assert_eq!(parameters.authorities.as_deref(), Some("/ca.pem"));
        let url = "postgres://u@h/db?sslmode=disable";
        assert_eq!(Parameters::split(url).0, "postgres://u@h/db");
    }
}
