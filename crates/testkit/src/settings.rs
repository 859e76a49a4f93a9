//! Numbers that the environment sets for a test.
//!
//! Upstream:   the scripts in `tests`, or a person.
//! Downstream: the suites, which name the variables in their headers.

/// The number in the environment variable `name`, or `default` without it.
///
/// # Panics
/// If the variable is no number.
pub fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    }
}

/// How often something is tried: `short`, or `full` with `KACHEL_FULL=1`.
#[must_use]
pub fn count(short: u64, full: u64) -> u64 {
    let is_full = std::env::var_os("KACHEL_FULL").is_some_and(|value| value == "1");
    if is_full { full } else { short }
}
