//! The loop of one thread: links (connections or flows), a source of requests, a tally.
//!
//! Upstream:   a `Source` formats requests; the kernel reports which sockets are ready.
//! Downstream: the tally, and live counters for the progress line.
//!
//! Each ready link is served completely before the next one: receive, read the replies, refill to
//! the depth, send. Each link therefore behaves like a separate client.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A client never has more than `depth` requests in flight.
//! - I2  The loop ends when the source is finished and everything is answered, when no answer has
//!   come for `patience_ns` while one was due, `patience_ns` after the source's last intended time,
//!   when no link is left, or when the session stops it. An open loop without a link waits for the
//!   time from which its source begins no request, if there is one: the window keeps its length.
//! - I3  Every request sent is recorded once: answered, lost, dropped or unanswered. Those of an
//!   open loop that were due and not sent are recorded as unanswered.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use clap::ValueEnum;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use serde::Serialize;

use crate::books::Books;
use crate::link::{Link, Received};
use crate::request::{Next, Outbox, Outcome, Source};
use crate::tally::{Tally, Window};

/// Maximum number of ready sockets per poll.
const EVENTS_MAX: usize = 256;
/// The longest sleep, so that the conditions of I2 are checked.
const SLEEP_NS_MAX: u64 = 50_000_000;
/// A thread that spins for a request that is due does so from this long before, because timers are
/// less exact.
const AWAKE_NS: u64 = 60_000;
/// How often requests over UDP are checked for their timeout.
const EXPIRE_INTERVAL_NS: u64 = 10_000_000;
/// The token of the timer among the events; links are numbered from 0.
const TIMER: u64 = u64::MAX;

/// Counters that the progress line reads while a thread runs, and the session's word to it.
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
    /// The session ends the thread early.
    pub(crate) is_stopped: AtomicBool,
}

/// When a thread that has nothing to do spins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Spin {
    /// It sleeps until something is due or arrives: for a load that shares its core with another
    /// one; requests of an open loop are sent some microseconds later
    Never,
    /// Shortly before a request of an open loop is due
    #[default]
    Due,
    /// At any time: for threads with cores of their own; no server on the same machine pays for
    /// waking them, as it would not for a client behind a network
    Always,
}

/// Settings of a drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Start of the run's clock.
    pub(crate) epoch: Instant,
    /// Maximum requests in flight of one client.
    pub(crate) depth: usize,
    /// Links of one client: one for each server.
    pub(crate) servers: usize,
    /// Patience in ns (I2).
    pub(crate) patience_ns: u64,
    /// When the thread spins.
    pub(crate) spin: Spin,
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
pub(crate) struct Drive<'a, S, L> {
    links: &'a mut [L],
    source: S,
    pace: Pace,
    live: &'a Live,
    books: Books,
    epoll: OwnedFd,
    timer: OwnedFd,
    idle: VecDeque<usize>,
    wake_at_ns: Option<u64>,
    expire_at_ns: u64,
    is_finished: bool,
    alive: usize,
}

impl<'a, S: Source, L: Link> Drive<'a, S, L> {
    /// A drive over open links without requests in flight.
    ///
    /// Errors: the kernel refuses an event descriptor.
    pub(crate) fn new(
        links: &'a mut [L],
        source: S,
        pace: Pace,
        live: &'a Live,
    ) -> io::Result<Self> {
        assert!(pace.depth > 0 && pace.servers > 0, "I1");
        assert!(links.len().is_multiple_of(pace.servers), "a client has a link to each server");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut alive = 0;
        for (index, link) in links.iter_mut().enumerate() {
            if !link.state().is_alive {
                continue;
            }
            alive += 1;
            assert!(link.in_flight() == 0, "I3: no request is in flight yet");
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, link.socket(), data, flags)?;
        }
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), flags)?;
        Ok(Self {
            books: Books::new(pace.window, pace.epoch),
            idle: VecDeque::with_capacity(links.len()),
            links,
            source,
            pace,
            live,
            epoll,
            timer,
            wake_at_ns: None,
            expire_at_ns: 0,
            is_finished: false,
            alive,
        })
    }

    /// Runs to the end (I2).
    ///
    /// Errors: the kernel failed to wait for events.
    pub(crate) fn run(mut self) -> io::Result<Tally> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        for client in (0..self.links.len()).step_by(self.pace.servers) {
            if self.links[client].state().is_alive {
                self.links[client].state().is_idle = false;
                self.refill(client, self.pace.now_ns());
                self.flush(client);
            }
        }
        while !self.is_over() {
            let timeout = self.sleep_at_most()?;
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let mut is_empty = true;
            for event in events.drain(..) {
                let number = event.data.u64();
                if number != TIMER {
                    is_empty = false;
                    self.serve(number as usize);
                }
            }
            self.books.tally.turns.all += 1;
            self.books.tally.turns.empty += u64::from(is_empty);
            self.serve_idle();
            self.expire();
            self.publish();
        }
        self.abandon();
        self.publish();
        Ok(self.books.tally)
    }

    fn is_over(&mut self) -> bool {
        let outstanding = self.books.outstanding();
        let is_stopped = self.live.is_stopped.load(Ordering::Relaxed);
        if is_stopped || (self.is_finished && outstanding == 0) {
            return true;
        }
        let now_ns = self.pace.now_ns();
        if self.alive == 0 {
            let until_ns = self.source.until_ns().filter(|_| self.pace.window.open);
            return until_ns.is_none_or(|until_ns| now_ns >= until_ns);
        }
        let patience_ns = self.pace.patience_ns;
        if outstanding == 0 {
            self.books.last_progress_ns = now_ns;
        }
        let is_stalled = now_ns.saturating_sub(self.books.last_progress_ns) > patience_ns;
        let is_late = self
            .source
            .until_ns()
            .is_some_and(|until_ns| now_ns > until_ns.saturating_add(patience_ns));
        is_stalled || is_late
    }

    /// How long to wait for events; arms the timer for a request due later.
    fn sleep_at_most(&mut self) -> io::Result<Timespec> {
        let due_in_ns = self.wake_at_ns.map(|at_ns| at_ns.saturating_sub(self.pace.now_ns()));
        let wake_in_ns = wake_in_ns(due_in_ns, self.pace.spin);
        if wake_in_ns == 0 {
            return Ok(timespec(0));
        }
        if wake_in_ns < SLEEP_NS_MAX {
            let it_value = timespec(wake_in_ns);
            let once = Itimerspec { it_interval: timespec(0), it_value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        }
        Ok(timespec(SLEEP_NS_MAX))
    }

    /// Serves a link that is readable, writable or both.
    #[inline]
    fn serve(&mut self, index: usize) {
        while self.links[index].state().is_alive {
            let served = self.links[index].serve(&mut self.source, &mut self.books);
            let received = match served {
                Ok(received) => received,
                Err(error) => return self.lose(index, &error),
            };
            let client = self.client_of(index);
            if received != Received::Nothing {
                self.refill(client, self.books.now_ns);
            }
            self.flush(client);
            if received != Received::More {
                return;
            }
        }
    }

    /// Gives up requests whose datagrams were lost, and sends others in their place.
    fn expire(&mut self) {
        let now_ns = self.books.read_clock();
        if now_ns < self.expire_at_ns {
            return;
        }
        self.expire_at_ns = now_ns + EXPIRE_INTERVAL_NS;
        for index in 0..self.links.len() {
            if self.links[index].state().is_alive
                && self.links[index].expire(&mut self.source, &mut self.books)
            {
                let client = self.client_of(index);
                self.refill(client, now_ns);
                self.flush(client);
            }
        }
    }

    /// The first link of the client that this link belongs to; it stands for the client.
    #[inline]
    fn client_of(&self, index: usize) -> usize {
        match self.pace.servers {
            1 => index,
            servers => index - index % servers,
        }
    }

    /// The requests in flight of a client.
    #[inline]
    fn in_flight(&self, client: usize) -> usize {
        match self.pace.servers {
            1 => self.links[client].in_flight(),
            servers => self.links[client..client + servers].iter().map(Link::in_flight).sum(),
        }
    }

    /// Takes requests from the source until the client has `depth` in flight.
    #[inline]
    fn refill(&mut self, client: usize, now_ns: u64) {
        // Another client was free if one is listed as idle.
        let was_free = !self.idle.is_empty();
        while self.in_flight(client) < self.pace.depth {
            if !self.take_one(client, now_ns, was_free) {
                return;
            }
        }
    }

    /// Takes one request. False if the source has none now; the client is then listed as idle.
    /// `was_free`: a client could have sent it before.
    #[inline(always)]
    fn take_one(&mut self, index: usize, now_ns: u64, was_free: bool) -> bool {
        let server = if self.pace.servers == 1 { 0 } else { self.source.server_of_next() };
        match self.links[index + server].take(&mut self.source, now_ns) {
            Next::Request(pending) => {
                self.books.begin(now_ns);
                if was_free {
                    self.books.tally.note_lateness(&pending);
                }
                debug_assert!(self.in_flight(index) <= self.pace.depth, "I1");
                return true;
            }
            Next::At(at_ns) => self.wake_at_ns = Some(at_ns),
            Next::Blocked => self.wake_at_ns = None,
            Next::Finished => {
                self.wake_at_ns = None;
                self.is_finished = true;
            }
        }
        let link = &mut self.links[index];
        if !link.state().is_idle {
            link.state().is_idle = true;
            self.idle.push_back(index);
        }
        false
    }

    /// Gives requests that are due to the links that have waited longest.
    fn serve_idle(&mut self) {
        self.wake_at_ns = None;
        while let Some(index) = self.idle.pop_front() {
            let link = &mut self.links[index];
            link.state().is_idle = false;
            if !link.state().is_alive || self.in_flight(index) >= self.pace.depth {
                continue;
            }
            if !self.take_one(index, self.pace.now_ns(), true) {
                // Back to the front: this link has still waited longest.
                if let Some(index) = self.idle.pop_back() {
                    self.idle.push_front(index);
                }
                return;
            }
            self.flush(index);
            let is_free = self.in_flight(index) < self.pace.depth;
            let link = &mut self.links[index];
            if link.state().is_alive && is_free {
                link.state().is_idle = true;
                self.idle.push_back(index);
            }
        }
    }

    /// Sends what a client has formatted.
    #[inline]
    fn flush(&mut self, client: usize) {
        self.flush_link(client);
        for index in client + 1..client + self.pace.servers {
            self.flush_link(index);
        }
    }

    #[inline]
    fn flush_link(&mut self, index: usize) {
        let link = &mut self.links[index];
        if link.state().is_alive
            && let Err(error) = link.flush()
        {
            self.lose(index, &error);
        }
    }

    /// Closes the links of a client, one of which failed.
    #[cold]
    fn lose(&mut self, index: usize, error: &io::Error) {
        assert!(self.links[index].state().is_alive, "I3: a link is lost once");
        if error.kind() == io::ErrorKind::InvalidData {
            self.books.tally.errors.garbled += 1;
        }
        let client = self.client_of(index);
        let lost = self.books.tally.errors.lost;
        for index in client..client + self.pace.servers {
            self.close(index, error);
        }
        if self.books.tally.errors.lost == lost {
            // A client is gone, so a run in which it had no request in flight is not clean either.
            self.books.tally.errors.lost += 1;
        }
    }

    /// Closes a link and counts its requests in flight as lost (I3).
    fn close(&mut self, index: usize, error: &io::Error) {
        let link = &mut self.links[index];
        link.state().is_alive = false;
        self.alive -= 1;
        // Fails only if the kernel has already removed the socket, which is the wanted state.
        let _ = epoll::delete(&self.epoll, link.socket());
        let errors = &mut self.books.tally.errors;
        errors.note(|| error.to_string());
        let now_ns = self.books.read_clock();
        for pending in link.abandon() {
            self.books.lost(&pending);
            let mut nowhere = Outbox::default();
            // No link is left to send further requests.
            let _ = self.source.answered(&pending, Outcome::Failed, now_ns, &mut nowhere);
        }
    }

    /// Counts the requests without an answer, and in an open loop also those that were due but not
    /// sent (I3). An overloaded loop may have billions of those, so a session that stops it stops
    /// this, too.
    fn abandon(&mut self) {
        let now_ns = self.books.read_clock();
        // A request that would follow is not sent: the source is told that this one failed.
        let mut nowhere = Outbox::default();
        for link in self.links.iter_mut() {
            for pending in link.abandon() {
                self.books.abandoned(&pending);
                let _ = self.source.answered(&pending, Outcome::Failed, now_ns, &mut nowhere);
                // A late answer would be taken for an answer of the next phase.
                link.state().is_alive = false;
            }
        }
        assert!(self.books.outstanding() == 0, "I3");
        if self.pace.window.open && !self.is_finished {
            // Without a link nothing of the source will ever be sent.
            let due_ns = if self.alive == 0 { u64::MAX } else { now_ns };
            while !self.live.is_stopped.load(Ordering::Relaxed)
                && let Next::Request(pending) = self.source.skip(due_ns)
            {
                self.books.tally.record_unanswered(&pending, now_ns);
                let _ = self.source.answered(&pending, Outcome::Failed, now_ns, &mut nowhere);
            }
        }
    }

    #[inline]
    fn publish(&self) {
        let totals = self.books.totals;
        self.live.answered.store(totals.answered, Ordering::Relaxed);
        self.live.keys.store(totals.keys, Ordering::Relaxed);
        self.live.hits.store(totals.hits, Ordering::Relaxed);
        self.live.errors.store(self.books.tally.errors.total(), Ordering::Relaxed);
    }
}

/// When to wake at the latest, if a request is due in this time, or none is; 0: the thread spins.
fn wake_in_ns(due_in_ns: Option<u64>, spin: Spin) -> u64 {
    let due_in_ns = due_in_ns.unwrap_or(u64::MAX);
    match spin {
        Spin::Always => 0,
        Spin::Due if due_in_ns <= AWAKE_NS => 0,
        Spin::Due => due_in_ns - AWAKE_NS / 2,
        Spin::Never => due_in_ns,
    }
}

/// A time in the kernel's form.
pub(crate) fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;
    use crate::honesty;
    use crate::inserts::Inserts;
    use crate::ketama::Ring;
    use crate::keys::{Keys, Room, Sizes};
    use crate::link::LinkState;
    use crate::replay::{Pacing, Replay, Share};
    use crate::request::{Asked, Kind, Pending};
    use crate::schedule::{Arrivals, Schedule};
    use crate::steady::Steady;
    use crate::trace::Trace;

    /// A client whose server never answers.
    struct Mute {
        state: LinkState,
        socket: OwnedFd,
        pending: Vec<Pending>,
    }

    impl Mute {
        fn new() -> Self {
            let (socket, _) = UnixStream::pair().expect("sockets");
            Self { state: LinkState::NEW, socket: socket.into(), pending: Vec::new() }
        }
    }

    impl Link for Mute {
        fn socket(&self) -> &OwnedFd {
            &self.socket
        }
        fn state(&mut self) -> &mut LinkState {
            &mut self.state
        }
        fn in_flight(&self) -> usize {
            self.pending.len()
        }
        fn take(&mut self, source: &mut impl Source, now_ns: u64) -> Next {
            let next = source.next(now_ns, &mut Outbox::default());
            if let Next::Request(pending) = next {
                self.pending.push(pending);
            }
            next
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn serve(&mut self, _: &mut impl Source, _: &mut Books) -> io::Result<Received> {
            Ok(Received::Nothing)
        }
        fn expire(&mut self, _: &mut impl Source, _: &mut Books) -> bool {
            false
        }
        fn abandon(&mut self) -> Vec<Pending> {
            std::mem::take(&mut self.pending)
        }
    }

    /// Drives a source against servers that never answer.
    fn drive(source: impl Source, clients: usize, depth: usize, open: bool, live: &Live) -> Tally {
        let mut links: Vec<Mute> = (0..clients).map(|_| Mute::new()).collect();
        let window = Window { from_ns: 0, until_ns: u64::MAX, open };
        let (epoch, servers, patience_ns) = (Instant::now(), 1, 1_000_000);
        let pace = Pace { epoch, depth, servers, patience_ns, spin: Spin::Never, window };
        Drive::new(&mut links, source, pace, live).expect("descriptors").run().expect("events")
    }

    /// A source that is always late, and ends its session at the thousandth request.
    struct Endless<'l> {
        live: &'l Live,
        skipped: u64,
    }

    impl Source for Endless<'_> {
        fn next(&mut self, _: u64, _: &mut Outbox) -> Next {
            panic!("nothing is formatted that is not sent")
        }
        fn skip(&mut self, _: u64) -> Next {
            self.skipped += 1;
            self.live.is_stopped.store(self.skipped >= 1_000, Ordering::Relaxed);
            assert!(self.skipped <= 1_000, "I2: the session has stopped it");
            Next::Request(Pending::due(Kind::Get, 1, 0, 0, 0))
        }
        fn item(
            &mut self,
            _: &Pending,
            _: Option<&[u8]>,
            _: &[u8],
            _: Option<u64>,
            _: &mut Asked,
        ) -> bool {
            false
        }
        fn answered(&mut self, _: &Pending, _: Outcome, _: u64, _: &mut Outbox) -> Option<Pending> {
            None
        }
        fn until_ns(&self) -> Option<u64> {
            None
        }
    }

    #[test]
    fn requests_that_were_never_sent_are_counted_unformatted_until_the_session_stops() {
        let live = Live::default();
        let tally = drive(Endless { live: &live, skipped: 0 }, 0, 1, true, &live);
        assert_eq!((tally.errors.unanswered, tally.offered), (1_000, 1_000), "I3");
    }

    #[test]
    fn inserts_without_an_answer_hold_back_no_later_one() {
        let mut mix = honesty::mix();
        (mix.ratio.gets, mix.ratio.inserts) = (0, 1);
        let room = Room { inserts: true, counters: false };
        mix.keys = Keys::with(100, room, Sizes::Fixed(12), Sizes::Fixed(3), 9).expect("valid");
        let inserts = Arc::new(Inserts::new(100));
        mix.inserts = Some(Arc::clone(&inserts));
        // Several servers: a request is drawn before it is due.
        mix.ring = Some(Arc::new(Ring::new(&["a:1".into()])));
        let schedule = Schedule::new(1e6, Arrivals::Fixed, 0, 0);
        let mut source = Steady::new(mix, Some(schedule), 1_000_000_000, 0);
        assert_eq!(source.server_of_next(), 0);
        let tally = drive(source, 2, 3, true, &Live::default());
        assert!(tally.errors.unanswered >= 6, "{:?}", tally.errors);
        assert_eq!(inserts.take(), inserts.count(), "no number is missing");
    }

    #[test]
    fn a_trace_without_an_answer_is_counted_to_its_end() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "0,a,1,4,1,get,0\n".repeat(9)).expect("written");
        let trace = Trace::read(file.path(), 1.0, None).expect("valid");
        let share = Share { index: 0, threads: 1 };
        let pacing = Pacing { start_ns: 0, speed: 1e9 };
        let replay = Replay::new(&trace, share, Some(pacing), true, 0);
        let tally = drive(replay, 2, 1, true, &Live::default());
        // The first get holds the key until the end.
        assert_eq!((tally.errors.unanswered, tally.offered), (9, 9), "I3");
    }

    #[test]
    fn a_thread_spins_shortly_before_a_request_is_due_or_never_or_always() {
        let wake = |due_in_ns| {
            [Spin::Due, Spin::Never, Spin::Always].map(|spin| wake_in_ns(due_in_ns, spin))
        };
        assert_eq!(wake(Some(0)), [0, 0, 0], "it is due");
        assert_eq!(wake(Some(60_000)), [0, 60_000, 0]);
        assert_eq!(wake(Some(100_000)), [70_000, 100_000, 0]);
        let [due, never, always] = wake(None);
        assert!(due > SLEEP_NS_MAX && never > SLEEP_NS_MAX && always == 0, "a closed loop");
    }
}
