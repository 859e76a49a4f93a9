//! The arguments of `kachel top`.
//!
//! Upstream:   the command line.
//! Downstream: `asker` connects to the target.

use std::ffi::OsString;
use std::path::PathBuf;

/// What `--help` prints.
pub(crate) const USAGE: &str = "\
usage: kachel top [--once] [--token-file FILE] [ADDRESS]

Shows the state of the server at ADDRESS, once a second; q ends it. ADDRESS is HOST:PORT or the path
of a unix socket, where a Kachel or a memcached answers clients (default: 127.0.0.1:11211), or
http://HOST:PORT of an admin address (--admin), whose /metrics are read then. With TLS or a login,
only the admin address can be read.

  --once             print the state once, as plain text, after two answers
  --token-file FILE  the token of the admin address; it is sent to this machine only
";

const ADDRESS_DEFAULT: &str = "127.0.0.1:11211";
/// Longer addresses are refused: they are shown.
const ADDRESS_BYTES_MAX: usize = 255;

/// Where the statistics come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `stats` at a host and port.
    Tcp(String),
    /// `stats` at a unix socket.
    Unix(PathBuf),
    /// `/metrics` at a host and port.
    Admin { authority: String, token_file: Option<PathBuf> },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) target: Target,
    /// The address, as it was given.
    pub(crate) address: String,
    /// Print one frame.
    pub(crate) is_once: bool,
}

impl Arguments {
    /// Reads the arguments; `None` if they are wrong.
    pub(crate) fn read(words: &[OsString]) -> Option<Self> {
        let mut words = words.iter().map(|word| word.to_str());
        let (mut is_once, mut token_file, mut address) = (false, None, None);
        while let Some(word) = words.next() {
            match word? {
                "--once" => is_once = true,
                "--token-file" => token_file = Some(PathBuf::from(words.next()??)),
                word if word.starts_with("--token-file=") => {
                    token_file = word.split_once('=').map(|(_, path)| PathBuf::from(path));
                }
                word if word.starts_with('-') || address.is_some() => return None,
                word => address = Some(word),
            }
        }
        let address = address.unwrap_or(ADDRESS_DEFAULT).to_owned();
        let is_shown = !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_shown || address.len() > ADDRESS_BYTES_MAX {
            return None;
        }
        let target = Target::read(&address, token_file)?;
        Some(Self { target, address, is_once })
    }
}

impl Target {
    fn read(address: &str, token_file: Option<PathBuf>) -> Option<Self> {
        if let Some(rest) = address.strip_prefix("http://") {
            let authority = rest.strip_suffix("/metrics").unwrap_or(rest).trim_end_matches('/');
            let authority = (!authority.contains('/')).then(|| authority.to_owned())?;
            return Some(Self::Admin { authority, token_file });
        }
        let is_plain = token_file.is_none() && !address.contains("://");
        is_plain.then(|| match address.contains('/') {
            true => Self::Unix(address.into()),
            false => Self::Tcp(address.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Option<Arguments> {
        Arguments::read(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn an_address_says_where_statistics_are() {
        let target = |words: &[&str]| read(words).map(|read| read.target);
        let admin = |token_file: Option<&str>| {
            let token_file = token_file.map(PathBuf::from);
            Some(Target::Admin { authority: "localhost:9000".into(), token_file })
        };
        assert_eq!(target(&[]), Some(Target::Tcp(ADDRESS_DEFAULT.into())));
        assert_eq!(target(&["--once", "[::1]:1"]), Some(Target::Tcp("[::1]:1".into())));
        assert_eq!(target(&["/run/k"]), Some(Target::Unix("/run/k".into())));
        assert_eq!(target(&["http://localhost:9000"]), admin(None));
        assert_eq!(target(&["http://localhost:9000/metrics"]), admin(None));
        let with_token = ["--token-file", "t", "http://localhost:9000/"];
        assert_eq!(target(&with_token), admin(Some("t")));
        assert_eq!(target(&["--token-file=t", "http://localhost:9000"]), admin(Some("t")));
        assert!(read(&["--once"]).is_some_and(|read| read.is_once));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for wrong in [
            &["a:1", "b:2"][..],
            &["-x"],
            &[""],
            &["https://a:1"],
            &["http://a:1/other"],
            &["--token-file"],
            &["--token-file", "t", "a:1"],
            &["a:1\r\nx"],
        ] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
