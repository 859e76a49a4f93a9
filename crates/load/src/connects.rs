//! New connections beside the load, at a rate: each connects, with TLS if wanted, asks for the
//! version and closes.
//!
//! Upstream:   `session` starts the threads with the run.
//! Downstream: the server; the times go to `report`.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The n-th connection of a thread is due at a fixed time. If the server is slow, later ones
//!   begin late and none is left out, so the time of each counts from when it was due.

use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::address::Target;
use crate::client::{ask_version, connect};

/// Threads that connect. A guess: with handshakes of 1 ms, each makes some hundred a second.
const THREADS: usize = 8;
/// The priority of these threads.
const NICENESS: i32 = 10;
/// How long after the end connections that are late are still made; the rest count as failed.
const GRACE: Duration = Duration::from_secs(5);
/// The longest time that the histogram records.
const TIME_NS_MAX: u64 = 3_600_000_000_000;

/// The connections to open: the server, the rate and the cores.
#[derive(Clone, Debug)]
pub(crate) struct ConnectPlan {
    /// Where to.
    pub(crate) target: Target,
    /// Connections a second, over all threads.
    pub(crate) rate: f64,
    /// Cores to pin the threads to.
    pub(crate) pin: Option<Vec<usize>>,
}

/// The connections of a run.
#[derive(Clone, Debug)]
pub(crate) struct Connects {
    /// Connections a second that were wanted.
    pub(crate) rate: f64,
    /// Those that failed.
    pub(crate) failed: u64,
    /// A description of the first failure.
    pub(crate) first: Option<String>,
    /// Times from when each was due until its answer, in ns.
    pub(crate) times: Histogram<u64>,
}

/// The threads while they run.
pub(crate) struct Connecting {
    rate: f64,
    threads: Vec<JoinHandle<Connects>>,
}

impl ConnectPlan {
    /// Starts the threads. They connect from `start` until `end`.
    pub(crate) fn start(&self, start: Instant, end: Instant) -> Connecting {
        assert!(self.rate > 0.0, "I1");
        let interval = Duration::from_secs_f64(THREADS as f64 / self.rate);
        let threads = (0..THREADS).map(|index| {
            let plan = self.clone();
            let first_due = start + interval.mul_f64(index as f64 / THREADS as f64);
            std::thread::spawn(move || plan.work(index, first_due, interval, end))
        });
        Connecting { rate: self.rate, threads: threads.collect() }
    }

    fn work(&self, index: usize, first_due: Instant, interval: Duration, end: Instant) -> Connects {
        assert!(interval > Duration::ZERO, "I1");
        let mut done = Connects::new(self.rate);
        if let Some(cores) = &self.pin {
            let mut cpus = CpuSet::new();
            cpus.set(cores[index % cores.len()]);
            // Without it the threads run on other cores, which the report shows.
            let _ = sched_setaffinity(None, &cpus);
        }
        // A handshake is long; it must not delay the load that runs on the same core. A system
        // without priorities only measures worse.
        let _ = setpriority_process(None, NICENESS);
        let mut due = first_due;
        while due < end {
            if Instant::now() > end + GRACE {
                done.failed += 1;
                done.first.get_or_insert_with(|| "too many were late".into());
                due += interval;
                continue;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            match self.once() {
                Ok(()) => {
                    let elapsed_ns = due.elapsed().as_nanos() as u64; // I1
                    done.times.saturating_record(elapsed_ns);
                }
                Err(error) => {
                    done.failed += 1;
                    done.first.get_or_insert_with(|| error.to_string());
                }
            }
            due += interval;
        }
        done
    }

    fn once(&self) -> io::Result<()> {
        let mut client = connect(&self.target)?;
        ask_version(&mut *client).map(|_| ())
    }
}

impl Connects {
    fn new(rate: f64) -> Self {
        let times = Histogram::new_with_bounds(1, TIME_NS_MAX, 3).expect("constant, valid bounds");
        Self { rate, failed: 0, first: None, times }
    }
}

impl Connecting {
    /// Waits for the threads, at most about ten seconds after their end.
    pub(crate) fn finish(self) -> Connects {
        let mut sum = Connects::new(self.rate);
        for thread in self.threads {
            let part = thread.join().expect("the thread has no panic");
            sum.failed += part.failed;
            sum.first = sum.first.or(part.first);
            sum.times.add(&part.times).expect("all histograms have one shape");
        }
        sum
    }
}
