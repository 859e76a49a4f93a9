//! Logins by SASL: the mechanisms PLAIN and SCRAM-SHA-256, as the server.
//!
//! Upstream:   `shard`, with the mechanism and the messages of a client of the binary protocol.
//! Downstream: `users` knows the passwords.
//!
//! ```text
//!   PLAIN: user and password
//! Named -------------------------------------------------------> Known or Unknown
//!   |  SCRAM: user and nonce    a right proof         anything
//!   +---------------> Challenged ---------> Proved ------------> Known
//!                         |  a wrong proof
//!                         +------------------------------------> Unknown
//! ```
//!
//! A client that names a mechanism mostly sends its message at once. If not, it is sent an empty
//! one, and sends its message next.
//!
//! Invariants:
//! - I1  [`SaslStep::Known`] is reached only by a right password, or by a proof of one.
//! - I2  A client cannot tell an unknown user from a wrong password, neither by the replies nor by
//!   the time that they take: an unknown user has a salt, too, and each check is made to its end.
//! - I3  Each message is bounded; a longer or malformed one ends the exchange.
//! - I4  Any result but [`SaslStep::Continue`] ends the exchange.
//! - I5  Each message is checked against the users of its time. A user who is removed, or whose
//!   password changes, during an exchange does not log in by it.
//!
//! Source: RFC 4422 (SASL), RFC 4616 (PLAIN), RFC 5802 and RFC 7677 (SCRAM-SHA-256). Not supported:
//! channel binding, authorization as another user, and SASLprep: a name or password outside of
//! ASCII must be sent in the bytes that the file of users has.

mod plain;
mod scram;

use kachel_wire::SASL_MESSAGE_BYTES_MAX;

use self::scram::Challenge;
use crate::mechanism::{Mechanism, Mechanisms};
use crate::users::{ScramProof, Users};

/// What a begun exchange waits for.
#[derive(Debug)]
enum Begun {
    /// The client must send its first message.
    Named(Mechanism),
    /// The client must prove that it knows the password.
    Challenged(Challenge),
    /// The client has proved it, and was sent the server's proof. Its next message ends the
    /// exchange.
    Proved(ScramProof),
}

/// A client's exchange, from its first message to the result. While one is under way, it takes at
/// most 5 KiB of memory, which count as the connection's own ([`crate::STATE_BYTES`]).
#[derive(Debug, Default)]
pub struct Exchange {
    /// `None` before the first message, and after the last one (I4).
    begun: Option<Box<Begun>>,
}

/// A message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslMessage<'b> {
    /// The first message of an exchange. An exchange that was begun before is given up.
    First {
        /// The name of the mechanism.
        mechanism: &'b [u8],
        /// The message. If it is empty, the next one is the client's first.
        message: &'b [u8],
    },
    /// The next message.
    Next(&'b [u8]),
}

/// The answer to one message.
#[derive(Debug, PartialEq, Eq)]
pub enum SaslStep {
    /// The client has logged in.
    Known,
    /// The client has not logged in. It may begin again.
    Unknown,
    /// The client must go on, with this message from the server.
    Continue(Vec<u8>),
}

impl Exchange {
    /// None is under way.
    pub(crate) const NONE: Self = Self { begun: None };

    /// Whether a message was answered by [`SaslStep::Continue`], so that the next one is awaited.
    #[inline]
    pub const fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Whether the answer to `message` may tell its client whether it has the right password.
    pub fn tells_password(&self, message: &SaslMessage<'_>) -> bool {
        match message {
            SaslMessage::First { mechanism, .. } => {
                Mechanisms::All.find(mechanism) == Some(Mechanism::Plain)
            }
            SaslMessage::Next(_) => matches!(
                self.begun.as_deref(),
                Some(Begun::Named(Mechanism::Plain) | Begun::Challenged(_))
            ),
        }
    }

    /// Ends the exchange, if one is under way.
    pub fn give_up(&mut self) {
        self.begun = None;
    }

    /// Answers a message of a client whose user must be one of `users`. `number` must differ from
    /// that of each other call in this process.
    ///
    /// Cost: as [`Users::knows`], and for SCRAM up to six hashes and a few allocations.
    pub fn answer(&mut self, users: &Users, message: SaslMessage<'_>, number: u64) -> SaslStep {
        let begun = self.begun.take(); // I4
        let step = match message {
            SaslMessage::First { mechanism, message } => match users.mechanisms().find(mechanism) {
                Some(mechanism) if message.is_empty() => {
                    self.go_on_with(Begun::Named(mechanism), Vec::new())
                }
                Some(mechanism) => self.begin(users, mechanism, message, number),
                None => SaslStep::Unknown,
            },
            SaslMessage::Next(message) => match begun.as_deref() {
                None => SaslStep::Unknown,
                Some(Begun::Named(mechanism)) => self.begin(users, *mechanism, message, number),
                Some(Begun::Challenged(challenge)) => self.prove(users, challenge, message),
                Some(Begun::Proved(proof)) if users.still_has(proof) => SaslStep::Known, // I5
                Some(Begun::Proved(_)) => SaslStep::Unknown,
            },
        };
        debug_assert!(matches!(step, SaslStep::Continue(_)) == self.is_begun(), "I4");
        step
    }

    /// Answers the client's first message.
    fn begin(
        &mut self,
        users: &Users,
        mechanism: Mechanism,
        message: &[u8],
        number: u64,
    ) -> SaslStep {
        debug_assert!(!self.is_begun(), "I4");
        if message.len() > SASL_MESSAGE_BYTES_MAX {
            return SaslStep::Unknown; // I3
        }
        match mechanism {
            Mechanism::Plain => match plain::read(message) {
                Some((user, password)) if users.knows(user, password) => SaslStep::Known,
                _ => SaslStep::Unknown,
            },
            Mechanism::ScramSha256 => match Challenge::new(users, message, number) {
                Some(challenge) => {
                    let told = challenge.message().to_vec();
                    self.go_on_with(Begun::Challenged(challenge), told)
                }
                None => SaslStep::Unknown,
            },
        }
    }

    /// Answers the client's proof.
    fn prove(&mut self, users: &Users, challenge: &Challenge, message: &[u8]) -> SaslStep {
        debug_assert!(!self.is_begun(), "I4");
        if message.len() > SASL_MESSAGE_BYTES_MAX {
            return SaslStep::Unknown; // I3
        }
        if !users.mechanisms().have_scram() {
            return SaslStep::Unknown; // The users were replaced meanwhile (I5).
        }
        match challenge.verify(&users.verifier_of(challenge.name()), message) {
            Some((proof, told)) => self.go_on_with(Begun::Proved(proof), told),
            None => SaslStep::Unknown,
        }
    }

    fn go_on_with(&mut self, begun: Begun, told: Vec<u8>) -> SaslStep {
        debug_assert!(!self.is_begun(), "one exchange is under way at a time");
        self.begun = Some(Box::new(begun));
        SaslStep::Continue(told)
    }
}

#[cfg(test)]
mod tests;
