//! Opens the listeners of the options.
//!
//! Upstream:   `serve`, after it has given up root.
//! Downstream: `kachel_io::listener` makes the sockets; the system resolves names.

use std::fmt::Write;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use kachel_io::listener;
use kachel_options::{Host, Listeners, Protocol, TcpListen};

/// Listening sockets, and their addresses.
#[derive(Default)]
pub(crate) struct Open {
    pub(crate) sockets: Vec<OwnedFd>,
    /// The protocol of each socket.
    pub(crate) protocols: Vec<Protocol>,
    /// The addresses, for the log.
    pub(crate) places: Vec<String>,
    /// The lines of memcached's port file, one for each TCP port.
    pub(crate) port_lines: String,
}

/// Opens the listeners for clients of all shards. The error is a sentence.
pub(crate) fn open(listeners: &Listeners, backlog: i32) -> Result<Open, String> {
    let backlog = backlog_of(backlog);
    let mut open = Open::default();
    for wanted in &listeners.tcp {
        open.tcp(wanted, backlog)?;
    }
    if let Some(unix) = &listeners.unix {
        let place = unix.path.display().to_string();
        let socket = listener::unix(&unix.path, unix.mode, backlog)
            .map_err(|error| format!("cannot listen on {place}: {error}"))?;
        open.sockets.push(socket);
        open.protocols.push(unix.protocol);
        open.places.push(place);
    }
    Ok(open)
}

/// Opens the listeners of the shards, for each shard its port on every address of `listeners`. The
/// error is a sentence.
pub(crate) fn open_of_shards(
    listeners: &Listeners,
    backlog: i32,
    ports: RangeInclusive<u16>,
) -> Result<Vec<Vec<OwnedFd>>, String> {
    let mut wanted: Vec<&TcpListen> = Vec::new();
    for tcp in &listeners.tcp {
        if !wanted.iter().any(|other| other.host == tcp.host) {
            wanted.push(tcp);
        }
    }
    let of_shard = |port| {
        let mut open = Open::default();
        for &tcp in &wanted {
            open.tcp(&TcpListen { port, ..tcp.clone() }, backlog_of(backlog))
                .map_err(|error| format!("--shard-ports: {error}"))?;
        }
        debug_assert!(!open.sockets.is_empty(), "at least one address was listened on");
        Ok(open.sockets)
    };
    ports.map(of_shard).collect()
}

fn backlog_of(backlog: i32) -> u32 {
    u32::try_from(backlog).unwrap_or(0)
}

impl Open {
    fn tcp(&mut self, wanted: &TcpListen, backlog: u32) -> Result<(), String> {
        let addresses = addresses(wanted)?;
        self.listen(&wanted.host, &addresses, |address| listener::tcp(address, backlog, false))?;
        debug_assert!(self.protocols.len() < self.sockets.len(), "an address was listened on");
        self.protocols.resize(self.sockets.len(), wanted.protocol);
        Ok(())
    }

    /// Listens on all addresses of `host`; `make` makes a socket. Addresses that this machine
    /// cannot have are skipped, but at least one must be left.
    fn listen(
        &mut self,
        host: &Host,
        addresses: &[SocketAddr],
        make: impl Fn(SocketAddr) -> io::Result<OwnedFd>,
    ) -> Result<(), String> {
        let mut lacking = None;
        let before = self.sockets.len();
        for &address in addresses {
            let socket = match make(address) {
                Ok(socket) => socket,
                Err(error) => {
                    let sentence = format!("cannot listen on {address}: {error}");
                    if !is_lacking(host, &error) {
                        return Err(sentence);
                    }
                    lacking = Some(sentence);
                    continue;
                }
            };
            let bound = listener::local_addr(&socket)
                .map_err(|error| format!("cannot tell the port of {address}: {error}"))?;
            let family = if bound.is_ipv4() { "INET" } else { "INET6" };
            writeln!(self.port_lines, "TCP {family}: {}", bound.port()).expect("memory");
            self.sockets.push(socket);
            self.places.push(bound.to_string());
        }
        match lacking {
            Some(sentence) if self.sockets.len() == before => Err(sentence),
            _ => Ok(()),
        }
    }
}

/// Every address of `wanted`.
fn addresses(wanted: &TcpListen) -> Result<Vec<SocketAddr>, String> {
    let Host::Named(host) = &wanted.host else {
        let all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        return Ok(all.map(|all| SocketAddr::new(all, wanted.port)).to_vec());
    };
    let found = (host.as_str(), wanted.port).to_socket_addrs();
    let found = found.map_err(|error| format!("cannot listen on {host}: {error}"))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        // A name may have an address more than once, through its aliases.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(format!("{host} has no address")) } else { Ok(addresses) }
}

/// Whether the machine has no addresses of this kind, such as IPv6. A kind that the kernel does not
/// support may be skipped for every host. An unavailable address may be skipped only for
/// [`Host::Any`]; in a named host it is a mistake. memcached decides in the same way.
fn is_lacking(host: &Host, error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT) => true,
        Some(libc::EADDRNOTAVAIL) => *host == Host::Any,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use kachel_options::UnixListen;

    use super::*;

    fn tcp(host: Host) -> Listeners {
        let wanted = TcpListen { host, port: 0, protocol: Protocol::Auto };
        Listeners { tcp: vec![wanted], unix: None }
    }

    #[test]
    fn a_free_port_is_found_and_told() {
        let open = open(&tcp(Host::Named("127.0.0.1".into())), 8).expect("a socket");
        let place: SocketAddr = open.places[0].parse().expect("an address");
        assert_ne!(place.port(), 0);
        assert_eq!(open.port_lines, format!("TCP INET: {}\n", place.port()));
    }

    #[test]
    fn a_port_in_use_is_an_error_that_names_it() {
        let first = open(&tcp(Host::Named("127.0.0.1".into())), 8).expect("a socket");
        let taken: SocketAddr = first.places[0].parse().expect("an address");
        let mut wanted = tcp(Host::Named("127.0.0.1".into()));
        wanted.tcp[0].port = taken.port();
        let error = open(&wanted, 8).err().expect("the port is taken");
        assert!(error.contains(&taken.to_string()), "{error}");
    }

    #[test]
    fn addresses_that_the_machine_cannot_have_are_passed_over_unless_there_is_no_other() {
        let both = ["[::1]:0", "127.0.0.1:0"].map(|each| each.parse().expect("an address"));
        let listen = |host: Host, addresses: &[SocketAddr], code| {
            let mut open = Open::default();
            // Another one listens already, which is of no help.
            open.tcp(&tcp(Host::Named("127.0.0.1".into())).tcp[0], 8).expect("a socket");
            let listens = open.listen(&host, addresses, |address| match address {
                SocketAddr::V6(_) => Err(io::Error::from_raw_os_error(code)),
                SocketAddr::V4(_) => listener::tcp(address, 8, false),
            });
            listens.map(|()| open.sockets.len())
        };
        let named = || Host::Named("a name".into());
        assert_eq!(listen(named(), &both, libc::EAFNOSUPPORT), Ok(2));
        assert_eq!(listen(Host::Any, &both, libc::EAFNOSUPPORT), Ok(2));
        assert_eq!(listen(Host::Any, &both, libc::EADDRNOTAVAIL), Ok(2));
        for (host, addresses, code) in [
            (named(), &both[..1], libc::EAFNOSUPPORT),
            (named(), &both[..], libc::EADDRNOTAVAIL),
            (named(), &both[..], libc::EADDRINUSE),
            (Host::Any, &both[..1], libc::EAFNOSUPPORT),
            (Host::Any, &both[..], libc::EMFILE),
        ] {
            let error = listen(host, addresses, code).expect_err("nothing to listen on");
            assert!(error.contains("[::1]:0"), "{error}");
        }
    }

    #[test]
    fn a_unix_socket_is_opened_where_it_is_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path: PathBuf = folder.path().join("socket");
        let unix = Some(UnixListen { path: path.clone(), mode: 0o700, protocol: Protocol::Binary });
        let open = open(&Listeners { tcp: Vec::new(), unix }, 8).expect("a socket");
        assert!(path.exists() && open.port_lines.is_empty());
        assert_eq!((open.sockets.len(), open.protocols), (1, vec![Protocol::Binary]));
    }
}
