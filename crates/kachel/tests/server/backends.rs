//! Which ways of asking the kernel this machine has.
//!
//! Upstream:   suites that start servers with `--io`.
//! Downstream: `kachel_io`, which opens one; a line `skip io_uring ...`, which `./test` counts.

use std::io::Write as _;
use std::sync::OnceLock;

use kachel_io::{Limits, Uring};

/// Whether a server can be started with `--io` and this backend; if not, a line says so.
pub(crate) fn is_usable(io: &str) -> bool {
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
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            let line = format!("\nskip io_uring the kernel forbids it: {error}\n");
            std::io::stderr().write_all(line.as_bytes()).expect("someone listens");
            false
        }
        Err(error) => panic!("{error}"),
    }
}
