//! Received bytes: in order, to the end, not while paused, and never for the wrong connection.

use kachel_io::{Event, Io, RECEIVE_BUFFER_BYTES, Wait};

use crate::Door;
use crate::bench::{Bench, pattern};

crate::behaviors! {
    a_client_is_heard_and_answered: epoll uring memory;
    after_the_peers_end_replies_still_arrive: epoll uring memory;
    bytes_and_end_in_one_packet_are_both_reported: epoll uring memory;
    a_reset_fails_the_socket: epoll uring memory;
    a_paused_socket_reports_nothing_until_resumed: epoll uring memory;
    pausing_and_resuming_at_once_loses_nothing: epoll uring memory;
    more_senders_than_buffers_lose_nothing: epoll uring memory;
    who_comes_late_is_heard_beside_senders_without_pause: epoll uring;
    one_socket_gets_one_buffer_a_poll: epoll uring memory;
    lent_bytes_end_with_the_next_poll: epoll uring memory;
}

fn a_client_is_heard_and_answered<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    assert_eq!(bench.log.accepted[0].0, bench.listener);
    for round in 0..100 {
        let words = format!("get key{round}\r\n");
        client.write(words.as_bytes());
        let heard = |log: &crate::bench::Log| log.received_from(socket).ends_with(words.as_bytes());
        bench.poll_until("the request", heard);
        bench.send(socket, words.as_bytes());
        assert_eq!(bench.carry(&mut client, words.len()), words.as_bytes());
    }
    bench.poll_until("all blocks", |log| log.sent.len() == 100);
    assert!(bench.log.sent.iter().all(|(sender, _)| *sender == socket));
    assert_eq!(bench.log.sent[99].1.bytes(), b"get key99\r\n");
}

fn after_the_peers_end_replies_still_arrive<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    client.write(b"quit soon");
    client.finish();
    bench.poll_until("the end", |log| log.finished.contains(&socket));
    assert_eq!(bench.log.received_from(socket), b"quit soon");
    bench.send(socket, b"farewell");
    bench.io.finish_sending(socket);
    assert_eq!(bench.carry_end(&mut client), b"farewell");
    bench.io.close(socket);
    bench.poll(Wait::Now);
    assert!(bench.log.failed.is_empty());
}

fn bytes_and_end_in_one_packet_are_both_reported<D: Door>(mut bench: Bench<D>) {
    // Everything has arrived before the socket is accepted: no second edge will come.
    let mut client = bench.dial();
    client.write(b"all of it");
    client.finish();
    bench.poll_until("the end", |log| !log.finished.is_empty());
    let socket = bench.log.accepted[0].1;
    assert_eq!(bench.log.received_from(socket), b"all of it");
}

fn a_reset_fails_the_socket<D: Door>(mut bench: Bench<D>) {
    let (client, socket) = bench.client();
    client.reset();
    bench.poll_until("the failure", |log| log.failed.contains(&socket));
    bench.send(socket, b"nobody reads this");
    bench.poll(Wait::Now);
    bench.io.close(socket);
    let (mut other, second) = bench.client();
    bench.settle(&mut other, second);
    assert!(bench.log.sent.is_empty());
}

fn a_paused_socket_reports_nothing_until_resumed<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    let (mut other, barrier) = bench.client();
    bench.io.pause(socket);
    bench.settle(&mut other, barrier);
    client.write(b"patience");
    client.finish();
    bench.settle(&mut other, barrier);
    assert_eq!(bench.log.received_from(socket), b"");
    assert!(bench.log.finished.is_empty());
    bench.io.resume(socket);
    bench.poll_until("the end", |log| log.finished.contains(&socket));
    assert_eq!(bench.log.received_from(socket), b"patience");
}

fn pausing_and_resuming_at_once_loses_nothing<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    let bytes = pattern(1, 3_000);
    for (round, piece) in bytes.chunks(10).enumerate() {
        client.write(piece);
        bench.io.pause(socket);
        if round % 3 == 0 {
            bench.poll(Wait::Now);
        }
        bench.io.resume(socket);
        if round % 2 == 0 {
            bench.io.pause(socket);
            bench.io.resume(socket);
            bench.poll(Wait::Now);
        }
    }
    bench.poll_until("all bytes", |log| log.received_from(socket).len() == bytes.len());
    assert_eq!(bench.log.received_from(socket), bytes);
}

fn more_senders_than_buffers_lose_nothing<D: Door>(mut bench: Bench<D>) {
    let each_bytes = 3 * RECEIVE_BUFFER_BYTES + 17;
    let mut clients: Vec<_> = (0..200).map(|_| bench.client()).collect();
    // All of it waits in the kernel before anything is received.
    for (seed, (client, _)) in clients.iter_mut().enumerate() {
        client.write(&pattern(seed, each_bytes));
    }
    for (_, socket) in &clients {
        let socket = *socket;
        bench.poll_until("all bytes", |log| log.received_from(socket).len() == each_bytes);
    }
    for (seed, (_, socket)) in clients.iter().enumerate() {
        assert!(bench.log.received_from(*socket) == pattern(seed, each_bytes), "client {seed}");
    }
    // Each of them still hears.
    for (client, socket) in &mut clients {
        bench.settle(client, *socket);
    }
}

fn who_comes_late_is_heard_beside_senders_without_pause<D: Door>(mut bench: Bench<D>) {
    // More of them than buffers, and each always has more than a buffer's worth in the kernel.
    const POLLS_BEFORE: usize = 20;
    const POLLS_MAX: usize = 10;
    let mut busy: Vec<_> = (0..150).map(|_| bench.client().0).collect();
    let (mut late, socket) = bench.client();
    let bytes = vec![b'b'; 4 * RECEIVE_BUFFER_BYTES];
    for polls in 0..POLLS_BEFORE + POLLS_MAX {
        busy.iter_mut().for_each(|client| client.offer(&bytes));
        if polls == POLLS_BEFORE {
            late.write(b"late");
        }
        bench.poll(Wait::Now);
        if bench.log.received_from(socket) == b"late" {
            return;
        }
    }
    panic!("not heard in {POLLS_MAX} polls");
}

fn one_socket_gets_one_buffer_a_poll<D: Door>(mut bench: Bench<D>) {
    let (mut client, socket) = bench.client();
    client.write(&pattern(0, 4 * RECEIVE_BUFFER_BYTES));
    let all = 4 * RECEIVE_BUFFER_BYTES;
    bench.poll_until("all bytes", |log| log.received_from(socket).len() == all);
    assert_eq!(bench.log.received_max, 1);
    assert!(bench.log.polls >= 4);
}

fn lent_bytes_end_with_the_next_poll<D: Door>(mut bench: Bench<D>) {
    let (mut client, _) = bench.client();
    client.write(b"x");
    let mut events = Vec::new();
    while !events.iter().any(|event| matches!(event, Event::Received { .. })) {
        bench.io.poll(Wait::Forever, &mut events).unwrap();
    }
    let Some(Event::Received { bytes, .. }) = events.pop() else { panic!("{events:?}") };
    assert_eq!(bench.io.lent(bytes), b"x");
    bench.poll(Wait::Now);
    let io = std::panic::AssertUnwindSafe(&bench.io);
    assert!(std::panic::catch_unwind(|| io.lent(bytes).len()).is_err());
}
