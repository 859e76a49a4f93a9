//! The users who may log in, from a file of `USER:PASSWORD` lines.
//!
//! Upstream:   `kachel` reads the file of `-Y`, at the start and at each SIGHUP.
//! Downstream: `shard` asks whether a user and a password are known.
//!
//! Invariants:
//! - I1  The time of a check depends on the lengths of the user and the password that the client
//!   sends, and on the number of users. It does not depend on which users there are, or on how much
//!   of a password is right.
//! - I2  No password is kept: only its keyed hash, whose key lasts as long as the process.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};

/// Bytes of the secret key of the hashes.
pub const USERS_KEY_BYTES: usize = 16;
const VERIFIER_BYTES: usize = 32;

/// Why a file of users is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadUsers {
    /// The line with this number, counted from 1, has no colon.
    Line(usize),
    /// There is no user.
    Empty,
}

impl std::fmt::Display for BadUsers {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(line) => write!(to, "line {line} is not USER:PASSWORD"),
            Self::Empty => write!(to, "there is no user"),
        }
    }
}

/// The users who may log in.
pub struct Users {
    key: [u8; USERS_KEY_BYTES],
    verifiers: Vec<[u8; VERIFIER_BYTES]>,
}

impl std::fmt::Debug for Users {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} users", self.verifiers.len())
    }
}

impl Users {
    /// Reads the text of a file: one `USER:PASSWORD` a line. A user ends at the first colon; a
    /// password may be empty and may contain colons. Empty lines are skipped. `key` must be random.
    ///
    /// Errors: a line has no colon, or there is no user.
    pub fn read(text: &[u8], key: [u8; USERS_KEY_BYTES]) -> Result<Self, BadUsers> {
        let mut users = Self { key, verifiers: Vec::new() };
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':').ok_or(BadUsers::Line(number))?;
            let verifier = users.verifier(&line[..colon], &line[colon + 1..]);
            users.verifiers.push(verifier);
        }
        if users.verifiers.is_empty() { Err(BadUsers::Empty) } else { Ok(users) }
    }

    /// Whether there is a user with this password.
    ///
    /// Cost: one hash of the user and the password, and a comparison with each user (I1).
    pub fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        debug_assert!(!self.verifiers.is_empty(), "a file without a user is refused");
        let given = self.verifier(user, password);
        let equal = |known: &[u8; VERIFIER_BYTES]| known.ct_eq(&given);
        self.verifiers.iter().map(equal).fold(Choice::from(0), |any, one| any | one).into()
    }

    fn verifier(&self, user: &[u8], password: &[u8]) -> [u8; VERIFIER_BYTES] {
        let mut hash =
            Hmac::<Sha256>::new_from_slice(&self.key).expect("a key may have any length");
        // The length keeps `a` with `b c` apart from `a b` with `c`.
        hash.update(&(user.len() as u64).to_le_bytes());
        hash.update(user);
        hash.update(password);
        hash.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Users, BadUsers> {
        Users::read(text, [7; USERS_KEY_BYTES])
    }

    #[test]
    fn a_user_is_known_by_the_whole_name_and_the_whole_password() {
        let users = read(b"alice:secret\r\n\nbob:a:b\n:x\ncarol:").expect("a good file");
        let known: [(&[u8], &[u8]); 4] =
            [(b"alice", b"secret"), (b"bob", b"a:b"), (b"", b"x"), (b"carol", b"")];
        for (user, password) in known {
            assert!(users.knows(user, password));
        }
        let unknown: [(&[u8], &[u8]); 8] = [
            (b"alice", b"secre"),
            (b"alice", b"secrets"),
            (b"alice", b"secret\r"),
            (b"alic", b"esecret"),
            (b"alice", b"a:b"),
            (b"bob", b"a"),
            (b"", b""),
            (b"dave", b"secret"),
        ];
        for (user, password) in unknown {
            assert!(!users.knows(user, password), "{}", user.escape_ascii());
        }
    }

    #[test]
    fn there_may_be_many_users() {
        let lines: Vec<String> = (0..1000).map(|n| format!("user{n}:password{n}\n")).collect();
        let users = read(lines.concat().as_bytes()).expect("a good file");
        for n in 0..1000 {
            let user = format!("user{n}");
            assert!(users.knows(user.as_bytes(), format!("password{n}").as_bytes()));
            assert!(!users.knows(user.as_bytes(), format!("password{}", n + 1).as_bytes()));
        }
    }

    #[test]
    fn a_bad_file_is_refused_with_its_line() {
        for empty in [&b""[..], b"\n", b"\r\n\r\n"] {
            assert_eq!(read(empty).err(), Some(BadUsers::Empty));
        }
        assert_eq!(read(b"a:b\n\nab\n").err(), Some(BadUsers::Line(3)));
        assert_eq!(read(&[0xff; 100]).err(), Some(BadUsers::Line(1)));
    }

    #[test]
    fn no_password_is_shown() {
        let users = read(b"alice:secret\n").expect("a good file");
        assert_eq!(format!("{users:?}"), "1 users");
    }
}
