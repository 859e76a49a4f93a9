//! Reads files again at SIGHUP, on a thread of its own, so that the thread that waits for signals
//! always waits.
//!
//! Upstream:   `serve`, when the signal comes.
//! Downstream: `users`, `tls` and the options read their files; the shards use what was read; the
//!             log says what was read, and what needs a restart.
//!
//! ```text
//!        ask                    ask                   a reading has ended
//! Idle -------> Reading(once) -------> Reading(again) ---------------------> Reading(once)
//!   ^______________|  a reading has ended
//! ```
//!
//! Invariants:
//! - L1  At most one thread reads, so that an older file never replaces a newer one. After each
//!   signal a reading begins, so changes from before the signal are read.
//! - L2  Nothing waits for a reading: it may take seconds, or never end if a mount is dead.
//!   A reading that the end of the process overtakes is given up between two users.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kachel_admin::AdminAddress;
use kachel_options::OptionsFile;

use crate::admin::TokenFile;
use crate::shards::Admitting;
use crate::tls::Encryption;
use crate::users::UsersFile;

/// The files that are read again.
#[derive(Default)]
pub(crate) struct Files {
    pub(crate) users: Option<UsersFile>,
    pub(crate) encryption: Option<Encryption>,
    /// The token of the admin address.
    pub(crate) token: Option<(TokenFile, AdminAddress)>,
    /// Only compared: options count from the start on.
    pub(crate) options: Option<OptionsFile>,
}

/// The readings that are asked for and have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Reading { again: bool },
}

/// Reads files again when it is asked to.
#[derive(Clone)]
pub(crate) struct Reloader(Arc<Inner>);

struct Inner {
    files: Files,
    admitting: Admitting,
    verbosity: u32,
    state: Mutex<State>,
    must_end: AtomicBool,
}

impl Reloader {
    /// `verbosity` is that of `-v`.
    pub(crate) fn new(files: Files, admitting: Admitting, verbosity: u32) -> Self {
        let (state, must_end) = (Mutex::new(State::Idle), AtomicBool::new(false));
        Self(Arc::new(Inner { files, admitting, verbosity, state, must_end }))
    }

    /// Reads all files again, soon. Signals must be blocked in the calling thread.
    pub(crate) fn ask(&self) {
        let mut state = self.0.state();
        match *state {
            State::Idle => *state = State::Reading { again: false },
            State::Reading { again: true } => return, // L1
            State::Reading { again: false } => {
                say!(Info, "SIGHUP: files are being read; they are read again after that");
                *state = State::Reading { again: true };
                return;
            }
        }
        let inner = Arc::clone(&self.0);
        let body = move || while inner.read() {};
        if let Err(error) = std::thread::Builder::new().name("reload".into()).spawn(body) {
            say!(Error, "SIGHUP: nothing is read again: {error}");
            *state = State::Idle;
        }
    }

    /// Has a reading in progress end soon. The caller does not wait for that (L2).
    pub(crate) fn end(&self) {
        self.0.must_end.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn must_end(&self) -> bool {
        self.must_end.load(Ordering::Relaxed)
    }

    /// Reads the files. Returns whether they must be read again.
    fn read(&self) -> bool {
        debug_assert!(*self.state() != State::Idle, "L1");
        // The signal does not say who has sent it. It may be both, so both get what they want.
        let asked = self.admitting.refresh_asked();
        self.read_certificates(asked);
        self.read_users(asked.is_some());
        self.read_token(asked.is_some());
        if asked.is_none() || self.verbosity > 0 {
            self.compare_options();
        }
        let mut state = self.state();
        let again = *state == State::Reading { again: true } && !self.must_end();
        *state = if again { State::Reading { again: false } } else { State::Idle };
        again
    }

    /// `asked` is the number of the last `refresh_certs` that is not answered yet.
    fn read_certificates(&self, asked: Option<u64>) {
        let Some(encryption) = &self.files.encryption else { return };
        let result = encryption.read_again();
        match &result {
            Ok(()) if asked.is_some() && self.verbosity == 0 => {}
            Ok(()) => say!(Info, "SIGHUP: the certificates were read again"),
            Err(sentence) => say!(Error, "SIGHUP: the certificates stay as they were; {sentence}"),
        }
        if let Some(asked) = asked {
            self.admitting.answer_refresh(asked, result);
        }
    }

    fn read_users(&self, is_asked: bool) {
        let Some(users) = &self.files.users else { return };
        match users.read(&|| self.must_end()) {
            Ok(users) => {
                self.admitting.set_users(users);
                if !is_asked || self.verbosity > 0 {
                    say!(Info, "SIGHUP: the file of users was read again");
                }
            }
            Err(_) if self.must_end() => {}
            Err(sentence) => say!(Error, "SIGHUP: the users stay as they were; {sentence}"),
        }
    }

    fn read_token(&self, is_asked: bool) {
        let Some((file, admin)) = &self.files.token else { return };
        match file.read() {
            Ok(token) => {
                admin.set_token(token);
                if !is_asked || self.verbosity > 0 {
                    say!(Info, "SIGHUP: the token of the admin address was read again");
                }
            }
            Err(sentence) => say!(Error, "SIGHUP: the token stays as it was; {sentence}"),
        }
    }

    /// Says which options of the file need a restart, because they differ from those of the start.
    fn compare_options(&self) {
        let Files { users, encryption, token, options } = &self.files;
        let has_others = users.is_some() || encryption.is_some() || token.is_some();
        match options.as_ref().map(|file| (file.name(), file.changes())) {
            Some((name, Ok(keys))) if keys.is_empty() => {
                say!(Info, "SIGHUP: {name} has the options with which the server runs");
            }
            Some((name, Ok(keys))) => {
                let keys = keys.join(", ");
                say!(Warning, "SIGHUP: {name} has changed; a restart is needed for: {keys}");
            }
            Some((_, Err(error))) => {
                say!(
                    Error,
                    "SIGHUP: the options stay as they were, and a restart would fail; {error}"
                );
            }
            None if has_others || self.verbosity == 0 => {}
            None => say!(Info, "SIGHUP: there is nothing to read again; options need a restart"),
        }
    }
}
