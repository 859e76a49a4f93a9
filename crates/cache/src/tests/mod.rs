//! Tests of the cache that use its parts.
//!
//! Upstream:   `cargo test`; `tests/growth/run` runs `growth` for ten million items.
//! Downstream: the whole crate.

mod batches;
mod changes;
mod growth;
mod reader;
