//! The file of users (`-Y`, `-S`), read at the start and at each SIGHUP.
//!
//! Upstream:   `serve`, at the start; `reload`, on a thread of its own.
//! Downstream: `net` reads the lines; the shards ask about users.
//!
//! Invariants:
//! - I1  A file that cannot be read, or has a bad line, changes nothing while the server runs.

use std::io;
use std::path::{Path, PathBuf};

use kachel_host::UnusableFile;
use kachel_net::{Mechanisms, USERS_KEY_BYTES, Users};
use kachel_options::SASL_FILE_ENV;

/// Bytes of the largest file: some 100,000 users.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The login that the users make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginKind {
    /// `-Y`
    Text,
    /// `-S`, with these mechanisms.
    Sasl(Mechanisms),
}

impl LoginKind {
    /// The option or the environment variable that names the file.
    const fn source(self) -> &'static str {
        match self {
            Self::Text => "-Y",
            Self::Sasl(_) => SASL_FILE_ENV,
        }
    }
}

/// Where the users are, and the key of this process for their passwords.
pub(crate) struct UsersFile {
    kind: LoginKind,
    path: PathBuf,
    key: [u8; USERS_KEY_BYTES],
}

impl UsersFile {
    /// A file at `path`, which is taken from the working folder of now: a daemon leaves it.
    ///
    /// Errors: the path is empty, there is no working folder, or the kernel has no random numbers.
    pub(crate) fn at(path: &Path, kind: LoginKind) -> io::Result<Self> {
        let mut key = [0; USERS_KEY_BYTES];
        for (bytes, word) in key.chunks_exact_mut(8).zip(kachel_host::entropy()?) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(Self { kind, path: std::path::absolute(path)?, key })
    }

    /// Reads the users. `must_end` is asked before each of them: with SCRAM each takes a
    /// millisecond.
    ///
    /// Errors: the file cannot be read, is too long, or has a bad line.
    pub(crate) fn read(&self, must_end: &dyn Fn() -> bool) -> Result<Users, UnusableFile> {
        debug_assert!(self.path.is_absolute(), "a daemon has left its folder");
        let source = self.kind.source();
        let text = kachel_host::read_regular_file(&self.path, FILE_BYTES_MAX);
        let text = text.map_err(|error| UnusableFile::unread(source, &self.path, &error))?;
        let users = match self.kind {
            LoginKind::Text => Users::read(&text, self.key),
            LoginKind::Sasl(mechanisms) => {
                Users::read_for_sasl(&text, self.key, mechanisms, must_end)
            }
        };
        users.map_err(|error| format!("{source} {}: {error}", self.path.display()).into())
    }
}
