//! Tells the service manager how the server does, and the operator if that fails.
//!
//! Upstream:   `serve` at the start and at the end; `restart` while items are loaded and saved.
//! Downstream: `host`, which speaks the manager's protocol.
//!
//! Invariants:
//! - I1  A manager that cannot be told is no reason to end: it is reported, and the server goes on.

use kachel_host::ServiceState;

/// Tells the service manager, if there is one (I1).
pub(crate) fn tell(state: ServiceState) {
    if let Err(error) = kachel_host::tell_service_manager(state) {
        say!(Warning, "NOTIFY_SOCKET: the service manager cannot be told {state:?}: {error}");
    }
}
