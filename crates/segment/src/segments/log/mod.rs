//! Where items are put: open segments, and the ranges of time by which items share them.
//!
//! Upstream:   `append`, `reserve` and `reclaimer` ask for places.
//! Downstream: `pool`.

pub(crate) mod open;
pub(crate) mod ttl;
