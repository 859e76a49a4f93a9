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

    /// Called at least about once a second from the opening of the connections to the end of the
    /// run, unless a single connection takes longer. Returns whether all other machines have ended
    /// their runs.
    ///
    /// Errors: the run ends, with the reason as a message for the user.
    fn poll(&mut self) -> Result<bool, String>;
}

/// Time between two polls of a `Pulse`; the other machines give up one that is silent for much
/// longer (`agent/frame.rs: SILENCE`).
const PULSE: Duration = Duration::from_secs(1);

/// Polls a control about once a second from a loop whose steps are short.
pub(crate) struct Pulse<'c> {
    control: &'c mut dyn Control,
    next: Option<Instant>,
}

impl<'c> Pulse<'c> {
    /// The first step polls.
    pub(crate) fn new(control: &'c mut dyn Control) -> Self {
        Self { control, next: None }
    }

    /// A step of the loop ended at this time.
    ///
    /// Errors: as `Control::poll`.
    pub(crate) fn step(&mut self, now: Instant) -> Result<(), String> {
        if self.next.is_none_or(|next| now >= next) {
            self.control.poll()?;
            self.next = Some(now + PULSE);
        }
        Ok(())
    }
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Counts its polls; from one of them on, the leader is gone.
    #[derive(Debug)]
    pub(crate) struct Deserted {
        pub(crate) polls: usize,
        pub(crate) polls_max: usize,
    }

    impl Control for Deserted {
        fn begin(&mut self, _: Option<&Filled>) -> Result<Instant, String> {
            Ok(soon())
        }

        fn poll(&mut self) -> Result<bool, String> {
            self.polls += 1;
            if self.polls > self.polls_max { Err("deserted".into()) } else { Ok(false) }
        }
    }

    #[test]
    fn a_loop_of_short_steps_polls_once_a_second() {
        let mut control = Deserted { polls: 0, polls_max: 3 };
        let mut pulse = Pulse::new(&mut control);
        let start = Instant::now();
        let steps = (0..25).map(|step| start + PULSE * step / 10);
        assert!(steps.map(|at| pulse.step(at)).all(|polled| polled == Ok(())));
        assert_eq!(pulse.step(start + PULSE * 3), Err("deserted".into()));
        assert_eq!(control.polls, 4, "at 0, 1, 2 and 3 s");
    }
}
