//! Opens the listeners of the options.
//!
//! Upstream:   `serve`, after it has given up root.
//! Downstream: `kachel_io::listener` makes the sockets; the system resolves names.
//!
//! An address that is in use is tried again for up to [`RELEASE_MAX`]. The kernel closes the
//! sockets in the rings of a killed server a moment after the process has ended, so a supervisor
//! that starts the next server at once would fail.

use std::fmt::{Display, Write};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use kachel_io::listener;
use kachel_options::{AdminListen, Host, IpListen, ListenTls, Listeners, Protocol, ServeOptions};

use crate::failure::Failure;

/// Length of the kernel's queue of new clients of the admin address. A guess.
const ADMIN_BACKLOG: u32 = 1024;
/// How long a start waits for an address that is in use. After 210 kills of a server with two
/// threads and 20 clients, at a load of 14 on two cores, its port was in use for up to 42 ms.
const RELEASE_MAX: Duration = Duration::from_millis(500);
/// The pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Listening sockets, and their addresses.
#[derive(Default)]
pub(crate) struct Open {
    pub(crate) sockets: Vec<OwnedFd>,
    /// The protocol of each socket.
    pub(crate) protocols: Vec<Protocol>,
    /// The TLS of each socket.
    pub(crate) tls: Vec<ListenTls>,
    /// The addresses, for the log.
    pub(crate) places: Vec<String>,
    /// The lines of memcached's port file, one for each TCP port.
    pub(crate) port_lines: String,
}

/// The listening sockets of one shard's own port.
#[derive(Default)]
pub(crate) struct OfShard {
    pub(crate) sockets: Vec<OwnedFd>,
    /// The protocol of each socket.
    pub(crate) protocols: Vec<Protocol>,
    /// The TLS of each socket.
    pub(crate) tls: Vec<ListenTls>,
}

/// Opens the listeners for clients of all shards.
pub(crate) fn open(listeners: &Listeners, backlog: i32) -> Result<Open, Failure> {
    let backlog = backlog_of(backlog);
    let mut open = Open::default();
    for wanted in &listeners.tcp {
        open.tcp(wanted, backlog)?;
    }
    if let Some(unix) = &listeners.unix {
        let place = unix.path.display().to_string();
        let socket = when_free(&place, || listener::unix(&unix.path, unix.mode, backlog))
            .map_err(|error| cannot_listen(&place, &error))?;
        open.sockets.push(socket);
        open.protocols.push(unix.protocol);
        open.tls.push(ListenTls::Off);
        open.places.push(place);
    }
    Ok(open)
}

/// Opens the admin address.
pub(crate) fn open_admin(wanted: &AdminListen) -> Result<Open, Failure> {
    let mut open = Open::default();
    let opened = match wanted {
        AdminListen::Ip(address) => {
            let host = Host::Named(address.ip().to_string());
            let make = |address| listener::tcp(address, ADMIN_BACKLOG, false);
            open.listen("ADMIN", &host, &[*address], make)
        }
        AdminListen::Unix { path, mode } => {
            let place = path.display().to_string();
            when_free(&place, || listener::unix(path, *mode, ADMIN_BACKLOG))
                .map_err(|error| cannot_listen(&place, &error))
                .map(|socket| {
                    open.sockets.push(socket);
                    open.places.push(place);
                })
        }
    };
    opened.map_err(|failure| failure.of_option("--admin"))?;
    Ok(open)
}

/// Opens the listeners of the shards, for each shard its port on every address of `-l`.
pub(crate) fn open_of_shards(
    options: &ServeOptions,
    ports: RangeInclusive<u16>,
) -> Result<Vec<OfShard>, Failure> {
    let wanted = of_each_host(options, ports.start() - 1);
    let of_shard = |port| {
        let mut open = Open::default();
        for host in &wanted {
            open.tcp(&IpListen { port, ..host.clone() }, backlog_of(options.backlog))
                .map_err(|failure| failure.of_option("--shard-ports"))?;
        }
        debug_assert!(!open.sockets.is_empty(), "at least one address was listened on");
        Ok(OfShard { sockets: open.sockets, protocols: open.protocols, tls: open.tls })
    };
    ports.map(of_shard).collect()
}

/// For each host of `-l` the listener whose port is `port`. If there is none, one that speaks as a
/// listener without prefixes: a port that is open without TLS must not open others so.
fn of_each_host(options: &ServeOptions, port: u16) -> Vec<IpListen> {
    let tls = if options.tls.enabled { ListenTls::OfProcess } else { ListenTls::Off };
    let tcp = &options.listeners.tcp;
    let mut wanted: Vec<IpListen> = Vec::new();
    for IpListen { host, .. } in tcp {
        if wanted.iter().any(|other| other.host == *host) {
            continue;
        }
        let at_port = tcp.iter().find(|each| each.host == *host && each.port == port);
        let plain = || IpListen { host: host.clone(), port, protocol: options.protocol, tls };
        wanted.push(at_port.cloned().unwrap_or_else(plain));
    }
    wanted
}

/// The datagram sockets of the process.
#[derive(Default)]
pub(crate) struct OpenDatagrams {
    /// For each shard that serves clients, its sockets, each with the number of its entry in the
    /// list of listeners.
    pub(crate) of_shards: Vec<Vec<(usize, OwnedFd)>>,
    /// The ports of all sockets.
    pub(crate) ports: Vec<RangeInclusive<u16>>,
    /// The addresses, for the log.
    pub(crate) places: Vec<String>,
    /// The lines of memcached's port file, one for each UDP port of all shards.
    pub(crate) port_lines: String,
}

/// Opens the datagram sockets: on each address of `listeners` one for each of `shards` shards,
/// among which the kernel spreads the datagrams; with `own_ports` also one at the port of each
/// shard.
pub(crate) fn open_datagrams(
    listeners: &[IpListen],
    shards: u16,
    own_ports: Option<RangeInclusive<u16>>,
) -> Result<OpenDatagrams, Failure> {
    let mut open = OpenDatagrams::default();
    open.of_shards.resize_with(usize::from(shards), Vec::new);
    for (entry, wanted) in listeners.iter().enumerate() {
        open.shared_by_all(entry, wanted)?;
    }
    for (shard, port) in own_ports.clone().into_iter().flatten().enumerate() {
        let mut hosts: Vec<&Host> = Vec::new();
        for (entry, wanted) in listeners.iter().enumerate() {
            if hosts.contains(&&wanted.host) {
                continue;
            }
            hosts.push(&wanted.host);
            let mut own = Open::default();
            let addresses = addresses(&IpListen { port, ..wanted.clone() })?;
            own.listen("UDP", &wanted.host, &addresses, |address| listener::udp(address, false))
                .map_err(|failure| failure.of_option("--udp-port-per-shard"))?;
            open.of_shards[shard].extend(own.sockets.into_iter().map(|socket| (entry, socket)));
        }
    }
    open.ports.extend(own_ports);
    Ok(open)
}

impl OpenDatagrams {
    /// Opens a socket of each shard on each address of an entry.
    fn shared_by_all(&mut self, entry: usize, wanted: &IpListen) -> Result<(), Failure> {
        let addresses = addresses(wanted)?;
        let mut alone = Open::default();
        // A socket that shares its address would be let in beside another process. So each address
        // is first taken by a socket that does not share.
        alone.listen("UDP", &wanted.host, &addresses, |address| listener::udp(address, false))?;
        let Open { sockets, places, port_lines, .. } = alone;
        drop(sockets);
        for place in &places {
            let address: SocketAddr = place.parse().expect("an address that was bound");
            for sockets in &mut self.of_shards {
                let socket = listener::udp(address, true)
                    .map_err(|error| cannot_listen(format_args!("UDP {address}"), &error))?;
                sockets.push((entry, socket));
            }
            self.ports.push(address.port()..=address.port());
        }
        self.places.extend(places.iter().map(|place| format!("UDP {place}")));
        self.port_lines += &port_lines;
        Ok(())
    }
}

fn backlog_of(backlog: i32) -> u32 {
    u32::try_from(backlog).unwrap_or(0)
}

impl Open {
    fn tcp(&mut self, wanted: &IpListen, backlog: u32) -> Result<(), Failure> {
        let addresses = addresses(wanted)?;
        let make = |address| listener::tcp(address, backlog, false);
        self.listen("TCP", &wanted.host, &addresses, make)?;
        debug_assert!(self.protocols.len() < self.sockets.len(), "an address was listened on");
        self.protocols.resize(self.sockets.len(), wanted.protocol);
        self.tls.resize(self.sockets.len(), wanted.tls);
        Ok(())
    }

    /// Listens on all addresses of `host`; `make` makes a socket of the kind that is named.
    /// Addresses that this machine cannot have are skipped, but at least one must be left.
    fn listen(
        &mut self,
        kind: &str,
        host: &Host,
        addresses: &[SocketAddr],
        make: impl Fn(SocketAddr) -> io::Result<OwnedFd>,
    ) -> Result<(), Failure> {
        let mut lacking = None;
        let before = self.sockets.len();
        for &address in addresses {
            let at = if kind == "UDP" { "UDP " } else { "" };
            let at = format!("{at}{address}");
            let socket = match when_free(&at, || make(address)) {
                Ok(socket) => socket,
                Err(error) => {
                    let failure = cannot_listen(&at, &error);
                    if !is_lacking(host, &error) {
                        return Err(failure);
                    }
                    lacking = Some(failure);
                    continue;
                }
            };
            let bound = listener::local_addr(&socket).map_err(|error| {
                Failure::system(format_args!("cannot tell the port of {address}"), &error)
            })?;
            let family = if bound.is_ipv4() { "INET" } else { "INET6" };
            writeln!(self.port_lines, "{kind} {family}: {}", bound.port()).expect("memory");
            self.sockets.push(socket);
            self.places.push(bound.to_string());
        }
        match lacking {
            Some(failure) if self.sockets.len() == before => Err(failure),
            _ => Ok(()),
        }
    }
}

/// Opens a socket by `open`. While its address is in use, tries again, for at most
/// [`RELEASE_MAX`]. Prints a line if that helped.
///
/// Errors: those of the last try.
fn when_free(at: &str, open: impl Fn() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let begin = Instant::now();
    let mut tries = 1;
    loop {
        let opened = open();
        let waited = begin.elapsed();
        match opened {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && waited < RELEASE_MAX => {
                std::thread::sleep(RETRY_PAUSE);
                tries += 1;
            }
            Ok(_) if tries > 1 => {
                say!(Info, "{at} was in use for {} ms: {tries} tries", waited.as_millis());
                return opened;
            }
            _ => return opened,
        }
    }
}

/// Every address of `wanted`.
fn addresses(wanted: &IpListen) -> Result<Vec<SocketAddr>, Failure> {
    let Host::Named(host) = &wanted.host else {
        let all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        return Ok(all.map(|all| SocketAddr::new(all, wanted.port)).to_vec());
    };
    let found = (host.as_str(), wanted.port).to_socket_addrs();
    let found = found.map_err(|error| cannot_listen(host, &error))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        // A name may have an address more than once, through its aliases.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    // The name server may know one later.
    let none = || Failure::passing(format!("{host} has no address"));
    if addresses.is_empty() { Err(none()) } else { Ok(addresses) }
}

fn cannot_listen(at: impl Display, error: &io::Error) -> Failure {
    Failure::system(format_args!("cannot listen on {at}"), error)
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
    use std::cell::Cell;
    use std::path::PathBuf;

    use kachel_options::{Command, UnixListen};

    use super::*;

    fn tcp(host: Host) -> Listeners {
        let wanted = IpListen { host, port: 0, protocol: Protocol::Auto, tls: ListenTls::Off };
        Listeners { tcp: vec![wanted], ..Listeners::default() }
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
        assert!(error.to_string().contains(&taken.to_string()), "{error}");
    }

    #[test]
    fn only_an_address_in_use_is_tried_again() {
        let tried = |code: i32, failures: u32| {
            let tries = Cell::new(0);
            let opened = when_free("a place", || {
                tries.set(tries.get() + 1);
                if tries.get() <= failures {
                    return Err(io::Error::from_raw_os_error(code));
                }
                listener::tcp((Ipv4Addr::LOCALHOST, 0).into(), 8, false)
            });
            (opened.map(drop).map_err(|error| error.raw_os_error()), tries.get())
        };
        assert_eq!(tried(libc::EADDRINUSE, 0), (Ok(()), 1));
        assert_eq!(tried(libc::EADDRINUSE, 3), (Ok(()), 4));
        assert_eq!(tried(libc::EACCES, 1), (Err(Some(libc::EACCES)), 1));
        // The pauses of all tries fit into the bound.
        let (error, tries) = tried(libc::EADDRINUSE, u32::MAX);
        let tries_max = RELEASE_MAX.as_millis() / RETRY_PAUSE.as_millis() + 1;
        assert!(error == Err(Some(libc::EADDRINUSE)) && u128::from(tries) <= tries_max, "{tries}");
        assert!(tries > 1, "the address was tried again");
    }

    #[test]
    fn addresses_that_the_machine_cannot_have_are_passed_over_unless_there_is_no_other() {
        let both = ["[::1]:0", "127.0.0.1:0"].map(|each| each.parse().expect("an address"));
        let listen = |host: Host, addresses: &[SocketAddr], code| {
            let mut open = Open::default();
            // Another one listens already, which is of no help.
            open.tcp(&tcp(Host::Named("127.0.0.1".into())).tcp[0], 8).expect("a socket");
            let listens = open.listen("TCP", &host, addresses, |address| match address {
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
            assert!(error.to_string().contains("[::1]:0"), "{error}");
        }
    }

    #[test]
    fn each_shard_has_datagram_sockets_of_its_own_on_a_port_of_all() {
        let wanted = tcp(Host::Named("127.0.0.1".into())).tcp;
        let open = open_datagrams(&wanted, 3, None).expect("sockets");
        let [ports] = &open.ports[..] else { panic!("one address") };
        assert_eq!(open.port_lines, format!("UDP INET: {}\n", ports.start()));
        assert_eq!(open.places, [format!("UDP 127.0.0.1:{}", ports.start())]);
        let of_shard = |sockets: &Vec<(usize, OwnedFd)>| {
            let [(0, socket)] = &sockets[..] else { panic!("{sockets:?}") };
            listener::local_addr(socket).expect("it is bound").port()
        };
        assert_eq!(open.of_shards.iter().map(of_shard).collect::<Vec<_>>(), [*ports.start(); 3]);
        // Another server is refused, although the sockets share their address.
        let taken = IpListen { port: *ports.start(), ..wanted[0].clone() };
        let error = open_datagrams(&[taken], 3, None).err().expect("the port is taken");
        assert!(error.to_string().contains(&format!("UDP 127.0.0.1:{}", ports.start())), "{error}");
    }

    #[test]
    fn the_ports_of_shards_speak_as_the_port_of_all_and_never_without_tls_by_accident() {
        let listen = |host: &str, port, tls, protocol| IpListen {
            host: Host::Named(host.to_string()),
            port,
            protocol,
            tls,
        };
        let (off, of_process) = (ListenTls::Off, ListenTls::OfProcess);
        let command = kachel_options::parse([], "memcached".as_ref());
        let Ok(Command::Serve(mut options)) = command else { panic!("{command:?}") };
        options.protocol = Protocol::Binary;
        options.tls.enabled = true;
        options.listeners.tcp = vec![
            listen("a", 11300, off, Protocol::Auto),
            listen("a", 11211, of_process, Protocol::Ascii),
            listen("b", 11211, off, Protocol::Auto),
            listen("c", 11300, off, Protocol::Ascii),
        ];
        let wanted = [
            listen("a", 11211, of_process, Protocol::Ascii),
            listen("b", 11211, off, Protocol::Auto),
            listen("c", 11211, of_process, Protocol::Binary),
        ];
        assert_eq!(of_each_host(&options, 11211), wanted);
        options.tls.enabled = false;
        assert_eq!(of_each_host(&options, 11211)[2].tls, off);
    }

    #[test]
    fn a_unix_socket_is_opened_where_it_is_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path: PathBuf = folder.path().join("socket");
        let unix = Some(UnixListen { path: path.clone(), mode: 0o700, protocol: Protocol::Binary });
        let open = open(&Listeners { unix, ..Listeners::default() }, 8).expect("a socket");
        assert!(path.exists() && open.port_lines.is_empty());
        assert_eq!((open.sockets.len(), open.protocols), (1, vec![Protocol::Binary]));
    }
}
