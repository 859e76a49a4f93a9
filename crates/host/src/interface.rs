//! A network interface: its addresses, its dropped packets, and the addresses of no client.
//!
//! Upstream:   `kachel`, for the pipe, which answers only what is sent to one of the addresses.
//! Downstream: `getifaddrs` of the C library.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The state of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its addresses of IP.
    pub addresses: Vec<IpAddr>,
    /// Its address of Ethernet, if it is one of Ethernet.
    pub mac: Option<[u8; 6]>,
    /// Packets that it has dropped instead of sending them. The count wraps.
    pub dropped: u32,
    /// Addresses from which no client of another host sends: those of all interfaces of this host,
    /// and of each of their networks the address of the network and that of all its hosts.
    pub closed: Vec<IpAddr>,
}

/// The interface of this name as it is now. One that does not exist has nothing.
///
/// Errors: the kernel does not list interfaces. Cost: one request to the kernel for each kind of
/// address; it grows with the number of addresses of the host.
pub fn interface(name: &str) -> io::Result<Interface> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes one pointer, to a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Interface::default();
    let mut next = first;
    // SAFETY: `next` is null or an entry of the list, which is freed after the loop.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: the name of an entry is text that ends with a zero byte.
        let is_it = unsafe { CStr::from_ptr(entry.ifa_name) }.to_bytes() == name.as_bytes();
        if let Some(own) = address(entry.ifa_addr) {
            found.addresses.extend(is_it.then_some(own));
            found.closed.extend(closed_by(own, address(entry.ifa_netmask)));
            found.closed.extend(broadcast(entry));
        }
        if is_it && let Some(mac) = ethernet(entry.ifa_addr) {
            found.mac = Some(mac);
            found.dropped = dropped(entry.ifa_data);
        }
    }
    // SAFETY: the list came from `getifaddrs`, and no entry of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    found.closed.sort_unstable();
    found.closed.dedup();
    debug_assert!(found.addresses.iter().all(|own| found.closed.contains(own)), "of this host");
    Ok(found)
}

/// The addresses that an address with its mask closes: itself, that of its network, and that of all
/// hosts of the network. A network of one or two addresses has only hosts (RFC 3021, RFC 6164).
fn closed_by(address: IpAddr, mask: Option<IpAddr>) -> Vec<IpAddr> {
    let mut closed = vec![address];
    match (address, mask) {
        (IpAddr::V4(ip), Some(IpAddr::V4(mask))) if mask.to_bits() | 1 != u32::MAX => {
            let (ip, mask) = (ip.to_bits(), mask.to_bits());
            closed.extend([ip & mask, ip | !mask].map(|ip| IpAddr::V4(Ipv4Addr::from_bits(ip))));
        }
        (IpAddr::V6(ip), Some(IpAddr::V6(mask))) if mask.to_bits() | 1 != u128::MAX => {
            closed.push(Ipv6Addr::from_bits(ip.to_bits() & mask.to_bits()).into());
        }
        _ => {}
    }
    closed
}

/// The address of all hosts, which may be another one than the mask says.
fn broadcast(entry: &libc::ifaddrs) -> Option<IpAddr> {
    let has_one = entry.ifa_flags & libc::IFF_BROADCAST as u32 != 0;
    // Without the flag it is the address of the other end, which is a host.
    has_one.then(|| address(entry.ifa_ifu)).flatten()
}

/// The address, or the mask, of an entry, if it is one of IP.
fn address(of: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: it is null or an address, which begins with its family.
    let family = i32::from(unsafe { of.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: an address of this family has this type.
            let v4 = unsafe { of.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family has this type.
            let v6 = unsafe { of.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// The address of Ethernet of an entry, if it is one.
fn ethernet(of: *const libc::sockaddr) -> Option<[u8; 6]> {
    // SAFETY: it is null or an address, which begins with its family.
    if i32::from(unsafe { of.as_ref() }?.sa_family) != libc::AF_PACKET {
        return None;
    }
    // SAFETY: an address of this family has this type.
    let link = unsafe { of.cast::<libc::sockaddr_ll>().read_unaligned() };
    debug_assert!(link.sll_halen <= 32, "no address of a link is longer: MAX_ADDR_LEN of Linux");
    let [a, b, c, d, e, f, ..] = link.sll_addr;
    let mac = [a, b, c, d, e, f];
    let is_ethernet =
        link.sll_hatype == libc::ARPHRD_ETHER && usize::from(link.sll_halen) == mac.len();
    (is_ethernet && mac != [0; 6]).then_some(mac)
}

/// `tx_dropped` of the counts of an interface (`struct rtnl_link_stats`: words of 32 bits).
fn dropped(counts: *const libc::c_void) -> u32 {
    if counts.is_null() {
        return 0;
    }
    // SAFETY: the entry of an interface has its counts, which are 23 words at least, and the list
    // that has them is freed later.
    let [.., tx_dropped] = unsafe { counts.cast::<[u32; 8]>().read_unaligned() };
    tx_dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_its_address_and_no_other_interface_has_it() {
        let loopback = interface("lo").expect("interfaces");
        assert!(loopback.addresses.contains(&Ipv4Addr::LOCALHOST.into()), "{loopback:?}");
        assert_eq!(loopback.mac, None, "it is none of Ethernet");
        let none = interface("no such one").expect("interfaces");
        assert!(none.addresses.is_empty() && none.mac.is_none() && none.dropped == 0);
        for closed in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 255, 255, 255)] {
            assert!(none.closed.contains(&closed.into()), "{none:?}");
        }
    }

    #[test]
    fn an_address_closes_its_network_and_all_its_hosts() {
        let rows = [
            ("10.9.0.2", "255.255.255.0", &["10.9.0.2", "10.9.0.0", "10.9.0.255"][..]),
            ("10.9.3.2", "255.255.252.0", &["10.9.3.2", "10.9.0.0", "10.9.3.255"]),
            ("10.9.0.2", "255.255.255.254", &["10.9.0.2"]),
            ("10.9.0.2", "255.255.255.255", &["10.9.0.2"]),
            ("fd00::2", "ffff:ffff:ffff:ffff::", &["fd00::2", "fd00::"]),
            ("fd00::2", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", &["fd00::2"]),
        ];
        let parse = |text: &&str| text.parse::<IpAddr>().expect("an address");
        for (address, mask, closed) in rows {
            let closed: Vec<IpAddr> = closed.iter().map(parse).collect();
            assert_eq!(closed_by(parse(&address), Some(parse(&mask))), closed, "{address} {mask}");
        }
        assert_eq!(closed_by(parse(&"10.9.0.2"), None), [parse(&"10.9.0.2")]);
    }
}
