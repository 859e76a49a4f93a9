//! Answers to `stats`: the sums of what `observe` has counted, and censuses of the items.
//!
//! Upstream:   `admin` for `stats`; `listings`, which walk the items.
//! Downstream: the counters of all cores in `observe`; the statistics of the engines.

pub(crate) mod classes;
pub(crate) mod class_sums;
pub(crate) mod census;
pub(crate) mod topics;
pub(crate) mod holdings;
