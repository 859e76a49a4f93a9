//! The atomics that this crate is built on: std's, or loom's when a model runs.
//!
//! Upstream:   every file here that shares a word between threads.
//! Downstream: `std::sync` or `loom::sync`.

#[cfg(not(loom))]
pub(crate) use std::sync::Arc;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::Arc;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
