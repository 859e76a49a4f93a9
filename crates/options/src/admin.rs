//! The options of the admin address (`--admin`).
//!
//! Upstream:   `effects.rs` reads them, `partial.rs` has them checked together.
//! Downstream: `kachel` opens the address.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::{EXIT_USAGE, OptionsError};

/// The most prefixes that the metrics show.
const PREFIXES_MAX: usize = 50;
/// The most bytes of a prefix: with its delimiter, it is at most as long as a key.
const PREFIX_BYTES_MAX: usize = 249;
/// The permission bits of a unix socket without its own.
const UNIX_MODE: u32 = 0o600;

/// Where the admin address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminListen {
    /// TCP. Port 0 takes a free one.
    Ip(SocketAddr),
    /// A unix socket.
    Unix {
        /// The path; an old socket there is removed.
        path: PathBuf,
        /// The permission bits of the socket.
        mode: u32,
    },
}

/// The options of the admin address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminOptions {
    /// Where it is (`--admin`); `None`: there is none.
    pub listen: Option<AdminListen>,
    /// The names by which clients may call it (`--admin-host`).
    pub hosts: Vec<String>,
    /// The file with the token that clients must show (`--admin-token-file`).
    pub token_file: Option<PathBuf>,
    /// Whether the metrics have those of size classes (`--admin-classes`).
    pub shows_classes: bool,
    /// The prefixes that the metrics show, without their delimiters (`--admin-prefixes`).
    pub prefixes: Vec<String>,
}

/// The address as the option takes it.
impl fmt::Display for AdminListen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(formatter, "{address}"),
            Self::Unix { path, mode } => {
                write!(formatter, "unix:{},mode={mode:o}", path.display())
            }
        }
    }
}

impl AdminListen {
    /// Whether only clients on this machine reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip().is_loopback(),
            Self::Unix { .. } => true,
        }
    }

    /// Reads an address. Errors: a sentence.
    pub(crate) fn read(text: &str) -> Result<Self, &'static str> {
        if let Some(unix) = text.strip_prefix("unix:") {
            let (path, mode) = match unix.rsplit_once(",mode=") {
                Some((path, mode)) => (path, u32::from_str_radix(mode, 8).ok()),
                None => (unix, Some(UNIX_MODE)),
            };
            let mode = mode.filter(|mode| *mode <= 0o777);
            let mode = mode.ok_or("the mode must be octal, 0 to 777")?;
            if path.is_empty() {
                return Err("the path of the socket is missing");
            }
            return Ok(Self::Unix { path: path.into(), mode });
        }
        let of_localhost = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
        let address = match of_localhost {
            Some(port) => Some((Ipv4Addr::LOCALHOST, port).into()),
            None => text.parse().ok(),
        };
        let sentence =
            "give an IP address and a port, such as 127.0.0.1:9000 or [::1]:9000, or unix:PATH";
        address.map(Self::Ip).ok_or(sentence)
    }
}

/// Reads a list of prefixes. Errors: a sentence.
pub(crate) fn read_prefixes(list: &str) -> Result<Vec<String>, String> {
    let mut prefixes: Vec<String> = Vec::new();
    for prefix in list.split(',') {
        let is_of_key = |byte: u8| byte > b' ' && byte != 0x7f;
        if prefix.is_empty() || !prefix.bytes().all(is_of_key) {
            return Err("give prefixes as keys have them, with commas between them".to_owned());
        }
        if prefix.len() > PREFIX_BYTES_MAX {
            return Err(format!("a prefix has at most {PREFIX_BYTES_MAX} bytes"));
        }
        if !prefixes.iter().any(|other| other == prefix) {
            prefixes.push(prefix.to_owned());
        }
    }
    if prefixes.len() > PREFIXES_MAX {
        return Err(format!("at most {PREFIXES_MAX} prefixes"));
    }
    Ok(prefixes)
}

impl AdminOptions {
    /// Checks the prefixes together with the character that ends them, and reports that they are
    /// not observed unless `are_observed`.
    ///
    /// Errors: no key can have one of them.
    pub(crate) fn check_prefixes(
        &self,
        delimiter: u8,
        are_observed: bool,
        reports: &mut Vec<String>,
    ) -> Result<(), OptionsError> {
        if let Some(prefix) = self.prefixes.iter().find(|one| one.as_bytes().contains(&delimiter)) {
            let delimiter = char::from(delimiter);
            let message = format!(
                "--admin-prefixes: \"{prefix}\" has a \"{delimiter}\", which ends a prefix (-D)"
            );
            return Err(OptionsError::new(EXIT_USAGE, message));
        }
        if !self.prefixes.is_empty() && !are_observed && self.listen.is_some() {
            let report = "--admin-prefixes: shows nothing until prefixes are observed \
                          (--observe=prefixes)";
            reports.push(report.to_owned());
        }
        Ok(())
    }

    /// Checks the options together, and reports those without effect. `has_tls` says whether the
    /// process has a certificate.
    ///
    /// Errors: the network could see what clients are told, or anybody could ask.
    pub(crate) fn check(
        &self,
        has_tls: bool,
        reports: &mut Vec<String>,
    ) -> Result<(), OptionsError> {
        let Some(listen) = &self.listen else {
            let without_effect = [
                ("--admin-host", !self.hosts.is_empty()),
                ("--admin-token-file", self.token_file.is_some()),
                ("--admin-classes", self.shows_classes),
                ("--admin-prefixes", !self.prefixes.is_empty()),
            ];
            for (option, _) in without_effect.iter().filter(|(_, given)| *given) {
                reports.push(format!("{option}: has no effect without --admin"));
            }
            return Ok(());
        };
        let message = if listen.is_local() {
            return Ok(());
        } else if !has_tls {
            "anybody on the network could read the answers; use a loopback address or unix:PATH, \
             or TLS (-Z)"
        } else if self.token_file.is_none() {
            "anybody could ask; use a loopback address or unix:PATH, or give --admin-token-file"
        } else {
            return Ok(());
        };
        Err(OptionsError::new(EXIT_USAGE, format!("--admin={listen}: {message}.")))
    }
}
