//! Wakes a poll from another thread.
//!
//! Upstream:   another shard, the control thread, or the thread that reads signals.
//! Downstream: `Io::poll` returns with `Event::Woken`.
//!
//! Invariants: those of `bell`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::bell::Bell;

/// Wakes one `Io` from any thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bell: Bell,
    /// `None` in memory, where no thread blocks.
    doorbell: Option<OwnedFd>,
}

impl Waker {
    /// A waker whose `Io` blocks in the kernel.
    pub(crate) fn with_eventfd() -> io::Result<Self> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { shared: Arc::new(Shared { bell: Bell::new(), doorbell: Some(doorbell) }) })
    }

    /// A waker whose `Io` never blocks.
    pub(crate) fn without_eventfd() -> Self {
        Self { shared: Arc::new(Shared { bell: Bell::new(), doorbell: None }) }
    }

    /// Makes the `Io`'s current or next poll return with one [`crate::Event::Woken`]. Several wakes
    /// before that poll become one. Earlier writes of the caller are visible to the polling thread.
    ///
    /// Cost: one atomic exchange, and one system call when the polling thread sleeps.
    pub fn wake(&self) {
        if self.shared.bell.ring()
            && let Some(doorbell) = &self.shared.doorbell
        {
            // It fails only when the counter is full, and then the sleeper is woken anyway.
            let _ = rustix::io::write(doorbell, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.shared.bell
    }

    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_ref().expect("made by with_eventfd").as_fd()
    }
}
