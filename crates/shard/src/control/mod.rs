//! Commands that are not about one key, and what they leave under way.
//!
//! Upstream:   `serve`, for each such request; `tick`, which continues the runs of the crawler and
//!             the walks that count items by prefix, and answers for the certificates.
//! Downstream: `listings`, `stats`; the state of the process in `cores`.

pub(crate) mod commands;
pub(crate) mod crawl;
pub(crate) mod prefixes;
pub(crate) mod refresh;
