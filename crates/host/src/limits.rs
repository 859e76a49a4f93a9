//! Limits of the kernel on the process: open files, core files, memory that is not swapped.
//!
//! Upstream:   `kachel` at the start, for `-c`, `-r` and `-k`.
//! Downstream: resource limits, `mlockall`, `sysinfo`.

use std::io;

use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files to `wanted`, if it is below. Never lowers it. Returns the limit
/// after that, which is less than `wanted` if the process may not raise its hard limit.
pub fn raise_open_files(wanted: u64) -> u64 {
    raise(Resource::Nofile, wanted)
}

/// Lets a crash leave a core file of any size, as far as the hard limit allows. Returns `false` if
/// a crash leaves no core file.
pub fn allow_core_files() -> bool {
    raise(Resource::Core, u64::MAX) > 0
}

/// Raises the soft limit to `wanted`, or to the hard limit. Returns the new soft limit; `u64::MAX`
/// means that there is none.
fn raise(resource: Resource, wanted: u64) -> u64 {
    let now = getrlimit(resource);
    let (soft, hard) = (now.current.unwrap_or(u64::MAX), now.maximum.unwrap_or(u64::MAX));
    if soft >= wanted {
        return soft;
    }
    let limit = |bound: u64| (bound < u64::MAX).then_some(bound);
    let best = Rlimit { current: limit(wanted), maximum: limit(wanted.max(hard)) };
    if setrlimit(resource, best).is_err() {
        let as_is = Rlimit { current: limit(hard), maximum: limit(hard) };
        let _soft_limit_stays = setrlimit(resource, as_is);
    }
    getrlimit(resource).current.unwrap_or(u64::MAX)
}

/// Lifts the limit on locked memory. Returns `false` if the process may not.
pub fn allow_locked_memory() -> bool {
    raise(Resource::Memlock, u64::MAX) == u64::MAX
}

/// The most memory that all processes of the user together may lock; `None` without a limit.
pub fn locked_memory_bytes_max() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// Has the calling thread give way to other threads: while they need all cores, it gets about a
/// tenth of the time that one of them gets. Where the kernel forbids that, nothing changes.
pub fn give_way() {
    let _forbidden = rustix::process::nice(10);
}

/// Keeps all present and future memory from being swapped out. A page is locked when it is first
/// touched, so address space that is only reserved still costs nothing.
///
/// Errors: there is a limit on locked memory, which later reservations would reach. See
/// [`allow_locked_memory`].
pub fn lock_memory() -> io::Result<()> {
    if getrlimit(Resource::Memlock).current.is_some() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    rustix::mm::mlockall(all)?;
    Ok(())
}

/// Bytes of memory of the machine.
pub fn physical_memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    machine.totalram.saturating_mul(u64::from(machine.mem_unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_open_files_is_raised_and_never_lowered() {
        let before = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert_eq!(raise_open_files(1), before, "not lowered");
        let after = raise_open_files(before.saturating_add(1));
        assert!(after >= before, "{before} before, {after} after");
    }

    #[test]
    fn the_machine_has_memory() {
        assert!(physical_memory_bytes() > 1 << 20);
    }
}
