//! One command of the generator, before it is formatted for one of the two servers.
//!
//! Upstream:   `generator` builds commands; `malformed` builds those that a server must refuse.
//! Downstream: `run` formats each twice, because CAS tokens differ between the servers; `compare`
//!             and `rules` look at the command that was sent.
//!
//! - C1  A command ends with its own line or data block; nothing of the next one belongs to it,
//!   unless `malformed` says that its data is longer or shorter than announced.

use std::collections::HashMap;

/// A token that no item has: implicit ones count up from small numbers, and those that commands set
/// (`E`) are below 2^41.
pub(crate) const TOKEN_OF_NOTHING: u64 = 7_777_777_777_777_777_777;

/// Which of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The server under test.
    Ours,
    /// The memcached it is compared with.
    Peer,
}

/// The CAS tokens seen for each key, as (ours, peer's), in the order of being seen.
pub(crate) type SeenTokens = HashMap<Vec<u8>, Vec<(u64, u64)>>;

/// A piece of a command's text.
#[derive(Clone, Debug)]
enum Part {
    /// The same bytes for both servers.
    Bytes(Vec<u8>),
    /// The token that this server gave for the command's key, `age` sightings ago.
    Token { age: usize },
}

/// One command: its text, and what is known about it.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// The verb it is counted under.
    pub(crate) verb: &'static str,
    /// The key (decoded) that meta replies speak of, and whose tokens the text may name.
    pub(crate) key: Vec<u8>,
    /// The letters of its meta flags.
    pub(crate) flags: Vec<u8>,
    /// What is wrong with it; `None` if nothing.
    pub(crate) malformed: Option<&'static str>,
    /// Is it a flush that is to happen later, or never?
    pub(crate) delayed: bool,
    /// How many keys it asks the values of; 0 for what is no retrieval.
    pub(crate) keys_asked: usize,
    parts: Vec<Part>,
}

impl Command {
    /// A command that begins with its verb.
    pub(crate) fn new(verb: &'static str, key: &[u8]) -> Self {
        let parts = vec![Part::Bytes(verb.as_bytes().to_vec())];
        Self {
            verb,
            key: key.to_vec(),
            flags: Vec::new(),
            malformed: None,
            delayed: false,
            keys_asked: 0,
            parts,
        }
    }

    /// A command that a server must refuse, with its whole text.
    pub(crate) fn broken(verb: &'static str, wrong: &'static str, text: &[u8]) -> Self {
        let parts = vec![Part::Bytes(text.to_vec())];
        Self { malformed: Some(wrong), parts, ..Self::new(verb, b"") }
    }

    /// Adds bytes as they are.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.parts.push(Part::Bytes(bytes.to_vec()));
        self
    }

    /// Adds a space and a word.
    pub(crate) fn word(self, word: impl AsRef<[u8]>) -> Self {
        self.bytes(b" ").bytes(word.as_ref())
    }

    /// Adds a meta flag with its argument, which may be empty.
    pub(crate) fn flag(mut self, letter: u8, argument: impl AsRef<[u8]>) -> Self {
        self.flags.push(letter);
        self.word([letter]).bytes(argument.as_ref())
    }

    /// Adds the token of this command's key that was seen `age` sightings ago (0: the newest).
    pub(crate) fn token(mut self, age: usize) -> Self {
        self.parts.push(Part::Token { age });
        self
    }

    /// Ends the line.
    pub(crate) fn end(self) -> Self {
        self.bytes(b"\r\n")
    }

    /// Ends the line and adds the data block that it announced.
    pub(crate) fn data(self, data: &[u8]) -> Self {
        self.end().bytes(data).end()
    }

    /// Does it carry this meta flag?
    pub(crate) fn has(&self, letter: u8) -> bool {
        self.flags.contains(&letter)
    }

    /// The text for one server.
    pub(crate) fn text(&self, side: Side, seen: &SeenTokens) -> Vec<u8> {
        let mut text = Vec::new();
        for part in &self.parts {
            match part {
                Part::Bytes(bytes) => text.extend_from_slice(bytes),
                Part::Token { age } => {
                    let known = seen.get(&self.key).and_then(|list| list.iter().rev().nth(*age));
                    let token = match (known, side) {
                        (Some(pair), Side::Ours) => pair.0,
                        (Some(pair), Side::Peer) => pair.1,
                        (None, _) => TOKEN_OF_NOTHING,
                    };
                    text.extend_from_slice(token.to_string().as_bytes());
                }
            }
        }
        text
    }
}
