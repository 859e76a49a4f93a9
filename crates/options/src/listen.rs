//! Listeners: memcached's `-l` lists, `-p`, `-U` and `-s`, as one list.
//!
//! Upstream:   `partial.rs` has collected the options.
//! Downstream: `kachel` resolves the names and opens the listeners.

use std::path::PathBuf;

use crate::tls::ListenTls;
use crate::{EXIT_OS, HAS_TLS, OptionsError};

/// Which protocol a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The first byte of a connection selects the protocol.
    Auto,
    /// Text and meta commands only.
    Ascii,
    /// The binary protocol only.
    Binary,
}

impl Protocol {
    /// The word that `stats settings` uses.
    pub(crate) const fn settings_word(self) -> &'static str {
        match self {
            Self::Auto => "auto-negotiate",
            Self::Ascii => "ascii",
            Self::Binary => "binary",
        }
    }
}

/// Everything to listen on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners {
    /// TCP, in the order given.
    pub tcp: Vec<IpListen>,
    /// UDP, in the order given; empty if it is off.
    pub udp: Vec<IpListen>,
    /// A unix socket. It excludes TCP and UDP, as in memcached.
    pub unix: Option<UnixListen>,
}

impl Listeners {
    /// Whether there is nothing to listen on.
    pub fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.udp.is_empty() && self.unix.is_none()
    }
}

/// A TCP or UDP address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpListen {
    /// Which interface.
    pub host: Host,
    /// The port; 0: a free one of the kernel's choice.
    pub port: u16,
    /// The protocol of its clients.
    pub protocol: Protocol,
    /// The TLS of its connections.
    pub tls: ListenTls,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// All of them, IPv4 and IPv6. A machine without one of the two uses the other.
    Any,
    /// An address, or a name for one or more addresses. IPv6 without brackets.
    Named(String),
}

/// A unix socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixListen {
    /// The path; an old socket there is removed.
    pub path: PathBuf,
    /// The permission bits of the socket.
    pub mode: u32,
    /// The protocol of its connections.
    pub protocol: Protocol,
}

/// The port, protocol and TLS of an entry of `-l` that does not give its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fallback {
    pub(crate) port: i32,
    pub(crate) protocol: Protocol,
    pub(crate) tls: ListenTls,
}

/// Reads one `-l` list. Sentences about parts without effect go to `reports`.
///
/// Errors: entries that memcached refuses, and listeners for the proxy, or for TLS where there is
/// none.
pub(crate) fn read_list(
    list: &str,
    fallback: Fallback,
    reports: &mut Vec<String>,
) -> Result<Vec<IpListen>, OptionsError> {
    list.split([',', ';'])
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(|entry| read_entry(entry, fallback, reports))
        .collect()
}

fn read_entry(
    entry: &str,
    fallback: Fallback,
    reports: &mut Vec<String>,
) -> Result<IpListen, OptionsError> {
    let Fallback { port, protocol, tls } = fallback;
    let (tls, rest) = read_tls(entry, tls)?;
    let (protocol, rest) = read_protocol(entry, rest, protocol)?;
    let rest = read_tag(entry, rest, reports)?;

    let (host, port_text) = if let Some(bracketed) = rest.strip_prefix('[') {
        let Some((host, after)) = bracketed.split_once(']') else {
            return Err(bad(entry, "the address has no closing bracket"));
        };
        (host, after.strip_prefix(':'))
    } else {
        match rest.split_once(':') {
            // More than one colon: an IPv6 address without brackets, and no port.
            Some((_, after)) if after.contains(':') => (rest, None),
            Some((host, after)) => (host, Some(after)),
            None => (rest, None),
        }
    };
    let port = match port_text {
        None => port,
        Some(text) => text.parse().map_err(|_| bad(entry, "the port is not a number"))?,
    };
    let port = port_number(port).ok_or_else(|| bad(entry, "the port must be 0 to 65535, or -1"))?;
    let host = match host {
        "*" => Host::Any,
        "" => return Err(bad(entry, "the address is missing")),
        host => Host::Named(host.to_string()),
    };
    Ok(IpListen { host, port, protocol, tls })
}

/// `notls:`, `btls:` or `mtls:` before all else. As in memcached, only with `-Z`.
fn read_tls(entry: &str, fallback: ListenTls) -> Result<(ListenTls, &str), OptionsError> {
    for (word, tls) in [
        ("notls:", ListenTls::Off),
        ("btls:", ListenTls::WithoutClientCertificate),
        ("mtls:", ListenTls::WithClientCertificate),
    ] {
        let Some(rest) = entry.strip_prefix(word) else { continue };
        if fallback == ListenTls::Off {
            let why = if HAS_TLS { "with -Z" } else { "in a server that is built with TLS" };
            return Err(bad(entry, &format!("this prefix is valid only {why}")));
        }
        debug_assert!(HAS_TLS && tls != fallback, "the fallback is that of -Z, which needs TLS");
        return Ok((tls, rest));
    }
    Ok((fallback, entry))
}

/// `proto[word]:` before the address.
fn read_protocol<'entry>(
    entry: &str,
    rest: &'entry str,
    fallback: Protocol,
) -> Result<(Protocol, &'entry str), OptionsError> {
    let Some(rest) = rest.strip_prefix("proto[") else {
        return Ok((fallback, rest));
    };
    let Some((word, rest)) = rest.split_once("]:") else {
        return Err(bad(entry, "the protocol must be in brackets, followed by a colon"));
    };
    let protocol = match word {
        "ascii" => Protocol::Ascii,
        "binary" => Protocol::Binary,
        "negotiating" => Protocol::Auto,
        "proxy" => return Err(bad(entry, "Kachel is not a proxy")),
        _ => return Err(bad(entry, "the protocol must be ascii, binary or negotiating")),
    };
    Ok((protocol, rest))
}

/// `tag[word]:` or `tag_word_:` before the address: for memcached's proxy, without effect here.
fn read_tag<'entry>(
    entry: &str,
    rest: &'entry str,
    reports: &mut Vec<String>,
) -> Result<&'entry str, OptionsError> {
    let (tagged, end) = if let Some(tagged) = rest.strip_prefix("tag[") {
        (tagged, "]:")
    } else if let Some(tagged) = rest.strip_prefix("tag_") {
        (tagged, "_:")
    } else {
        return Ok(rest);
    };
    let Some((tag, rest)) = tagged.split_once(end) else {
        return Err(bad(entry, "the end of the tag is missing"));
    };
    if tag.is_empty() || tag.len() > 8 {
        return Err(bad(entry, "a tag must have 1 to 8 characters"));
    }
    reports.push(format!("-l {entry}: the tag is accepted, has no meaning here: no proxy"));
    Ok(rest)
}

/// The port to bind; for -1 and 0 the kernel chooses one.
pub(crate) fn port_number(port: i32) -> Option<u16> {
    if port == -1 { Some(0) } else { u16::try_from(port).ok() }
}

fn bad(entry: &str, why: &str) -> OptionsError {
    OptionsError::new(EXIT_OS, format!("-l {entry}: {why}"))
}
