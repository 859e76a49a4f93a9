//! Runs a loom model to the end of its bound, and prints how many interleavings that were.
//!
//! Upstream:   the models of every crate; compiled with `--cfg loom` only.
//! Downstream: loom.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most steps of one run of a model. A run that takes more waits for an event that never comes.
const STEPS_MAX: usize = 10_000;

/// Runs `model` in every order of steps that can make a difference to one of its threads, and with
/// every value that a load may see. Prints and returns the number of runs.
///
/// `preemptions_max` leaves out orders with more preemptions (a thread that waits or ends is not
/// preempted); `None`: all orders. `LOOM_MAX_PREEMPTIONS` overrides it.
/// Panics: when `model` panics in one of the runs, or when nothing interleaved.
pub fn explore(
    name: &str,
    preemptions_max: Option<usize>,
    model: impl Fn() + Send + Sync + 'static,
) -> u64 {
    let explored = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&explored);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions_max);
    builder.max_branches = STEPS_MAX;
    let bound = match builder.preemption_bound {
        Some(preemptions) => format!("at most {preemptions} preemptions"),
        None => "no bound on preemptions".to_owned(),
    };
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let explored = explored.load(Ordering::Relaxed);
    println!("model {name}: {explored} interleavings, {bound}");
    assert!(explored > 1, "a model in which nothing interleaves proves nothing");
    explored
}
