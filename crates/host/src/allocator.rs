//! The allocator of the C library, where address space is scarce.
//!
//! Upstream:   `kachel`, before it starts its threads.
//! Downstream: `mallopt`, of the GNU C library only.
//!
//! That library gives each thread an arena of its own. For each arena it reserves 64 MiB of address
//! space, and 64 MiB more for a moment. Shards allocate nothing for a request, so one arena is
//! enough for all.

/// Makes all threads that are started from now on share one arena.
///
/// Cost: threads that allocate at the same time wait for each other.
pub fn share_one_arena() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: `mallopt` takes two numbers, and changes the allocator's own state under a lock.
        // An allocator that stands in for the library's, as a sanitizer's does, ignores it.
        let _ignored_elsewhere = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}
