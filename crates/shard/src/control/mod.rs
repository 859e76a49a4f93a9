//! Commands that are not about one key, and what they leave under way.
//!
//! Upstream:   `serve`, for each such request; `tick`, which continues the runs of the crawler and
//!             answers for the certificates.
//! Downstream: `listings`, `stats`; the state of the process in `cores`.

pub(crate) mod commands;
pub(crate) mod crawl;
pub(crate) mod refresh;
