//! Tells whether the server has read everything that was sent to it. Without this check, two pieces
//! could arrive in one read.
//!
//! The kernel knows. Bytes that a unix socket has sent are charged to it until the other side has
//! read them. For TCP there are two checks: our socket reports whether the other side's kernel has
//! acknowledged everything; the other socket, by `sock_diag` or in /proc/net/tcp, reports whether
//! the process has read everything.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// A request of one socket, and its answers (linux/sock_diag.h, linux/inet_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const REQUEST_BYTES: usize = 16 + 56;
const STATE_AT: usize = 17;
const RECEIVE_QUEUE_AT: usize = 72;
/// linux/tcp_states.h: the answer when only the listening socket is left.
const TCP_LISTEN: u8 = 10;

/// Bytes that `socket` has sent and the other side's kernel (TCP) or process (unix) has not taken.
pub(crate) fn sent_and_not_taken(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY:
    // - `socket` is open while it is borrowed (its type).
    // - TIOCOUTQ, which sockets know as SIOCOUTQ, writes one `int`, and `bytes` is one (above).
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    assert_eq!(status, 0, "SIOCOUTQ: {}", std::io::Error::last_os_error());
    usize::try_from(bytes).unwrap()
}

/// Asks the kernel about TCP sockets of this machine.
pub(crate) struct Diagnosis {
    netlink: Option<OwnedFd>,
}

impl Diagnosis {
    pub(crate) fn new() -> Self {
        let flags = SocketFlags::CLOEXEC;
        let netlink = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            flags,
            Some(SOCK_DIAG),
        );
        Self { netlink: netlink.ok() }
    }

    /// Bytes that the socket at `server`, connected to `client`, has received and not read; 0 when
    /// there is no such socket any more.
    pub(crate) fn unread(&mut self, server: SocketAddr, client: SocketAddr) -> usize {
        if let Some(netlink) = &self.netlink {
            if let Some(bytes) = ask(netlink, server, client) {
                return bytes;
            }
            self.netlink = None;
        }
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        unread_by_table(&table, server, client)
    }
}

/// Asks `sock_diag`; `None` when the kernel cannot say.
fn ask(netlink: &OwnedFd, server: SocketAddr, client: SocketAddr) -> Option<usize> {
    let kernel = SocketAddrNetlink::new(0, 0);
    let request = request(server, client);
    rustix::net::sendto(netlink, &request, SendFlags::empty(), &kernel).ok()?;
    let mut answer = [0u8; 1024];
    let (_, bytes) = rustix::net::recv(netlink, &mut answer[..], RecvFlags::empty()).ok()?;
    let answer = &answer[..bytes];
    if u16::from_ne_bytes([answer[4], answer[5]]) != SOCK_DIAG_BY_FAMILY {
        let error = i32::from_ne_bytes(answer[16..20].try_into().unwrap());
        return (error == -libc::ENOENT && bytes > REQUEST_BYTES).then_some(0);
    }
    if answer[STATE_AT] == TCP_LISTEN {
        return Some(0);
    }
    let queue = answer[RECEIVE_QUEUE_AT..RECEIVE_QUEUE_AT + 4].try_into().unwrap();
    usize::try_from(u32::from_ne_bytes(queue)).ok()
}

/// The message: a netlink header, then `inet_diag_req_v2` for exactly one IPv4 TCP socket.
fn request(server: SocketAddr, client: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut message = Vec::with_capacity(REQUEST_BYTES);
    message.extend(u32::try_from(REQUEST_BYTES).unwrap().to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]); // sequence, sender
    message.extend([libc::AF_INET, libc::IPPROTO_TCP].map(|number| u8::try_from(number).unwrap()));
    message.extend([0; 2]); // extensions, padding
    message.extend(u32::MAX.to_ne_bytes()); // any state
    message.extend(server.port().to_be_bytes());
    message.extend(client.port().to_be_bytes());
    for address in [server, client] {
        let IpAddr::V4(address) = address.ip() else { panic!("not IPv4: {address}") };
        message.extend(address.octets());
        message.extend([0; 12]);
    }
    message.extend(0u32.to_ne_bytes()); // any interface
    message.extend([0xff; 8]); // no cookie
    message.try_into().unwrap()
}

/// The same from the text of /proc/net/tcp.
fn unread_by_table(table: &str, server: SocketAddr, client: SocketAddr) -> usize {
    let name = |address: SocketAddr| {
        let IpAddr::V4(ip) = address.ip() else { panic!("not IPv4: {address}") };
        format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port())
    };
    let ends = [name(server), name(client)];
    let line = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut line = line.filter(|fields| fields.get(1..3).is_some_and(|pair| pair == ends));
    let queues = line.next().and_then(|fields| fields[4].split_once(':').map(|(_, rx)| rx));
    queues.map_or(0, |rx| usize::from_str_radix(rx, 16).unwrap())
}

#[test]
fn what_the_peer_has_not_read_is_counted() {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"abc").unwrap();
    while sent_and_not_taken(client.as_fd()) > 0 {}
    let ends = (server.local_addr().unwrap(), client.local_addr().unwrap());
    let mut ways = [Diagnosis::new(), Diagnosis { netlink: None }];
    assert!(ways.iter_mut().all(|way| way.unread(ends.0, ends.1) == 3));
    server.read_exact(&mut [0; 2]).unwrap();
    assert!(ways.iter_mut().all(|way| way.unread(ends.0, ends.1) == 1));
    server.read_exact(&mut [0; 1]).unwrap();
    assert!(ways.iter_mut().all(|way| way.unread(ends.0, ends.1) == 0));
    drop((server, client));
    assert!(ways.iter_mut().all(|way| way.unread(ends.0, ends.1) == 0));

    let (mut left, mut right) = std::os::unix::net::UnixStream::pair().unwrap();
    left.write_all(b"abc").unwrap();
    assert!(sent_and_not_taken(left.as_fd()) > 0);
    right.read_exact(&mut [0; 3]).unwrap();
    assert_eq!(sent_and_not_taken(left.as_fd()), 0);
}
