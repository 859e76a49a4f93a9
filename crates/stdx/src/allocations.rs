//! An allocator that counts, for tests that a piece of work allocates nothing, or keeps little.
//!
//! Upstream:   a test binary makes [`CountingAllocator`] its `#[global_allocator]`; `segment` keeps
//!             the audit of its debug builds out of the count.
//! Downstream: the system's allocator.
//!
//! Invariants:
//! - I1  Only allocations of the thread itself inside [`counted`], and outside [`uncounted`], are
//!   counted. A test harness, other tests and other threads do not disturb the count.
//! - I2  The number of allocations says nothing of frees. The bytes that are kept are those that
//!   were allocated less those that were freed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;

/// The places of this many allocations of one piece of work are printed when `KACHEL_ALLOCATIONS`
/// is set.
const SHOWN_MAX: u32 = 5;

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static KEPT_BYTES: Cell<i64> = const { Cell::new(0) };
    static TO_SHOW: Cell<u32> = const { Cell::new(0) };
}

/// Runs `work`. Returns its result, and how often it allocated or reallocated memory.
///
/// Prints the places of the first few allocations if the environment has `KACHEL_ALLOCATIONS`.
pub fn counted<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let shown = std::env::var_os("KACHEL_ALLOCATIONS").map_or(0, |_| SHOWN_MAX);
    TO_SHOW.set(shown);
    let before = COUNT.get();
    let outer = COUNTING.replace(true);
    let done = work();
    COUNTING.set(outer);
    (done, COUNT.get() - before)
}

/// Runs `work`. Returns its result, and by how many bytes the memory grew that this thread has
/// allocated and not freed; less than 0 if it shrank.
pub fn kept<R>(work: impl FnOnce() -> R) -> (R, i64) {
    let before = KEPT_BYTES.get();
    let outer = COUNTING.replace(true);
    let done = work();
    COUNTING.set(outer);
    (done, KEPT_BYTES.get() - before)
}

/// Runs `work` without counting, also inside [`counted`].
pub fn uncounted<R>(work: impl FnOnce() -> R) -> R {
    let outer = COUNTING.replace(false);
    let done = work();
    COUNTING.set(outer);
    done
}

/// The system's allocator, with a count of each thread's allocations (I1).
#[derive(Debug)]
pub struct CountingAllocator;

/// Notes that the memory of this thread grows by so many bytes, or shrinks (I1).
fn note_bytes(grown: usize, shrunk: usize) {
    // A layout has at most `isize::MAX` bytes.
    let bytes = grown as i64 - shrunk as i64;
    KEPT_BYTES.set(KEPT_BYTES.get() + bytes * i64::from(COUNTING.get()));
}

fn note() {
    if !COUNTING.get() {
        return;
    }
    COUNT.set(COUNT.get() + 1);
    let to_show = TO_SHOW.get();
    if to_show > 0 {
        TO_SHOW.set(to_show - 1);
        uncounted(|| eprintln!("an allocation at\n{}", Backtrace::force_capture()));
    }
}

// SAFETY:
// - every call is passed on to the system's allocator, unchanged.
// - `note` and `note_bytes` do not unwind: they change thread-local numbers, and print only when
//   asked to.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        note_bytes(layout.size(), 0);
        // SAFETY:
        // - the layout is valid: discharged by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        note_bytes(layout.size(), 0);
        // SAFETY:
        // - the layout is valid: discharged by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note();
        note_bytes(bytes, layout.size());
        // SAFETY:
        // - it came from here with this layout, and `bytes` is valid: discharged by the caller.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note_bytes(0, layout.size());
        // SAFETY:
        // - it came from here with this layout: discharged by the caller.
        unsafe { System.dealloc(memory, layout) };
    }
}
