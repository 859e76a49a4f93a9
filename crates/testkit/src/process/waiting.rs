//! Waits for an event in another process.
//!
//! Upstream:   `server` and the tests.
//! Downstream: the clock.

use std::time::{Duration, Instant};

/// A test gives up after this time. Nothing takes so long, not even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Checks until `is_so` returns true, for at most `patience`. Returns whether it did.
pub fn within(patience: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    true
}

/// Checks until `is_so` returns true.
///
/// # Panics
/// If `is_so` does not return true within [`PATIENCE`]; the message names `what`.
pub fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(within(PATIENCE, is_so), "waited too long for {what}");
}
