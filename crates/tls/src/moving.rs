//! Sessions of connections that move from one core to another.
//!
//! Upstream:   the layer of the core that gives a connection up.
//! Downstream: the layer of the core that adopts it.
//!
//! A connection moves as a descriptor, because `shard` knows nothing else of it. Its session waits
//! here, under the number of the descriptor.
//!
//! Invariants, cited by number where they are asserted:
//! - M1  A session is here only while its descriptor is open and no core has it. So no other
//!   connection has the same number.

use std::collections::HashMap;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use crate::session::Session;

/// Sessions without a core.
#[derive(Debug, Default)]
pub(crate) struct Moving(Mutex<HashMap<RawFd, Box<Session>>>);

impl Moving {
    /// Keeps the session of a connection that is given up.
    pub(crate) fn put(&self, socket: &OwnedFd, session: Box<Session>) {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = sessions.insert(socket.as_raw_fd(), session);
        assert!(before.is_none(), "M1");
    }

    /// Takes the session of a connection that is adopted. `None` if it has no TLS.
    pub(crate) fn take(&self, socket: &OwnedFd) -> Option<Box<Session>> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(&socket.as_raw_fd())
    }
}
