//! The processor time of the process, and random numbers of the kernel.
//!
//! Upstream:   `stats` and the load generator's meter read the time; `kachel` makes secrets.
//! Downstream: `getrusage`, `getrandom`.

use std::io;
use std::mem::MaybeUninit;

use rustix::rand::GetRandomFlags;

/// Processor time of the whole process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Microseconds in the process's own code.
    pub user_us: u64,
    /// Microseconds in the kernel on its behalf.
    pub system_us: u64,
}

/// The processor time that the process has used so far. Cost: one system call.
pub fn usage() -> Usage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: there is room for one `rusage`.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(failed, 0, "the kernel knows RUSAGE_SELF");
    // SAFETY: zeroed above, and zeros are valid; filled by the call.
    let usage = unsafe { usage.assume_init() };
    let microseconds = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000
            + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    Usage { user_us: microseconds(usage.ru_utime), system_us: microseconds(usage.ru_stime) }
}

/// Two random words from the kernel, fit for secrets. The call waits until the kernel's generator
/// is ready.
///
/// Errors: a kernel without `getrandom`.
pub fn entropy() -> io::Result<[u64; 2]> {
    let mut bytes = [0u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let both = u128::from_ne_bytes(bytes);
    Ok([both as u64, (both >> 64) as u64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_not_the_same_twice() {
        let (first, second) = (entropy().expect("words"), entropy().expect("words"));
        assert!(first != second && first[0] != first[1]);
    }

    #[test]
    fn used_time_only_grows() {
        let before = usage();
        let mut sum = 0u64;
        let mut after = usage();
        // Bounded by the time that the loop itself uses.
        while after == before {
            sum = std::hint::black_box(sum + 1);
            after = usage();
        }
        assert!(after.user_us >= before.user_us && after.system_us >= before.system_us);
    }
}
