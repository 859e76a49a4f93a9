//! The loop of one thread: connections, a source of requests, a tally.
//!
//! Upstream:   a `Source` formats requests; the kernel reports which sockets are ready.
//! Downstream: the tally, and live counters for the progress line.
//!
//! Each ready connection is served completely before the next one: receive, read the replies,
//! refill to the depth, send. Each connection therefore behaves like a separate client.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A connection never has more than `depth` requests in flight.
//! - I2  The loop ends when the source is finished and everything is answered, when no answer has
//!   come for `patience_ns` while one was due, `patience_ns` after the source's last intended time,
//!   or when no connection is left.
//! - I3  Every request sent is recorded once: answered, lost or unanswered.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::answer::{Step, read_answer};
use crate::connection::{Connection, Received, Unread};
use crate::request::{Kind, Next, Outbox, Outcome, Source};
use crate::tally::{Tally, Window};

/// Maximum number of ready sockets per poll.
const EVENTS_MAX: usize = 256;
/// The longest sleep, so that the conditions of I2 are checked.
const SLEEP_NS_MAX: u64 = 50_000_000;
/// The thread spins for a request that is due sooner than this, because timers are less exact.
const AWAKE_NS: u64 = 60_000;
/// The token of the timer among the events; connections are numbered from 0.
const TIMER: u64 = u64::MAX;

/// Counters that the progress line reads while a thread runs.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Live {
    /// Requests answered.
    pub(crate) answered: AtomicU64,
    /// Keys requested by gets.
    pub(crate) keys: AtomicU64,
    /// Keys found by gets.
    pub(crate) hits: AtomicU64,
    /// Errors of all kinds.
    pub(crate) errors: AtomicU64,
}

/// Settings of a drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Start of the run's clock.
    pub(crate) epoch: Instant,
    /// Maximum requests in flight on one connection.
    pub(crate) depth: usize,
    /// Patience in ns (I2).
    pub(crate) patience_ns: u64,
    /// The measured window.
    pub(crate) window: Window,
}

impl Pace {
    /// Nanoseconds since the epoch.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}

/// The loop's state.
pub(crate) struct Drive<'a, S> {
    connections: &'a mut [Connection],
    source: S,
    pace: Pace,
    live: &'a Live,
    tally: Tally,
    epoll: OwnedFd,
    timer: OwnedFd,
    idle: VecDeque<usize>,
    wake_at_ns: Option<u64>,
    is_finished: bool,
    outstanding: usize,
    alive: usize,
    totals: Totals,
    last_progress_ns: u64,
}

/// Counts since the beginning, published to `Live` once a turn.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    answered: u64,
    keys: u64,
    hits: u64,
}

impl<'a, S: Source> Drive<'a, S> {
    /// A drive over open connections without requests in flight.
    ///
    /// Errors: the kernel refuses an event descriptor.
    pub(crate) fn new(
        connections: &'a mut [Connection],
        source: S,
        pace: Pace,
        live: &'a Live,
    ) -> io::Result<Self> {
        assert!(pace.depth > 0, "I1");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, connection) in connections.iter().enumerate().filter(|(_, c)| c.is_alive) {
            assert!(connection.pending.is_empty(), "I3: no request is in flight yet");
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            epoll::add(
                &epoll,
                connection.socket(),
                epoll::EventData::new_u64(index as u64),
                flags,
            )?;
        }
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), flags)?;
        let alive = connections.iter().filter(|connection| connection.is_alive).count();
        Ok(Self {
            tally: Tally::new(pace.window),
            last_progress_ns: pace.now_ns(),
            idle: VecDeque::with_capacity(connections.len()),
            connections,
            source,
            pace,
            live,
            epoll,
            timer,
            wake_at_ns: None,
            is_finished: false,
            outstanding: 0,
            alive,
            totals: Totals::default(),
        })
    }

    /// Runs to the end (I2).
    ///
    /// Errors: the kernel failed to wait for events.
    pub(crate) fn run(mut self) -> io::Result<Tally> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        for index in 0..self.connections.len() {
            if self.connections[index].is_alive {
                self.connections[index].is_idle = false;
                self.refill(index, self.pace.now_ns());
                self.flush(index);
            }
        }
        while !self.is_over() {
            let timeout = self.sleep_at_most()?;
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in events.drain(..) {
                let number = event.data.u64();
                if number != TIMER {
                    self.serve(number as usize);
                }
            }
            self.serve_idle();
            self.publish();
        }
        self.abandon();
        self.publish();
        Ok(self.tally)
    }

    fn is_over(&mut self) -> bool {
        if self.alive == 0 || (self.is_finished && self.outstanding == 0) {
            return true;
        }
        let now_ns = self.pace.now_ns();
        let patience_ns = self.pace.patience_ns;
        if self.outstanding == 0 {
            self.last_progress_ns = now_ns;
        }
        let is_stalled = now_ns.saturating_sub(self.last_progress_ns) > patience_ns;
        let is_late = self
            .source
            .until_ns()
            .is_some_and(|until_ns| now_ns > until_ns.saturating_add(patience_ns));
        is_stalled || is_late
    }

    /// How long to wait for events; arms the timer for a request due later.
    fn sleep_at_most(&mut self) -> io::Result<Timespec> {
        let mut sleep_ns = SLEEP_NS_MAX;
        if let Some(wake_at_ns) = self.wake_at_ns {
            let due_in_ns = wake_at_ns.saturating_sub(self.pace.now_ns());
            if due_in_ns <= AWAKE_NS {
                sleep_ns = 0;
            } else if due_in_ns < SLEEP_NS_MAX {
                let it_value = timespec(due_in_ns - AWAKE_NS / 2);
                let once = Itimerspec { it_interval: timespec(0), it_value };
                timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
            }
        }
        Ok(timespec(sleep_ns))
    }

    /// Serves a connection that is readable, writable or both.
    #[inline]
    fn serve(&mut self, index: usize) {
        while self.connections[index].is_alive {
            let received = match self.connections[index].receive() {
                Ok(received) => received,
                Err(error) => return self.lose(index, &error),
            };
            if received != Received::Nothing {
                let now_ns = self.pace.now_ns();
                if let Err(error) = self.read_replies(index, now_ns) {
                    return self.lose(index, &error);
                }
                self.refill(index, now_ns);
            }
            self.flush(index);
            if received != Received::More {
                return;
            }
        }
    }

    /// Reads all complete replies in the receive buffer.
    #[inline]
    fn read_replies(&mut self, index: usize, now_ns: u64) -> io::Result<()> {
        let Self { connections, source, tally, totals, outstanding, last_progress_ns, .. } = self;
        let connection = &mut connections[index];
        let needed_bytes = connection.need_bytes;
        let Unread { protocol, bytes: unread, outbox, pending, progress } = connection.unread();
        if unread.len() < needed_bytes {
            return Ok(());
        }
        let mut place = 0;
        let need_bytes = loop {
            let rest = &unread[place..];
            let Some(request) = pending.front() else {
                if rest.is_empty() {
                    break 1;
                }
                return Err(garbled(rest));
            };
            let (asked, errors) = (&mut outbox.asked, &mut tally.errors);
            let (consumed, step) =
                read_answer(protocol, rest, request, progress, source, asked, errors);
            place += consumed;
            let outcome = match step {
                Step::NeedMore { bytes } => break bytes,
                Step::Garbled => return Err(garbled(&unread[place..])),
                Step::Answered(outcome) => outcome,
            };
            let request = pending.pop_front().expect("I3: matched above");
            if request.kind == Kind::Get {
                outbox.asked.finish(request.keys);
                totals.keys += u64::from(request.keys);
            }
            if let Outcome::Hits(hits) = outcome {
                totals.hits += u64::from(hits);
            }
            totals.answered += 1;
            *outstanding -= 1;
            *last_progress_ns = now_ns;
            tally.record(&request, outcome, now_ns);
            if let Some(next) = source.answered(&request, outcome, now_ns, outbox) {
                pending.push_back(next);
                *outstanding += 1;
            }
        };
        connection.consume(place, need_bytes);
        Ok(())
    }

    /// Takes requests from the source until the connection has `depth` in flight.
    #[inline]
    fn refill(&mut self, index: usize, now_ns: u64) {
        while self.connections[index].pending.len() < self.pace.depth {
            if !self.take_one(index, now_ns) {
                return;
            }
        }
    }

    /// Takes one request. False if the source has none now; the connection is then listed as idle.
    #[inline]
    fn take_one(&mut self, index: usize, now_ns: u64) -> bool {
        let connection = &mut self.connections[index];
        match self.source.next(now_ns, &mut connection.outbox) {
            Next::Request(pending) => {
                if self.outstanding == 0 {
                    self.last_progress_ns = now_ns;
                }
                connection.pending.push_back(pending);
                self.outstanding += 1;
                debug_assert!(connection.pending.len() <= self.pace.depth, "I1");
                return true;
            }
            Next::At(at_ns) => self.wake_at_ns = Some(at_ns),
            Next::Blocked => self.wake_at_ns = None,
            Next::Finished => {
                self.wake_at_ns = None;
                self.is_finished = true;
            }
        }
        if !connection.is_idle {
            connection.is_idle = true;
            self.idle.push_back(index);
        }
        false
    }

    /// Gives requests that are due to the connections that have waited longest.
    fn serve_idle(&mut self) {
        self.wake_at_ns = None;
        while let Some(index) = self.idle.pop_front() {
            self.connections[index].is_idle = false;
            if !self.connections[index].is_alive
                || self.connections[index].pending.len() >= self.pace.depth
            {
                continue;
            }
            if !self.take_one(index, self.pace.now_ns()) {
                // Back to the front: this connection has still waited longest.
                if let Some(index) = self.idle.pop_back() {
                    self.idle.push_front(index);
                }
                return;
            }
            self.flush(index);
            let connection = &mut self.connections[index];
            if connection.is_alive && connection.pending.len() < self.pace.depth {
                connection.is_idle = true;
                self.idle.push_back(index);
            }
        }
    }

    #[inline]
    fn flush(&mut self, index: usize) {
        if self.connections[index].is_alive
            && let Err(error) = self.connections[index].flush()
        {
            self.lose(index, &error);
        }
    }

    /// Closes a connection and counts its requests in flight as lost (I3).
    #[cold]
    fn lose(&mut self, index: usize, error: &io::Error) {
        let connection = &mut self.connections[index];
        assert!(connection.is_alive, "I3: a connection is lost once");
        connection.is_alive = false;
        self.alive -= 1;
        // Fails only if the kernel has already removed the socket, which is the wanted state.
        let _ = epoll::delete(&self.epoll, connection.socket());
        let errors = &mut self.tally.errors;
        if error.kind() == io::ErrorKind::InvalidData {
            errors.garbled += 1;
        }
        errors.note(|| error.to_string());
        let now_ns = self.pace.now_ns();
        connection.outbox.bytes.clear();
        for pending in std::mem::take(&mut connection.pending) {
            self.outstanding -= 1;
            self.tally.errors.lost += 1;
            let mut nowhere = Outbox::default();
            // No connection is left to send further requests.
            let _ = self.source.answered(&pending, Outcome::Failed, now_ns, &mut nowhere);
        }
    }

    /// Counts the requests without an answer, and in an open loop also those that were due but not
    /// sent (I3).
    fn abandon(&mut self) {
        let now_ns = self.pace.now_ns();
        for connection in self.connections.iter_mut() {
            for pending in std::mem::take(&mut connection.pending) {
                self.tally.record_unanswered(&pending, now_ns);
                // A late answer would be taken for an answer of the next phase.
                connection.is_alive = false;
            }
        }
        if self.pace.window.open && !self.is_finished {
            let mut nowhere = Outbox::default();
            while let Next::Request(pending) = self.source.next(now_ns, &mut nowhere) {
                self.tally.record_unanswered(&pending, now_ns);
                nowhere = Outbox::default();
            }
        }
    }

    #[inline]
    fn publish(&self) {
        self.live.answered.store(self.totals.answered, Ordering::Relaxed);
        self.live.keys.store(self.totals.keys, Ordering::Relaxed);
        self.live.hits.store(self.totals.hits, Ordering::Relaxed);
        self.live.errors.store(self.tally.errors.total(), Ordering::Relaxed);
    }
}

#[cold]
fn garbled(input: &[u8]) -> io::Error {
    let start = &input[..input.len().min(60)];
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("not a reply to the request: \"{}\"", start.escape_ascii()),
    )
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}
