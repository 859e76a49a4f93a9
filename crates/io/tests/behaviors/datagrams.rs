//! Datagrams: received with their senders, in batches; sent; held back; lost; closed.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use kachel_io::{
    DATAGRAM_BYTES_MAX, DATAGRAMS_MAX, DATAGRAMS_QUEUED_MAX, DatagramPeer, DatagramSocketId, Io,
    MemoryNet, Wait, listener,
};

use crate::Door;
use crate::bench::{Bench, pattern};

crate::behaviors! {
    a_datagram_comes_with_its_sender_and_is_answered: epoll uring memory;
    a_poll_brings_many_datagrams_and_no_more_than_it_may: epoll uring memory;
    an_empty_datagram_comes_and_a_long_one_is_cut: epoll uring memory;
    held_datagrams_stay_in_the_queue: epoll uring memory;
    datagrams_beyond_the_limit_are_lost_and_counted: epoll uring;
    connections_are_served_beside_datagrams: epoll uring memory;
    a_closed_socket_brings_nothing: epoll uring memory;
    both_versions_of_ip_and_several_sockets_are_told_apart: epoll uring;
}

/// More polls than any wait here takes.
const POLLS_MAX: usize = 200;
const STEP: Wait = Wait::AtMostNs(20_000_000);

/// The far end of a datagram socket: a real socket, or the network in memory.
enum Far {
    Real { udp: UdpSocket, server: SocketAddr },
    Memory { net: MemoryNet, address: SocketAddr },
}

struct Ends {
    socket: DatagramSocketId,
    far: Far,
}

impl Ends {
    fn open_at<D: Door>(bench: &mut Bench<D>, address: &str) -> Self {
        let bound = listener::udp(address.parse().unwrap(), false).expect("a socket");
        let server = listener::local_addr(&bound).expect("it is bound");
        let socket = bench.io.receive_datagrams(bound);
        let far = match &bench.net {
            Some(net) => {
                Far::Memory { net: net.clone(), address: "10.0.0.7:4711".parse().unwrap() }
            }
            None => {
                let udp = UdpSocket::bind(address).expect("a socket");
                udp.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
                Far::Real { udp, server }
            }
        };
        Self { socket, far }
    }

    fn open<D: Door>(bench: &mut Bench<D>) -> Self {
        Self::open_at(bench, "127.0.0.1:0")
    }

    fn name(&self) -> DatagramPeer {
        let address = match &self.far {
            Far::Real { udp, .. } => udp.local_addr().expect("it is bound"),
            Far::Memory { address, .. } => *address,
        };
        DatagramPeer { socket: self.socket, address }
    }

    fn send(&self, datagram: &[u8]) {
        match &self.far {
            Far::Real { udp, server } => {
                udp.send_to(datagram, server).expect("loopback takes it");
            }
            Far::Memory { net, .. } => net.send_datagram(0, self.name(), datagram),
        }
    }

    /// The next datagram that comes back.
    fn read(&self) -> Vec<u8> {
        match &self.far {
            Far::Real { udp, .. } => {
                let mut datagram = vec![0; 70_000];
                let bytes = udp.recv(&mut datagram).expect("a datagram");
                datagram.truncate(bytes);
                datagram
            }
            Far::Memory { net, .. } => {
                let taken = net.take_datagrams(0, self.socket);
                let [(address, datagram)] = &taken[..] else { panic!("{taken:?}") };
                assert_eq!(*address, self.name().address);
                datagram.clone()
            }
        }
    }
}

/// Polls until `count` datagrams have come in all.
fn await_datagrams<D: Door>(bench: &mut Bench<D>, count: usize) {
    for _ in 0..POLLS_MAX {
        if bench.log.datagrams.len() >= count {
            return;
        }
        bench.poll(STEP);
    }
    panic!("{} of {count} datagrams came", bench.log.datagrams.len());
}

fn a_datagram_comes_with_its_sender_and_is_answered<D: Door>(mut bench: Bench<D>) {
    let ends = Ends::open(&mut bench);
    for number in 0..300 {
        let datagram = pattern(number, 1 + number * 5);
        ends.send(&datagram);
        await_datagrams(&mut bench, 1);
        assert_eq!(bench.log.datagrams, [(ends.name(), datagram.clone(), false)]);
        bench.log.datagrams.clear();
        bench.io.send_datagram(ends.name(), [b"head", &datagram]);
        bench.poll(Wait::Now);
        assert_eq!(ends.read(), [b"head", &datagram[..]].concat());
    }
    assert_eq!(bench.log.datagrams_lost, 0);
}

fn a_poll_brings_many_datagrams_and_no_more_than_it_may<D: Door>(mut bench: Bench<D>) {
    let ends = Ends::open(&mut bench);
    bench.poll(Wait::Now);
    let count = DATAGRAMS_MAX + DATAGRAMS_MAX / 2;
    for round in 0..5 {
        (0..count).for_each(|number| ends.send(&pattern(number, 40)));
        let polls = bench.log.polls;
        await_datagrams(&mut bench, count);
        assert!(bench.log.polls - polls >= 2, "one poll does not bring all");
        assert!(bench.log.polls - polls < count, "round {round}: one poll brings several");
        for (number, (from, datagram, is_cut)) in bench.log.datagrams.drain(..).enumerate() {
            assert_eq!((from, is_cut), (ends.name(), false));
            assert_eq!(datagram, pattern(number, 40));
        }
        (0..count)
            .for_each(|number| bench.io.send_datagram(ends.name(), [&pattern(number, 9), b""]));
        bench.poll(Wait::Now);
        if let Far::Real { .. } = ends.far {
            (0..count).for_each(|number| assert_eq!(ends.read(), pattern(number, 9)));
        }
    }
}

fn an_empty_datagram_comes_and_a_long_one_is_cut<D: Door>(mut bench: Bench<D>) {
    let ends = Ends::open(&mut bench);
    for (bytes, is_cut) in [
        (0, false),
        (1, false),
        (DATAGRAM_BYTES_MAX, false),
        (DATAGRAM_BYTES_MAX + 1, true),
        (60_000, true),
        (0, false),
        (9, false),
    ] {
        let datagram = pattern(bytes, bytes);
        ends.send(&datagram);
        await_datagrams(&mut bench, 1);
        let (from, came, came_cut) = bench.log.datagrams.pop().expect("one");
        assert_eq!((from, came_cut), (ends.name(), is_cut), "{bytes}");
        assert_eq!(
            came[..bytes.min(DATAGRAM_BYTES_MAX)],
            datagram[..bytes.min(DATAGRAM_BYTES_MAX)]
        );
    }
}

fn held_datagrams_stay_in_the_queue<D: Door>(mut bench: Bench<D>) {
    let ends = Ends::open(&mut bench);
    ends.send(b"first");
    await_datagrams(&mut bench, 1);
    bench.io.hold_datagrams(true);
    (0..150).for_each(|number| ends.send(&pattern(number, 20)));
    (0..5).for_each(|_| bench.poll(STEP));
    let came = bench.log.datagrams.len() - 1;
    assert!(came <= DATAGRAMS_MAX, "{came} came");
    bench.io.hold_datagrams(false);
    await_datagrams(&mut bench, 151);
    for (number, (_, datagram, _)) in bench.log.datagrams[1..].iter().enumerate() {
        assert_eq!(*datagram, pattern(number, 20));
    }
}

fn datagrams_beyond_the_limit_are_lost_and_counted<D: Door>(mut bench: Bench<D>) {
    let ends = Ends::open(&mut bench);
    let nobody = DatagramPeer { address: "[::1]:9".parse().unwrap(), ..ends.name() };
    bench.io.send_datagram(nobody, [b"IPv6 by a socket of IPv4", b""]);
    bench.io.send_datagram(ends.name(), [b"the next one is sent", b""]);
    bench.poll(Wait::Now);
    assert_eq!(ends.read(), b"the next one is sent");
    assert_eq!(bench.log.datagrams_lost, 1);
    for _ in 0..DATAGRAMS_QUEUED_MAX + 5 {
        bench.io.send_datagram(nobody, [b"x", b""]);
    }
    bench.poll(Wait::Now);
    assert_eq!(bench.log.datagrams_lost, 1 + DATAGRAMS_QUEUED_MAX as u64 + 5);
}

fn connections_are_served_beside_datagrams<D: Door>(mut bench: Bench<D>) {
    let ends = Ends::open(&mut bench);
    let (mut client, socket) = bench.client();
    for round in 1..=50 {
        (0..20).for_each(|number| ends.send(&pattern(number, 100)));
        client.write(&pattern(round, 1000));
        await_datagrams(&mut bench, 20 * round);
        let wanted = 1000 * round;
        bench.poll_until("the bytes", |log| log.received_from(socket).len() >= wanted);
    }
    assert!(bench.log.received_from(socket).ends_with(&pattern(50, 1000)));
}

fn a_closed_socket_brings_nothing<D: Door>(mut bench: Bench<D>) {
    let ends = Ends::open(&mut bench);
    ends.send(b"before");
    await_datagrams(&mut bench, 1);
    bench.io.send_datagram(ends.name(), [b"", b"last"]);
    bench.io.close_datagrams();
    assert_eq!(ends.read(), b"last", "it was queued before");
    match &ends.far {
        Far::Real { udp, server } => {
            // The port is free again once the backend has polled.
            bench.poll(Wait::Now);
            bench.poll(Wait::Now);
            drop(UdpSocket::bind(server).expect("the port is free"));
            let _refused = udp.send_to(b"after", server);
        }
        Far::Memory { .. } => ends.send(b"after"),
    }
    (0..3).for_each(|_| bench.poll(STEP));
    assert_eq!(bench.log.datagrams.len(), 1);
}

fn both_versions_of_ip_and_several_sockets_are_told_apart<D: Door>(mut bench: Bench<D>) {
    let mut ends = vec![Ends::open(&mut bench), Ends::open(&mut bench)];
    match UdpSocket::bind("[::1]:0") {
        Ok(_) => ends.push(Ends::open_at(&mut bench, "[::1]:0")),
        Err(error) => println!("no IPv6 here: {error}"),
    }
    for (number, each) in ends.iter().enumerate() {
        assert_eq!(each.socket, DatagramSocketId(number as u32));
        each.send(&pattern(number, 33));
        await_datagrams(&mut bench, 1);
        let (from, datagram, _) = bench.log.datagrams.pop().expect("one");
        assert_eq!((from, datagram), (each.name(), pattern(number, 33)));
    }
    for (number, each) in ends.iter().enumerate() {
        bench.io.send_datagram(each.name(), [b"to ", &pattern(number, 3)]);
    }
    bench.poll(Wait::Now);
    for (number, each) in ends.iter().enumerate() {
        assert_eq!(each.read(), [b"to ", &pattern(number, 3)[..]].concat());
    }
}
