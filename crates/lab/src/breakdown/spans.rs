//! The time that overlapping spans cover together.
//!
//! Upstream:   `wall`, with the system calls of all threads.
//! Downstream: nothing.
//!
//! Calls of several threads overlap, so the sum of their times may exceed the time that passed. As
//! in the study of Valsamidis (NTUA 2017): walk through the beginnings and ends in order of time,
//! count the open calls, and add up the spans in which the count is above zero.
//!
//! ```text
//!   thread 1   |-------|            |---|
//!   thread 2       |-------|
//!   covered    |===========|        |===|
//! ```

/// A span of time, in nanoseconds of one clock. It does not contain its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
}

impl Span {
    /// The span between two times; empty if they are in the wrong order.
    pub(super) fn new(begin_ns: u64, end_ns: u64) -> Self {
        Self { begin_ns, end_ns: end_ns.max(begin_ns) }
    }

    /// Its length.
    pub(super) const fn ns(self) -> u64 {
        self.end_ns - self.begin_ns
    }
}

/// The nanoseconds in which at least one of the spans is open. Sorts them.
///
/// Cost: that of sorting.
pub(super) fn covered_ns(spans: &mut [Span]) -> u64 {
    spans.sort_unstable();
    let mut covered_ns = 0;
    let mut end_ns = 0;
    for span in spans.iter() {
        // A span that begins before the last end only adds what reaches beyond it.
        let rest = Span::new(span.begin_ns.max(end_ns), span.end_ns);
        covered_ns += rest.ns();
        end_ns = end_ns.max(span.end_ns);
    }
    covered_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt as _, SeedableRng as _};

    fn covered(spans: &[(u64, u64)]) -> u64 {
        let mut spans: Vec<Span> =
            spans.iter().map(|(begin, end)| Span::new(*begin, *end)).collect();
        covered_ns(&mut spans)
    }

    #[test]
    fn an_overlap_counts_once() {
        assert_eq!(covered(&[]), 0);
        assert_eq!(covered(&[(5, 9)]), 4);
        assert_eq!(covered(&[(5, 9), (7, 12)]), 7, "they overlap");
        assert_eq!(covered(&[(7, 12), (5, 9)]), 7, "in any order");
        assert_eq!(covered(&[(5, 20), (7, 12), (8, 9)]), 15, "one within the other");
        assert_eq!(covered(&[(5, 9), (9, 12)]), 7, "they touch");
        assert_eq!(covered(&[(5, 9), (20, 30), (25, 31)]), 15, "with a gap");
        assert_eq!(covered(&[(5, 9), (5, 9), (5, 9)]), 4, "the same three times");
        assert_eq!(covered(&[(9, 5)]), 0, "a span that ends before it begins");
    }

    /// The definition: each nanosecond counts if any span is open then.
    #[test]
    fn random_spans_cover_what_counting_open_calls_says() {
        let mut random = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(19);
        for _ in 0..200 {
            let number = random.random_range(0..12);
            let spans: Vec<(u64, u64)> = (0..number)
                .map(|_| {
                    let begin = random.random_range(0..60);
                    (begin, begin + random.random_range(0..20))
                })
                .collect();
            let open =
                |at: u64| spans.iter().filter(|(from, to)| (*from..*to).contains(&at)).count();
            let wanted = (0..100).filter(|at| open(*at) > 0).count() as u64;
            assert_eq!(covered(&spans), wanted, "{spans:?}");
        }
    }
}
