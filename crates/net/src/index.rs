//! The indices of clients: of connections, and of exchanges; and of the cores that serve them.
//!
//! Upstream:   `connections` numbers connections by their sockets; `exchange` numbers exchanges.
//! Downstream: a reply slot stores the index of its client; the lists of `shard` contain indices.
//!
//! ```text
//! ConnectionIndex --from--+                +--connection()--> Option<ConnectionIndex>
//!                         +--> ClientIndex +
//! ExchangeIndex ---from---+                +--exchange()----> Option<ExchangeIndex>
//! ```
//!
//! Serving needs only a [`ClientIndex`]: to parse, to execute, to answer, to wait. All that needs a
//! socket takes a [`ConnectionIndex`]: to watch, list, log in, receive a large value, move to
//! another core, or be named in the log as opened and closed. So the compiler finds a place that
//! takes an exchange for a connection.
//!
//! Invariants:
//! - I1  The number of a connection is below `FIRST_EXCHANGE`. No socket has a greater one: that
//!   would need as many connections.

use std::fmt;

/// The number of the first exchange among all clients (I1).
const FIRST_EXCHANGE: u32 = 1 << 31;

/// The index of a core: of one of the threads of a process that serve clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoreIndex(pub u16);

/// The index of a connection of one shard: of a client that has a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionIndex(pub u32);

/// The index of an exchange of one shard: of a client that is one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeIndex(pub(crate) u32);

/// The index of a client of one shard, whose requests are served: a connection or an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientIndex(u32);

impl CoreIndex {
    /// The number of the core, as the place of a thing that each core has.
    #[inline]
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CoreIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ExchangeIndex {
    /// The number of the exchange. It is below [`crate::EXCHANGES_MAX`].
    #[inline]
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }
}

impl ClientIndex {
    /// The index of the connection, if the client is one.
    #[inline]
    #[must_use]
    pub const fn connection(self) -> Option<ConnectionIndex> {
        if self.is_exchange() { None } else { Some(ConnectionIndex(self.0)) }
    }

    /// The index of the exchange, if the client is one.
    #[inline]
    #[must_use]
    pub const fn exchange(self) -> Option<ExchangeIndex> {
        if self.is_exchange() { Some(ExchangeIndex(self.0 - FIRST_EXCHANGE)) } else { None }
    }

    /// Whether the client is an exchange.
    #[inline]
    #[must_use]
    pub const fn is_exchange(self) -> bool {
        self.0 >= FIRST_EXCHANGE
    }

    /// The number of the client among all connections and exchanges.
    #[inline]
    pub(crate) const fn number(self) -> usize {
        self.0 as usize
    }
}

impl From<ConnectionIndex> for ClientIndex {
    #[inline]
    fn from(ConnectionIndex(number): ConnectionIndex) -> Self {
        debug_assert!(number < FIRST_EXCHANGE, "I1");
        Self(number)
    }
}

impl From<ExchangeIndex> for ClientIndex {
    #[inline]
    fn from(ExchangeIndex(number): ExchangeIndex) -> Self {
        debug_assert!(number < FIRST_EXCHANGE, "there are few exchanges");
        Self(FIRST_EXCHANGE + number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_a_connection_or_an_exchange_and_never_both() {
        for number in [0, 1, FIRST_EXCHANGE - 1] {
            let connection = ClientIndex::from(ConnectionIndex(number));
            let exchange = ClientIndex::from(ExchangeIndex(number));
            assert_eq!(connection.connection(), Some(ConnectionIndex(number)));
            assert_eq!((connection.exchange(), connection.is_exchange()), (None, false));
            assert_eq!(exchange.exchange(), Some(ExchangeIndex(number)));
            assert_eq!((exchange.connection(), exchange.is_exchange()), (None, true));
            assert_ne!(connection, exchange);
        }
    }

    #[test]
    #[should_panic(expected = "I1")]
    fn a_connection_with_the_number_of_an_exchange_is_a_bug() {
        let _index = ClientIndex::from(ConnectionIndex(FIRST_EXCHANGE));
    }
}
