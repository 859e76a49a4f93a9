//! Checks of the options: of a file (`--config`), and of a command line.
//!
//! Upstream:   the options target.
//! Downstream: `kachel_options`.

use std::ffi::{OsStr, OsString};

use kachel_options::{CalledAs, Command, OptionsError, THREADS_MAX, parse, parse_file};

/// The exit codes for bad options (docs/options.md).
const EXIT_CODES: [u8; 3] = [1, 64, 71];
/// The threads for which the settings are asked.
const THREADS: u16 = 2;

/// Checks that a text is read as a file of options, and its words as a command line of Kachel and
/// of memcached: each is accepted, or refused with a sentence and an exit code.
pub fn options(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    judge(parse_file("options.toml", text));
    // A word that names a file of options would have that file read.
    let names_a_file = |word: &&str| word.trim_start_matches('-').starts_with("co");
    let words = || text.split(['\0', '\t']).filter(|word| !names_a_file(word)).map(OsString::from);
    judge(parse([OsString::from("serve")].into_iter().chain(words()), OsStr::new("kachel")));
    judge(parse(words(), OsStr::new("memcached")));
}

fn judge(read: Result<Command, OptionsError>) {
    match read {
        Ok(Command::Serve(options)) => {
            assert!(options.threads.is_none_or(|threads| (1..=THREADS_MAX).contains(&threads)));
            // Under memcached's name, a server may have nothing to listen on.
            let is_memcached = options.called_as == CalledAs::Memcached;
            assert!(is_memcached || !options.listeners.is_empty());
            // They are lines of a reply, so a line end in one would be a line too many.
            for (name, value) in options.settings(THREADS) {
                assert!(!value.contains(['\r', '\n']), "{name}: {value:?}");
            }
        }
        Ok(Command::Help(text) | Command::Version(text) | Command::License(text)) => {
            assert!(!text.is_empty());
        }
        Ok(
            Command::Load(_)
            | Command::Probe(_)
            | Command::Top(_)
            | Command::Verify(_)
            | Command::Backup(_),
        ) => {}
        Err(OptionsError { message, exit_code, .. }) => {
            assert!(
                !message.is_empty() && EXIT_CODES.contains(&exit_code),
                "{message} {exit_code}"
            );
        }
    }
}
