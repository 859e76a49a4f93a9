//! A kernel without IPv6.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _};

use rustix::io::Errno;
use rustix::net::AddressFamily;

use crate::kernel::{Refusal, refusing};
use crate::{noop, start};

#[test]
fn a_name_with_addresses_of_both_kinds_is_listened_on_without_ipv6() {
    // A bare system has no /etc/hosts, and then perhaps no such name.
    let known: Vec<_> = ("localhost", 0).to_socket_addrs().into_iter().flatten().collect();
    if !known.iter().any(|address| address.is_ipv6()) {
        println!("skip ipv6.localhost here localhost has no IPv6 address");
        return;
    }
    assert!(known.iter().any(|address| address.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST)));
    let family = u32::from(AddressFamily::INET6.as_raw());
    let no_ipv6 =
        Refusal { call: libc::SYS_socket, argument: Some((0, family)), error: Errno::AFNOSUPPORT };
    // In place of the address that `start` gives, which is listened on as well.
    let server = refusing(&[no_ipv6], || start(&["-l", "localhost", "-t", "1"]));
    assert_eq!(noop(&server), "MN\r\n");
}
