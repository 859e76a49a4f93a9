//! Whether the client of a connection must log in.
//!
//! Upstream:   `shard` asks for a login where the listener does, and notes each success.
//! Downstream: `connection` keeps it, and `overdue` closes a client that owes a login for too long.

use kachel_io::Peer;

/// A login that a client owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginOwed {
    /// The sweep since which it is owed.
    pub since: u32,
    /// The client.
    pub peer: Peer,
}

/// Whether a client must log in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Login {
    /// It need not.
    NotAsked,
    /// It must, before any other request.
    Owed(LoginOwed),
    /// It has.
    Done(Peer),
}

impl Login {
    /// The login that the client owes.
    #[inline]
    pub(crate) const fn owed(&self) -> Option<LoginOwed> {
        match *self {
            Self::Owed(login) => Some(login),
            Self::NotAsked | Self::Done(_) => None,
        }
    }

    /// The client, if it must log in or has.
    pub(crate) const fn peer(&self) -> Option<Peer> {
        match *self {
            Self::Owed(LoginOwed { peer, .. }) | Self::Done(peer) => Some(peer),
            Self::NotAsked => None,
        }
    }
}
