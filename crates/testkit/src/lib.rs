//! What several test suites and benchmarks share.
//!
//! Upstream:   tests and benchmarks.
//! Downstream: the crates that they test.
#![forbid(unsafe_code)]

mod filled;
mod world;

pub use filled::{BenchKey, FilledCache, KEY_BYTES, VALUE_BYTES, random_keys};
pub use world::{ShardClock, World, WorldOptions, stride};
