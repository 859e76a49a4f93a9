//! Takes samples of a meter on a thread of its own.
//!
//! Upstream:   `mod` begins before the run and ends after it.
//! Downstream: a meter.
//!
//! A meter may be a command that hangs. So the run never waits for it without a limit.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::energy::Sample;

/// The longest sleep between two looks at whether the command has ended.
const NAP: Duration = Duration::from_millis(50);
/// How long a meter may take for its first and for its last sample.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A source of samples.
pub(super) trait Meter: Send {
    /// Takes a sample.
    ///
    /// Errors: there is none at this time, as a message for the user.
    fn sample(&mut self) -> Result<Sample, String>;
}

/// The samples that a thread has taken from its meter.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Unix seconds, in order.
    pub(super) samples: Vec<(f64, Sample)>,
    /// The last reason why a sample was missing.
    pub(super) error: Option<String>,
}

/// A meter whose samples a thread takes.
pub(super) struct Sampled {
    taken: Arc<Mutex<Taken>>,
    thread: JoinHandle<()>,
}

impl Sampled {
    /// Takes samples until `ended` is set, and one more.
    pub(super) fn begin(
        mut meter: Box<dyn Meter>,
        interval: Duration,
        ended: &Arc<AtomicBool>,
    ) -> Self {
        let (taken, ended) = (Arc::<Mutex<Taken>>::default(), Arc::clone(ended));
        let shared = Arc::clone(&taken);
        let thread = std::thread::spawn(move || {
            loop {
                let is_last = ended.load(Relaxed);
                let sample = meter.sample();
                let mut taken = lock(&shared);
                match sample {
                    Ok(sample) => taken.samples.push((unix_s(), sample)),
                    Err(error) => taken.error = Some(error),
                }
                drop(taken);
                if is_last {
                    return;
                }
                // Short naps, so that a long interval does not delay the end.
                let mut left = interval;
                while !left.is_zero() && !ended.load(Relaxed) {
                    let nap = left.min(NAP);
                    std::thread::sleep(nap);
                    left -= nap;
                }
            }
        });
        Self { taken, thread }
    }

    /// Waits for the first sample, or the reason why there is none.
    pub(super) fn await_first(&self) {
        wait_until(|| {
            let taken = lock(&self.taken);
            !taken.samples.is_empty() || taken.error.is_some()
        });
    }

    /// The samples. A meter that gives no answer any more is left alone.
    pub(super) fn end(self) -> Taken {
        wait_until(|| self.thread.is_finished());
        let mut taken = std::mem::take(&mut *lock(&self.taken));
        if !self.thread.is_finished() {
            taken.error = Some("the meter gives no answer any more".to_owned());
        }
        taken
    }
}

/// Waits until `is_done`, at most [`ANSWER_MAX`].
fn wait_until(is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + ANSWER_MAX;
    while !is_done() && Instant::now() < deadline {
        std::thread::sleep(NAP);
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds of Unix time.
pub(crate) fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
