//! When a poll waits, and which events end the wait.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kachel_io::{Io, Limits, Wait};

use crate::Door;
use crate::bench::{Bench, Log};

crate::behaviors! {
    every_wake_from_another_thread_is_felt: epoll uring memory;
    wakes_before_a_poll_collapse_into_one: epoll uring memory;
    a_wait_ends_in_time_and_not_before: epoll uring;
    a_poll_without_waiting_returns: epoll uring memory;
    with_slack_one_wait_reports_the_events_of_many_clients: epoll uring;
}

fn every_wake_from_another_thread_is_felt<D: Door>(mut bench: Bench<D>) {
    let waker = bench.io.waker();
    let (ask, asked) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        while asked.recv().is_ok() {
            waker.wake();
        }
    });
    for round in 1..=2_000 {
        ask.send(()).unwrap();
        bench.poll_until("the wake", |log| log.woken == round);
    }
    drop(ask);
    thread.join().unwrap();
}

fn wakes_before_a_poll_collapse_into_one<D: Door>(mut bench: Bench<D>) {
    bench.io.waker().wake();
    bench.io.waker().clone().wake();
    bench.poll(Wait::Forever);
    assert_eq!(bench.log.woken, 1);
    bench.poll(Wait::Now);
    assert_eq!(bench.log.woken, 1);
}

fn a_wait_ends_in_time_and_not_before<D: Door>(mut bench: Bench<D>) {
    let (_client, _) = bench.client();
    bench.poll(Wait::Now);
    let start = Instant::now();
    let polls = bench.log.polls;
    while start.elapsed() < Duration::from_millis(30) {
        bench.poll(Wait::AtMostNs(30_000_000));
    }
    assert!(bench.log.polls - polls <= 4, "a busy loop");
}

fn a_poll_without_waiting_returns<D: Door>(mut bench: Bench<D>) {
    let start = Instant::now();
    for _ in 0..100 {
        bench.poll(Wait::Now);
    }
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(bench.log.accepted.is_empty());
}

fn with_slack_one_wait_reports_the_events_of_many_clients<D: Door>(_: Bench<D>) {
    const CLIENTS: usize = 32;
    // io_uring waits for 32 events if they come sooner. epoll sleeps for this time.
    let slack_us = if D::KIND == "uring" { 10_000_000 } else { 300_000 };
    let limits = Limits { slack_us, ..Limits::default() };
    let Some(mut bench) = Bench::<D>::open(limits) else { return };
    let connect = |_| TcpStream::connect(bench.address).unwrap();
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(connect).collect();
    bench.poll_until("the clients", |log| log.accepted.len() == CLIENTS);
    bench.poll(Wait::Now); // They are received from.
    let is_over = AtomicBool::new(false);
    let reported = std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                clients[turn % CLIENTS].write_all(b"x").unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let bytes = |log: &Log| log.received.values().map(Vec::len).sum::<usize>();
        let reported = [(); 6].map(|()| {
            let before = bytes(&bench.log);
            bench.poll(Wait::AtMostNs(20_000_000_000));
            bytes(&bench.log) - before
        });
        is_over.store(true, Ordering::Relaxed);
        reported
    });
    // A poll that finds bytes when it begins does not wait for more.
    assert!(reported.iter().any(|bytes| *bytes >= CLIENTS / 2), "{reported:?}");
}
