//! What a log does while the disk works.

use kachel_io::AlignedBuffer;
use kachel_log::{AppendRefused, Completed, DurableLog, Position, ReadFault, SyncMode, UNIT_BYTES};

use crate::rig::{Collected, Model, Owner, SEGMENTS, delays, disk_with_log};

fn owner(mode: SyncMode) -> Owner {
    Owner::new(disk_with_log(1), mode, Model::default(), 1)
}

#[test]
fn what_is_appended_during_a_commit_is_one_commit() {
    let mut owner = owner(SyncMode::Always);
    owner.append(10, 0).unwrap();
    owner.settle();
    let before = owner.rig.submitted;
    owner.append(10, 0).unwrap();
    let first = owner.log.next_submission().expect("a commit");
    for _ in 0..50 {
        owner.append(100, 0).unwrap();
    }
    assert!(owner.log.next_submission().is_none(), "one is in flight");
    owner.rig.submit(first);
    owner.settle();
    assert_eq!(owner.rig.submitted - before, 2, "two commits");
}

#[test]
fn a_record_is_read_by_its_position_until_its_segment_is_freed() {
    let mut owner = owner(SyncMode::Always);
    owner.rig.disk.set_plan(delays());
    let mut positions = Vec::new();
    while owner.log.closed().count() < 2 {
        let sequence = owner.log.next_sequence();
        match owner.append(1000, 0) {
            Ok(position) => positions.push((sequence, position)),
            Err(AppendRefused::Wait) => drop(owner.pump(|_, _| {})),
            Err(refused) => panic!("{refused:?}"),
        }
    }
    owner.settle();
    for (sequence, position) in positions.clone() {
        let payload = owner.read(position).expect("it is there");
        assert_eq!(payload, owner.model.entries[&sequence].2);
    }
    let (_, position) = positions[0];
    let moved = Position { offset: position.offset + 8, ..position };
    let Err(refusal) = owner.read(moved) else { panic!("no record") };
    let offset = moved.offset;
    assert_eq!(
        refusal.to_string(),
        format!("data/log, offset {offset}: what was durable here is damaged")
    );
    // The read begins before the segment is freed, and ends after that.
    let victim = owner.log.closed().next().expect("two are closed");
    let buffer = AlignedBuffer::new(position.buffer_bytes(), UNIT_BYTES);
    owner.log.read(1, position, buffer);
    let begun = owner.log.next_submission().expect("the read");
    owner.log.free(victim.segment);
    while owner.log.closed().count() > 1 || !owner.log.is_idle() {
        let Some(operation) = owner.log.next_submission() else { break };
        owner.rig.submit(operation);
        owner.rig.completions().for_each(|done| drop(owner.log.complete(done)));
    }
    owner.rig.submit(begun);
    let done = owner.rig.completions().map(|done| owner.log.complete(done));
    let outcomes: Vec<_> = done
        .map(|done| {
            matches!(done, Completed::Read(read)
        if read.outcome == Err(ReadFault::Gone))
        })
        .collect();
    assert_eq!(outcomes, [true]);
}

#[test]
fn a_full_log_takes_what_may_use_the_reserve_and_heals_when_segments_are_freed() {
    let mut owner = owner(SyncMode::Always);
    let fill = |owner: &mut Owner, spares| {
        for _ in 0..10_000 {
            match owner.append(2000, spares) {
                Ok(_) => {}
                Err(AppendRefused::Wait) => drop(owner.pump(|_, _| {})),
                Err(refused) => return refused,
            }
        }
        panic!("it is never full");
    };
    for spares in [2, 1, 0] {
        assert_eq!(fill(&mut owner, spares), AppendRefused::NoSpace);
        owner.settle();
        assert_eq!(owner.log.spares(), spares, "of {SEGMENTS}");
    }
    let next = owner.log.next_sequence();
    owner.free_one();
    owner.settle();
    assert_eq!(owner.append(2000, 1), Err(AppendRefused::NoSpace), "it leaves one");
    assert_eq!(fill(&mut owner, 0), AppendRefused::NoSpace);
    owner.settle();
    assert!(owner.log.next_sequence() > next + 20, "the segment was used again");
    let disk = owner.rig.disk.crash(1);
    Owner::new(disk, SyncMode::Always, owner.model.clone(), 2);
}

#[test]
fn with_an_interval_a_sync_follows_in_time_and_with_os_none_until_a_segment_is_full() {
    for (mode, is_synced) in [(SyncMode::Interval(50), true), (SyncMode::Os, false)] {
        let mut owner = owner(mode);
        assert_eq!(owner.log.deadline_ns(), None, "nothing is written");
        owner.append(10, 0).unwrap();
        owner.pump(|_, _| {});
        assert_eq!(owner.model.written, 1, "the kernel has it");
        assert_eq!(owner.log.deadline_ns(), is_synced.then_some(0));
        owner.log.tend(1000);
        assert_eq!(owner.log.deadline_ns(), is_synced.then_some(1050));
        owner.log.tend(1049);
        owner.pump(|rig, _| assert_ne!(rig.last, "sync", "it is too early"));
        owner.log.tend(1050);
        let mut syncs = 0;
        owner.pump(|rig, _| syncs += u64::from(rig.last == "sync"));
        assert_eq!((syncs == 1, owner.log.deadline_ns()), (is_synced, None));
        // A full segment is synced before the next one is begun.
        while owner.log.closed().count() == 0 {
            owner.append(3000, 0).ok();
            owner.pump(|_, _| {});
        }
        let closed = owner.log.closed().next().expect("one is closed");
        owner.model.acknowledged = closed.end - 1;
        for seed in 0..20 {
            Owner::new(owner.rig.disk.crash(seed), mode, owner.model.clone(), 1);
        }
    }
}

#[test]
fn a_scan_gives_all_records_of_a_closed_segment_while_the_log_goes_on() {
    let mut owner = owner(SyncMode::Always);
    while owner.log.closed().count() < 2 {
        owner.append(1000, 0).ok();
        owner.pump(|_, _| {});
    }
    owner.rig.disk.set_plan(delays());
    let closed = owner.log.closed().last().expect("two are closed");
    let mut task = owner.log.scan(closed.segment, Collected::default());
    let found = (0..1000).find_map(|_| {
        while let Some(operation) = task.next_submission() {
            assert!(!DurableLog::owns(&operation));
            owner.rig.submit(operation);
        }
        owner.append(300, 0).ok();
        while let Some(operation) = owner.log.next_submission() {
            assert!(DurableLog::owns(&operation));
            owner.rig.submit(operation);
        }
        for operation in owner.rig.completions() {
            if DurableLog::owns(&operation) {
                owner.log.complete(operation);
            } else {
                task.complete(operation);
            }
        }
        task.take_output()
    });
    let found = found.expect("it ends").expect("it is not damaged");
    let wanted = owner.model.entries.range(closed.first..closed.end);
    assert!(wanted.map(|(&sequence, entry)| (sequence, entry.clone())).eq(found.digest()));
    assert!(closed.end - closed.first > 9);
}
