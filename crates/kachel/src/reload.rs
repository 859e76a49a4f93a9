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
//! - L3  Lines that clients cause by `refresh_certs` have the limit of all lines about clients, so
//!   that clients that ask all the time do not fill the log.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kachel_admin::AdminAddress;
use kachel_host::Level;
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

/// Logs a sentence about a reading, as [`Inner::tell`] does.
type Tell<'a> = &'a dyn Fn(Level, fmt::Arguments<'_>);

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
                let sentence = format_args!("files are being read; they are read again after that");
                self.0.tell(self.0.admitting.refresh_asked().is_some(), Level::Info, sentence);
                *state = State::Reading { again: true };
                return;
            }
        }
        let inner = Arc::clone(&self.0);
        let body = move || while inner.read() {};
        if let Err(error) = std::thread::Builder::new().name("reload".into()).spawn(body) {
            let sentence = format_args!("nothing is read again: {error}");
            self.0.tell(self.0.admitting.refresh_asked().is_some(), Level::Error, sentence);
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

    /// Logs what a signal has caused; `is_asked` says that a client has sent it (L3).
    fn tell(&self, is_asked: bool, level: Level, sentence: fmt::Arguments<'_>) {
        let log = if is_asked { kachel_host::log_client } else { kachel_host::log };
        log(level, format_args!("SIGHUP: {sentence}"), &[]);
    }

    /// Reads the files. Returns whether they must be read again.
    fn read(&self) -> bool {
        debug_assert!(*self.state() != State::Idle, "L1");
        // The signal does not say who has sent it. It may be both, so both get what they want.
        let asked = self.admitting.refresh_asked();
        let is_asked = asked.is_some();
        let tell = |level, sentence: fmt::Arguments<'_>| self.tell(is_asked, level, sentence);
        self.read_certificates(asked, &tell);
        self.read_users(&tell);
        self.read_token(&tell);
        if !is_asked || self.verbosity > 0 {
            self.compare_options(&tell);
        }
        let mut state = self.state();
        let again = *state == State::Reading { again: true } && !self.must_end();
        *state = if again { State::Reading { again: false } } else { State::Idle };
        again
    }

    /// `asked` is the number of the last `refresh_certs` that is not answered yet.
    fn read_certificates(&self, asked: Option<u64>, tell: Tell<'_>) {
        let Some(encryption) = &self.files.encryption else { return };
        let result = encryption.read_again();
        match &result {
            Ok(()) => tell(Level::Info, format_args!("the certificates were read again")),
            Err(sentence) => {
                let sentence = format_args!("the certificates stay as they were; {sentence}");
                tell(Level::Error, sentence);
            }
        }
        if let Some(asked) = asked {
            self.admitting.answer_refresh(asked, result);
        }
    }

    fn read_users(&self, tell: Tell<'_>) {
        let Some(users) = &self.files.users else { return };
        match users.read(&|| self.must_end()) {
            Ok(users) => {
                self.admitting.set_users(users);
                tell(Level::Info, format_args!("the file of users was read again"));
            }
            Err(_) if self.must_end() => {}
            Err(sentence) => {
                tell(Level::Error, format_args!("the users stay as they were; {sentence}"));
            }
        }
    }

    fn read_token(&self, tell: Tell<'_>) {
        let Some((file, admin)) = &self.files.token else { return };
        match file.read() {
            Ok(token) => {
                admin.set_token(token);
                tell(Level::Info, format_args!("the token of the admin address was read again"));
            }
            Err(sentence) => {
                tell(Level::Error, format_args!("the token stays as it was; {sentence}"));
            }
        }
    }

    /// Says which options of the file need a restart, because they differ from those of the start.
    fn compare_options(&self, tell: Tell<'_>) {
        let Files { users, encryption, token, options } = &self.files;
        let has_others = users.is_some() || encryption.is_some() || token.is_some();
        match options.as_ref().map(|file| (file.name(), file.changes())) {
            Some((name, Ok(keys))) if keys.is_empty() => {
                let sentence = format_args!("{name} has the options with which the server runs");
                tell(Level::Info, sentence);
            }
            Some((name, Ok(keys))) => {
                let keys = keys.join(", ");
                let sentence = format_args!("{name} has changed; a restart is needed for: {keys}");
                tell(Level::Warning, sentence);
            }
            Some((_, Err(error))) => {
                let sentence = format_args!(
                    "the options stay as they were, and a restart would fail; {error}"
                );
                tell(Level::Error, sentence);
            }
            None if has_others || self.verbosity == 0 => {}
            None => {
                let sentence =
                    format_args!("there is nothing to read again; options need a restart");
                tell(Level::Info, sentence);
            }
        }
    }
}
