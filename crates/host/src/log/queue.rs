//! The lines that wait for standard error.
//!
//! Upstream:   `log`, with lines of any thread.
//! Downstream: the thread of the log, which takes them in order.
//!
//! Invariants:
//! - Q1  At most [`LINES_MAX`] lines wait. Lines about clients find room only among the first
//!   [`CLIENT_LINES_MAX`], so clients cannot crowd out a line about the process.
//! - Q2  At most [`CLIENT_LINES_PER_SECOND_MAX`] lines about clients are taken in a second.
//! - Q3  A line that is lost is counted. At most once a second, a line says how many were lost.
//! - Q4  A thread that offers a line never waits for standard error. The lock is held for a few
//!   instructions at a time. The kernel may stop its holder, and a panic may be in it, so a thread
//!   waits for the lock for at most [`LOCK_TIME_MAX`], and with a line about a client for
//!   [`CLIENT_LOCK_TIME_MAX`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The most lines that wait (Q1). A guess: a start or an end has fewer than 20.
pub(super) const LINES_MAX: usize = 1024;
/// The most lines that wait when a line about a client may still be added (Q1).
pub(super) const CLIENT_LINES_MAX: usize = LINES_MAX / 2;
/// The most lines about clients in a second (Q2). systemd's journal takes 10,000 lines in 30
/// seconds of a service before it drops some.
pub(super) const CLIENT_LINES_PER_SECOND_MAX: u32 = 200;
/// How often a thread tries the lock before it lets others run. A guess: the lock is held for less
/// than a microsecond, unless the kernel stops its holder.
const TRIES_MAX: u32 = 1000;

/// How long a line about the process waits for the lock (Q4). A guess: on a busy machine the kernel
/// stops a thread for some milliseconds.
const LOCK_TIME_MAX: Duration = Duration::from_millis(100);
/// The same for a line about a client, whose thread serves others. A guess.
const CLIENT_LOCK_TIME_MAX: Duration = Duration::from_millis(2);

const SECOND: Duration = Duration::from_secs(1);

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Process,
    Client,
}

/// The next line for the thread of the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Line(String),
    /// This number of lines was lost (Q3).
    Lost(u64),
}

/// Lines that wait.
#[derive(Debug)]
pub(super) struct LineQueue {
    state: Mutex<State>,
    /// Something has changed: a line came, a line was lost, or the queue is empty.
    changed: Condvar,
    /// The lines that were lost (Q3).
    lost: AtomicU64,
}

#[derive(Debug)]
struct State {
    lines: VecDeque<String>,
    /// Whether the thread of the log writes a line.
    is_writing: bool,
    /// Whether the process ends, so that nothing is put off.
    is_ending: bool,
    /// When the second began in which `admitted` lines about clients were taken (Q2).
    second: Option<Instant>,
    admitted: u32,
    /// The lost lines that a line has told about, or that nothing can tell about.
    told: u64,
    /// When the first line was lost since the last one that told about lost lines.
    lost_since: Option<Instant>,
}

impl LineQueue {
    pub(super) const fn new() -> Self {
        let state = State {
            lines: VecDeque::new(),
            is_writing: false,
            is_ending: false,
            second: None,
            admitted: 0,
            told: 0,
            lost_since: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), lost: AtomicU64::new(0) }
    }

    /// The lines that were lost so far (Q3).
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether a line about a client may be offered at this time (Q2). If not, it counts as lost.
    pub(super) fn admits_client(&self, now: Instant) -> bool {
        let Some(mut state) = self.state_until(now + CLIENT_LOCK_TIME_MAX) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        if state.second.is_none_or(|second| now.saturating_duration_since(second) >= SECOND) {
            (state.second, state.admitted) = (Some(now), 0);
        }
        if state.admitted == CLIENT_LINES_PER_SECOND_MAX {
            self.lose(&mut state, now);
            return false;
        }
        state.admitted += 1;
        true
    }

    /// Adds a line, or counts it as lost (Q1, Q3, Q4).
    pub(super) fn offer(&self, subject: Subject, line: String, now: Instant) {
        debug_assert!(line.ends_with('\n'), "a line has its end");
        let time = match subject {
            Subject::Process => LOCK_TIME_MAX,
            Subject::Client => CLIENT_LOCK_TIME_MAX,
        };
        let Some(mut state) = self.state_until(now + time) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let most = match subject {
            Subject::Process => LINES_MAX,
            Subject::Client => CLIENT_LINES_MAX,
        };
        if state.lines.len() >= most {
            return self.lose(&mut state, now);
        }
        state.lines.push_back(line);
        assert!(state.lines.len() <= LINES_MAX, "Q1");
        self.changed.notify_all();
    }

    fn lose(&self, state: &mut State, now: Instant) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        if state.lost_since.is_none() {
            state.lost_since = Some(now);
            self.changed.notify_all();
        }
    }

    /// Counts a line that could not be written. Nothing tells about it: that could not be written
    /// either.
    pub(super) fn note_unwritten(&self) {
        let mut state = self.state();
        self.lost.fetch_add(1, Ordering::Relaxed);
        state.told += 1;
    }

    /// Waits for the next line. Only the thread of the log calls this.
    pub(super) fn take(&self) -> Taken {
        let mut state = self.state();
        state.is_writing = false;
        loop {
            let now = Instant::now();
            let until = state.lost_since.map(|since| since + SECOND);
            if until.is_some_and(|until| now >= until || state.is_ending) {
                let lost = self.lost.load(Ordering::Relaxed);
                let untold = lost - std::mem::replace(&mut state.told, lost);
                (state.lost_since, state.is_writing) = (None, true);
                debug_assert!(untold > 0, "Q3");
                return Taken::Lost(untold);
            }
            if let Some(line) = state.lines.pop_front() {
                state.is_writing = true;
                return Taken::Line(line);
            }
            self.changed.notify_all(); // It is empty.
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let waited = self.changed.wait_timeout(state, until - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Waits until all lines are written, at most this long. For the end of the process, also by a
    /// panic, whose thread may hold the lock.
    pub(super) fn finish(&self, time: Duration) {
        let until = Instant::now() + time;
        let Some(mut state) = self.state_until(until) else { return };
        state.is_ending = true;
        self.changed.notify_all();
        while !state.lines.is_empty() || state.is_writing || state.lost_since.is_some() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_ending = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, unless another thread holds it until then (Q4).
    fn state_until(&self, until: Instant) -> Option<MutexGuard<'_, State>> {
        loop {
            match self.try_state() {
                Some(state) => return Some(state),
                None if Instant::now() >= until => return None,
                None => std::thread::yield_now(),
            }
        }
    }

    /// The state, unless another thread holds it all the time (Q4).
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        for _ in 0..TRIES_MAX {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> String {
        format!("{text}\n")
    }

    /// Q1, Q3.
    #[test]
    fn clients_cannot_crowd_out_a_line_about_the_process() {
        let (queue, now) = (LineQueue::new(), Instant::now());
        let offer = |subject, count| {
            (0..count).for_each(|_| queue.offer(subject, line("x"), now));
            queue.lost()
        };
        assert_eq!(offer(Subject::Client, CLIENT_LINES_MAX), 0);
        assert_eq!(offer(Subject::Client, 3), 3);
        assert_eq!(offer(Subject::Process, LINES_MAX - CLIENT_LINES_MAX), 3);
        assert_eq!(offer(Subject::Process, 1), 4);
        for _ in 0..LINES_MAX {
            assert_eq!(queue.take(), Taken::Line(line("x")));
        }
        assert_eq!(queue.take(), Taken::Lost(4), "once the others are written");
    }

    /// Q2, Q3.
    #[test]
    fn a_flood_of_clients_is_a_bounded_number_of_lines_and_a_count() {
        let (queue, now) = (LineQueue::new(), Instant::now());
        let admitted = |at| (0..10_000).filter(|_| queue.admits_client(at)).count();
        let most = CLIENT_LINES_PER_SECOND_MAX as usize;
        assert_eq!(admitted(now), most);
        assert_eq!(admitted(now + Duration::from_millis(999)), 0);
        let lost = 2 * 10_000 - u64::from(CLIENT_LINES_PER_SECOND_MAX);
        assert_eq!(queue.lost(), lost);
        assert_eq!(admitted(now + SECOND), most, "a second later there is room again");
        assert_eq!(admitted(now + SECOND), 0);
        assert_eq!(queue.take(), Taken::Lost(queue.lost()), "one line tells about all");
        assert_eq!(queue.state().lost_since, None);
    }

    /// Q3: without it, a closed standard error would be written to once a second, forever.
    #[test]
    fn a_line_that_cannot_be_written_is_counted_and_not_told() {
        let queue = LineQueue::new();
        queue.offer(Subject::Process, line("a"), Instant::now());
        assert_eq!(queue.take(), Taken::Line(line("a")));
        queue.note_unwritten();
        assert_eq!((queue.lost(), queue.state().lost_since), (1, None));
        queue.offer(Subject::Process, line("b"), Instant::now());
        assert_eq!(queue.take(), Taken::Line(line("b")));
    }

    #[test]
    fn the_end_waits_for_the_lines_but_not_for_a_stopped_reader() {
        let queue = LineQueue::new();
        queue.offer(Subject::Process, line("a"), Instant::now());
        queue.finish(Duration::from_millis(1)); // Nobody takes it.
        let held = queue.state();
        queue.finish(Duration::from_millis(1));
        drop(held);
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| [queue.take(), queue.take()]);
            queue.finish(Duration::from_secs(60));
            queue.offer(Subject::Process, line("b"), Instant::now());
            let taken = taker.join().expect("it ends");
            assert_eq!(taken, ["a", "b"].map(|text| Taken::Line(line(text))));
        });
    }
}
