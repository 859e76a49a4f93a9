use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};

use super::*;

#[test]
fn tcp_takes_a_free_port_and_accepts() {
    for addr in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = tcp(addr.parse().unwrap(), 16, false) else {
            assert!(addr.contains("::1"), "IPv4 loopback is always there");
            continue;
        };
        let bound = local_addr(&listener).unwrap();
        assert_ne!(bound.port(), 0);
        TcpStream::connect(bound).unwrap();
    }
}

#[test]
fn two_sockets_share_an_address_only_with_reuseport() {
    let first = tcp("127.0.0.1:0".parse().unwrap(), 16, true).unwrap();
    let bound = local_addr(&first).unwrap();
    tcp(bound, 16, true).unwrap();
    let alone = tcp("127.0.0.1:0".parse().unwrap(), 16, false).unwrap();
    let error = tcp(local_addr(&alone).unwrap(), 16, false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn accepted_sockets_inherit_no_delay_and_keepalive() {
    let listener = TcpListener::from(tcp("127.0.0.1:0".parse().unwrap(), 16, false).unwrap());
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    listener.set_nonblocking(false).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    assert!(sockopt::tcp_nodelay(&accepted).unwrap());
    assert!(sockopt::socket_keepalive(&accepted).unwrap());
    assert!(KEEPALIVE_IDLE_S.contains(&sockopt::tcp_keepidle(&accepted).unwrap().as_secs()));
    assert_eq!(sockopt::tcp_keepintvl(&accepted).unwrap().as_secs(), KEEPALIVE_INTERVAL_S);
    assert_eq!(sockopt::tcp_keepcnt(&accepted).unwrap(), KEEPALIVE_PROBES);
}

#[test]
fn unix_socket_has_the_wanted_permissions_and_replaces_a_dead_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kachel.sock");
    drop(UnixListener::bind(&path).unwrap());
    let _listener = unix(&path, 0o770, 16).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o770);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn unix_socket_of_a_living_process_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kachel.sock");
    let _living = UnixListener::bind(&path).unwrap();
    assert_eq!(unix(&path, 0o700, 16).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn unix_refuses_links_and_files_and_removes_neither() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("dead.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let link = folder.path().join("link");
    symlink(&socket, &link).unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"precious").unwrap();
    for path in [&link, &file] {
        assert_eq!(unix(path, 0o700, 16).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(path.symlink_metadata().is_ok());
    }
    assert!(socket.exists());
}

#[test]
fn unix_refuses_a_path_that_is_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let at = |bytes: usize| {
        let name = "s".repeat(bytes - folder.path().as_os_str().len() - 1);
        unix(&folder.path().join(name), 0o700, 16)
    };
    assert!(at(107).is_ok());
    let error = at(108).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
}

#[test]
fn only_an_address_of_a_unix_socket_is_local() {
    let (near, _far) = UnixStream::pair().unwrap();
    assert_eq!(peer(rustix::net::getpeername(&near).unwrap()), Peer::Local);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let bound = listener.local_addr().unwrap();
    assert_eq!(peer(rustix::net::getpeername(&client).unwrap()), Peer::from(bound));
    // A socket that is not connected has no peer, and a connection that is broken.
    let unconnected = rustix::net::getpeername(&listener).ok().flatten();
    assert_eq!(peer(unconnected), Peer::Unknown);
}
