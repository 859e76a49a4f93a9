//! Which logins fail and which wait for a check, shared by all shards of the process.
//!
//! Upstream:   `login` asks for checks; `logins`, `send` and `accept` report logins that no longer
//!             wait.
//! Downstream: `kachel_net::Attempts` decides; `tick` reads when a login of its shard is called
//!             next, and sleeps until then.
//!
//! Invariants:
//! - H1  The time of a shard's next call is published before the lock is released. If the time
//!   became earlier, the shard is woken. A shard loads the time after it has raised its sleeping
//!   flag. So no shard sleeps past the time of its next call, and none has to poll for it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, PoisonError};

use kachel_net::{Attempts, CoreIndex};
use kachel_stdx::CachePadded;

/// The time of a call or a deadline that never comes.
pub(crate) const NEVER_NS: u64 = u64::MAX;

/// The failed and the waiting logins of a process, behind one lock.
#[derive(Debug)]
pub(crate) struct LoginThrottle {
    attempts: Mutex<Attempts>,
    /// For each core, the time of its next call (H1). Written only under the lock.
    next_ns: Box<[CachePadded<AtomicU64>]>,
}

impl LoginThrottle {
    /// Nothing has failed, and nothing waits.
    pub(crate) fn new(cores: u16, connections_max: u32) -> Self {
        let next_ns = || CachePadded::new(AtomicU64::new(NEVER_NS));
        Self {
            attempts: Mutex::new(Attempts::new(cores, connections_max)),
            next_ns: (0..cores).map(|_| next_ns()).collect(),
        }
    }

    /// When a login of this core is called next; [`NEVER_NS`] if none waits. Cost: a load.
    #[inline]
    pub(crate) fn next_ns(&self, core: CoreIndex) -> u64 {
        self.next_ns[core.number()].load(Acquire)
    }

    /// Calls `change`, which must not take another lock. Then calls `wake` with each core whose
    /// next call has become earlier (H1).
    ///
    /// Cost: a lock that all cores share.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Attempts) -> T,
        mut wake: impl FnMut(CoreIndex),
    ) -> T {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut attempts);
        while let Some(core) = attempts.take_changed() {
            let next_ns = attempts.next_ns(core).unwrap_or(NEVER_NS);
            debug_assert!(core.number() < self.next_ns.len(), "a core of this process");
            let before_ns = self.next_ns[core.number()].swap(next_ns, Release); // H1
            if next_ns < before_ns {
                wake(core);
            }
        }
        result
    }
}
