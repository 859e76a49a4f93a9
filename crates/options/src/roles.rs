//! `--roles`: some threads have the clients, the others have the shards.
//!
//! Upstream:   the row of the option; `partial.rs` checks it together with others.
//! Downstream: `kachel`, which starts the threads of both roles.
//!
//! Invariants:
//! - I1  There is at least one thread of each role, and at most [`THREADS_MAX`] together.
//!
//! Source: Berezecki and others, "Many-core key-value store", IGCC 2011, which divides the cores of
//! a TILEPro64 in this way.

use std::fmt;

use crate::{CoreChoice, EXIT_USAGE, OptionsError, Reads, Roles, ServeOptions, THREADS_MAX};

impl Roles {
    /// Reads `net=A,shard=B`. Errors: it is something else, or breaks I1.
    pub(crate) fn read(text: &str) -> Result<Self, OptionsError> {
        let count = |part: &str, name: &str| {
            let number = part.strip_prefix(name)?.strip_prefix('=')?;
            number.parse::<u16>().ok().filter(|&count| count > 0)
        };
        let roles = text.split_once(',').and_then(|(net, shard)| {
            Some(Self { net: count(net, "net")?, shard: count(shard, "shard")? })
        });
        let fits = |roles: &Self| u32::from(roles.net) + u32::from(roles.shard) <= MAX;
        roles.filter(fits).ok_or_else(|| {
            let message = format!(
                "--roles {text}: give the threads of both roles as net=A,shard=B, at least 1 each \
                 and at most {THREADS_MAX} together"
            );
            OptionsError::new(EXIT_USAGE, message)
        })
    }

    /// Threads of both roles.
    pub const fn threads(self) -> u16 {
        debug_assert!(self.net > 0 && self.shard > 0, "I1");
        self.net + self.shard
    }
}

const MAX: u32 = THREADS_MAX as u32;

impl fmt::Display for Roles {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "net={},shard={}", self.net, self.shard)
    }
}

impl ServeOptions {
    /// Checks `--roles` together with other options, and sets those that it decides.
    pub(crate) fn apply_roles(&mut self) -> Result<(), OptionsError> {
        let Some(roles) = self.roles else { return Ok(()) };
        let refused = |why: &str| {
            let message = format!("--roles {roles}: {why}");
            Err(OptionsError::new(EXIT_USAGE, message))
        };
        if self.threads.is_some_and(|threads| threads != roles.threads()) {
            return refused("the roles say how many threads there are; leave out -t");
        }
        if self.has_shard_ports {
            return refused("--shard-ports is not possible: threads of shards serve no client");
        }
        if self.udp.has_shard_ports {
            return refused("--udp-port-per-shard is not possible: shards serve no client");
        }
        (self.threads, self.reads, self.cores) =
            (Some(roles.threads()), Reads::Erew, CoreChoice::All);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, parse};

    fn options(words: &[&str]) -> Result<ServeOptions, String> {
        let words: Vec<_> = [&["serve"], words].concat().iter().map(Into::into).collect();
        match parse(words, "kachel".as_ref()) {
            Ok(Command::Serve(options)) => Ok(*options),
            Ok(_) => panic!("it starts a server"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn roles_say_how_many_threads_there_are_and_who_reads() {
        let options = options(&["--roles=net=3,shard=2"]).expect("good");
        assert_eq!(options.roles, Some(Roles { net: 3, shard: 2 }));
        assert_eq!((options.threads, options.reads), (Some(5), Reads::Erew));
        assert_eq!(options.cores, CoreChoice::All);
        let settings = options.settings(5);
        let shown = ("kachel_roles".to_string(), "net=3,shard=2".to_string());
        assert!(settings.contains(&shown), "{settings:?}");
    }

    #[test]
    fn bad_roles_are_refused_with_a_reason() {
        for text in ["3,2", "net=0,shard=1", "net=1,shard=0", "shard=1,net=1", "net=1", "net=1,"] {
            let error = options(&["--roles", text]).expect_err(text);
            assert!(error.contains("net=A,shard=B"), "{error}");
        }
        assert!(options(&["--roles=net=1000,shard=25"]).is_err(), "too many");
        for (words, why) in [(["-t", "4"], "leave out -t"), (["--shard-ports", ""], "no client")] {
            let words = [&["--roles=net=1,shard=1"], &words[..]].concat();
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            let error = options(&words).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        assert!(options(&["--roles=net=1,shard=1", "-t", "2"]).is_ok());
    }
}
