//! A machine that sends a part of the load, and what it counted.
//!
//! Upstream:   `agent` collects the results of all machines.
//! Downstream: `session`'s result has the sum; `report` shows each machine beside it.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The sum has each request of each machine once, in the same bucket of the histograms.

use crate::clock::Clock;
use crate::limits;
use crate::meter::Cost;
use crate::tally::Tally;

/// A start that is later than the agreed one by more than this is reported.
const LATE_NS_MAX: u64 = 5_000_000;

/// A machine that sends a part of the load.
#[derive(Debug)]
pub(crate) struct Member {
    /// The address of the agent, or "leader".
    pub(crate) name: String,
    /// Connections of this machine.
    pub(crate) connections: usize,
    /// Threads of this machine.
    pub(crate) threads: usize,
    /// Its part of the rate, in an open loop.
    pub(crate) rate: Option<f64>,
    /// What it counted.
    pub(crate) tally: Tally,
    /// Length of its window.
    pub(crate) window_s: f64,
    /// Its processor time, divided by the elapsed time.
    pub(crate) busy_cores: f64,
    /// The time between the two readings of its processor time.
    pub(crate) elapsed_s: f64,
    /// An agent's clock, as the leader sees it.
    pub(crate) clock: Option<Clock>,
    /// How much after the agreed time it started.
    pub(crate) late_ns: u64,
}

impl Member {
    /// The reasons to doubt that the server was the limit, as sentences with the machine's name.
    /// `cost` is the leader's, which has the server's cores.
    pub(crate) fn warnings(&self, cost: &Cost) -> Vec<String> {
        let cost = Cost {
            elapsed_s: self.elapsed_s,
            generator_busy_cores: self.busy_cores,
            ..cost.clone()
        };
        let offered = self.tally.is_open().then_some(self.tally.offered);
        let mut warnings = limits::warnings(self.tally.turns, offered, &cost, Some(self.threads));
        if self.late_ns > LATE_NS_MAX {
            let late_ms = self.late_ns as f64 / 1e6;
            warnings.push(format!("started {late_ms:.1} ms after the agreed time"));
        }
        warnings.iter().map(|warning| format!("{}: {warning}", self.name)).collect()
    }
}

/// What all machines counted together (I1).
///
/// Panics: there is no machine.
pub(crate) fn sum(members: &[Member]) -> Tally {
    let (first, rest) = members.split_first().expect("a measurement has a machine");
    let mut sum = first.tally.clone();
    if let Some(words) = &mut sum.errors.first {
        *words = format!("{}: {words}", first.name);
    }
    for member in rest {
        let had_error = sum.errors.first.is_some();
        sum.merge(&member.tally);
        if let (false, Some(words)) = (had_error, &mut sum.errors.first) {
            *words = format!("{}: {words}", member.name);
        }
    }
    let requests = |tally: &Tally| tally.response_of_all().len();
    let each: u64 = members.iter().map(|member| requests(&member.tally)).sum();
    assert!(requests(&sum) == each, "I1");
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Turns;
    use crate::meter::Core;
    use crate::tally::Window;

    fn member(name: &str, turns: Turns, late_ns: u64) -> Member {
        let mut tally = Tally::new(Window { from_ns: 0, until_ns: 100, open: true });
        (tally.turns, tally.offered) = (turns, 1_000);
        Member {
            name: name.into(),
            connections: 1,
            threads: 1,
            rate: Some(1.0),
            tally,
            window_s: 1.0,
            busy_cores: 1.0,
            elapsed_s: 1.0,
            clock: None,
            late_ns,
        }
    }

    #[test]
    fn the_machine_that_was_the_limit_is_named() {
        let core = |idle| Core { idle, ..Core::default() };
        // The leader's own processor time is not the agents'.
        let mut cost = Cost {
            elapsed_s: 1.0,
            server_cpu_s: None,
            server_busy_cores: None,
            server_threads: None,
            generator_busy_cores: 0.1,
            cores: vec![core(0.5)],
        };
        let spins = Turns { all: 10_000, empty: 9_000, late: 0 };
        let works = Turns { all: 10_000, empty: 3, late: 0 };
        assert_eq!(member("agent a:1", spins, 0).warnings(&cost), [""; 0]);
        let warnings = member("agent b:1", works, 0).warnings(&cost);
        assert!(warnings.len() == 1 && warnings[0].starts_with("agent b:1: the generator worked"));
        let late = Turns { late: 500, ..works };
        assert_eq!(member("agent c:1", late, 6_000_000).warnings(&cost).len(), 3);
        // The server's cores, which the leader reads, had no time either.
        cost.cores = vec![core(0.01)];
        assert_eq!(member("agent b:1", works, 0).warnings(&cost), [""; 0]);
    }
}
