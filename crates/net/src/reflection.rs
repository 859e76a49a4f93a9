//! The addresses that are never answered over UDP.
//!
//! Upstream:   `shard`, with the address that a datagram came from.
//! Downstream: nothing; such a datagram is counted and dropped.
//!
//! A sender can write any source address into a datagram, so it chooses where the reply goes. Some
//! addresses are never those of a client. A reply to them can only harm: it reaches many hosts at
//! once, or a service that answers it, so that both servers answer each other without end.
//!
//! Source: CERT CA-1996-01 (loops of echo and chargen); US-CERT TA14-017A, "UDP-Based Amplification
//! Attacks", for the list of protocols; the port numbers are those of IANA's registry.

use std::net::{IpAddr, SocketAddr};

/// Ports of services that answer, or that amplify, whatever comes: in order.
const PORTS: [u16; 22] = [
    0,     // reserved: nobody can send from it
    7,     // echo (RFC 862)
    9,     // discard (RFC 863)
    13,    // daytime (RFC 867)
    17,    // quote of the day (RFC 865)
    19,    // character generator (RFC 864)
    37,    // time (RFC 868)
    53,    // DNS
    69,    // TFTP
    111,   // portmap
    123,   // NTP
    137,   // NetBIOS name service
    138,   // NetBIOS datagram service
    161,   // SNMP
    389,   // CLDAP
    520,   // RIP
    1900,  // SSDP
    3702,  // WS-Discovery
    5353,  // multicast DNS
    11211, // memcached
    27015, // Steam
    27960, // Quake
];

/// Whether a port is that of a service that reflects. Nothing that comes from it is answered.
pub fn reflects(port: u16) -> bool {
    PORTS.binary_search(&port).is_ok()
}

/// Whether a datagram from this address may be answered. `own_port` says whether a port is one of
/// this server's UDP ports; those are answered at no address, because any address may be ours.
///
/// Cost: a search in 22 numbers.
pub fn is_answerable(address: SocketAddr, own_port: impl Fn(u16) -> bool) -> bool {
    let ip = address.ip().to_canonical();
    let is_of_one_host = match ip {
        // 0.0.0.0/8 is "this network", 240.0.0.0/4 is reserved and has the broadcast address.
        IpAddr::V4(ip) => !ip.is_multicast() && ip.octets()[0] != 0 && ip.octets()[0] < 240,
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified(),
    };
    let port = address.port();
    is_of_one_host && !reflects(port) && !own_port(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_answered_and_reflectors_are_not() {
        assert!(PORTS.is_sorted());
        let rows = [
            ("10.0.0.7:40000", true),
            ("127.0.0.1:1024", true),
            ("[::1]:40000", true),
            ("[fe80::1]:40000", true),
            ("[::ffff:10.0.0.7]:40000", true),
            ("10.0.0.255:40000", true),
            ("255.255.255.255:40000", false),
            ("240.0.0.1:40000", false),
            ("224.0.0.251:40000", false),
            ("239.1.2.3:40000", false),
            ("0.0.0.0:40000", false),
            ("[ff02::fb]:40000", false),
            ("[::]:40000", false),
            ("[::ffff:224.0.0.1]:40000", false),
            ("10.0.0.7:0", false),
            ("10.0.0.7:7", false),
            ("10.0.0.7:19", false),
            ("10.0.0.7:53", false),
            ("[2001:db8::1]:123", false),
            ("10.0.0.7:11211", false),
            ("10.0.0.7:22345", false),
            ("10.0.0.7:22346", true),
        ];
        for (address, is_answered) in rows {
            let address = address.parse().expect("an address");
            assert_eq!(is_answerable(address, |port| port == 22345), is_answered, "{address}");
        }
    }
}
