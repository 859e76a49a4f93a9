//! What a log does while the disk works.

use kachel_io::memory::disk::{Fault, FaultPlan, PlannedFault};
use kachel_io::{AlignedBuffer, FileError, FileWorkKind};
use kachel_log::{
    AppendRefused, Cause, Completed, DurableLog, LOG_TOKEN, LogOptions, Position, ReadFault,
    Replay, Scanned, SyncMode, UNIT_BYTES, create_log, open_log,
};
use kachel_stdx::Sequence;

use crate::rig::{
    Collected, Model, Opened, Owner, Rig, SEGMENTS, delays, disk_with_log, geometry, identity,
    options,
};

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

/// Two tasks and the log have operations in flight at the same time.
#[test]
fn a_scan_gives_all_records_of_a_closed_segment_while_the_log_goes_on() {
    let mut owner = owner(SyncMode::Always);
    while owner.log.closed().count() < 2 {
        owner.append(1000, 0).ok();
        owner.pump(|_, _| {});
    }
    owner.rig.disk.set_plan(delays());
    let closed = owner.log.closed().last().expect("two are closed");
    let mut scan = owner.log.scan(closed.segment, 1);
    let folder = owner.rig.disk.folder("other");
    let mut making = create_log(folder.clone(), identity(), geometry()).numbered(2);
    let (mut found, mut made, mut rounds) = (Collected::default(), None, 0);
    let mut most = 0;
    while made.is_none() || found.0.len() < (closed.end - closed.first) as usize {
        owner.append(300, 0).ok();
        // A record stays until the scan is told to go on.
        while let Scanned::Record(record) = scan.record().expect("it is not damaged") {
            let sequence = record.sequence;
            found.record(record).expect("it takes all");
            let again = scan.record().expect("it is not damaged");
            assert!(matches!(again, Scanned::Record(record) if record.sequence == sequence));
            scan.advance();
        }
        let mut submissions = Vec::from_iter(scan.next_submission());
        submissions.extend(making.next_submission());
        assert!(submissions.iter().all(|operation| !DurableLog::owns(operation)));
        submissions.extend(std::iter::from_fn(|| owner.log.next_submission()));
        submissions.into_iter().for_each(|operation| owner.rig.submit(operation));
        most = most.max(owner.rig.disk.in_flight());
        for operation in owner.rig.completions() {
            match operation.token.checked_sub(LOG_TOKEN) {
                Some(1) => scan.complete(operation),
                Some(2) => making.complete(operation),
                _ => drop(owner.log.complete(operation)),
            }
        }
        made = made.or_else(|| making.take_output());
        rounds += 1;
        assert!(rounds < 1000, "it does not end");
    }
    assert!(matches!(scan.record(), Ok(Scanned::End)));
    assert_eq!(made, Some(Ok(())));
    assert!(most >= 3, "{most} at the same time");
    let wanted = owner.model.entries.range(closed.first..closed.end);
    assert!(wanted.map(|(&sequence, entry)| (sequence, entry.clone())).eq(found.digest()));
    assert!(closed.end - closed.first > 9);
    owner.settle();
    let opening = LogOptions { folder, ..options(&owner.rig.disk, SyncMode::Always) };
    let task = open_log(opening, Collected::default());
    let opened: Opened =
        Rig::new(owner.rig.disk.clone()).run(task, |_| false).expect("not cut off");
    assert!(opened.expect("it was made").1.0.is_empty());
}

#[test]
fn a_scan_of_a_damaged_segment_ends_by_name() {
    let mut owner = owner(SyncMode::Always);
    while owner.log.closed().count() < 2 {
        owner.append(1000, 0).ok();
        owner.pump(|_, _| {});
    }
    let closed = owner.log.closed().next().expect("two are closed");
    let fault = Fault::Error(FileError::IO);
    for (fault, cause) in
        [(fault, Cause::Failed(FileError::IO)), (Fault::MisdirectedRead, Cause::Damaged(None))]
    {
        let kind = Some(FileWorkKind::Read);
        let planned = vec![PlannedFault { kind, number: 1, forever: true, fault }];
        owner.rig.disk.set_plan(FaultPlan { planned, ..FaultPlan::default() });
        let mut scan = owner.log.scan(closed.segment, 0);
        let refusal = loop {
            match scan.record() {
                Ok(Scanned::Record(_)) => scan.advance(),
                Ok(Scanned::Wait) => owner.rig.submit(scan.next_submission().expect("a read")),
                Ok(Scanned::End) => panic!("it is damaged"),
                Err(refusal) => break refusal,
            }
            owner.rig.completions().for_each(|operation| scan.complete(operation));
        };
        assert_eq!(&*refusal.file, "data/log");
        match cause {
            Cause::Damaged(_) => assert!(matches!(refusal.cause, Cause::Damaged(Some(_)))),
            cause => assert_eq!(refusal.cause, cause),
        }
        assert_eq!(scan.record().err(), Some(refusal), "it stays refused");
    }
}

/// A free that a power cut makes durable is durable after the copies of its records, and the log
/// asks for their sync by itself.
#[test]
fn a_segment_is_freed_once_all_that_was_appended_before_is_durable() {
    for mode in [SyncMode::Always, SyncMode::Interval(u64::MAX), SyncMode::Os] {
        let mut owner = owner(mode);
        while owner.log.closed().count() < 2 {
            owner.append(1000, 0).ok();
            owner.pump(|_, _| {});
        }
        owner.settle();
        let copy = owner.log.next_sequence();
        owner.append(1000, 0).expect("there is room");
        owner.free_one();
        assert_eq!(owner.log.synced(), copy, "{mode:?}");
        let mut order = Vec::new();
        let mut freed = false;
        while !freed {
            let done = owner.pump(|rig, _| order.push(rig.last));
            freed = done.iter().any(|done| matches!(done, Completed::Freed(_)));
        }
        let wanted = match mode {
            SyncMode::Always => ["commit", "slot 0", "slot 1"].as_slice(),
            _ => &["commit", "sync", "slot 0", "slot 1"],
        };
        assert_eq!((order.as_slice(), owner.log.synced()), (wanted, copy + 1), "{mode:?}");
        assert!(owner.log.is_idle());
    }
}

#[test]
fn a_log_is_opened_again_with_the_same_durable_word() {
    let disk = disk_with_log(1);
    let options = options(&disk, SyncMode::Always);
    let (mut last, mut model) = (Sequence(0), Model::default());
    for round in 0..3 {
        let mut rig = Rig::new(disk.clone());
        let task = open_log(options.clone(), Collected::default());
        let opened: Opened = rig.run(task, |_| false).expect("it is not cut off");
        let (log, found) = opened.unwrap_or_else(|refusal| panic!("{refusal}"));
        let mut owner = Owner::over(rig, log, &found, SyncMode::Always, model, 1);
        let commit = owner.log.durable().sequence();
        owner.append(10, 0).expect("there is room");
        assert!(commit >= last && !owner.log.durable().has_reached(Sequence(commit.0 + 1)));
        owner.settle();
        last = Sequence(commit.0 + 1);
        assert!(owner.log.durable().has_reached(last), "start {round}");
        model = owner.model.clone();
    }
    options.durable.fail();
    let task = open_log(options, Collected::default());
    let opened: Opened = Rig::new(disk).run(task, |_| false).expect("it is not cut off");
    let refusal = opened.expect_err("the word has failed");
    assert_eq!(refusal.to_string(), "data/log: its durable word is that of a disk that has failed");
}
