//! A peer that disappears without closing: its machine lost power, or the network was cut.
//!
//! As root, the test cuts a network namespace of its own. It always checks the options of an
//! accepted socket.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kachel_testkit::{Client, Server, user, wait_until, within};
use rustix::net::{AddressFamily, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::subject::{Door, start};
use crate::suite::is_full;

/// Until the server must have noticed: at most 28 s of silence, 15 probes 2 s apart.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);
/// What the kernel's timers and the once-a-second look may add; judged in the long form.
const LATE: Duration = Duration::from_secs(5);

/// Copies of the server's sockets: the same sockets, in our hands.
fn accepted_sockets(server: &Server) -> Vec<OwnedFd> {
    let process = pidfd_open(server.pid(), PidfdFlags::empty()).expect("our child");
    let folder = format!("/proc/{}/fd", server.process.id());
    let numbers = fs::read_dir(folder)
        .expect("a process")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|number: i32| {
            let copy = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
            let is_tcp = sockopt::socket_domain(&copy) == Ok(AddressFamily::INET);
            let is_accepted = rustix::net::getpeername(&copy).is_ok_and(|peer| peer.is_some());
            (is_tcp && is_accepted).then_some(copy)
        })
        .collect()
}

/// Checks the options of the server's sockets. Connections that are opened together must not be
/// probed together: the kernel would drop the probes that its queues cannot hold.
fn check_options(server: &Server) {
    let mut together: Vec<Client> = (0..30).map(|_| server.connect()).collect();
    // io_uring accepts a connection before the server knows of it, and so before it sets the time.
    together.iter_mut().for_each(|client| drop(client.get("k")));
    wait_until_sockets(server, together.len() + 1);
    let mut times = BTreeSet::new();
    for socket in accepted_sockets(server) {
        assert!(sockopt::socket_keepalive(&socket).expect("a socket"));
        let seconds = Duration::from_secs;
        let idle = sockopt::tcp_keepidle(&socket).expect("TCP");
        assert!((seconds(14)..=seconds(28)).contains(&idle), "{idle:?}");
        times.insert(idle);
        assert_eq!(sockopt::tcp_keepintvl(&socket).expect("TCP"), seconds(2));
        assert_eq!(sockopt::tcp_keepcnt(&socket).expect("TCP"), 15);
        assert!(sockopt::tcp_nodelay(&socket).expect("TCP"));
    }
    assert!(times.len() >= 5, "all are probed at {times:?}");
}

/// Moves this thread, and so every process that it starts, into a network of its own. A process
/// keeps the network in existence as long as the result lives.
fn own_network() -> Child {
    let mut holder = Command::new("unshare");
    holder.args(["-n", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let holder = holder.spawn().expect("unshare, of util-linux");
    let ours = fs::read_link("/proc/self/ns/net").expect("a network");
    let place = format!("/proc/{}/ns/net", holder.id());
    wait_until("another network", || fs::read_link(&place).is_ok_and(|other| other != ours));
    let network = File::open(place).expect("the network");
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("root may move");
    ip("up");
    holder
}

/// Cuts this thread's network, or joins it.
fn ip(state: &str) {
    let done = Command::new("ip").args(["link", "set", "lo", state]).status();
    assert!(done.expect("ip, of iproute2").success());
}

/// The server's end of one connection vanishes with the way to its client.
fn cut(door: Door) -> Duration {
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| {
            let mut holder = own_network();
            let server = start(door, &["-m", "64", "-t", "2"]);
            let mut client: Client = server.connect();
            // Before the silence can have begun.
            let began = Instant::now();
            client.set("k", b"v");
            wait_until_sockets(&server, 1);
            ip("down");
            wait_until_sockets(&server, 0);
            let took = began.elapsed();
            holder.kill().expect("our child");
            holder.wait().expect("our child");
            took
        });
        cut.join().expect("noticed")
    })
}

/// Waits until `count` connections are open. Asks the kernel, because no client can connect.
fn wait_until_sockets(server: &Server, count: usize) {
    let patience = if is_full() { NOTICED_WITHIN + LATE } else { 10 * NOTICED_WITHIN };
    let so_many = within(patience, || accepted_sockets(server).len() == count);
    assert!(so_many, "not {count} connections within {patience:?}");
}

/// X01.
pub(crate) fn peer_gone(door: Door) -> String {
    let server = start(door, &["-m", "64", "-t", "2"]);
    let mut client = server.connect();
    client.set("k", b"v");
    check_options(&server);
    if user().is_empty() {
        kachel_testkit::skip("x01.cut", "only root can cut a network");
        return "keepalive is set; only root can cut a network".to_owned();
    }
    let took = cut(door);
    assert!(took > Duration::from_secs(40), "noticed after {took:?}: not by keepalive");
    format!(
        "keepalive 14 to 28/2/15 is set; gone {:.1} s after the network was cut",
        took.as_secs_f64()
    )
}
