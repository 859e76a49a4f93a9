//! The users who may log in, from a file of `USER:PASSWORD` lines.
//!
//! Upstream:   `kachel` reads the file of `-Y`, at the start and at each SIGHUP.
//! Downstream: `shard` asks whether a user and a password are known.
//!
//! Invariants:
//! - I1  The time of a check depends on the lengths of the user and the password that the client
//!   sends, and on the number of users. It does not depend on which users there are, or on how much
//!   of a password is right.
//! - I2  No password is kept: only its keyed hash, whose key lasts as long as the process, and for
//!   SCRAM the verifier of RFC 5802.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::mechanism::Mechanisms;

/// Bytes of the secret key of the hashes.
pub const USERS_KEY_BYTES: usize = 16;
/// Bytes of the server's nonce in SCRAM.
const NONCE_BYTES: usize = 18;
/// Bytes of a hash.
pub(crate) const HASH_BYTES: usize = 32;
/// Bytes of the salt of a user.
const SALT_BYTES: usize = 16;
/// Iterations of the hash of a password for SCRAM: the least that RFC 7677 allows. They are done
/// for each user of the file, about a millisecond each.
pub(crate) const SCRAM_ITERATIONS: u32 = 4096;

type Hash = [u8; HASH_BYTES];

/// What proves the password of a user in SCRAM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verifier {
    pub(crate) salt: [u8; SALT_BYTES],
    /// The hash of the key by which the client signs.
    pub(crate) stored_key: Hash,
    /// The key by which the server signs.
    pub(crate) server_key: Hash,
    /// Whether there is such a user. If not, the keys are zero.
    pub(crate) is_known: Choice,
}

impl Verifier {
    /// The verifier of a password. Cost: [`SCRAM_ITERATIONS`] hashes.
    pub(crate) fn new(password: &[u8], salt: [u8; SALT_BYTES]) -> Self {
        debug_assert!(!password.is_empty(), "an empty password lets nobody in");
        let mut salted = [0; HASH_BYTES];
        pbkdf2::pbkdf2_hmac::<Sha256>(password, &salt, SCRAM_ITERATIONS, &mut salted);
        let client_key = keyed_hash(&salted, &[b"Client Key"]);
        Self {
            salt,
            stored_key: Sha256::digest(client_key).into(),
            server_key: keyed_hash(&salted, &[b"Server Key"]),
            is_known: Choice::from(1),
        }
    }
}

/// The hash of several pieces under a key (HMAC-SHA-256).
pub(crate) fn keyed_hash(key: &[u8], pieces: &[&[u8]]) -> Hash {
    let mut hash = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    pieces.iter().for_each(|piece| hash.update(piece));
    hash.finalize().into_bytes().into()
}

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
    /// The hash of each user with the password.
    known: Vec<Hash>,
    /// The hash of the name of each user, and the verifier. Empty without SCRAM.
    scram: Vec<(Hash, Verifier)>,
    mechanisms: Mechanisms,
}

impl std::fmt::Debug for Users {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} users", self.known.len())
    }
}

impl Users {
    /// Reads the text of a file: one `USER:PASSWORD` a line. A user ends at the first colon; a
    /// password may be empty and may contain colons. Empty lines are skipped. `key` must be random.
    ///
    /// Errors: a line has no colon, or there is no user.
    pub fn read(text: &[u8], key: [u8; USERS_KEY_BYTES]) -> Result<Self, BadUsers> {
        let mut users = Self::none(key, Mechanisms::Plain);
        for (number, line) in lines(text) {
            if line.is_empty() {
                continue;
            }
            let (user, password) = split(line).ok_or(BadUsers::Line(number))?;
            users.known.push(users.hash_of(user, password));
        }
        debug_assert!(users.scram.is_empty(), "the text protocol has no SCRAM");
        if users.known.is_empty() { Err(BadUsers::Empty) } else { Ok(users) }
    }

    /// Reads the text of a file for SASL: one `USER:PASSWORD` or `USER:PASSWORD:MORE` a line, whose
    /// users may log in by these mechanisms. As in memcached, a line without a colon is skipped,
    /// and PLAIN also takes `PASSWORD:MORE` for the password, because a password may contain
    /// colons. An empty password lets nobody in (RFC 4616). `key` must be random.
    ///
    /// Errors: there is no user.
    ///
    /// Cost: with SCRAM, about a millisecond for each user.
    pub fn read_for_sasl(
        text: &[u8],
        key: [u8; USERS_KEY_BYTES],
        mechanisms: Mechanisms,
    ) -> Result<Self, BadUsers> {
        let mut users = Self::none(key, mechanisms);
        for (user, rest) in lines(text).filter_map(|(_, line)| split(line)) {
            let colons = memchr::memchr_iter(b':', rest);
            for end in colons.chain([rest.len()]).filter(|end| *end > 0) {
                users.known.push(users.hash_of(user, &rest[..end]));
            }
            let password = split(rest).map_or(rest, |(password, _)| password);
            if mechanisms.have_scram() && !password.is_empty() {
                let verifier = Verifier::new(password, users.salt_of(user));
                users.scram.push((users.name_of(user), verifier));
            }
        }
        debug_assert!(users.scram.len() <= users.known.len(), "PLAIN takes each password");
        if users.known.is_empty() { Err(BadUsers::Empty) } else { Ok(users) }
    }

    const fn none(key: [u8; USERS_KEY_BYTES], mechanisms: Mechanisms) -> Self {
        Self { key, known: Vec::new(), scram: Vec::new(), mechanisms }
    }

    /// The mechanisms of SASL by which they may log in.
    pub const fn mechanisms(&self) -> Mechanisms {
        self.mechanisms
    }

    /// Whether there is a user with this password.
    ///
    /// Cost: one hash of the user and the password, and a comparison with each user (I1).
    pub fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        debug_assert!(!self.known.is_empty(), "a file without a user is refused");
        let given = self.hash_of(user, password);
        let equal = |known: &Hash| known.ct_eq(&given);
        self.known.iter().map(equal).fold(Choice::from(0), |any, one| any | one).into()
    }

    /// The verifier of a user for SCRAM. That of an unknown user has a salt, too, which is always
    /// the same for the same name.
    ///
    /// Cost: two hashes of the name, and a comparison with each user (I1).
    pub(crate) fn verifier_of(&self, user: &[u8]) -> Verifier {
        debug_assert!(self.mechanisms.have_scram(), "it was not made otherwise");
        let name = self.name_of(user);
        let (stored_key, server_key) = ([0; HASH_BYTES], [0; HASH_BYTES]);
        let (salt, is_known) = (self.salt_of(user), Choice::from(0));
        let mut found = Verifier { salt, stored_key, server_key, is_known };
        for (known, verifier) in &self.scram {
            let is_it = known.ct_eq(&name);
            found.stored_key.conditional_assign(&verifier.stored_key, is_it);
            found.server_key.conditional_assign(&verifier.server_key, is_it);
            found.is_known |= is_it;
        }
        found
    }

    fn hash_of(&self, user: &[u8], password: &[u8]) -> Hash {
        // The length keeps `a` with `b c` apart from `a b` with `c`.
        let user_bytes = (user.len() as u64).to_le_bytes();
        keyed_hash(&self.key, &[b"known", &user_bytes, user, password])
    }

    fn name_of(&self, user: &[u8]) -> Hash {
        keyed_hash(&self.key, &[b"name", user])
    }

    fn salt_of(&self, user: &[u8]) -> [u8; SALT_BYTES] {
        first(keyed_hash(&self.key, &[b"salt", user]))
    }

    /// A hash of an address, which its owner cannot predict.
    pub(crate) fn address_hash(&self, address: &[u8]) -> u16 {
        u16::from_le_bytes(first(keyed_hash(&self.key, &[b"address", address])))
    }

    /// The nonce with this number. Without the key it cannot be predicted.
    pub(crate) fn nonce(&self, number: u64) -> [u8; NONCE_BYTES] {
        first(keyed_hash(&self.key, &[b"nonce", &number.to_le_bytes()]))
    }
}

/// The lines of a file with their numbers, from 1 on, without line ends.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = text.split(|byte| *byte == b'\n');
    (1..).zip(lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)))
}

/// What is before and behind the first colon.
fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr::memchr(b':', line)?;
    Some((&line[..colon], &line[colon + 1..]))
}

/// The first bytes of a hash.
fn first<const BYTES: usize>(hash: Hash) -> [u8; BYTES] {
    *hash.first_chunk().expect("a hash is longer")
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

    /// As memcached reads the file of `MEMCACHED_SASL_PWDB`.
    #[test]
    fn a_file_for_sasl_may_have_more_behind_a_password() {
        let text = b"# no user\nalice:secret:more:x\r\nbob:pw\n\ncarol:\n:noname\ndave::x";
        let users =
            Users::read_for_sasl(text, [7; USERS_KEY_BYTES], Mechanisms::All).expect("a good file");
        let known: [(&[u8], &[u8]); 5] = [
            (b"alice", b"secret"),
            (b"alice", b"secret:more"),
            (b"alice", b"secret:more:x"),
            (b"bob", b"pw"),
            (b"", b"noname"),
        ];
        for (user, password) in known {
            assert!(users.knows(user, password));
        }
        let unknown: [(&[u8], &[u8]); 7] = [
            (b"alice", b"secret:"),
            (b"alice", b"secret:mor"),
            (b"alice", b"more"),
            (b"alice:secret", b"more"),
            (b"carol", b""),
            (b"dave", b""),
            (b"# no user", b""),
        ];
        for (user, password) in unknown {
            assert!(!users.knows(user, password), "{}", user.escape_ascii());
        }
        let is_known = |user: &[u8]| bool::from(users.verifier_of(user).is_known);
        assert!([&b"alice"[..], b"bob", b""].into_iter().all(is_known));
        assert!(![&b"carol"[..], b"dave", b"alice:secret", b"x"].into_iter().any(is_known));
        for empty in [&b""[..], b"no colon\n", b"alice:\n"] {
            let read = Users::read_for_sasl(empty, [7; USERS_KEY_BYTES], Mechanisms::All);
            assert_eq!(read.err(), Some(BadUsers::Empty));
        }
    }

    #[test]
    fn no_nonce_comes_twice() {
        let [users, others] =
            [7, 8].map(|key| Users::read(b"a:b", [key; USERS_KEY_BYTES]).expect("a good file"));
        assert_ne!(users.nonce(0), users.nonce(1));
        assert_ne!(users.nonce(0), others.nonce(0));
    }

    #[test]
    fn no_password_is_shown() {
        let users = read(b"alice:secret\n").expect("a good file");
        assert_eq!(format!("{users:?}"), "1 users");
    }
}
