//! The addresses and ports that the pipe answers at, and the addresses that it never answers.
//!
//! Upstream:   `kachel`, from its UDP sockets and the addresses of the host's interfaces.
//! Downstream: the settings, which the program compares each datagram with.

use std::net::{IpAddr, SocketAddr};

use crate::layout::PLACE_WORDS;

/// The network of the interface, which may change while the server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipeNetwork {
    /// The interface's address of Ethernet. Without one nothing is answered.
    pub mac: Option<[u8; 6]>,
    /// The addresses of the interface.
    pub addresses: Vec<IpAddr>,
    /// Addresses from which no client of another host sends: those of this host, and those of its
    /// networks that no single host has.
    pub closed: Vec<IpAddr>,
}

impl PipeNetwork {
    /// The word of the address of Ethernet in the settings. No frame has that of `None`.
    pub(crate) fn mac_word(&self) -> u64 {
        self.mac.map_or(u64::MAX, |[a, b, c, d, e, f]| u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }
}

/// An address as the program sees it: two words, IPv4 mapped to IPv6.
fn address_words(ip: IpAddr) -> [u64; 2] {
    let octets = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let (front, back) = octets.split_at(8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    [word(front), word(back)]
}

/// The place of an address among the bits of closed addresses (`address_bit` of the program). A
/// few addresses may have the same one; their requests are passed on as well.
pub(crate) fn address_bit(ip: IpAddr) -> u16 {
    let [front, back] = address_words(ip);
    ((front ^ back.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

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
        let [front, back] = address_words(self.address.ip());
        let port = u64::from(self.address.port().swap_bytes());
        let text = u64::from(self.speaks != Speaks::Binary);
        let binary = u64::from(self.speaks != Speaks::Text);
        [front, back, port | text << 16 | binary << 24, 0]
    }
}
