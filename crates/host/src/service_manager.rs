//! Messages to the service manager: the server is ready, ends, or needs more time.
//!
//! Upstream:   `kachel`, at the start, at the end, and while items are loaded and saved.
//! Downstream: datagrams to the unix socket that the environment names, by systemd's protocol
//!             (`sd_notify(3)`).
//!
//! Invariants:
//! - I1  Without the variable, nothing is sent and nothing fails.
//! - I2  A message is at most one datagram, and sending it never waits: a manager that does not
//!   read is no reason to stop.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variable that names the socket: a path, or a name of the abstract namespace after an `@`.
const SOCKET_ENV: &str = "NOTIFY_SOCKET";

/// How much longer than an announced time the manager waits for the next message. A guess.
const PATIENCE_TIME: Duration = Duration::from_secs(60);

/// A message to the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceState {
    /// It serves.
    Ready,
    /// It ends after this time, and serves until then.
    Draining(Duration),
    /// It ends.
    Stopping,
    /// It starts or ends, and makes progress: it must not be ended for at least this time.
    Busy(Duration),
}

impl ServiceState {
    fn message(self) -> String {
        match self {
            Self::Ready => "READY=1\nSTATUS=Serving".to_owned(),
            Self::Draining(time) => {
                let time = time + PATIENCE_TIME;
                let us = time.as_micros();
                format!("STOPPING=1\nSTATUS=Draining\nEXTEND_TIMEOUT_USEC={us}")
            }
            Self::Stopping => "STOPPING=1\nSTATUS=Ending".to_owned(),
            Self::Busy(time) => {
                debug_assert!(!time.is_zero(), "the manager would end the process at once");
                format!("EXTEND_TIMEOUT_USEC={}", time.as_micros())
            }
        }
    }
}

/// Tells the service manager, if there is one (I1). Cost: four system calls.
///
/// Errors: there is one that cannot be told. The caller may go on; a manager that waits for the
/// message ends the process at its time limit.
pub fn tell_service_manager(state: ServiceState) -> io::Result<()> {
    match std::env::var_os(SOCKET_ENV) {
        Some(name) if !name.is_empty() => send(&name, state),
        _ => Ok(()),
    }
}

/// Sends the message to the socket with this name.
fn send(name: &OsStr, state: ServiceState) -> io::Result<()> {
    let manager = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let message = state.message();
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?; // I2
    let sent = socket.send_to_addr(message.as_bytes(), &manager)?;
    assert_eq!(sent, message.len(), "a datagram is sent whole or not at all");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    /// The message that a manager at this address receives.
    fn told(address: &SocketAddr, name: &OsStr, state: ServiceState) -> String {
        let manager = UnixDatagram::bind_addr(address).expect("a socket");
        send(name, state).expect("it is sent");
        let mut bytes = [0; 4096];
        let count = manager.recv(&mut bytes).expect("a datagram");
        String::from_utf8(bytes[..count].to_vec()).expect("text")
    }

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = Folder::new("notify", &[]);
        let path = folder.path().join("notify");
        let address = SocketAddr::from_pathname(&path).expect("short enough");
        let said = told(&address, path.as_os_str(), ServiceState::Ready);
        assert_eq!(said, "READY=1\nSTATUS=Serving");
        let name = format!("kachel-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("short enough");
        let state = ServiceState::Busy(Duration::from_secs(60));
        let said = told(&address, OsStr::new(&format!("@{name}")), state);
        assert_eq!(said, "EXTEND_TIMEOUT_USEC=60000000");
        let address = SocketAddr::from_abstract_name(format!("{name}-drain")).expect("short");
        let state = ServiceState::Draining(Duration::from_secs(1));
        let said = told(&address, OsStr::new(&format!("@{name}-drain")), state);
        assert_eq!(said, "STOPPING=1\nSTATUS=Draining\nEXTEND_TIMEOUT_USEC=61000000");
    }

    #[test]
    fn a_manager_that_is_not_there_or_does_not_read_is_an_error_and_no_wait() {
        let folder = Folder::new("notify", &[]);
        let path = folder.path().join("notify");
        let missing = send(path.as_os_str(), ServiceState::Stopping).expect_err("nobody is there");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(send(OsStr::new(&"x".repeat(200)), ServiceState::Ready).is_err(), "no such name");
        let _deaf = UnixDatagram::bind(&path).expect("a socket");
        // The queue of a socket is limited: net.unix.max_dgram_qlen, usually 10, at most some
        // thousands.
        let full = (0..1 << 20).find_map(|_| send(path.as_os_str(), ServiceState::Ready).err());
        assert_eq!(full.expect("it is full").kind(), io::ErrorKind::WouldBlock);
    }
}
