//! Answers to `stats`: rows of `kachel_observe` become lines.
//!
//! Upstream:   `control` for `stats`; `listings`, which walk the items.
//! Downstream: the rows; the statistics of the engines.

pub(crate) mod curve;
pub(crate) mod hottest;
pub(crate) mod by_prefix;
pub(crate) mod topics;
pub(crate) mod holdings;
