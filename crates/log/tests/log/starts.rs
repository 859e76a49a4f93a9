//! What a start costs, and what its copy of the last segment says.

use kachel_log::{Cause, SyncMode};

use crate::damage::opened;
use crate::rig::{Model, Owner, Rig, disk_with_log, open};

#[test]
fn a_start_waits_for_the_disk_as_often_for_one_commit_as_for_many() {
    let syncs = [1, 12].map(|commits| {
        let mut owner = Owner::new(disk_with_log(1), SyncMode::Always, Model::default(), 1);
        for _ in 0..commits {
            owner.append(1000, 0).expect("there is room");
            owner.settle();
        }
        let mut rig = Rig::new(owner.rig.disk.clone());
        let opened = rig.run(open(&owner.rig.disk, SyncMode::Always), |_| false);
        assert!(opened.expect("it is not cut off").is_ok());
        rig.syncs
    });
    // Before the first write; the space and the headers of a segment for the copy, and of the next
    // one; the copy; its header, and that of the original.
    println!("syncs and durable writes: {syncs:?}");
    assert!(syncs[0] == syncs[1] && syncs[0] <= 16, "{syncs:?}");
}

/// Nothing was written behind the copy, and still its end cannot be taken for the end of the log.
#[test]
fn damage_in_the_last_commit_of_a_copy_is_refused() {
    let mut owner = Owner::new(disk_with_log(1), SyncMode::Always, Model::default(), 1);
    for _ in 0..3 {
        owner.append(1000, 0).expect("there is room");
        owner.settle();
    }
    let (disk, copied) = opened(&owner.rig.disk.image().remove(0).1);
    let (_, found) = copied.expect("it is not damaged");
    let mut damaged = disk.image().remove(0).1;
    let (last, (_, position)) = found.0.last_key_value().expect("three");
    damaged[position.offset as usize + 500] ^= 1;
    let refusal = opened(&damaged).1.expect_err("it was durable");
    assert_eq!(refusal.cause, Cause::Damaged(Some(*last)));
    assert_eq!(refusal.offset, Some(position.offset));
}
