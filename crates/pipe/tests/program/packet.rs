//! Packets for the program, made and read without any code of the pipe.
//!
//! Upstream:   the tests.
//! Downstream: the program.

use std::net::{IpAddr, SocketAddr};

/// A datagram in a frame of Ethernet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) payload: Vec<u8>,
}

pub(crate) const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The ones' complement sum of 16-bit words, as RFC 1071 says it.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        let word = u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum += word;
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

impl Packet {
    /// A request over UDP from a client.
    pub(crate) fn request(id: u16, text: &[u8]) -> Self {
        let [high, low] = id.to_be_bytes();
        let frame = [high, low, 0, 0, 0, 1, 0, 0];
        Self {
            from: "10.9.0.1:40000".parse().expect("an address"),
            to: "10.9.0.2:11311".parse().expect("an address"),
            payload: [&frame, text].concat(),
        }
    }

    /// The same over IPv6.
    pub(crate) fn request6(id: u16, text: &[u8]) -> Self {
        Self {
            from: "[fd00::1]:40000".parse().expect("an address"),
            to: "[fd00::2]:11311".parse().expect("an address"),
            ..Self::request(id, text)
        }
    }

    /// The bytes of the frame, with right checksums.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = [&SERVER_MAC[..], &CLIENT_MAC].concat();
        let udp_bytes = 8 + self.payload.len() as u16;
        let (from, to) = (octets(self.from.ip()), octets(self.to.ip()));
        if self.from.is_ipv4() {
            bytes.extend([8, 0]);
            let mut ip = vec![0x45, 0];
            ip.extend((20 + udp_bytes).to_be_bytes());
            ip.extend([0, 7, 0x40, 0, 64, 17, 0, 0]);
            ip.extend(&from);
            ip.extend(&to);
            let sum = checksum(&[&ip]).to_be_bytes();
            ip[10..12].copy_from_slice(&sum);
            bytes.extend(ip);
        } else {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(udp_bytes.to_be_bytes());
            bytes.extend([17, 64]);
            bytes.extend(&from);
            bytes.extend(&to);
        }
        let mut udp = self.from.port().to_be_bytes().to_vec();
        udp.extend(self.to.port().to_be_bytes());
        udp.extend(udp_bytes.to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(&self.payload);
        let sum = checksum(&[&from, &to, &[0, 17], &udp_bytes.to_be_bytes(), &udp]);
        udp[6..8].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
        bytes.extend(udp);
        bytes
    }

    /// Reads a frame to a client, and checks all that must be right in a frame.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        assert_eq!(bytes[..12], [CLIENT_MAC, SERVER_MAC].concat(), "the addresses are exchanged");
        let (ip_bytes, from, to): (usize, IpAddr, IpAddr) = match bytes[12..14] {
            [8, 0] => {
                let ip = &bytes[14..34];
                assert_eq!(ip[0], 0x45);
                assert_eq!(checksum(&[ip]), 0, "the checksum of IP");
                assert_eq!(u16::from_be_bytes([ip[2], ip[3]]) as usize, bytes.len() - 14);
                assert_eq!((ip[6] & 0x3f, ip[7], ip[9]), (0, 0, 17), "a whole datagram");
                let address =
                    |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
                (20, address(12), address(16))
            }
            [0x86, 0xdd] => {
                let ip = &bytes[14..54];
                assert_eq!((ip[0], ip[6]), (0x60, 17));
                assert_eq!(u16::from_be_bytes([ip[4], ip[5]]) as usize, bytes.len() - 54);
                let address =
                    |at: usize| IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
                (40, address(8), address(24))
            }
            _ => panic!("a frame of IP"),
        };
        let udp = &bytes[14 + ip_bytes..];
        let port = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
        assert_eq!(usize::from(port(4)), udp.len(), "the length of the datagram");
        assert_ne!(port(6), 0, "there is a checksum");
        let pseudo = [octets(from), octets(to)].concat();
        assert_eq!(checksum(&[&pseudo, &[0, 17], &udp[4..6], udp]), 0, "the checksum of UDP");
        Self {
            from: SocketAddr::new(from, port(0)),
            to: SocketAddr::new(to, port(2)),
            payload: udp[8..].to_vec(),
        }
    }

    /// The reply to this request.
    pub(crate) fn reply(&self, text: &[u8]) -> Self {
        let frame = [self.payload[0], self.payload[1], 0, 0, 0, 1, 0, 0];
        Self { from: self.to, to: self.from, payload: [&frame, text].concat() }
    }
}
