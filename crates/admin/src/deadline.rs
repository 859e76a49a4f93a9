//! When a connection must end.
//!
//! Upstream:   `connection` makes one for each client and waits for it.
//! Downstream: `live` puts it off while the client reads updates.
//!
//! Invariants:
//! - D1  A deadline is at most [`CONNECTION_TIME_MAX`] away. So a connection that is not put off
//!   ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::limits::CONNECTION_TIME_MAX;

/// When a connection must end.
#[derive(Clone, Debug)]
pub(crate) struct Deadline(Arc<Mutex<Instant>>);

impl Deadline {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now() + CONNECTION_TIME_MAX)))
    }

    /// Puts the end off, because the client has read something (D1).
    pub(crate) fn put_off(&self) {
        *self.place() = Instant::now() + CONNECTION_TIME_MAX;
    }

    /// Runs `serving` until the deadline.
    pub(crate) async fn limit(&self, serving: impl Future) {
        let mut serving = std::pin::pin!(serving);
        loop {
            let end = *self.place();
            let ended = tokio::time::timeout_at(end, serving.as_mut()).await;
            if ended.is_ok() || *self.place() == end {
                return;
            }
        }
    }

    fn place(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
