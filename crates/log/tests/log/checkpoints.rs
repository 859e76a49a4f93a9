//! Owners that have the records below a sequence in files of their own, with their positions.

use kachel_log::{AppendRefused, SyncMode, open_log};

use crate::rig::{Collected, Model, Opened, Owner, Rig, disk_with_log, options};

/// Opens the log again for an owner that has `known`, the records below `from`.
fn reopen(owner: Owner, known: &Collected, from: u64) -> (Owner, Collected) {
    let (disk, model) = (owner.rig.disk.clone(), owner.model.clone());
    drop(owner);
    let mut options = options(&disk, SyncMode::Always);
    options.from = from;
    let mut rig = Rig::new(disk);
    let task = open_log(options, Collected::default());
    let opened: Opened = rig.run(task, |_| false).expect("it is not cut off");
    let (log, found) = opened.unwrap_or_else(|refusal| panic!("{refusal}"));
    let mut all = known.clone();
    all.0.extend(found.0.clone());
    let mut owner = Owner::over(rig, log, &all, SyncMode::Always, model, 3);
    for (sequence, (_, position)) in &all.0 {
        let payload = owner.read(*position).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(payload, owner.model.entries[sequence].2, "record {sequence}");
    }
    (owner, found)
}

fn append(owner: &mut Owner, known: &mut Collected, bytes: usize) {
    loop {
        let sequence = owner.log.next_sequence();
        match owner.append(bytes, 0) {
            Ok(position) => {
                let entry = owner.model.entries[&sequence].clone();
                known.0.insert(sequence, (entry, position));
                return owner.settle();
            }
            Err(AppendRefused::Wait) => drop(owner.pump(|_, _| {})),
            Err(refused) => panic!("{refused:?}"),
        }
    }
}

/// The records that the owner has keep their positions, or are given to it again.
#[test]
fn every_record_is_read_by_a_known_position_after_starts_that_have_moved_it() {
    // The owner has the records of the last segment, but for this number. Without any, the segment
    // is full.
    for later in [0, 1, 4] {
        let disk = disk_with_log(2);
        let mut owner = Owner::new(disk, SyncMode::Always, Model::default(), 2);
        let mut known = Collected::default();
        while owner.log.closed().count() < 2 {
            append(&mut owner, &mut known, 2000);
        }
        append(&mut owner, &mut known, 300);
        let longest = owner.log.geometry().payload_bytes_max();
        for _ in later..3 {
            append(&mut owner, &mut known, longest);
        }
        let from = owner.log.next_sequence();
        let last = owner.log.closed().map(|closed| closed.end).max().expect("two are closed");
        for _ in 0..later {
            append(&mut owner, &mut Collected::default(), 300);
        }
        let (mut owner, found) = reopen(owner, &known, from);
        assert_eq!(found.0.first_key_value().map(|(&first, _)| first), Some(last), "{later}");
        // The segment that has moved is closed.
        while owner.log.closed().count() < 3 {
            append(&mut owner, &mut Collected::default(), longest);
        }
        let moved = owner.log.closed().map(|closed| closed.end).max();
        assert_eq!(moved == Some(from), later == 0);
        let (_, found) = reopen(owner, &known, from);
        assert_eq!(found.0.first_key_value().map(|(&first, _)| first), Some(last), "{later}");
    }
}
