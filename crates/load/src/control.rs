//! Decides when a run starts, and whether it goes on.
//!
//! Upstream:   `lib` for a run of one machine, `agent` for one of several.
//! Downstream: `session` calls it.

use std::time::{Duration, Instant};

use crate::tally::Filled;

/// Delay from the decision to start to the start, so that every thread is ready.
const START_DELAY: Duration = Duration::from_millis(2);

/// Decides when a run starts, and whether it goes on.
pub(crate) trait Control {
    /// This machine is ready to start, after its preload and its rest. Returns the time of the
    /// start; waits until the other machines, if there are any, are ready, too.
    ///
    /// Errors: the run ends, with the reason as a message for the user.
    fn begin(&mut self, preload: Option<&Filled>) -> Result<Instant, String>;

    /// Called several times a second from the start of the preload to the end of the run. Returns
    /// whether all other machines have ended their runs.
    ///
    /// Errors: the run ends, with the reason as a message for the user.
    fn poll(&mut self) -> Result<bool, String>;
}

/// A run of one machine.
#[derive(Debug)]
pub(crate) struct Alone;

impl Control for Alone {
    fn begin(&mut self, _: Option<&Filled>) -> Result<Instant, String> {
        Ok(soon())
    }

    fn poll(&mut self) -> Result<bool, String> {
        Ok(true)
    }
}

/// The earliest time at which every thread of this machine can start.
pub(crate) fn soon() -> Instant {
    Instant::now() + START_DELAY
}
