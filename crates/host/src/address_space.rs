//! Address space: how much the process may have, and the error message when the kernel refuses it.
//!
//! Upstream:   `region` reserves; `kachel` decides how much it should reserve.
//! Downstream: resource limits, and the kernel's setting in `/proc/sys/vm`.
//!
//! Reserved memory costs nothing until it is touched, unless the process has a limit, or the kernel
//! counts reserved memory as used (`vm.overcommit_memory` is 2).

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// The kernel's setting for counting reserved memory; 2 means strictly.
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";

/// Whether address space costs nothing: the process has no limit on it, and the kernel does not
/// count it as used.
///
/// Cost: two system calls, and a file read.
pub fn is_address_space_free() -> bool {
    bounds().is_empty()
}

/// The bounds of the process's address space, as text to append to a message; empty if there are
/// none.
pub fn address_space_bounds() -> String {
    let bounds = bounds();
    if bounds.is_empty() { String::new() } else { format!("; {}", bounds.join(", and ")) }
}

fn bounds() -> Vec<String> {
    let limit = |resource| getrlimit(resource).current;
    let space = limit(Resource::As).map(|bytes| {
        format!("the process may have {} MiB in all (RLIMIT_AS, `ulimit -v`)", bytes >> 20)
    });
    let data = limit(Resource::Data).map(|bytes| {
        format!("its data may take {} MiB in all (RLIMIT_DATA, `ulimit -d`)", bytes >> 20)
    });
    let overcommit = std::fs::read_to_string(OVERCOMMIT).unwrap_or_default();
    let strict = (overcommit.trim() == "2").then(|| {
        "the kernel counts reserved memory as used (vm.overcommit_memory is 2)".to_owned()
    });
    [space, data, strict].into_iter().flatten().collect()
}

/// The error for `bytes` of address space that the kernel refuses. It names their purpose.
pub(crate) fn refusal(bytes: usize, purpose: &str, errno: Errno) -> io::Error {
    let error = io::Error::from(errno);
    let mib = bytes.div_ceil(1 << 20);
    let bounds = address_space_bounds();
    io::Error::new(
        error.kind(),
        format!("the kernel refuses {mib} MiB of address space for {purpose}: {error}{bounds}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_how_much_for_what_and_why() {
        let refused = refusal((3 << 20) + 1, "items", Errno::NOMEM);
        assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
        let said = refused.to_string();
        let wanted = "the kernel refuses 4 MiB of address space for items: Cannot allocate memory";
        assert!(said.starts_with(wanted), "{said}");
        assert_eq!(said.contains("; "), !is_address_space_free(), "{said}");
    }
}
