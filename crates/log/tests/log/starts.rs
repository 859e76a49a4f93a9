//! What a start costs, and what its copy of the last segment says.

use kachel_log::{Cause, FoundRecord, Replay, SEGMENT_BYTES_MIN, SyncMode, open_log};

use crate::damage::{disk_of, opened};
use crate::rig::{Collected, Model, Owner, Rig, disk_with_log, open, options};

/// An owner that notes what a start tells it.
#[derive(Default)]
struct Told {
    collected: Collected,
    progress: Vec<(u64, u64)>,
    cut_short: Vec<u64>,
}

impl Replay for Told {
    fn record(&mut self, found: FoundRecord<'_>) -> Result<(), String> {
        self.collected.record(found)
    }

    fn progress(&mut self, done_bytes: u64, of_bytes: u64) {
        self.progress.push((done_bytes, of_bytes));
    }

    fn cut_short(&mut self, offset: u64) {
        self.cut_short.push(offset);
    }
}

/// What a start over a file of this content tells.
fn told(content: &[u8]) -> Told {
    let disk = disk_of(content);
    let task = open_log(options(&disk, SyncMode::Always), Told::default());
    let opened = Rig::new(disk.clone()).run(task, |_| false).expect("it is not cut off");
    opened.unwrap_or_else(|refusal| panic!("{refusal}")).1
}

#[test]
fn a_start_tells_how_far_it_is_and_where_a_crash_has_cut_the_log_short() {
    let mut owner = Owner::new(disk_with_log(1), SyncMode::Always, Model::default(), 1);
    while owner.log.closed().count() < 3 {
        owner.append(3000, 0).ok();
        owner.settle();
    }
    let mut append = || owner.append(3000, 0).expect("there is room");
    let [_, _, last] = [append(), append(), append()];
    owner.settle();
    let mut content = owner.rig.disk.image().remove(0).1;
    let whole = told(&content);
    let (first, last_told) = (whole.progress[0], whole.progress[whole.progress.len() - 1]);
    assert!(whole.progress.is_sorted() && whole.progress.len() > 3, "{:?}", whole.progress);
    assert!(first.0 == SEGMENT_BYTES_MIN && last_told.0 == last_told.1, "{:?}", whole.progress);
    assert_eq!(whole.cut_short, []);
    // The last of the three records of the last commit is not there.
    content[last.offset as usize + 100] ^= 1;
    let torn = told(&content);
    assert_eq!(torn.cut_short, [last.offset]);
    assert_eq!(torn.collected.0.len() + 1, whole.collected.0.len());
}

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
