//! Addresses of servers.
//!
//! Upstream:   `transport` resolves the addresses in the options.
//! Downstream: `connection`, `flow` and `client` connect.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use crate::tls::Security;

/// A server, and how connections to it are encrypted.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Its address.
    pub(crate) address: Address,
    /// `None`: not encrypted.
    pub(crate) security: Option<Security>,
}

/// Address of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A resolved TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Parses `HOST:PORT`, `HOST` (port 11211) or the path of a unix socket (which contains a
    /// slash).
    ///
    /// Errors: the name does not resolve, as a message for the user.
    pub(crate) fn resolve(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Unix(PathBuf::from(text)));
        }
        let full = match (has_port(text), text.contains(':')) {
            (true, _) => text.to_owned(),
            (false, true) if !text.starts_with('[') => format!("[{text}]:11211"),
            (false, _) => format!("{text}:11211"),
        };
        let mut found = full.to_socket_addrs().map_err(|error| format!("{text}: {error}"))?;
        found.next().map(Self::Tcp).ok_or_else(|| format!("{text}: no address"))
    }
}

/// The host of `HOST:PORT` or `HOST`; an IPv6 address is without its brackets.
pub(crate) fn host(text: &str) -> &str {
    let host = match text.rsplit_once(':') {
        Some((host, _)) if has_port(text) => host,
        _ => text,
    };
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether the text ends with a port; an IPv6 address then has brackets.
fn has_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && port.parse::<u16>().is_ok()
            && (!host.contains(':') || host.ends_with(']'))
    })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_port() {
        let tcp = |text: &str| Address::Tcp(text.parse().expect("an address"));
        assert_eq!(Address::resolve("127.0.0.1"), Ok(tcp("127.0.0.1:11211")));
        assert_eq!(Address::resolve("127.0.0.1:5"), Ok(tcp("127.0.0.1:5")));
        assert_eq!(Address::resolve("::1"), Ok(tcp("[::1]:11211")));
        assert_eq!(Address::resolve("[::1]:7"), Ok(tcp("[::1]:7")));
        assert_eq!(Address::resolve("/run/k.sock"), Ok(Address::Unix("/run/k.sock".into())));
        assert!(Address::resolve("127.0.0.1:99999").is_err());
        assert!(Address::resolve("").is_err());
    }

    #[test]
    fn a_host_is_found_in_each_form_of_an_address() {
        for (text, expected) in [
            ("a.example", "a.example"),
            ("a.example:5", "a.example"),
            ("127.0.0.1:5", "127.0.0.1"),
            ("::1", "::1"),
            ("2001:db8::7", "2001:db8::7"),
            ("[::1]", "::1"),
            ("[::1]:5", "::1"),
        ] {
            assert_eq!(host(text), expected);
        }
    }
}
