//! Opens what the options say to listen on.
//!
//! Upstream:   `serve`, with rights already given up.
//! Downstream: `kachel_io::listener` makes the sockets; names are looked up by the system.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;

use kachel_io::listener;
use kachel_options::{Host, Listeners, TcpListen};

/// Sockets that listen, and what to tell of them.
pub(crate) struct Open {
    pub(crate) sockets: Vec<OwnedFd>,
    /// Where, in words.
    pub(crate) places: Vec<String>,
    /// A line for each TCP port, as memcached writes them into its port file.
    pub(crate) port_lines: String,
}

/// Opens them all. The error is a sentence.
pub(crate) fn open(listeners: &Listeners, backlog: i32) -> Result<Open, String> {
    let backlog = u32::try_from(backlog).unwrap_or(0);
    let mut open = Open { sockets: Vec::new(), places: Vec::new(), port_lines: String::new() };
    for wanted in &listeners.tcp {
        open.tcp(wanted, backlog)?;
    }
    if let Some(unix) = &listeners.unix {
        let place = unix.path.display().to_string();
        let socket = listener::unix(&unix.path, unix.mode, backlog)
            .map_err(|error| format!("cannot listen on {place}: {error}"))?;
        open.sockets.push(socket);
        open.places.push(place);
    }
    Ok(open)
}

impl Open {
    fn tcp(&mut self, wanted: &TcpListen, backlog: u32) -> Result<(), String> {
        for address in addresses(wanted)? {
            let socket = match listener::tcp(address, backlog, false) {
                Ok(socket) => socket,
                Err(error) if wanted.host == Host::Any && lacks_family(&error) => continue,
                Err(error) => return Err(format!("cannot listen on {address}: {error}")),
            };
            let bound = listener::local_addr(&socket)
                .map_err(|error| format!("cannot tell the port of {address}: {error}"))?;
            let family = if bound.is_ipv4() { "INET" } else { "INET6" };
            writeln!(self.port_lines, "TCP {family}: {}", bound.port()).expect("memory");
            self.sockets.push(socket);
            self.places.push(bound.to_string());
        }
        if self.sockets.is_empty() {
            return Err("this machine has neither IPv4 nor IPv6".to_string());
        }
        Ok(())
    }
}

/// Every address that `wanted` stands for.
fn addresses(wanted: &TcpListen) -> Result<Vec<SocketAddr>, String> {
    let Host::Named(host) = &wanted.host else {
        let all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        return Ok(all.map(|all| SocketAddr::new(all, wanted.port)).to_vec());
    };
    let found = (host.as_str(), wanted.port).to_socket_addrs();
    let found = found.map_err(|error| format!("cannot listen on {host}: {error}"))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        // A name may stand for one address more than once, by its aliases.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(format!("{host} stands for no address")) } else { Ok(addresses) }
}

/// Whether the machine has no addresses of the kind asked for, as one without IPv6 has.
fn lacks_family(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use kachel_options::{Protocol, UnixListen};

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
    fn a_unix_socket_is_opened_where_it_is_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path: PathBuf = folder.path().join("socket");
        let unix = Some(UnixListen { path: path.clone(), mode: 0o700 });
        let open = open(&Listeners { tcp: Vec::new(), unix }, 8).expect("a socket");
        assert!(path.exists() && open.port_lines.is_empty());
        assert_eq!(open.sockets.len(), 1);
    }
}
