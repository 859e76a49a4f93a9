//! Small files under power cuts and errors.

use std::collections::BTreeSet;

use kachel_io::memory::disk::{Disk, Fault, FaultPlan, PlannedFault};
use kachel_io::{FileError, ManualClock};
use kachel_log::{ROOT_FILE, SMALL_FILE_BYTES_MAX, read_file, replace_file};

use crate::rig::{Rig, delays};

fn read(disk: &Disk) -> Option<Vec<u8>> {
    let task = read_file(disk.folder("store"), ROOT_FILE);
    Rig::new(disk.clone()).run(task, |_| false).expect("it is not cut off").expect("no faults")
}

/// Replaces the file. `cut` is called while each operation is in flight.
fn replace(disk: &Disk, content: &[u8], mut cut: impl FnMut(&Rig)) -> bool {
    let task = replace_file(disk.folder("store"), ROOT_FILE, content);
    let ended = Rig::new(disk.clone()).run(task, |rig| {
        cut(rig);
        false
    });
    ended.expect("it is not cut off").is_ok()
}

#[test]
fn a_power_cut_leaves_the_old_content_or_the_new_one() {
    let disk = Disk::new(1, &ManualClock::new(0));
    assert_eq!(read(&disk), None);
    let (old, new) = (vec![1; 3000], vec![2; SMALL_FILE_BYTES_MAX]);
    assert!(replace(&disk, &old, |_| {}));
    disk.set_plan(delays());
    let (mut seen, mut points) = (BTreeSet::new(), BTreeSet::new());
    assert!(replace(&disk, &new, |rig| {
        for seed in 0..40 {
            let image = rig.disk.crash(seed);
            let content = read(&image).expect("one of the two");
            assert!(content == old || content == new, "of {} bytes", content.len());
            // What was read is durable.
            assert_eq!(read(&image.crash(seed)).as_ref(), Some(&content));
            seen.insert(content.len());
            points.insert(rig.last);
            // An interrupted replacement does not prevent the next one.
            assert!(replace(&image, b"third", |_| {}));
            assert_eq!(read(&image.crash(seed)).as_deref(), Some(b"third".as_slice()));
        }
    }));
    assert_eq!((seen.len(), points.len()), (2, 4), "{points:?}");
    for seed in 0..40 {
        assert_eq!(read(&disk.crash(seed)).as_ref(), Some(&new), "it is durable");
    }
}

#[test]
fn an_operation_that_fails_leaves_the_old_content_or_the_new_one() {
    let faults = [FileError::IO, FileError::NO_SPACE].map(Fault::Error);
    for (number, fault) in (1..10).flat_map(|number| faults.map(|fault| (number, fault))) {
        let disk = Disk::new(number, &ManualClock::new(0));
        assert!(replace(&disk, b"old", |_| {}));
        let planned = vec![PlannedFault { kind: None, number, forever: true, fault }];
        disk.set_plan(FaultPlan { planned, ..delays() });
        let is_replaced = replace(&disk, b"new", |_| {});
        disk.set_plan(delays());
        let content = read(&disk.crash(number)).expect("one of the two");
        assert!(content == b"new" || content == b"old" && !is_replaced);
        assert!(number > 6 || !is_replaced, "operation {number} has failed");
    }
}
