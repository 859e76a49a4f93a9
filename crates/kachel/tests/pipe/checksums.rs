//! Has an interface compute checksums itself, instead of leaving them to a device.
//!
//! Upstream:   `network`, for the clients' end of the cable.
//! Downstream: the kernel (`ethtool -K IFACE tx off` does the same).
//!
//! A virtual interface has no device, so the packets of its own machine never get a checksum. The
//! pipe passes such packets on.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

/// linux/sockios.h and linux/ethtool.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_STXCSUM: u32 = 0x17;

/// `struct ethtool_value`
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Has the interface compute the checksums of what it sends.
///
/// Errors: there is no such interface, or this process may not change it.
pub(crate) fn compute(interface: &str) -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let mut value = Value { command: ETHTOOL_STXCSUM, data: 0 };
    // SAFETY: an `ifreq` is plain data, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    assert!(interface.len() < request.ifr_name.len(), "a name of an interface, and a zero");
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY:
    // - `request` is an `ifreq` with a `struct ethtool_value`, as the command asks (above).
    // - both outlive the call, and the kernel keeps neither.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
