//! The users who may log in, from a file of `USER:PASSWORD` lines.
//!
//! Upstream:   `kachel` reads the file of `-Y` or `-S`, at the start and at each SIGHUP.
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

/// The passwords that one user may have in SCRAM: an old one and a new one.
pub(crate) const SCRAM_PASSWORDS_MAX: usize = 2;

pub(crate) type Hash = [u8; HASH_BYTES];

/// The keys that prove one password in SCRAM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScramKeys {
    /// The hash of the key by which the client signs.
    pub(crate) stored_key: Hash,
    /// The key by which the server signs.
    pub(crate) server_key: Hash,
    /// Whether there is such a password. If not, the keys are zero.
    pub(crate) is_known: Choice,
}

/// The keys that prove the passwords of a user in SCRAM. A user has [`SCRAM_PASSWORDS_MAX`] places
/// for them. A user who does not exist has as many, so that the time of a check is the same.
pub(crate) type Verifier = [ScramKeys; SCRAM_PASSWORDS_MAX];

/// The name of a user, and a key that proves a password of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScramProof {
    pub(crate) name: Hash,
    pub(crate) stored_key: Hash,
}

impl ScramKeys {
    /// Those of no password.
    fn none() -> Self {
        let (stored_key, server_key) = ([0; HASH_BYTES], [0; HASH_BYTES]);
        Self { stored_key, server_key, is_known: Choice::from(0) }
    }

    /// The keys of a password. Cost: [`SCRAM_ITERATIONS`] hashes.
    pub(crate) fn new(password: &[u8], salt: [u8; SALT_BYTES]) -> Self {
        debug_assert!(!password.is_empty(), "an empty password lets nobody in");
        let mut salted = [0; HASH_BYTES];
        pbkdf2::pbkdf2_hmac::<Sha256>(password, &salt, SCRAM_ITERATIONS, &mut salted);
        let client_key = keyed_hash(&salted, &[b"Client Key"]);
        Self {
            stored_key: Sha256::digest(client_key).into(),
            server_key: keyed_hash(&salted, &[b"Server Key"]),
            is_known: Choice::from(1),
        }
    }

    /// Takes the place of these keys if `is_it`.
    fn assign(&mut self, other: &Self, is_it: Choice) {
        self.stored_key.conditional_assign(&other.stored_key, is_it);
        self.server_key.conditional_assign(&other.server_key, is_it);
        self.is_known.conditional_assign(&other.is_known, is_it);
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
    /// The line with this number has nothing before its colon.
    NoName(usize),
    /// The line with this number has one more password of a user than SCRAM allows.
    TooManyPasswords(usize),
    /// There is no user.
    Empty,
    /// The caller has given up.
    GivenUp,
}

impl std::fmt::Display for BadUsers {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(line) => write!(to, "line {line} is not USER:PASSWORD"),
            Self::NoName(line) => write!(to, "line {line} has no user before its colon"),
            Self::TooManyPasswords(line) => {
                write!(to, "line {line}: a user has at most {SCRAM_PASSWORDS_MAX} passwords")
            }
            Self::Empty => write!(to, "there is no user"),
            Self::GivenUp => write!(to, "the reading was given up"),
        }
    }
}

/// The users who may log in.
pub struct Users {
    key: [u8; USERS_KEY_BYTES],
    /// The hash of each user with the password.
    known: Vec<Hash>,
    /// The hash of the name of each line, and the keys of its password, in the order of the hashes.
    /// Empty without SCRAM.
    scram: Vec<(Hash, ScramKeys)>,
    mechanisms: Mechanisms,
}

impl std::fmt::Debug for Users {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} users", self.known.len())
    }
}

impl Users {
    /// Reads the text of a file: one `USER:PASSWORD` a line. A user ends at the first colon; a
    /// password may be empty and may contain colons. Empty lines are skipped, and so is a byte
    /// order mark. As in memcached, a user with several lines has the passwords of all of them.
    /// `key` must be random.
    ///
    /// Errors: a line has no colon or no user, or there is no user.
    pub fn read(text: &[u8], key: [u8; USERS_KEY_BYTES]) -> Result<Self, BadUsers> {
        let mut users = Self::none(key, Mechanisms::Plain);
        for (number, line) in lines(text) {
            if line.is_empty() {
                continue;
            }
            let (user, password) = split(line).ok_or(BadUsers::Line(number))?;
            if user.is_empty() {
                return Err(BadUsers::NoName(number));
            }
            users.known.push(users.hash_of(user, password));
        }
        debug_assert!(users.scram.is_empty(), "the text protocol has no SCRAM");
        if users.known.is_empty() { Err(BadUsers::Empty) } else { Ok(users) }
    }

    /// Reads the text of a file for SASL: one `USER:PASSWORD` or `USER:PASSWORD:MORE` a line, whose
    /// users may log in by these mechanisms. As in memcached, a line without a colon is skipped,
    /// and PLAIN also takes `PASSWORD:MORE` for the password, because a password may contain
    /// colons. An empty password lets nobody in (RFC 4616). A byte order mark is skipped. As in
    /// memcached, a user with several lines has the passwords of all of them; with SCRAM there are
    /// at most [`SCRAM_PASSWORDS_MAX`]. `key` must be random.
    ///
    /// Errors: a line has no user before its colon, a user has too many passwords, there is no
    /// user, or `must_end`, which is asked before each line, has returned true.
    ///
    /// Cost: with SCRAM, about a millisecond for each user.
    pub fn read_for_sasl(
        text: &[u8],
        key: [u8; USERS_KEY_BYTES],
        mechanisms: Mechanisms,
        must_end: &dyn Fn() -> bool,
    ) -> Result<Self, BadUsers> {
        let mut users = Self::none(key, mechanisms);
        let mut numbers = Vec::new();
        for (number, line) in lines(text) {
            if must_end() {
                return Err(BadUsers::GivenUp);
            }
            let Some((user, rest)) = split(line) else { continue };
            if user.is_empty() {
                return Err(BadUsers::NoName(number));
            }
            let colons = memchr::memchr_iter(b':', rest);
            for end in colons.chain([rest.len()]).filter(|end| *end > 0) {
                users.known.push(users.hash_of(user, &rest[..end]));
            }
            let password = split(rest).map_or(rest, |(password, _)| password);
            if mechanisms.have_scram() && !password.is_empty() {
                let keys = ScramKeys::new(password, users.salt_of(user));
                let name = users.name_of(user);
                users.scram.push((name, keys));
                numbers.push((name, number));
            }
        }
        // Stable, so the lines of a user keep their order.
        numbers.sort_by_key(|(name, _)| *name);
        users.scram.sort_by_key(|(name, _)| *name);
        let is_one_user = |lines: &&[(Hash, usize)]| lines.iter().all(|line| line.0 == lines[0].0);
        if let Some(lines) = numbers.windows(SCRAM_PASSWORDS_MAX + 1).find(is_one_user) {
            return Err(BadUsers::TooManyPasswords(lines[SCRAM_PASSWORDS_MAX].1));
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

    /// The bytes that the check of a password compares: those of each line, in both forms.
    pub fn compared_bytes(&self) -> usize {
        size_of_val(&self.known[..]) + size_of_val(&self.scram[..])
    }

    /// The keys of all passwords of the user with the name that has this hash (see
    /// [`Self::name_of`]). An unknown user has none.
    ///
    /// Cost: a comparison with each line (I1).
    pub(crate) fn verifier_of(&self, name: &Hash) -> Verifier {
        debug_assert!(self.mechanisms.have_scram(), "it was not made otherwise");
        let mut found = [ScramKeys::none(); SCRAM_PASSWORDS_MAX];
        let mut is_second = Choice::from(0);
        for (known, keys) in &self.scram {
            let is_it = known.ct_eq(name);
            found[0].assign(keys, is_it & !is_second);
            found[1].assign(keys, is_it & is_second);
            is_second |= is_it;
        }
        found
    }

    /// Whether a user still has the password that was proved.
    ///
    /// Cost: as [`Self::verifier_of`].
    pub(crate) fn still_has(&self, proof: &ScramProof) -> bool {
        if !self.mechanisms.have_scram() {
            return false;
        }
        let is_it = |keys: &ScramKeys| keys.is_known & keys.stored_key.ct_eq(&proof.stored_key);
        let verifier = self.verifier_of(&proof.name);
        verifier.iter().map(is_it).fold(Choice::from(0), |any, one| any | one).into()
    }

    fn hash_of(&self, user: &[u8], password: &[u8]) -> Hash {
        // The length keeps `a` with `b c` apart from `a b` with `c`.
        let user_bytes = (user.len() as u64).to_le_bytes();
        keyed_hash(&self.key, &[b"known", &user_bytes, user, password])
    }

    /// The hash of the name of a user.
    pub(crate) fn name_of(&self, user: &[u8]) -> Hash {
        keyed_hash(&self.key, &[b"name", user])
    }

    /// The salt of a user, who need not exist. It is always the same for the same name.
    pub(crate) fn salt_of(&self, user: &[u8]) -> [u8; SALT_BYTES] {
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

/// The lines of a file with their numbers, from 1 on, without line ends and without the byte order
/// mark that editors of other systems write.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
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
        let users =
            read(b"\xef\xbb\xbfalice:secret\r\n\nbob:a:b\nalice:x\ncarol:").expect("a good file");
        let known: [(&[u8], &[u8]); 4] =
            [(b"alice", b"secret"), (b"bob", b"a:b"), (b"alice", b"x"), (b"carol", b"")];
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
        assert_eq!(read(b"a:b\n:x\n").err(), Some(BadUsers::NoName(2)));
        assert_eq!(read(&[0xff; 100]).err(), Some(BadUsers::Line(1)));
    }

    /// As memcached reads the file of `MEMCACHED_SASL_PWDB`.
    #[test]
    fn a_file_for_sasl_may_have_more_behind_a_password() {
        let text = b"# no user\nalice:secret:more:x\r\nbob:pw\n\ncarol:\ndave::x";
        let users = read_for_sasl(text).expect("a good file");
        let known: [(&[u8], &[u8]); 4] = [
            (b"alice", b"secret"),
            (b"alice", b"secret:more"),
            (b"alice", b"secret:more:x"),
            (b"bob", b"pw"),
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
        let verifier_of = |user: &[u8]| users.verifier_of(&users.name_of(user));
        let is_known = |user: &[u8]| bool::from(verifier_of(user)[0].is_known);
        assert!([&b"alice"[..], b"bob"].into_iter().all(is_known));
        assert!(![&b"carol"[..], b"dave", b"alice:secret", b"x"].into_iter().any(is_known));
        for empty in [&b""[..], b"no colon\n", b"alice:\n"] {
            assert_eq!(read_for_sasl(empty).err(), Some(BadUsers::Empty));
        }
    }

    fn read_for_sasl(text: &[u8]) -> Result<Users, BadUsers> {
        Users::read_for_sasl(text, [7; USERS_KEY_BYTES], Mechanisms::All, &|| false)
    }

    #[test]
    fn a_bad_file_for_sasl_is_refused_with_its_line() {
        assert_eq!(read_for_sasl(b"a:b\n# x\n:x\n").err(), Some(BadUsers::NoName(3)));
        let text = b"a:1\nb:1\na:2\nb:2\nc:1\nb:3\n";
        assert_eq!(read_for_sasl(text).err(), Some(BadUsers::TooManyPasswords(6)));
        let plain = Users::read_for_sasl(text, [7; 16], Mechanisms::Plain, &|| false);
        assert!(plain.expect("a good file").knows(b"b", b"3"), "as in memcached");
        // It is asked before each line.
        let asked = std::cell::Cell::new(0);
        let must_end = || asked.replace(asked.get() + 1) == 3;
        let read = Users::read_for_sasl(text, [7; 16], Mechanisms::All, &must_end);
        assert_eq!((read.err(), asked.get()), (Some(BadUsers::GivenUp), 4));
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
