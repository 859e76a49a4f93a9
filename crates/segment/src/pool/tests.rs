//! The pool: segments that come back, and what is charged.

use super::*;

#[test]
fn segments_are_a_256th_of_a_shards_share() {
    assert_eq!(segment_bytes_for(64 << 20, 1), 256 << 10);
    assert_eq!(segment_bytes_for(64 << 20, 4), 64 << 10);
    assert_eq!(segment_bytes_for(100 << 20, 1), 256 << 10);
    assert_eq!(segment_bytes_for(64 << 30, 16), 1 << 20);
    assert_eq!(segment_bytes_for(64 << 20, 60), 64 << 10);
    assert_eq!(segment_bytes_for(64 << 20, 64), 32 << 10);
    assert_eq!(segment_bytes_for(1 << 20, 0), 32 << 10);
}

#[test]
fn a_segment_comes_back_once_no_reader_can_be_in_it() {
    let budget = Arc::new(Budget::new(1 << 20));
    let options = PoolOptions { engines: 1, reserve_bytes: 0, ..PoolOptions::default() };
    let pool = Pool::new(Arc::clone(&budget), options).expect("a megabyte of addresses");
    let mut reader = pool.register_reader().expect("a place");
    let taken: Vec<u32> = std::iter::from_fn(|| pool.take(0, None)).collect();
    pool.give(taken[3], None);
    assert!(!pool.may_take(None) && pool.take(0, None).is_none(), "the reader may be in it");
    assert!(!pool.release_idle(pool.charge_bytes(), None), "and its pages stay");
    reader.round_over();
    assert_eq!(pool.take(0, None), Some(taken[3]));
    pool.give(taken[4], None);
    reader.sleep();
    assert!(pool.may_take(None), "who sleeps reads nothing");
    reader.wake();
    pool.give(taken[5], None);
    assert_eq!((pool.take(0, None), pool.take(0, None)), (Some(taken[4]), None));
    drop(reader);
    assert_eq!(pool.take(0, None), Some(taken[5]));
    assert_eq!(budget.spent_bytes(), taken.len() as u64 * pool.charge_bytes(), "I1");
}

#[test]
fn what_the_table_of_blocks_backs_is_charged() {
    let budget = Arc::new(Budget::new(16 << 20));
    let options = PoolOptions { engines: 1, reserve_bytes: 0, ..PoolOptions::default() };
    let pool = Pool::new(Arc::clone(&budget), options).expect("addresses");
    // Values of one block: as many extents as blocks.
    let mut uploads = Vec::new();
    while let Ok(mut upload) = pool.begin_upload(BLOCK_BYTES)
        && upload.write(&[7; BLOCK_BYTES]).is_ok()
    {
        uploads.push(upload);
    }
    let blocks = uploads.len() + pool.free_blocks();
    let segments = blocks / pool.blocks_per_segment();
    // Links and owner of each block, first block and state of each extent.
    let table_bytes = blocks * 16 + uploads.len() * 16;
    let backed_bytes = segments * (pool.segment_bytes() + META_BYTES) + table_bytes;
    assert!(budget.spent_bytes() >= backed_bytes as u64, "of {backed_bytes}");
}

#[test]
fn idle_segments_stay_charged_until_released() {
    let budget = Arc::new(Budget::new(1 << 20));
    let options = PoolOptions { engines: 1, reserve_bytes: 0, ..PoolOptions::default() };
    let pool = Pool::new(Arc::clone(&budget), options).expect("a megabyte of addresses");
    let taken: Vec<u32> = std::iter::from_fn(|| pool.take(0, None)).collect();
    assert_eq!(taken.len(), 31, "32 segments and their lines do not fit");
    for &segment in &taken {
        pool.give(segment, None);
    }
    assert_eq!(budget.spent_bytes(), 31 * pool.charge_bytes());
    assert_eq!(pool.take(0, None), taken.last().copied(), "what was given last comes first");
    assert!(pool.release_idle(30 * pool.charge_bytes(), None));
    assert_eq!(budget.spent_bytes(), pool.charge_bytes());
    assert!(!pool.release_idle(1 << 20, None), "the taken one cannot be released");
}
