//! The part of a client's address that limits count by.
//!
//! Upstream:   `attempts` and `sender_budget`, with the address of a client.
//! Downstream: their tables, by this key.
//!
//! An address in IPv6 is the first half of it, because one host usually has all of the second half.
//! An IPv4 address in IPv6's notation is the IPv4 address. All clients without an address count as
//! one.

use kachel_io::Peer;

/// The part of an address that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AddressKey {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl AddressKey {
    /// The source of a client. `None` for a unix socket.
    pub(crate) fn of(peer: Peer) -> Option<Self> {
        match peer {
            Peer::Local => None,
            Peer::Unknown => Some(Self::V4([0; 4])), // No client has this address.
            Peer::V4(address) => Some(Self::V4(address.ip().octets())),
            Peer::V6(address) => match address.ip().to_ipv4_mapped() {
                Some(mapped) => Some(Self::V4(mapped.octets())),
                None => address.ip().octets().first_chunk().copied().map(Self::V6),
            },
        }
    }
}
