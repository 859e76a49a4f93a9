//! The addresses of a network interface.
//!
//! Upstream:   `kachel`, for the pipe, which answers only what is sent to one of them.
//! Downstream: `getifaddrs` of the C library.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses that the interface has now.
///
/// Errors: the kernel does not list interfaces.
pub fn interface_addresses(interface: &str) -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes one pointer, to a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: `next` is null or an entry of the list, which is freed after the loop.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: the name of an entry is text that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        if name.to_bytes() == interface.as_bytes() {
            found.extend(address(entry.ifa_addr));
        }
    }
    // SAFETY: the list came from `getifaddrs`, and no entry of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The address of an entry, if it is one of IP.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_its_address_and_no_other_interface_has_it() {
        let all = interface_addresses("lo").expect("interfaces");
        assert!(all.contains(&Ipv4Addr::LOCALHOST.into()), "{all:?}");
        assert!(interface_addresses("no such one").expect("interfaces").is_empty());
    }
}
