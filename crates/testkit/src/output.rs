//! Lines that a test prints for a reader of the log.
//!
//! Upstream:   the suites.
//! Downstream: standard error, which the test harness does not capture here.

use std::io::Write as _;

/// Prints a line.
pub fn tell(line: &str) {
    // One write, so that lines of several threads stay whole.
    let line = format!("{line}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
}

/// Prints that this machine cannot run the check `name`, and why. `./test` counts the line.
pub fn skip(name: &str, why: &str) {
    // The harness may have begun a line.
    tell(&format!("\nskip {name} {why}"));
}
