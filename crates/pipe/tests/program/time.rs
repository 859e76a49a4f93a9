//! When copies are not answered: expired, flushed, without a server, while they are written.
//!
//! Upstream:   `cargo test`.
//! Downstream: the program and its table.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kachel_engine::Copies as _;
use kachel_pipe::{SwitchError, Trial};
use kachel_testkit::Random;

use crate::bench::{Bench, now_ns};
use crate::packet::Packet;

const KEY: &[u8] = b"some-plain-key";

fn request() -> Packet {
    Packet::request(7, b"get some-plain-key\r\n")
}

fn is_answered(bench: &mut Bench) -> bool {
    matches!(bench.run(&request().bytes()), Trial::Answered(_))
}

#[test]
fn a_copy_is_dead_from_the_second_of_its_expiry_on() {
    let Some(mut bench) = Bench::new() else { return };
    bench.publish_until(KEY, b"value", 1_000);
    assert!(is_answered(&mut bench));
    bench.pipe.tick(999, now_ns());
    assert!(is_answered(&mut bench));
    bench.pipe.tick(1_000, now_ns());
    bench.passes(&request().bytes(), "dead");
    // The program's own clock counts as well: the server began a second ago.
    let Some(mut bench) = Bench::started_before(1_000_000_000) else { return };
    bench.publish_until(KEY, b"value", 3);
    bench.passes(&request().bytes(), "dead");
    bench.publish_until(KEY, b"value", 4_000);
    assert!(is_answered(&mut bench));
    // A server that goes on from an earlier one began before the machine.
    let earlier_ns = now_ns() + 1_000_000_000_000;
    let Some(mut bench) = Bench::started_before(earlier_ns) else { return };
    bench.publish_until(KEY, b"value", 1_000);
    bench.passes(&request().bytes(), "dead");
    bench.publish_until(KEY, b"value", u32::MAX);
    assert!(is_answered(&mut bench));
}

#[test]
fn without_a_word_of_the_server_nothing_is_answered() {
    let Some(mut bench) = Bench::new() else { return };
    bench.publish(KEY, b"value");
    assert!(is_answered(&mut bench));
    // The last word of another server is five seconds old.
    let Some(mut bench) = Bench::silent_for(5_000_000_000) else { return };
    bench.publish(KEY, b"value");
    bench.passes(&request().bytes(), "not_serving");
    bench.pipe.tick(2, now_ns());
    assert!(is_answered(&mut bench));
    // A server that goes on from an earlier one began before the machine, by 30 days and by 1 s: a
    // beginning that wrapped is no word of it.
    for before_ns in [30 * 86_400_000_000_000, 1_000_000_000] {
        let before_ns = now_ns() + before_ns;
        let Some(mut bench) = Bench::at(before_ns, 5_000_000_000) else { return };
        bench.publish(KEY, b"value");
        bench.passes(&request().bytes(), "not_serving");
        bench.pipe.tick(2, now_ns());
        assert!(is_answered(&mut bench));
    }
}

#[test]
fn a_pipe_that_is_off_answers_nothing_and_begins_again_without_copies() {
    let Some(mut bench) = Bench::new() else { return };
    bench.publish(KEY, b"value");
    assert!(is_answered(&mut bench));
    bench.pipe.switch(false).expect("no run is under way");
    bench.passes(&request().bytes(), "not_serving");
    let hash = bench.hasher.key(KEY).secret_hash();
    assert!((0..4).all(|_| !bench.pipe.is_hot(hash)), "nothing is copied for a pipe that is off");
    bench.pipe.switch(true).expect("it serves");
    bench.passes(&request().bytes(), "dead");
    bench.publish(KEY, b"value");
    assert!(is_answered(&mut bench));
    bench.pipe.switch(true).expect("it is on");
    assert!(is_answered(&mut bench), "it was on, so its copies are as good as before");
    bench.pipe.end();
    assert_eq!(bench.pipe.switch(true), Err(SwitchError::NotServing));
    bench.passes(&request().bytes(), "not_serving");
}

/// The runs that go on while the pipe is switched off are awaited (I5 of the table).
#[test]
fn no_run_answers_once_the_pipe_is_off() {
    let Some(mut bench) = Bench::new() else { return };
    let done = AtomicBool::new(false);
    let Bench { program, pipe, hasher } = &mut bench;
    let request = request().bytes();
    let (mut late, mut answered, mut dice) = (0, 0, Random::new(18));
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                program.try_packet(&request).expect("it runs");
            }
        });
        let ending = Ending(&done);
        // On a busy machine the two may take turns on one core for seconds.
        let hangs_at = Instant::now() + Duration::from_secs(120);
        for _ in 0..600 {
            pipe.tick(2, now_ns());
            let before = pipe.counts().answered();
            let key = hasher.key(KEY);
            let (value, client_flags, cas, expiry) = (&b"value"[..], 42, 977, 0);
            let item = kachel_engine::CopiedItem { key, value, client_flags, cas, expiry };
            pipe.publish(pipe.stamp().expect("no flush is under way"), &item);
            for spins in 0_u32.. {
                if pipe.counts().answered() != before {
                    break;
                }
                if spins % 20_000 == 19_999 {
                    assert!(Instant::now() < hangs_at, "a copy is answered");
                    std::thread::yield_now();
                }
            }
            // So that it is switched off at any moment of a run.
            (0..dice.below(2_000)).for_each(|_| std::hint::spin_loop());
            pipe.switch(false).expect("the runs end");
            let at_off = pipe.counts().answered();
            (0..2_000).for_each(|_| std::hint::spin_loop());
            late += pipe.counts().answered() - at_off;
            answered += at_off - before;
            pipe.switch(true).expect("it serves");
        }
        drop(ending);
        runs.join().expect("the runs end");
    });
    println!("{answered} answers, {late} after the pipe was off");
    assert!(late == 0 && answered > 0, "{late} answers");
}

#[test]
fn a_flush_covers_all_copies_of_before() {
    let Some(mut bench) = Bench::new() else { return };
    bench.publish(KEY, b"value");
    let early = bench.pipe.stamp().expect("no flush is under way");
    let mut in_flush = Vec::new();
    let Bench { pipe, .. } = &bench;
    pipe.flush(None, &mut || in_flush.push(pipe.stamp()));
    assert_eq!(in_flush, [None], "nothing is copied while a flush is under way");
    bench.passes(&request().bytes(), "dead");
    bench.publish_stamped(early, KEY, b"looked up before the flush");
    bench.passes(&request().bytes(), "dead");
    bench.publish(KEY, b"value");
    assert!(is_answered(&mut bench));

    bench.pipe.flush(Some(5), &mut || {});
    bench.publish(KEY, b"value");
    assert!(is_answered(&mut bench), "the flush is not due");
    bench.pipe.tick(4, now_ns());
    assert!(is_answered(&mut bench), "the flush is not due");
    bench.pipe.tick(5, now_ns());
    bench.passes(&request().bytes(), "dead");
    bench.publish(KEY, b"value");
    bench.passes(&request().bytes(), "dead");
    bench.pipe.note_flushed(4);
    bench.publish(KEY, b"value");
    bench.passes(&request().bytes(), "dead");
    bench.pipe.note_flushed(5);
    bench.passes(&request().bytes(), "dead");
    bench.publish(KEY, b"value");
    assert!(is_answered(&mut bench), "the engine has noted the flush");
}

/// The round of the writer that all parts of a reply are from. `None` if they are from several.
fn round_of(payload: &[u8]) -> Option<u8> {
    let rest = payload.strip_prefix(b"\0\x07\0\0\0\x01\0\0VALUE ")?.get(100..)?;
    let round = *rest.get(rest.len().checked_sub(8)?)?;
    let value = vec![round; value_bytes(round)];
    let head = format!(" {round} {}\r\n", value.len());
    let whole = [head.as_bytes(), &value, b"\r\nEND\r\n"].concat();
    (rest == whole).then_some(round)
}

const fn value_bytes(round: u8) -> usize {
    100 + round as usize / 4
}

/// Ends the writer, also if the reader fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_reply_never_has_parts_of_two_values() {
    let Some(mut bench) = Bench::new() else { return };
    let key = [b'k'; 100];
    let line = [b"get ", &key[..], b"\r\n"].concat();
    let request = Packet::request(7, &line).bytes();
    let runs = kachel_testkit::setting("KACHEL_PIPE_RUNS", 20_000);
    // First the writer never rests, so most copies change while they are read. Then it rests
    // between two changes, so they are answered.
    let (done, is_calm) = (AtomicBool::new(false), AtomicBool::new(false));
    let Bench { program, pipe, hasher } = &mut bench;
    let (mut answered, mut values, mut torn) = (0_u64, [0_u64; 256], Vec::new());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let key = hasher.key(&key);
            for round in (1..=250).cycle() {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                let value = vec![round; value_bytes(round)];
                let item = kachel_engine::CopiedItem {
                    key,
                    value: &value,
                    client_flags: u32::from(round),
                    cas: u64::from(round),
                    expiry: 0,
                };
                let stamp = pipe.stamp().expect("no flush is under way");
                pipe.publish(stamp, &item);
                let pause = if is_calm.load(Ordering::Relaxed) { u32::from(round) * 8 } else { 0 };
                (0..pause).for_each(|_| std::hint::spin_loop());
            }
        });
        let ending = Ending(&done);
        // On a busy machine the two may take turns on one core for seconds.
        let hangs_at = Instant::now() + Duration::from_secs(120);
        let seen = |values: &[u64; 256]| values.iter().filter(|count| **count > 0).count();
        let mut run = 0;
        while run < runs || seen(&values) < 2 && Instant::now() < hangs_at {
            run += 1;
            is_calm.store(run > runs / 2, Ordering::Relaxed);
            let Trial::Answered(reply) = program.try_packet(&request).expect("it runs") else {
                continue;
            };
            answered += 1;
            match round_of(&Packet::read(&reply).payload) {
                Some(round) => values[usize::from(round)] += 1,
                None => torn.push(reply),
            }
        }
        drop(ending);
        writer.join().expect("the writer ends");
    });
    let seen = values.iter().filter(|count| **count > 0).count();
    println!("{answered} of {runs} answered, with {seen} values");
    assert!(torn.is_empty(), "{:?}", torn.first());
    assert!(answered > 0 && seen > 1, "copies were read while they were written");
}
