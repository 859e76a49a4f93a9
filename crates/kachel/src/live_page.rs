//! What the live page of the admin address shows: the samples of ten minutes, and what is wrong.
//!
//! Upstream:   `admin`, once a second and for each client, on the thread of the admin address.
//! Downstream: `kachel_observe` keeps the samples, judges them and writes them.
//!
//! Invariants:
//! - L1  What the observers know is merged at most once in [`MERGE_PAUSE`], so clients that ask
//!   often do not take the observers from the shards.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kachel_observe::{
    Circumstances, HottestKeys, MissCurve, Newest, ObservedPrefixes, Reading, SampleHistory,
    ServePhase, write_history, write_now,
};
use kachel_options::KACHEL_VERSION;

/// The time for which what was merged is shown. It is a little less than a second,
/// so that each update has new ones.
const MERGE_PAUSE: Duration = Duration::from_millis(900);

/// What the live page shows.
pub(crate) struct LivePage {
    /// A text that another start of the server does not have, so that a page notices a restart.
    incarnation: String,
    state: Mutex<State>,
}

/// What the observers of all cores know. `None` stands for an observer that is off.
#[derive(Default)]
pub(crate) struct Observed {
    pub(crate) hottest: Option<HottestKeys>,
    pub(crate) curve: Option<MissCurve>,
    pub(crate) prefixes: Option<ObservedPrefixes>,
}

#[derive(Default)]
struct State {
    history: SampleHistory,
    /// The shards that do not answer.
    stopped: Vec<usize>,
    /// What the observers know, and when it was merged (L1).
    observed: Option<(Instant, Observed)>,
}

impl Default for LivePage {
    fn default() -> Self {
        let incarnation = format!("{:016x}", RandomState::new().hash_one(KACHEL_VERSION));
        Self { incarnation, state: Mutex::default() }
    }
}

impl LivePage {
    /// Notes the state of all counters, and the shards that do not answer.
    pub(crate) fn note(&self, reading: Reading, stopped: &[usize]) {
        let mut state = self.state();
        state.history.note(reading);
        state.stopped.clear();
        state.stopped.extend_from_slice(stopped);
    }

    /// The newest sample, and what is wrong, as a line of JSON. `observed` merges what the
    /// observers of all cores know.
    pub(crate) fn now(&self, phase: ServePhase, observed: impl FnOnce() -> Observed) -> String {
        let mut state = self.state();
        let is_recent = |(at, _): &(Instant, Observed)| at.elapsed() < MERGE_PAUSE;
        if !state.observed.as_ref().is_some_and(is_recent) {
            let merged = observed();
            state.observed = Some((Instant::now(), merged)); // L1
        }
        let observed = state.observed.as_ref().map(|(_, observed)| observed);
        let circumstances = Circumstances {
            phase,
            stopped: &state.stopped,
            hottest: observed.and_then(|observed| observed.hottest.as_ref()),
            curve: observed.and_then(|observed| observed.curve.as_ref()),
        };
        let prefixes = observed.and_then(|observed| observed.prefixes.as_ref());
        let newest = Newest {
            incarnation: &self.incarnation,
            version: KACHEL_VERSION,
            circumstances,
            prefixes,
        };
        let mut to = String::new();
        write_now(&state.history, &newest, &mut to);
        to
    }

    /// All samples as JSON.
    pub(crate) fn history(&self) -> String {
        let mut to = String::new();
        write_history(&self.state().history, &self.incarnation, &mut to);
        to
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
