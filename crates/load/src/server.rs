//! Asks the server for its version and its process.
//!
//! Upstream:   `session` asks once, before the run, on a separate connection.
//! Downstream: `process` finds the process; `report` names the version.

use std::io::{self, Read, Write};

use crate::address::Target;
use crate::client::{self, ask_version, connect};

/// Version, process and uptime, as the server reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The text after `VERSION`.
    pub(crate) version: String,
    /// The number in `STAT pid`, if the server sent one.
    pub(crate) pid: Option<u32>,
    /// The number in `STAT uptime`, if the server sent one.
    pub(crate) uptime_s: Option<u64>,
}

/// Asks the server for its version and its process.
///
/// Errors: no connection, no answer within 5 s, or an answer that is not memcached's.
pub(crate) fn ask(target: &Target) -> io::Result<Facts> {
    facts(&mut *connect(target)?)
}

fn facts(stream: &mut (impl Read + Write + ?Sized)) -> io::Result<Facts> {
    let answer = ask_version(stream)?;
    let Some(version) = answer.trim_end().strip_prefix("VERSION ") else {
        let start: String = answer.chars().take(60).collect();
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("answers 'version' with {start:?}: is it a memcached server?"),
        ));
    };
    let stats = client::ask(stream, b"stats\r\n", |answer| {
        answer.ends_with("END\r\n") || answer.ends_with("ERROR\r\n")
    })?;
    let stat = |name| stats.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Ok(Facts {
        version: version.to_owned(),
        pid: stat("STAT pid ").and_then(|pid| pid.parse().ok()),
        uptime_s: stat("STAT uptime ").and_then(|seconds| seconds.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scripted(Vec<&'static [u8]>);

    impl Read for Scripted {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0);
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    impl Write for Scripted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn version_and_process_are_found_in_answers_that_come_in_pieces() {
        let mut script = Scripted(vec![
            b"VERSION 1.6",
            b".45\r\n",
            b"STAT pid 77\r\nSTAT up",
            b"time 3\r\nEND\r\n",
        ]);
        let facts = facts(&mut script).expect("answered");
        let version = "1.6.45".into();
        assert_eq!(facts, Facts { version, pid: Some(77), uptime_s: Some(3) });
    }

    #[test]
    fn what_is_no_memcached_is_said_so() {
        let error = facts(&mut Scripted(vec![b"-ERR unknown command\r\n"])).expect_err("refused");
        assert!(error.to_string().contains("is it a memcached server?"), "{error}");
    }
}
