use super::*;
use crate::event::Peer;

struct Bench {
    net: MemoryNet,
    io: Memory,
    listener: ListenerId,
    events: Vec<Event>,
}

impl Bench {
    fn new() -> Self {
        let net = MemoryNet::new();
        let mut io = net.open();
        let listener = io.listen_here();
        Self { net, io, listener, events: Vec::new() }
    }

    fn poll(&mut self) {
        self.events.clear();
        self.io.poll(Wait::Now, &mut self.events).unwrap();
    }

    fn client(&mut self) -> (FarEnd, SocketId) {
        let far = self.net.connect(self.io.endpoint(), self.listener, Peer::Local);
        self.poll();
        let [Event::Accepted { socket, .. }, ..] = self.events[..] else {
            panic!("accepted first: {:?}", self.events)
        };
        assert!(far.is_accepted());
        (far, socket)
    }

    fn received(&self) -> Vec<Vec<u8>> {
        let lent = self.events.iter().filter_map(|event| match event {
            Event::Received { bytes, .. } => Some(self.io.lent(*bytes).to_vec()),
            _ => None,
        });
        lent.collect()
    }
}

fn block(bytes: &[u8]) -> SendBlock {
    let mut block = SendBlock::new();
    block.put(bytes);
    block
}

#[test]
fn bytes_arrive_as_the_test_cuts_them_one_piece_a_poll() {
    let mut bench = Bench::new();
    let (far, _) = bench.client();
    far.write_cut(b"get abc\r\n", 4);
    for piece in [&b"get "[..], b"abc\r", b"\n"] {
        bench.poll();
        assert_eq!(bench.received(), [piece]);
    }
    bench.poll();
    assert!(bench.events.is_empty());
    assert_eq!(bench.io.kind(), "memory");
}

#[test]
fn a_piece_longer_than_a_buffer_comes_in_several_polls() {
    let mut bench = Bench::new();
    let (far, _) = bench.client();
    far.write(&vec![b'x'; RECEIVE_BUFFER_BYTES + 1]);
    bench.poll();
    assert_eq!(bench.received()[0].len(), RECEIVE_BUFFER_BYTES);
    bench.poll();
    assert_eq!(bench.received()[0].len(), 1);
}

#[test]
fn a_stalled_reader_gets_exactly_what_it_allows_and_blocks_come_back_in_order() {
    let mut bench = Bench::new();
    let (far, socket) = bench.client();
    far.stall();
    bench.io.send(socket, block(b"abc"));
    bench.io.send(socket, block(b"def"));
    bench.poll();
    assert!(bench.events.is_empty());
    far.allow(4);
    bench.poll();
    let [Event::Sent { block: first, .. }, Event::Taken { block_bytes: 1, .. }] = &bench.events[..]
    else {
        panic!("{:?}", bench.events)
    };
    assert_eq!(first.bytes(), b"abc");
    assert_eq!(far.read(), b"abcd");
    bench.poll();
    assert!(bench.events.is_empty(), "it is said once");
    far.allow_all();
    bench.poll();
    assert!(matches!(&bench.events[..], [Event::Sent { block, .. }] if block.bytes() == b"def"));
    assert_eq!(far.read(), b"ef");
}

#[test]
fn paused_means_no_bytes_and_no_end() {
    let mut bench = Bench::new();
    let (far, socket) = bench.client();
    bench.io.pause(socket);
    far.write(b"x");
    far.finish();
    bench.poll();
    assert!(bench.events.is_empty());
    bench.io.resume(socket);
    bench.poll();
    assert_eq!(bench.received(), [b"x"]);
    bench.poll();
    assert!(matches!(bench.events[..], [Event::Finished { .. }]));
}

#[test]
fn fin_follows_what_was_queued() {
    let mut bench = Bench::new();
    let (far, socket) = bench.client();
    far.stall();
    bench.io.send(socket, block(b"ab"));
    bench.io.finish_sending(socket);
    bench.poll();
    assert!(!far.is_finished());
    far.allow(2);
    bench.poll();
    assert!(far.is_finished() && !far.is_closed());
}

#[test]
fn reset_fails_the_socket_once_and_a_reused_slot_has_a_new_name() {
    let mut bench = Bench::new();
    let (far, socket) = bench.client();
    far.reset();
    bench.poll();
    assert!(matches!(bench.events[..], [Event::Failed { .. }]));
    bench.io.send(socket, block(b"lost"));
    bench.poll();
    assert!(bench.events.is_empty());
    bench.io.close(socket);
    assert!(far.is_closed());
    let (_far, second) = bench.client();
    assert_eq!(second.index(), socket.index());
    assert_ne!(second, socket);
}

#[test]
#[should_panic(expected = "lent by an earlier poll")]
fn stale_lent_bytes_are_refused() {
    let mut bench = Bench::new();
    let (far, _) = bench.client();
    far.write(b"x");
    bench.poll();
    let Event::Received { bytes, .. } = bench.events[0] else { panic!() };
    bench.poll();
    bench.io.lent(bytes);
}

#[test]
fn a_connection_moves_to_another_endpoint_with_its_unread_bytes() {
    let mut bench = Bench::new();
    let mut other = bench.net.open();
    let (far, socket) = bench.client();
    far.write(b"later");
    let token = bench.io.give_up(socket).expect("nothing under way");
    let adopted = other.adopt(token).expect("one of this net");
    let mut events = Vec::new();
    other.poll(Wait::Now, &mut events).unwrap();
    let [Event::Received { socket, bytes }] = events[..] else { panic!("{events:?}") };
    assert_eq!((socket, other.lent(bytes)), (adopted, &b"later"[..]));
}

#[test]
fn a_wake_is_reported_once() {
    let mut bench = Bench::new();
    let waker = bench.io.waker();
    std::thread::spawn(move || waker.wake()).join().unwrap();
    bench.poll();
    assert!(matches!(bench.events[..], [Event::Woken]));
    bench.poll();
    assert!(bench.events.is_empty());
}

#[test]
fn at_the_limit_clients_wait_until_one_leaves() {
    let net = MemoryNet::new();
    let mut io = net.open_with(Limits { sockets_max: 1, ..Limits::default() });
    let listener = io.listen_here();
    let _first = net.connect(0, listener, Peer::Local);
    let second = net.connect(0, listener, Peer::Local);
    let mut events = Vec::new();
    io.poll(Wait::Now, &mut events).unwrap();
    let [Event::Accepted { socket, .. }] = events[..] else { panic!("{events:?}") };
    assert!(!second.is_accepted());
    io.close(socket);
    io.poll(Wait::Now, &mut events).unwrap();
    assert!(second.is_accepted());
}

#[test]
fn stirring_tells_what_the_next_poll_reports_and_nothing_else() {
    let mut bench = Bench::new();
    assert!(!bench.io.stir());
    let waiting = bench.net.connect(bench.io.endpoint(), bench.listener, Peer::Local);
    assert!(bench.io.stir() && !waiting.is_accepted());
    bench.poll();
    assert!(waiting.is_accepted() && !bench.io.stir());
    let Event::Accepted { socket, .. } = bench.events[0] else { panic!() };

    waiting.stall();
    bench.io.send(socket, block(b"abc"));
    assert!(!bench.io.stir());
    waiting.allow(2);
    assert!(!bench.io.stir(), "part of a block is no event");
    assert_eq!(waiting.read(), b"ab");
    waiting.allow(1);
    assert!(bench.io.stir() && bench.io.stir());
    bench.poll();
    assert!(matches!(&bench.events[..], [Event::Sent { block, .. }] if block.bytes() == b"abc"));
    assert!(!bench.io.stir());

    bench.io.pause(socket);
    waiting.write(b"x");
    assert!(!bench.io.stir());
    bench.io.resume(socket);
    assert!(bench.io.stir());
    bench.poll();
    assert!(!bench.io.stir());
    waiting.finish();
    assert!(bench.io.stir());
    bench.poll();
    assert!(!bench.io.stir());
    bench.io.waker().wake();
    assert!(bench.io.stir());
    bench.poll();
    waiting.reset();
    assert!(bench.io.stir());
    bench.poll();
    assert!(!bench.io.stir(), "a failure is told once");
}

#[test]
fn buffers_between_the_ends_take_more_once_a_third_of_them_is_free() {
    let mut bench = Bench::new();
    let (far, socket) = bench.client();
    far.put_buffer(9);
    bench.io.send(socket, block(b"0123456789"));
    bench.io.send(socket, block(b"ab"));
    bench.poll();
    assert!(matches!(bench.events[..], [Event::Taken { block_bytes: 9, .. }]));
    assert_eq!((far.read(), bench.io.unacknowledged_bytes(socket)), (b"".to_vec(), Some(9)));
    far.drain(2);
    bench.poll();
    assert!(bench.events.is_empty(), "two of nine are no third");
    assert_eq!((far.read(), bench.io.unacknowledged_bytes(socket)), (b"01".to_vec(), Some(7)));
    far.drain(1);
    bench.poll();
    assert_eq!(bench.events.len(), 2, "both blocks are gone: {:?}", bench.events);
    assert_eq!(bench.io.unacknowledged_bytes(socket), Some(9));
    far.drain(100);
    assert_eq!(
        (far.read(), bench.io.unacknowledged_bytes(socket)),
        (b"23456789ab".to_vec(), Some(0))
    );
}
