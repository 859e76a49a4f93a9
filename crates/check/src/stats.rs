//! How much of a history was judged.
//!
//! Upstream:   `judge` counts.
//! Downstream: tests print the counts; `violation` reports how many keys were given up.

/// What was judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys that operations named.
    pub keys: usize,
    /// Operations, each flush once.
    pub operations: usize,
    /// Of unknown outcome.
    pub unknown: usize,
    /// Refused; these say little.
    pub refused: usize,
    /// Operations invoked while another of the same key had not returned.
    pub overlapping: usize,
    /// Steps of the model.
    pub steps: u64,
    /// Keys whose search was given up, about which nothing is known.
    pub keys_given_up: usize,
    /// The operations of those keys, flushes apart.
    pub operations_given_up: usize,
}
