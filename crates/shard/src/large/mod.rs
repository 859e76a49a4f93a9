//! Large values: received into the memory where they are stored.
//!
//! Upstream:   `serve`, when a request announces a large value; `connections`, with its bytes.
//! Downstream: the engine, which lends the memory and stores the value; `waiting`, if another core
//!             holds the engine.

pub(crate) mod landing;
pub(crate) mod upload;
