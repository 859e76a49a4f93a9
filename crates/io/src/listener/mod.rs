//! Listening sockets: creates, prepares, describes and shuts them down.
//!
//! Upstream:   `kachel` opens one per shard or one for all, depending on the options.
//! Downstream: `Io::listen` accepts from them; accepted sockets inherit the options set here.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Only a socket that no process answers on is removed from the file system.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::event::Peer;
use crate::limits::{KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A TCP socket that listens on `addr`; port 0 takes a free one (see [`local_addr`]). An IPv6
/// address serves IPv6 only. With `reuseport` each shard may have its own socket on the same
/// address and the kernel spreads the clients.
///
/// Errors: the address is in use, not ours, or forbidden.
pub fn tcp(addr: SocketAddr, backlog: u32, reuseport: bool) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if reuseport {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    rustix::net::bind(&socket, &addr)?;
    prepare(&socket, true)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket)
}

/// A UDP socket that is bound to `addr`; port 0 takes a free one (see [`local_addr`]). An IPv6
/// address serves IPv6 only. With `reuseport` each shard may have its own socket on the same
/// address, and the kernel spreads the datagrams by the addresses of both ends. A socket without it
/// is refused while another process has the port.
///
/// Errors: the address is in use, not ours, or forbidden.
pub fn udp(addr: SocketAddr, reuseport: bool) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, FLAGS, None)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if reuseport {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    rustix::net::bind(&socket, &addr)?;
    Ok(socket)
}

/// Bytes of the longest path of a unix socket that every client can name (`unix(7)`).
const UNIX_PATH_BYTES_MAX: usize = 107;

/// A unix stream socket that listens on `path`, with the permission bits of `mask` (say `0o700`).
/// A socket left there by a dead process is removed first (I1).
///
/// Errors: `AddrInUse` when a living process listens there; `AlreadyExists` when there is anything
/// but a socket, a symbolic link to one included; the path is too long; permissions.
pub fn unix(path: &Path, mask: u32, backlog: u32) -> io::Result<OwnedFd> {
    // The kernel takes one byte more, but most clients add a zero byte and could not connect.
    if path.as_os_str().len() > UNIX_PATH_BYTES_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    let address = SocketAddrUnix::new(path)?;
    remove_stale(path, &address)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    let mode = Mode::from_raw_mode(mask & 0o777);
    // Before bind, so that the file never has more permissions than wanted.
    rustix::fs::fchmod(&socket, mode)?;
    bind_with_all_permissions(&socket, &address)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket)
}

/// Binds a unix socket so that its file has all permissions that the socket has. The umask of the
/// process would take some away. Giving them back by the path would follow a link that another user
/// has put there meanwhile, and change a file of that user's choice.
fn bind_with_all_permissions(socket: &OwnedFd, address: &SocketAddrUnix) -> io::Result<()> {
    /// The umask is the process's, so one thread changes it at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = rustix::process::umask(Mode::empty());
    let bound = rustix::net::bind(socket, address);
    let none = rustix::process::umask(before);
    debug_assert!(none.is_empty(), "nobody else has changed it");
    Ok(bound?)
}

fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let status = match rustix::fs::lstat(path) {
        Ok(status) => status,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if FileType::from_raw_mode(status.st_mode) != FileType::Socket {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {} // I1
        Err(Errno::NOENT) => return Ok(()),
        Ok(()) | Err(Errno::AGAIN) => return Err(io::ErrorKind::AddrInUse.into()),
        Err(error) => return Err(error.into()),
    }
    rustix::fs::unlink(path)?;
    Ok(())
}

/// The address that a TCP or UDP socket is bound to.
///
/// Errors: it is neither.
pub fn local_addr(listener: impl AsFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getsockname(listener)?;
    Ok(SocketAddr::try_from(address)?)
}

/// Makes a listening socket non-blocking or blocking (io_uring waits only on blocking ones). For
/// TCP, it sets the options that accepted sockets inherit: no delay, keepalive. Only the time of
/// the first probe is set for each socket ([`stagger_keepalive`]).
///
/// Errors: the descriptor is not a socket.
pub(crate) fn prepare(listener: impl AsFd, nonblocking: bool) -> io::Result<()> {
    let listener = listener.as_fd();
    rustix::io::ioctl_fionbio(listener, nonblocking)?;
    let family = sockopt::socket_domain(listener)?;
    if family == AddressFamily::INET || family == AddressFamily::INET6 {
        sockopt::set_tcp_nodelay(listener, true)?;
        sockopt::set_tcp_keepidle(listener, Duration::from_secs(*KEEPALIVE_IDLE_S.end()))?;
        sockopt::set_tcp_keepintvl(listener, Duration::from_secs(KEEPALIVE_INTERVAL_S))?;
        sockopt::set_tcp_keepcnt(listener, KEEPALIVE_PROBES)?;
        sockopt::set_socket_keepalive(listener, true)?;
    }
    Ok(())
}

/// Refuses new clients and resets those that wait to be accepted. This takes effect at once, also
/// while an accept in the kernel still holds the socket; dropping the descriptor would not. Another
/// process may then listen on the same address.
pub(crate) fn shut_down(listener: impl AsFd) {
    // It cannot fail for a listening socket. If it did, the socket would let no client in either.
    let _ = rustix::net::shutdown(listener, Shutdown::Both);
}

/// Gives an accepted socket its own time of silence before the first keepalive probe, so that
/// connections that were opened together are not probed together (see [`KEEPALIVE_IDLE_S`]).
/// Clients that connect one after the other have different ports, so the port chooses the time.
///
/// Cost: one system call for TCP.
pub(crate) fn stagger_keepalive(socket: impl AsFd, peer: Peer) {
    let port = match peer {
        Peer::Local | Peer::Unknown => return,
        Peer::V4(address) => address.port(),
        Peer::V6(address) => address.port(),
    };
    let (least, most) = KEEPALIVE_IDLE_S.into_inner();
    let idle = least + u64::from(port) % (most - least + 1);
    assert!(KEEPALIVE_IDLE_S.contains(&idle), "X01");
    // It fails when the client is gone already. Then the inherited time serves as well.
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(idle));
}

/// The peer, from its address in the kernel. Only the address of a unix socket makes it local.
pub(crate) fn peer(address: Option<SocketAddrAny>) -> Peer {
    let Some(address) = address else { return Peer::Unknown };
    if address.address_family() == AddressFamily::UNIX {
        return Peer::Local;
    }
    SocketAddr::try_from(address).map_or(Peer::Unknown, Peer::from)
}

#[cfg(all(test, not(loom)))]
mod tests;
