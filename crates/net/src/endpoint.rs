//! Endpoints: the protocol of a listener, and the limits of its clients.
//!
//! Upstream:   `kachel` makes one for each listening socket, in the table of the process.
//! Downstream: every connection carries the index of its endpoint, also when it moves to another
//!             shard. `shard` applies its limits to slow clients.
//!
//! Invariants:
//! - I1  The table never changes while the process runs, so an index is valid on every shard.
//!
//! A connection also carries the protocol that it speaks: that of its endpoint, or the one that its
//! first byte has selected. TLS is below this crate: the I/O backend encrypts (`kachel_tls`).

use kachel_wire::begins_binary;

use crate::limits::ClientLimits;

/// The index of an endpoint of the process (I1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointIndex(pub u16);

/// The protocol that a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientProtocol {
    /// The first byte of the connection selects it.
    #[default]
    Negotiated,
    /// memcached's text protocol, its meta commands included.
    Text,
    /// memcached's binary protocol.
    Binary,
}

impl ClientProtocol {
    /// The protocol of a connection whose next request begins with `first`. It is not
    /// [`Self::Negotiated`].
    #[inline]
    #[must_use]
    pub const fn settled_by(self, first: u8) -> Self {
        match self {
            Self::Negotiated if begins_binary(first) => Self::Binary,
            Self::Negotiated => Self::Text,
            settled => settled,
        }
    }
}

/// A listener, as its clients see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// The protocol of its clients.
    pub protocol: ClientProtocol,
    /// The time limits of its clients.
    pub limits: ClientLimits,
    /// Whether its clients must log in before anything else.
    pub asks_login: bool,
    /// Whether its clients stay with the shard that has accepted them. Otherwise they are moved to
    /// the shards that have the least work.
    pub stays: bool,
}

/// All endpoints of a process.
#[derive(Clone, Debug)]
pub struct Endpoints(Vec<Endpoint>);

impl Endpoints {
    /// Makes a table of at least one endpoint.
    ///
    /// Panics: without an endpoint.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        assert!(!endpoints.is_empty(), "clients come in somewhere");
        Self(endpoints)
    }

    /// The endpoint at an index.
    ///
    /// Panics: when there is no endpoint at the index, which is a bug (I1).
    #[inline]
    pub fn get(&self, index: EndpointIndex) -> &Endpoint {
        self.0.get(usize::from(index.0)).expect("I1: an index is one of the table")
    }
}

impl Default for Endpoints {
    /// One endpoint with the default limits.
    fn default() -> Self {
        Self::new(vec![Endpoint::default()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_has_limits_of_its_own() {
        let slow = ClientLimits { line_s: 99, ..ClientLimits::default() };
        let endpoints = [Endpoint::default(), Endpoint { limits: slow, ..Endpoint::default() }];
        let endpoints = Endpoints::new(endpoints.to_vec());
        assert_eq!(endpoints.get(EndpointIndex(1)).limits.line_s, 99);
        assert_eq!(*endpoints.get(EndpointIndex(0)), Endpoint::default());
    }

    #[test]
    fn the_first_byte_selects_the_protocol_unless_the_listener_does() {
        let settled = |protocol: ClientProtocol| [0x80, 0x81, b'g'].map(|b| protocol.settled_by(b));
        let (text, binary) = (ClientProtocol::Text, ClientProtocol::Binary);
        assert_eq!(settled(ClientProtocol::Negotiated), [binary, text, text]);
        assert_eq!((settled(text), settled(binary)), ([text; 3], [binary; 3]));
    }

    #[test]
    #[should_panic(expected = "I1: an index is one of the table")]
    fn an_index_beyond_the_table_is_a_bug() {
        let _none = Endpoints::default().get(EndpointIndex(1));
    }
}
