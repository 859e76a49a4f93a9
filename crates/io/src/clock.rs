//! Injected time: the only place of the server's core crates that reads a clock, or the processor
//! time of a thread.
//!
//! Upstream:   the kernel's clocks (by the vdso, no system call) and its scheduler (a system call),
//!             or a test.
//! Downstream: `shard` reads the clocks once a tick, and the processor time every 2 ms.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use rustix::time::{ClockId, clock_gettime};

/// The longest text of the kernel's file about a thread: three numbers of 64 bits.
const THREAD_TIME_BYTES: usize = 64;

/// How much processor time a thread has used since its start, and how much it lacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// Nanoseconds in which it ran.
    pub ran_ns: u64,
    /// Nanoseconds in which it could have run and waited for a processor. 0 if the kernel does not
    /// report it.
    pub waited_ns: u64,
}

/// The time.
pub trait Clock {
    /// Nanoseconds since some fixed moment; never goes back.
    fn now_ns(&self) -> u64;
    /// Seconds since 1970 (UTC); may jump when the machine's clock is set.
    fn unix_s(&self) -> i64;
    /// How long the calling thread ran and waited. Cost: [`SystemClock`] a system call, 2 us.
    fn thread_time(&self) -> ThreadTime;
}

thread_local! {
    /// The scheduler statistics of this thread: nanoseconds run, nanoseconds waited, and time
    /// slices (`Documentation/scheduler/sched-stats.rst` of Linux).
    static SCHEDULER: Option<File> = File::open("/proc/thread-self/schedstat").ok();
}

/// The machine's clocks. Cost: about 20 ns a reading of the time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// Nanoseconds since 1970 (UTC); may jump when the machine's clock is set.
    pub fn unix_ns(self) -> u64 {
        let now = clock_gettime(ClockId::Realtime);
        let unix_s = u64::try_from(now.tv_sec).unwrap_or(0);
        unix_s * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
    }
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    fn unix_s(&self) -> i64 {
        clock_gettime(ClockId::RealtimeCoarse).tv_sec
    }

    fn thread_time(&self) -> ThreadTime {
        let mut text = [0; THREAD_TIME_BYTES];
        let read = SCHEDULER.with(|file| file.as_ref()?.read_at(&mut text, 0).ok());
        read.and_then(|bytes| parse_thread_time(&text[..bytes])).unwrap_or_else(|| {
            let ran = clock_gettime(ClockId::ThreadCPUTime);
            let ran_ns = ran.tv_sec as u64 * 1_000_000_000 + ran.tv_nsec as u64;
            ThreadTime { ran_ns, waited_ns: 0 }
        })
    }
}

fn parse_thread_time(text: &[u8]) -> Option<ThreadTime> {
    debug_assert!(text.len() <= THREAD_TIME_BYTES, "three numbers and their spaces");
    let mut numbers = str::from_utf8(text).ok()?.split_ascii_whitespace();
    let mut number = || numbers.next()?.parse().ok();
    Some(ThreadTime { ran_ns: number()?, waited_ns: number()? })
}

/// A clock that a test moves; clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now_ns: Rc<Cell<u64>>,
    unix_offset_s: Rc<Cell<i64>>,
}

impl ManualClock {
    /// A clock at 0 ns and at the given second since 1970.
    #[must_use]
    pub fn new(unix_s: i64) -> Self {
        Self { now_ns: Rc::default(), unix_offset_s: Rc::new(Cell::new(unix_s)) }
    }

    /// Moves both clocks forward.
    pub fn advance_ns(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }

    /// Moves both clocks forward by whole seconds.
    pub fn advance_s(&self, s: u64) {
        self.advance_ns(s * 1_000_000_000);
    }

    /// Sets the clock of day, forward or back. `now_ns` is not affected.
    pub fn set_unix_s(&self, unix_s: i64) {
        self.unix_offset_s.set(unix_s - self.elapsed_s());
    }

    fn elapsed_s(&self) -> i64 {
        (self.now_ns.get() / 1_000_000_000) as i64
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn unix_s(&self) -> i64 {
        self.unix_offset_s.get() + self.elapsed_s()
    }

    /// Nobody uses a processor.
    fn thread_time(&self) -> ThreadTime {
        ThreadTime::default()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn system_clock_does_not_go_back_and_knows_the_year() {
        let first = SystemClock.now_ns();
        assert!(SystemClock.now_ns() >= first);
        assert!(SystemClock.unix_s() > 1_600_000_000);
    }

    #[test]
    fn a_thread_that_computes_uses_processor_time() {
        let before = SystemClock.thread_time();
        let mut after = before;
        let mut sum = 0_u64;
        while after.ran_ns < before.ran_ns + 1_000_000 {
            sum = std::hint::black_box(sum + 1);
            after = SystemClock.thread_time();
        }
        assert!(sum > 0 && after.waited_ns >= before.waited_ns);
    }

    #[test]
    fn the_text_of_the_scheduler_is_two_numbers_and_more() {
        let wanted = ThreadTime { ran_ns: 296_000, waited_ns: 57_075 };
        assert_eq!(parse_thread_time(b"296000 57075 3\n"), Some(wanted));
        for text in [&b""[..], b"\n", b"296000", b"296000 x", b"-1 2 3", b"\xff 1 2"] {
            assert_eq!(parse_thread_time(text), None, "{text:?}");
        }
    }

    #[test]
    fn manual_clock_moves_only_by_hand_and_clones_agree() {
        let clock = ManualClock::new(1_000);
        let clone = clock.clone();
        clock.advance_ns(1_500_000_000);
        assert_eq!((clone.now_ns(), clone.unix_s()), (1_500_000_000, 1_001));
        clock.set_unix_s(500);
        assert_eq!((clone.now_ns(), clone.unix_s()), (1_500_000_000, 500));
        clock.advance_s(2);
        assert_eq!(clone.unix_s(), 502);
    }
}
