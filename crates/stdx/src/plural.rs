//! The form of a noun that goes with a number, for messages.
//!
//! Upstream:   messages for people, of any crate.
//! Downstream: nothing.

/// `one` if `count` is 1, otherwise `many`: `1 thread`, but `0 threads` and `2 threads`.
pub fn plural(count: u64, one: &'static str, many: &'static str) -> &'static str {
    debug_assert_ne!(one, many, "a noun with one form needs no choice");
    if count == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        let said = [0, 1, 2].map(|count| plural(count, "miss", "misses"));
        assert_eq!(said, ["misses", "miss", "misses"]);
    }
}
