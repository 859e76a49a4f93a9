//! Memory of uploads that is lent, so that bytes are received into their final place.

use kachel_stdx::{LANDING_PIECES_MAX, Landing};

use super::index::{Random, Shard, pattern};
use crate::{BLOCK_BYTES, NewValue, Upload};

/// Writes the next bytes of `value` as a kernel would: as much as there is, over the slices.
fn receive(landing: &mut Landing, bytes: &[u8]) -> usize {
    let mut left = bytes;
    let (mut slices, count) = landing.slices();
    for slice in &mut slices[..count] {
        let (piece, later) = left.split_at(left.len().min(slice.len()));
        slice[..piece.len()].copy_from_slice(piece);
        left = later;
    }
    bytes.len() - left.len()
}

/// Fills an upload: the `first` bytes are written, the others come by landings of at most `cut`
/// bytes.
fn land_all(upload: &mut Upload, landing: &mut Landing, value: &[u8], first: usize, cut: usize) {
    upload.write(&value[..first]).expect("memory is free");
    let mut at = first;
    while at < value.len() {
        upload.landing(landing, LANDING_PIECES_MAX).expect("memory is free");
        assert!(landing.piece_bytes() <= LANDING_PIECES_MAX * BLOCK_BYTES);
        let came = receive(landing, &value[at..value.len().min(at + cut)]);
        at += upload.landed(landing, came);
    }
    assert_eq!(upload.missing_bytes(), 0);
}

#[test]
fn a_value_is_the_same_wherever_its_landings_are_cut() {
    let mut shard = Shard::new(16 << 20, true);
    let mut landing = shard.segments.pool().spare_landing();
    let near = |bytes: usize| [bytes - 1, bytes, bytes + 1];
    let sizes = [near(BLOCK_BYTES), near(2 * BLOCK_BYTES), near(100_000), near(300_000)];
    for (seed, bytes) in sizes.into_iter().flatten().enumerate() {
        let value = pattern(seed as u64, bytes);
        for first in [1, 100, BLOCK_BYTES - 1] {
            for cut in [977, BLOCK_BYTES - 1, BLOCK_BYTES, 40_000, usize::MAX / 2] {
                let mut upload = shard.segments.pool().begin_upload(bytes).expect("it fits");
                land_all(&mut upload, &mut landing, &value, first, cut);
                shard
                    .store(shard.new_item(b"key", NewValue::Upload(&mut upload)), 9)
                    .expect("it fits");
                assert!(shard.value(b"key").as_ref() == Some(&value), "{bytes} {first} {cut}");
            }
        }
        shard.segments.audit();
    }
    assert!(shard.delete(b"key"));
    assert_eq!(shard.segments.pool().free_blocks(), 0, "no block segment is left");
}

#[test]
fn landings_and_writes_may_follow_each_other_in_any_order() {
    let mut shard = Shard::new(16 << 20, true);
    let mut random = Random(7);
    let mut landing = shard.segments.pool().spare_landing();
    for round in 0..300 {
        let value = pattern(round, BLOCK_BYTES + random.below(150_000) as usize);
        let mut upload = shard.segments.pool().begin_upload(value.len()).expect("it fits");
        while upload.missing_bytes() > 0 {
            let at = value.len() - upload.missing_bytes();
            let wanted = 1 + random.below(40_000) as usize;
            if random.below(2) == 0 && at > 0 {
                upload.landing(&mut landing, LANDING_PIECES_MAX).expect("memory is free");
                // With 0 bytes, the landing comes back empty, as if the backend had refused it.
                let wanted = if random.below(4) == 0 { 0 } else { wanted };
                let came = receive(&mut landing, &value[at..value.len().min(at + wanted)]);
                assert_eq!(upload.landed(&mut landing, came), came);
            } else {
                upload.write(&value[at..value.len().min(at + wanted)]).expect("memory is free");
            }
        }
        shard.store(shard.new_item(b"key", NewValue::Upload(&mut upload)), 9).expect("it fits");
        assert!(shard.value(b"key") == Some(value), "round {round}");
    }
    shard.segments.audit();
}

#[test]
fn what_follows_the_value_is_left_in_the_spill() {
    let shard = Shard::new(16 << 20, true);
    let pool = shard.segments.pool();
    let mut landing = pool.spare_landing();
    for bytes in [2 * BLOCK_BYTES, 30_000] {
        let mut upload = pool.begin_upload(bytes).expect("it fits");
        upload.write(&vec![1; 20_000]).expect("memory is free");
        upload.landing(&mut landing, LANDING_PIECES_MAX).expect("memory is free");
        let came = receive(&mut landing, &[&vec![2; bytes - 20_000][..], b"\r\nget"].concat());
        assert_eq!(landing.spilled(came), b"\r\nget");
        assert_eq!(upload.landed(&mut landing, came), bytes - 20_000);
        assert_eq!(upload.missing_bytes(), 0);
    }
    let mut upload = pool.begin_upload(1 << 20).expect("it fits");
    upload.write(&vec![1; 20_000]).expect("memory is free");
    upload.landing(&mut landing, LANDING_PIECES_MAX).expect("memory is free");
    assert_eq!(landing.room(), landing.piece_bytes(), "bytes of the value follow, no spill");
    upload.landed(&mut landing, 0);
}

#[test]
fn memory_is_lent_in_proportion_to_what_has_come() {
    let shard = Shard::new(16 << 20, true);
    let pool = shard.segments.pool();
    let mut landing = pool.spare_landing();
    let before = pool.upload_room_bytes();
    let mut upload = pool.begin_upload(3 << 20).expect("it fits");
    assert_eq!(upload.landing_bytes(LANDING_PIECES_MAX), 0, "nothing has come");
    upload.write(&[1; 10]).expect("memory is free");
    for blocks in [1, 2, 4, 8, 16, 32, 48] {
        upload.landing(&mut landing, LANDING_PIECES_MAX).expect("memory is free");
        assert_eq!(before - pool.upload_room_bytes(), (blocks * BLOCK_BYTES) as u64);
        let room = landing.room();
        upload.landed(&mut landing, room);
    }
}

/// All blocks of an upload come back, but only after a landing that is out has come back.
#[test]
fn a_landing_that_outlives_its_upload_keeps_the_memory_until_it_is_gone() {
    let shard = Shard::new(16 << 20, true);
    let pool = shard.segments.pool();
    let before = pool.upload_room_bytes();
    for bytes in [BLOCK_BYTES, 30_000, 2 * BLOCK_BYTES + 1, 200_000] {
        for written in [1, BLOCK_BYTES - 1, BLOCK_BYTES, 20_000, 2 * BLOCK_BYTES, 180_000] {
            for landing_goes_first in [false, true] {
                if written >= bytes {
                    continue;
                }
                let mut landing = pool.spare_landing();
                let mut upload = pool.begin_upload(bytes).expect("it fits");
                upload.write(&vec![1; written]).expect("memory is free");
                upload.landing(&mut landing, LANDING_PIECES_MAX).expect("memory is free");
                let taken = before - pool.upload_room_bytes();
                if landing_goes_first {
                    drop(landing);
                    drop(upload);
                } else {
                    drop(upload);
                    // Other uploads get no block to which the kernel may still write.
                    let mut other = pool.begin_upload(bytes).expect("it fits");
                    other.write(&vec![2; bytes]).expect("memory is free");
                    let room = landing.room();
                    receive(&mut landing, &vec![3; room]);
                    let kept = other.pieces().all(|piece| piece.iter().all(|&byte| byte == 2));
                    assert!(kept, "the kernel wrote into another's value");
                    drop(other);
                    let still = before - pool.upload_room_bytes();
                    let lent = (landing.piece_bytes().div_ceil(BLOCK_BYTES) * BLOCK_BYTES) as u64;
                    assert!((lent..=taken).contains(&still), "{lent} of {still} bytes are lent");
                    drop(landing);
                }
                assert_eq!(pool.upload_room_bytes(), before, "{bytes} {written}");
            }
        }
    }
    assert_eq!(pool.free_blocks(), 0);
}

#[test]
fn without_memory_there_is_no_landing_and_nothing_changes() {
    let shard = Shard::new(2 << 20, true);
    let pool = shard.segments.pool();
    let mut landing = pool.spare_landing();
    let mut hog = pool.begin_upload(2 << 20).expect("it fits");
    let mut upload = pool.begin_upload(1 << 20).expect("it fits");
    upload.write(&[1; BLOCK_BYTES]).expect("memory is free");
    while hog.write(&[1; BLOCK_BYTES]).is_ok() {}
    assert!(upload.landing(&mut landing, LANDING_PIECES_MAX).is_err());
    assert_eq!((landing.room(), pool.upload_room_bytes()), (0, 0));
    drop(hog);
    upload.landing(&mut landing, LANDING_PIECES_MAX).expect("memory is free again");
    upload.landed(&mut landing, 0);
    upload.write(&vec![1; (1 << 20) - BLOCK_BYTES]).expect("memory is free");
}

#[test]
#[should_panic(expected = "U4")]
fn an_upload_is_not_written_beside_its_landing() {
    let shard = Shard::new(2 << 20, true);
    let mut landing = shard.segments.pool().spare_landing();
    let mut upload = shard.segments.pool().begin_upload(100_000).expect("it fits");
    upload.write(&[1; 10]).expect("memory is free");
    upload.landing(&mut landing, LANDING_PIECES_MAX).expect("memory is free");
    let _written = upload.write(&[1; 10]);
}
