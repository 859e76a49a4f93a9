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

/// A test of many similar cases runs every `stride`th one: 1, or `KACHEL_STRIDE`, which the
/// sanitizer stage sets because each case is several times as slow there.
///
/// # Panics
/// If `KACHEL_STRIDE` is not a number from 1 to 100.
pub fn stride() -> usize {
    let stride = setting("KACHEL_STRIDE", 1);
    assert!((1..=100).contains(&stride), "KACHEL_STRIDE is from 1 to 100");
    stride as usize
}
