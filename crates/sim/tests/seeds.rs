//! Simulates some seeds in each `cargo test`; `tests/sim/run` simulates thousands.

use kachel_sim::{Coverage, Options, examine};

/// Requests of each run.
const REQUESTS: u32 = 1_000;

fn run(seeds: std::ops::Range<u64>) {
    let mut seen = Coverage::default();
    for seed in seeds {
        let options = Options::of_seed(seed, REQUESTS);
        match examine(&options, seed % 10 == 0) {
            Ok(report) => seen.add(&report.coverage),
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    }
    for (name, count) in seen.fields() {
        // The rarest event is certain only in thousands of runs.
        assert!(count > 0, "never seen: {name}");
    }
}

#[test]
fn whatever_happens_replies_are_right_and_all_memory_comes_back() {
    run(1_000..1_040);
}
