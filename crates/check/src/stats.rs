//! How much of a history was judged.
//!
//! Upstream:   `judge` counts.
//! Downstream: tests print the counts; `violation` reports how many keys were given up.

/// The numbers of a judgment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys of all operations.
    pub keys: usize,
    /// Operations; each flush counts once.
    pub operations: usize,
    /// Operations with an unknown outcome.
    pub unknown: usize,
    /// Operations that the server refused. A refusal proves little.
    pub refused: usize,
    /// Operations that were invoked while an earlier operation of the same key was pending.
    /// Operations that never returned are ignored.
    pub overlapping: usize,
    /// Steps of the model.
    pub steps: u64,
    /// Keys whose search was given up. Nothing is known about these keys.
    pub keys_given_up: usize,
    /// The operations of the keys that were given up, without flushes.
    pub operations_given_up: usize,
}
