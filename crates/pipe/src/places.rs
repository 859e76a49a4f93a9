//! The addresses and ports that the pipe answers at.
//!
//! Upstream:   `kachel`, from its UDP sockets and the addresses of the interface.
//! Downstream: the settings, which the program compares each datagram with.

use std::net::{IpAddr, SocketAddr};

use crate::layout::PLACE_WORDS;

/// Which protocols a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// The text and meta protocols.
    Text,
    /// The binary protocol.
    Binary,
    /// Both.
    Both,
}

/// An address and port at which the server receives datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address of the interface, not a wildcard, and the port.
    pub address: SocketAddr,
    /// Its protocols.
    pub speaks: Speaks,
}

impl Place {
    /// The words of the place in the settings. IPv4 is mapped to IPv6.
    pub(crate) fn words(&self) -> [u64; PLACE_WORDS] {
        assert!(!self.address.ip().is_unspecified(), "an address of an interface");
        let octets = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let (front, back) = octets.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let port = u64::from(self.address.port().swap_bytes());
        let text = u64::from(self.speaks != Speaks::Binary);
        let binary = u64::from(self.speaks != Speaks::Text);
        [word(front), word(back), port | text << 16 | binary << 24, 0]
    }
}
