//! The death of large values needs no memory, because it happens while a request is served.
//!
//! Alone in its process, because the allocator is the process's.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;

use kachel_host::Budget;
use kachel_segment::{Pool, PoolOptions, Upload};
use kachel_stdx::{CountingAllocator, counted};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Longer than what is freed at once, so blocks of each remain.
const VALUE_BYTES: usize = 9 << 20;

/// The fault: the lists of dead values, and of their numbers, grew when values died.
#[test]
fn large_values_die_without_an_allocation() {
    let budget = Arc::new(Budget::new(64 << 20));
    let options = PoolOptions { engines: 1, ..PoolOptions::default() };
    let pool = Pool::new(budget, options).expect("address space");
    let upload = |_| -> Upload {
        let mut upload = pool.begin_upload(VALUE_BYTES).expect("less than all memory");
        upload.write(&vec![7; VALUE_BYTES]).expect("memory suffices");
        upload
    };
    let mut values = [0; 5].map(upload).map(Some);
    let ((), allocations) = counted(|| values.iter_mut().for_each(|value| *value = None));
    assert_eq!(allocations, 0, "the death of {} values", values.len());
    assert!(pool.books().free_blocks > 0, "not all blocks are freed at once");
}
