//! One request: staged in a batch, applied to an engine, sampled, and answered.
//!
//! Upstream:   `serve`, `large` and `waiting`.
//! Downstream: the engine; `wire`, which formats the outcome; `observe`, which counts it.

pub(crate) mod batch;
pub(crate) mod form;
pub(crate) mod apply;
pub(crate) mod sample;
pub(crate) mod reply;
pub(crate) mod logging;
