//! Why the server does not start or has failed, and the exit status that says whether another start
//! may help.
//!
//! Upstream:   `serve`, and the steps of the start.
//! Downstream: the log; a service manager, which decides by the status.
//!
//! Invariants:
//! - I1  Under its own name the server ends with `EXIT_USAGE` or `EXIT_NO_USER` if no restart can
//!   help, because the operator must change an option, a file, a right or a limit first. The unit
//!   of the package names both statuses. Under the name memcached the statuses are memcached's.

use std::fmt::{Display, Formatter};
use std::io;

use kachel_host::{UnusableFile, is_lasting};
use kachel_options::{CalledAs, OptionsError};

/// Exit codes of sysexits.h, used as in memcached.
const EXIT_USAGE: u8 = 64;
const EXIT_NO_USER: u8 = 67;
const EXIT_OS: u8 = 71;

/// Exit code for a bad value, and after the failure of a shard.
pub(crate) const EXIT_FAILED: u8 = 1;

/// Why the server does not start or has failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    cause: Cause,
    sentence: String,
}

/// What must change before a start can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The options.
    Options,
    /// The option `-u`, or the list of users of the system.
    NoUser,
    /// A file of users (`-Y`, `-S`), which is a bad value for memcached.
    Users { may_pass: bool },
    /// The certificates and keys of TLS, or their options.
    Certificates { may_pass: bool },
    /// A file, a right or a limit of this machine.
    Machine,
    /// Nothing that the operator must change, as far as this process knows. The obstacle may pass.
    Passing,
    /// A server that had started has failed.
    Failed,
}

impl Failure {
    /// The options cannot be used.
    pub(crate) fn options(sentence: impl Into<String>) -> Self {
        Self::new(Cause::Options, sentence)
    }

    /// The user of `-u` does not exist.
    pub(crate) fn no_user(sentence: impl Into<String>) -> Self {
        Self::new(Cause::NoUser, sentence)
    }

    /// A file of users cannot be read or used.
    pub(crate) fn users(file: &UnusableFile) -> Self {
        Self::new(Cause::Users { may_pass: file.may_pass() }, file.to_string())
    }

    /// A certificate or a key cannot be read or used.
    pub(crate) fn certificates(file: &UnusableFile) -> Self {
        Self::new(Cause::Certificates { may_pass: file.may_pass() }, file.to_string())
    }

    /// A file, a right or a limit must be changed first.
    pub(crate) fn machine(sentence: impl Into<String>) -> Self {
        Self::new(Cause::Machine, sentence)
    }

    /// An obstacle that may pass, such as an address that is in use.
    pub(crate) fn passing(sentence: impl Into<String>) -> Self {
        Self::new(Cause::Passing, sentence)
    }

    /// The step `what` has failed with an error of the system, which is added to the sentence.
    pub(crate) fn system(what: impl Display, error: &io::Error) -> Self {
        let cause = if is_lasting(error.kind()) { Cause::Machine } else { Cause::Passing };
        Self::new(cause, format!("{what}: {error}"))
    }

    /// The server had started, and has failed.
    pub(crate) fn failed(sentence: impl Into<String>) -> Self {
        Self::new(Cause::Failed, sentence)
    }

    fn new(cause: Cause, sentence: impl Into<String>) -> Self {
        Self { cause, sentence: sentence.into() }
    }

    /// The same failure, with the name of the option before the sentence.
    pub(crate) fn of_option(self, option: &str) -> Self {
        Self { sentence: format!("{option}: {}", self.sentence), ..self }
    }

    /// The same failure, found by a check that starts nothing. It always counts as a failure of the
    /// options, because they cannot be used now.
    pub(crate) fn of_check(self) -> Self {
        Self { cause: Cause::Options, ..self }
    }

    /// The exit status (I1).
    pub(crate) fn exit_code(&self, called_as: CalledAs) -> u8 {
        match called_as {
            CalledAs::Kachel => match self.cause {
                Cause::Options
                | Cause::Users { may_pass: false }
                | Cause::Certificates { may_pass: false }
                | Cause::Machine => EXIT_USAGE,
                Cause::NoUser => EXIT_NO_USER,
                Cause::Users { may_pass: true }
                | Cause::Certificates { may_pass: true }
                | Cause::Passing => EXIT_OS,
                Cause::Failed => EXIT_FAILED,
            },
            CalledAs::Memcached => match self.cause {
                Cause::Options | Cause::Certificates { .. } => EXIT_USAGE,
                Cause::NoUser => EXIT_NO_USER,
                Cause::Machine | Cause::Passing => EXIT_OS,
                Cause::Users { .. } | Cause::Failed => EXIT_FAILED,
            },
        }
    }
}

/// The sentence for the operator.
impl Display for Failure {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.sentence)
    }
}

impl From<OptionsError> for Failure {
    fn from(error: OptionsError) -> Self {
        Self::options(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_worth_a_restart() {
        let code = |error: i32, called_as| {
            let failure = Failure::system("-e", &io::Error::from_raw_os_error(error));
            assert!(failure.to_string().starts_with("-e: "), "{failure}");
            failure.exit_code(called_as)
        };
        for lasting in [libc::EACCES, libc::EPERM, libc::EROFS, libc::ENOTDIR, libc::EISDIR] {
            assert_eq!(code(lasting, CalledAs::Kachel), EXIT_USAGE, "{lasting}");
            assert_eq!(code(lasting, CalledAs::Memcached), EXIT_OS, "{lasting}");
        }
        for passing in [
            libc::EADDRINUSE,
            libc::EADDRNOTAVAIL,
            libc::ENOENT,
            libc::ENOSPC,
            libc::EDQUOT,
            libc::ENOMEM,
            libc::EIO,
            libc::EMFILE,
        ] {
            assert_eq!(code(passing, CalledAs::Kachel), EXIT_OS, "{passing}");
            assert_eq!(code(passing, CalledAs::Memcached), EXIT_OS, "{passing}");
        }
    }

    #[test]
    fn a_check_that_fails_is_wrong_usage() {
        let busy = Failure::passing("it is in use");
        assert_eq!(busy.exit_code(CalledAs::Kachel), EXIT_OS);
        assert_eq!(busy.of_check().exit_code(CalledAs::Kachel), EXIT_USAGE);
    }

    /// The fault: a server that could not start was started again once a second, forever.
    #[test]
    fn the_unit_does_not_start_a_server_again_that_no_restart_can_help() {
        let unit = include_str!("../../../packaging/kachel.service");
        let line = format!("\nRestartPreventExitStatus={EXIT_USAGE} {EXIT_NO_USER}\n");
        assert!(unit.contains(&line), "{line}");
    }
}
