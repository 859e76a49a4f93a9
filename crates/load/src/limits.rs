//! Whether the generator, and not the server, limited a run.
//!
//! Upstream:   `drive` counts turns and late requests; `meter` measures processor time.
//! Downstream: `report` prints the warnings.
//!
//! ```text
//!               works all the time   sends late while a client is free
//! closed loop   warn                 does not happen: nothing has an intended time
//! open loop     warn                 warn
//! ```
//! A thread that blocks when it has nothing to do shows by its processor time whether it works all
//! the time. One that spins, always or shortly before a request is due, shows by turns without an
//! event that it had time.

use serde::{Deserialize, Serialize};

use crate::meter::Cost;

/// A thread that is busy for this share of the time works all the time.
const BUSY: f64 = 0.95;
/// If fewer turns than this share are without an event, a thread that spins had no time.
const EMPTY_TURNS: f64 = 0.01;
/// Nothing can be said of a shorter window.
const WINDOW_S_MIN: f64 = 0.01;
/// A request is late if it is sent this much after its intended time although a client was free.
pub(crate) const LATE_NS: u64 = 1_000_000;
/// Late requests are reported from this share on.
const LATE_SHARE: f64 = 0.01;

/// The work of the threads during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turns {
    /// Turns of the loops.
    pub(crate) all: u64,
    /// Those that found no event.
    pub(crate) empty: u64,
    /// Requests within the window that were sent late although a client was free.
    pub(crate) late: u64,
}

impl Turns {
    /// Adds those of another thread.
    pub(crate) fn add(&mut self, other: Self) {
        self.all += other.all;
        self.empty += other.empty;
        self.late += other.late;
    }
}

/// The reasons to doubt that the server was the limit, as sentences for the user. `threads`: of the
/// generator; `None` if it has one and cannot have more.
pub(crate) fn warnings(
    turns: Turns,
    offered: Option<u64>,
    cost: &Cost,
    threads: Option<usize>,
) -> Vec<String> {
    assert!(turns.empty <= turns.all, "a turn without an event is a turn");
    let mut warnings = Vec::new();
    if cost.elapsed_s < WINDOW_S_MIN {
        return warnings; // The run failed during its warm-up.
    }
    let busy = cost.generator_busy_cores;
    let (threads, remedy) = match threads {
        Some(threads) => (threads, "add --threads, or quiet cores for --pin"),
        None => (1, "start it on a quiet core (taskset)"),
    };
    let had_time = turns.empty as f64 >= EMPTY_TURNS * turns.all as f64;
    // If the server works all the time, too, it may well be the limit.
    let is_server_spent = !cost.cores.is_empty() && cost.cores.iter().all(|core| core.idle < 0.05);
    if busy >= BUSY * threads as f64 && !had_time && !is_server_spent {
        warnings.push(format!(
            "the generator worked all the time ({busy:.2} cores, {threads} threads), so it may be \
             the limit, not the server: {remedy}"
        ));
    }
    if let Some(offered) = offered.filter(|&offered| offered > 0) {
        let share = turns.late as f64 / offered as f64;
        if share >= LATE_SHARE {
            warnings.push(format!(
                "the generator sent {:.1} % of the requests over 1 ms late although a connection \
                 was free, so response times contain its own delay: {remedy}",
                100.0 * share
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Core;

    fn cost(generator_busy_cores: f64, server_idle: Option<f64>) -> Cost {
        let core = |idle| Core { idle, ..Core::default() };
        Cost {
            elapsed_s: 1.0,
            server_cpu_s: None,
            server_busy_cores: None,
            server_threads: None,
            generator_busy_cores,
            cores: server_idle.map(core).into_iter().collect(),
        }
    }

    #[test]
    fn a_generator_that_is_the_limit_is_told_from_one_that_waits() {
        let turns = |empty, late| Turns { all: 10_000, empty, late };
        for (what, turns, offered, cost, threads, expected) in [
            ("closed, waits", turns(0, 0), None, cost(0.6, None), 1, 0),
            ("closed, works all the time", turns(0, 0), None, cost(0.99, None), 1, 1),
            ("closed, spins", turns(9_000, 0), None, cost(1.0, Some(0.4)), 1, 0),
            ("closed, spins without time", turns(3, 0), None, cost(1.0, Some(0.4)), 1, 1),
            ("closed, one of two threads", turns(0, 0), None, cost(1.0, None), 2, 0),
            ("closed, both spent", turns(0, 0), None, cost(0.99, Some(0.01)), 1, 0),
            ("closed, the server waits", turns(0, 0), None, cost(0.99, Some(0.4)), 1, 1),
            ("open, spins", turns(9_000, 0), Some(1_000), cost(1.0, None), 1, 0),
            ("open, no turn is empty", turns(3, 0), Some(1_000), cost(1.0, None), 1, 1),
            ("open, the server blocks", turns(3, 0), Some(1_000), cost(0.4, None), 1, 0),
            ("open, late", turns(9_000, 10), Some(1_000), cost(0.9, None), 1, 1),
            ("open, a few late", turns(9_000, 9), Some(1_000), cost(0.9, None), 1, 0),
            ("open, both", turns(3, 500), Some(1_000), cost(1.0, None), 1, 2),
        ] {
            let warned = warnings(turns, offered, &cost, Some(threads));
            assert_eq!(warned.len(), expected, "{what}: {warned:?}");
            let alone = warnings(turns, offered, &cost, None);
            assert!(!alone.iter().any(|warning| warning.contains("--threads")), "{alone:?}");
        }
        let empty = Cost { elapsed_s: 1e-9, ..cost(1.0, None) };
        assert_eq!(warnings(turns(0, 0), None, &empty, Some(1)), [""; 0]);
    }
}
