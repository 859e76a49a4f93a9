//! The I/O backends that this machine has.
//!
//! Upstream:   suites that start servers with `--io`.
//! Downstream: `kachel_io`, which opens a ring; a line `skip io_uring ...`, which `./test` counts.

use std::io::ErrorKind;
use std::sync::OnceLock;

use kachel_io::{Limits, Uring};

use crate::output::skip;

/// Whether a server can be started with `--io` and this backend; if not, prints a skip line.
///
/// # Panics
/// If a ring cannot be opened for another reason than that the kernel forbids it.
pub fn is_usable(io: &str) -> bool {
    static HAS_URING: OnceLock<bool> = OnceLock::new();
    io != "uring" || *HAS_URING.get_or_init(has_uring)
}

fn has_uring() -> bool {
    match Uring::new(Limits::default()) {
        Ok(uring) => {
            // The kernel interrupts calls of this process when it takes a ring down.
            std::mem::forget(uring);
            true
        }
        Err(error)
            if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) =>
        {
            skip("io_uring", &format!("the kernel forbids it: {error}"));
            false
        }
        Err(error) => panic!("{error}"),
    }
}
