//! The kernel's files about its tracepoints (tracefs), which few machines have mounted.
//!
//! Upstream:   the laboratory, before it attaches programs to tracepoints.
//! Downstream: `unshare` and `mount`.
//!
//! Invariants:
//! - I1  What is mounted here is seen by the calling thread and by what it starts, and goes with
//!   them. The machine stays as it was.

use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::ptr;

use crate::identity::checked;

/// Where the files are: of their own, or within those for debugging.
const FOLDERS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];

/// Makes sure that the calling thread finds the files, by mounting them for itself if nobody has
/// (I1).
///
/// Errors: they are there, but this user may not read them; they are not, and this process may not
/// mount, or the kernel has none.
pub fn provide_tracing_files() -> io::Result<()> {
    for folder in FOLDERS {
        match Path::new(folder).read_dir() {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: takes a number and touches no memory of ours.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    // Mounts in this namespace do not spread to others (I1).
    mount(None, c"/sys", libc::MS_REC | libc::MS_PRIVATE)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount(Some(c"tracefs"), c"/sys/kernel/tracing", flags)?;
    assert!(Path::new(FOLDERS[0]).exists(), "a mounted tracefs has its events");
    Ok(())
}

/// Mounts a file system of this kind, or changes the mount that is there.
fn mount(kind: Option<&CStr>, at: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    let kind = kind.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY:
    // - `kind` is a string that ends in zero, or null, which a change of a mount may give:
    //   mount(2).
    // - `at` is a string that ends in zero: `CStr`.
    // - no data is passed, and both strings outlive the call.
    checked(unsafe { libc::mount(kind, at.as_ptr(), kind, flags, ptr::null()) })
}
