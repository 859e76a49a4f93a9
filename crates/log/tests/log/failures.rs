//! The N-th operation fails, for every N, and disks that are full.

use kachel_io::memory::disk::{BLOCK_BYTES, ChanceFault, Disk, Fault, FaultPlan, PlannedFault};
use kachel_io::{FileError, FileWorkKind};
use kachel_log::{AppendRefused, Cause, SyncMode};
use kachel_testkit::count;

use crate::rig::{Model, Owner, Rig, delays, disk_with_log, open};

const FAULTS: [Fault; 4] = [
    Fault::Error(FileError::IO),
    Fault::Error(FileError::NO_SPACE),
    Fault::Short,
    Fault::Cancelled,
];
/// Operations of a start of which each fails in turn.
const RECOVERY: u64 = 40;

fn plan(fault: Fault, number: u64, forever: bool) -> FaultPlan {
    FaultPlan { planned: vec![PlannedFault { kind: None, number, forever, fault }], ..delays() }
}

/// What may fail without a latch.
fn heals(disk: &Disk, fault: Fault) -> bool {
    let counts = disk.counts();
    fault == Fault::Short
        || fault == Fault::Error(FileError::NO_SPACE)
            && (counts.failed_syncs, counts.direct_refused) == (0, 0)
}

#[test]
fn an_operation_that_fails_loses_nothing_that_was_acknowledged() {
    let (mut latched, mut healed) = (0, 0);
    for number in 1..=count(200, 500) {
        for (fault, forever) in FAULTS.into_iter().flat_map(|fault| [(fault, false), (fault, true)])
        {
            let mode = [SyncMode::Always, SyncMode::Os][(number % 2) as usize];
            let disk = disk_with_log(number);
            let mut owner = Owner::new(disk.clone(), mode, Model::default(), 7);
            disk.set_plan(plan(fault, number, forever));
            let mut writes = None;
            let end = owner.rig.submitted + number + 20;
            for _ in 0..300 {
                if owner.rig.submitted > end {
                    break;
                }
                owner.act(&mut |_, _| {});
                owner.pump(|_, _| {});
                if owner.log.failure().is_some() {
                    let before = *writes.get_or_insert(owner.rig.writes);
                    assert_eq!(owner.rig.writes, before, "nothing is written or synced any more");
                    assert_eq!(owner.append(1, 0), Err(AppendRefused::Failed));
                    assert!(owner.log.durable().has_failed());
                }
            }
            disk.set_plan(delays());
            if owner.log.failure().is_none() {
                owner.settle();
                healed += 1;
            } else {
                let text = owner.log.failure().expect("seen above").to_string();
                assert!(text.starts_with("data/log, offset "), "{text}");
                assert!(text.contains(" failed: ") && owner.log.is_idle(), "{text}");
                assert!(!heals(&disk, fault), "{fault:?} {number}: {text}");
                latched += 1;
            }
            let model = owner.model.clone();
            drop(owner);
            Owner::new(disk.crash(number), mode, model, 8);
        }
    }
    println!("{latched} latched, {healed} healed or were not hit");
    assert!(latched > 300 && healed > 300, "{latched}, {healed}");
}

#[test]
fn a_start_that_fails_is_refused_by_name_and_the_next_one_finds_the_same() {
    let disk = disk_with_log(3);
    let mut owner = Owner::new(disk, SyncMode::Always, Model::default(), 3);
    for _ in 0..60 {
        owner.act(&mut |_, _| {});
        owner.pump(|_, _| {});
    }
    owner.settle();
    let (image, model) = (owner.rig.disk.crash(1), owner.model.clone());
    let (mut refused, mut opened) = (0, 0);
    for number in 1..=RECOVERY {
        for (fault, forever) in FAULTS.into_iter().flat_map(|fault| [(fault, false), (fault, true)])
        {
            let disk = image.crash(number);
            disk.set_plan(plan(fault, number, forever));
            let mut rig = Rig::new(disk.clone());
            match rig.run(open(&disk, SyncMode::Always), |_| false).expect("not cut off") {
                Ok(_) => opened += 1,
                Err(refusal) => {
                    assert_eq!(&*refusal.file, "data/log");
                    assert!(matches!(refusal.cause, Cause::Failed(_) | Cause::NoSpace));
                    refused += 1;
                }
            }
            drop(rig);
            disk.set_plan(delays());
            let disk = if number % 2 == 0 { disk.crash(number) } else { disk };
            let owner = Owner::new(disk, SyncMode::Always, model.clone(), 1);
            assert_eq!(owner.log.next_sequence(), model.acknowledged + 1);
        }
    }
    println!("{refused} refused, {opened} opened");
    assert!(refused > 50 && opened > 50, "{refused}, {opened}");
}

#[test]
fn a_full_disk_refuses_appends_and_heals_without_a_restart() {
    let disk = disk_with_log(4);
    let mut owner = Owner::new(disk.clone(), SyncMode::Always, Model::default(), 4);
    // Room for two segments and a half.
    disk.set_blocks_max(40);
    let fill = |owner: &mut Owner| {
        for _ in 0..1000 {
            match owner.append(3000, 0) {
                Ok(_) => {}
                Err(AppendRefused::Wait) => drop(owner.pump(|_, _| {})),
                Err(refused) => return refused,
            }
        }
        panic!("it is never full");
    };
    assert_eq!(fill(&mut owner), AppendRefused::NoSpace);
    assert!(owner.log.failure().is_none() && owner.log.lacks_space());
    owner.settle();
    assert_eq!(disk.counts().failed_syncs, 0);
    // A start needs no space, and leaves the log as full as it was.
    let before = owner.log.next_sequence();
    let disk = disk.crash(1);
    let mut owner = Owner::new(disk.clone(), SyncMode::Always, owner.model.clone(), 6);
    assert_eq!(owner.log.next_sequence(), before);
    assert_eq!(fill(&mut owner), AppendRefused::NoSpace);
    disk.set_blocks_max(1 << 16);
    owner.log.tend(0);
    assert_eq!(owner.append(3000, 0), Err(AppendRefused::Wait), "a segment is allocated");
    assert_eq!(fill(&mut owner), AppendRefused::NoSpace, "all segments are full");
    owner.settle();
    assert!(owner.log.next_sequence() > before + 60);
    Owner::new(disk.crash(2), SyncMode::Always, owner.model.clone(), 5);
    assert!(disk.used_blocks() * BLOCK_BYTES < 1 << 20);
}

#[test]
fn a_read_that_fails_harms_nothing_else() {
    let disk = disk_with_log(5);
    let mut owner = Owner::new(disk.clone(), SyncMode::Always, Model::default(), 5);
    let positions: Vec<_> = (0..8).map(|_| owner.append(900, 0).expect("there is room")).collect();
    owner.settle();
    let kind = Some(FileWorkKind::Read);
    let fault = Fault::Error(FileError::IO);
    let planned = vec![PlannedFault { kind, number: 3, forever: false, fault }];
    disk.set_plan(FaultPlan { planned, ..delays() });
    let outcomes: Vec<_> = positions.iter().map(|&position| owner.read(position)).collect();
    let failed: Vec<_> = (0..).zip(&outcomes).filter(|(_, outcome)| outcome.is_err()).collect();
    assert_eq!(failed.len(), 1);
    let (at, Err(refused)) = failed[0] else { unreachable!("it failed") };
    assert_eq!(
        (at, refused.to_string()),
        (2, format!("data/log, offset {}: Input/output error (os error 5)", positions[2].offset))
    );
    assert!(owner.append(1, 0).is_ok() && owner.log.failure().is_none());
}

#[test]
fn a_read_of_wrong_bytes_fails_or_returns_the_right_record() {
    let disk = disk_with_log(6);
    let mut owner = Owner::new(disk.clone(), SyncMode::Always, Model::default(), 6);
    let mut positions = Vec::new();
    for sequence in 1..=40 {
        positions.push((sequence, owner.append(2500, 0).expect("there is room")));
        owner.settle();
    }
    let mut failed = 0;
    for fault in [Fault::RotOnce, Fault::MisdirectedRead, Fault::RotLasting] {
        disk.set_plan(FaultPlan {
            chances: vec![ChanceFault { kind: None, permille: 1000, fault }],
            ..FaultPlan::default()
        });
        for &(sequence, position) in &positions {
            match owner.read(position) {
                Ok(payload) => assert_eq!(payload, owner.model.entries[&sequence].2, "{fault:?}"),
                Err(refusal) => {
                    assert_eq!(refusal.cause, Cause::Damaged(None));
                    failed += 1;
                }
            }
        }
    }
    assert!(failed > 60, "{failed} of 120");
}

/// The kernel reports writes of the page cache that found no space once, with the next durable
/// write or sync. To write the bytes of that operation again would lose the others.
#[test]
fn a_lack_of_space_heals_unless_it_may_be_that_of_earlier_writes() {
    for (mode, is_direct, is_header) in [
        (SyncMode::Always, true, false),
        (SyncMode::Always, true, true),
        (SyncMode::Always, false, false),
        (SyncMode::Always, false, true),
        (SyncMode::Os, true, false),
        (SyncMode::Os, true, true),
        (SyncMode::Os, false, false),
        (SyncMode::Os, false, true),
    ] {
        let disk = disk_with_log(9);
        let refused = ChanceFault { kind: None, permille: 1000, fault: Fault::DirectRefused };
        if !is_direct {
            disk.set_plan(FaultPlan { chances: vec![refused], ..FaultPlan::default() });
        }
        let mut owner = Owner::new(disk.clone(), mode, Model::default(), 9);
        disk.set_plan(FaultPlan::default());
        while owner.log.closed().count() < 2 {
            owner.append(3000, 0).ok();
            owner.pump(|_, _| {});
        }
        owner.settle();
        let fault = Fault::Error(FileError::NO_SPACE);
        let kind = Some(FileWorkKind::Write);
        let planned = vec![PlannedFault { kind, number: 1, forever: false, fault }];
        disk.set_plan(FaultPlan { planned, ..FaultPlan::default() });
        if is_header {
            owner.free_one();
        } else {
            owner.append(3000, 0).expect("there is room");
        }
        owner.pump(|_, _| {});
        let heals = is_direct || mode == SyncMode::Os && !is_header;
        let what = format!("{mode:?}, direct {is_direct}, header {is_header}");
        assert_eq!(
            (owner.log.failure().is_none(), owner.log.lacks_space()),
            (heals, heals),
            "{what}"
        );
        if heals {
            assert_eq!(owner.append(1, 0), Err(AppendRefused::NoSpace));
            owner.log.tend(0);
            owner.settle();
        }
        let model = owner.model.clone();
        drop(owner);
        Owner::new(disk.crash(1), mode, model, 9);
    }
}
