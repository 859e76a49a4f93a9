//! What the history of the live page keeps: its memory is there from the first sample on.
//!
//! A binary of its own, because the allocator of a process is chosen once.

use kachel_observe::{CoreReading, Reading, SAMPLES_MAX, SampleHistory};
use kachel_stdx::{CountingAllocator, counted, kept};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The fault: the ring was doubled while it filled, so the server grew after nine minutes, and kept
/// room for 1,024 samples.
#[test]
fn the_history_grows_with_its_first_sample_only() {
    let mut history = SampleHistory::default();
    let mut second = 0;
    let mut note = |count: usize| {
        for _ in 0..count {
            second += 1;
            let cores = vec![CoreReading::default(); 4];
            history.note(Reading { at_ns: second * 1_000_000_000, cores, ..Reading::default() });
        }
    };
    note(2);
    let ((), once) = counted(|| note(1));
    let ((), kept_bytes) = kept(|| {
        let ((), allocations) = counted(|| note(2 * SAMPLES_MAX));
        assert_eq!(allocations, once * 2 * SAMPLES_MAX as u64, "as many for each sample");
    });
    assert_eq!(kept_bytes, 0);
    assert_eq!(history.samples().len(), SAMPLES_MAX);
}
