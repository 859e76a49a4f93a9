//! A copy of a log that is in use is what a crash at one moment could have left.

use kachel_io::memory::disk::{Disk, Fault, FaultPlan, PlannedFault};
use kachel_io::{FileError, FileWorkKind};
use kachel_log::{Cause, LOG_FILE, LogCopy, Position, Refusal, SyncMode, Task, WatchCopy};
use kachel_testkit::count;

use crate::damage::{disk_of, opened, store};
use crate::rig::{Collected, Entry, Model, Owner, Rig, delays, disk_with_log, geometry, identity};
use crate::verify::verify;

/// Notes what it is told.
#[derive(Debug, Default)]
struct Watch {
    bytes: u64,
}

impl WatchCopy for Watch {
    fn copied(&mut self, bytes: u64) {
        self.bytes += bytes;
    }
}

fn begin(disk: &Disk) -> Task<Result<LogCopy<Watch>, Refusal>> {
    LogCopy::begin(
        disk.folder("data"),
        disk.folder("copy"),
        identity(),
        geometry(),
        Watch::default(),
    )
}

/// Runs a task. Before and after each of its operations, `beside` does something. It is told
/// whether no operation is in flight: only then may it wait for operations of its own.
fn run<T>(
    rig: &mut Rig,
    mut task: Task<Result<T, Refusal>>,
    beside: &mut dyn FnMut(bool),
) -> Result<T, Refusal> {
    loop {
        beside(true);
        if let Some(operation) = task.next_submission() {
            rig.submit(operation);
        }
        if let Some(output) = task.take_output() {
            return output;
        }
        let mut done = Vec::new();
        while done.is_empty() {
            done.extend(rig.completions());
            beside(false);
        }
        done.into_iter().for_each(|operation| task.complete(operation));
    }
}

/// The content of the copy.
fn content(disk: &Disk) -> Vec<u8> {
    let copy = format!("copy/{LOG_FILE}");
    let found = disk.image().into_iter().find(|(name, _)| *name == copy);
    found.expect("it has its name").1
}

/// Copies a log, in one round or two, while its owner goes on, and checks the copy.
fn copy_beside(seed: u64, mode: SyncMode, rounds: u64) -> u64 {
    let disk = disk_with_log(seed);
    disk.set_plan(delays());
    let mut owner = Owner::new(disk.clone(), mode, Model::default(), seed);
    for _ in 0..50 + seed % 100 {
        owner.act(&mut |_, _| {});
        owner.pump(|_, _| {});
    }
    let (mut rig, mut begun) = (Rig::new(disk.clone()), Model::default());
    let mut turns = 0;
    let mut copy = run(&mut rig, begin(&disk), &mut |_| drop(owner.pump(|_, _| {})))
        .expect("there is no other copy");
    for _ in 0..rounds {
        begun = owner.model.clone();
        let traffic = &mut |may_wait: bool| {
            turns += u64::from(may_wait);
            // A look takes about ten operations, so there is a time without a change.
            if may_wait && turns % (8 + seed % 30) == 0 {
                for _ in 0..=seed / 30 % 6 {
                    match owner.below(3) {
                        0 => owner.collect(),
                        _ => owner.act(&mut |_, _| {}),
                    }
                    drop(owner.pump(|_, _| {}));
                }
            }
            drop(owner.pump(|_, _| {}));
        };
        (copy, _) = run(&mut rig, copy.cut(), traffic)
            .unwrap_or_else(|refusal| panic!("seed {seed}: {refusal}"));
    }
    run(&mut rig, copy.finish(), &mut |_| drop(owner.pump(|_, _| {}))).expect("there is room");
    let copied = disk_of(&content(&disk));
    assert_eq!(verify(&copied).1.faults, [], "seed {seed}");
    let (_, opened) = opened(&content(&disk));
    let (log, found) = opened.unwrap_or_else(|refusal| panic!("seed {seed}: {refusal}"));
    let checked = owner.model.check_copy(&begun, &found, log.next_sequence());
    checked.unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    owner.collected
}

#[test]
fn a_copy_beside_its_owner_has_all_that_was_written_and_nothing_that_was_freed() {
    let mut collected = 0;
    for seed in 0..count(400, 9_000) {
        let mode = [SyncMode::Always, SyncMode::Interval(200_000), SyncMode::Os][seed as usize % 3];
        collected += copy_beside(seed, mode, 1 + seed % 2);
    }
    println!("{collected} segments were collected");
    assert!(collected > 100, "{collected}");
}

#[test]
fn a_copy_of_a_log_that_nobody_has_open_is_the_log() {
    let (content_before, model) = store();
    let (disk, found) = opened(&content_before);
    let (_, found) = found.expect("it is not damaged");
    let before = disk.image().remove(0).1;
    let mut rig = Rig::new(disk.clone());
    let copy = run(&mut rig, begin(&disk), &mut |_| {}).expect("there is no other copy");
    let (copy, bytes) = run(&mut rig, copy.cut(), &mut |_| {}).expect("it is whole");
    assert!(bytes > 0 && bytes <= before.len() as u64);
    run(&mut rig, copy.finish(), &mut |_| {}).expect("there is room");
    let log = |(name, _): &(String, Vec<u8>)| *name == format!("data/{LOG_FILE}");
    let after = disk.image().into_iter().find(log).expect("it is there").1;
    assert!(before == after, "the log is as it was");
    let (_, copied) = opened(&content(&disk));
    let (_, copied) = copied.expect("it is not damaged");
    assert_eq!(copied.digest(), found.digest());
    assert!(copied.0.len() > model.entries.len() / 2);
}

#[test]
fn a_copy_that_was_given_up_is_no_copy_and_the_next_one_begins_anew() {
    let disk = opened(&store().0).0;
    let mut rig = Rig::new(disk.clone());
    for _ in 0..2 {
        let copy = run(&mut rig, begin(&disk), &mut |_| {}).expect("the first one has no name");
        let (copy, _) = run(&mut rig, copy.cut(), &mut |_| {}).expect("it is whole");
        assert!(!disk.image().iter().any(|(name, _)| *name == format!("copy/{LOG_FILE}")));
        drop(copy);
    }
}

/// The second commit of the last segment.
fn last_segment(found: &Collected) -> (u64, (Entry, Position)) {
    let of = |position: &Position| geometry().segment_of(position.offset);
    let (_, (_, last)) = found.0.last_key_value().expect("a record");
    let mut there = found.0.iter().filter(|(_, (_, position))| of(position) == of(last));
    let (sequence, (entry, position)) = there.nth(1).expect("several");
    (*sequence, (entry.clone(), *position))
}

#[test]
fn a_log_that_is_damaged_or_cannot_be_read_is_named_and_not_copied() {
    let (content, _) = store();
    let (disk, found) = opened(&content);
    let (_, found) = found.expect("it is not damaged");
    let (sequence, (_, position)) = found.0.first_key_value().expect("a record");
    let mut damaged = disk.image().remove(0).1;
    damaged[position.offset as usize + 9] ^= 1;
    let cut = |disk: &Disk| {
        let mut rig = Rig::new(disk.clone());
        let copy = run(&mut rig, begin(disk), &mut |_| {})?;
        run(&mut rig, copy.cut(), &mut |_| {}).map(|_| ())
    };
    let refusal = cut(&disk_of(&damaged)).expect_err("it is damaged");
    assert_eq!(refusal.cause, Cause::Damaged(Some(*sequence)));
    assert_eq!((&*refusal.file, refusal.offset), ("data/log", Some(position.offset)));
    // The last segment is open. Its first record was durable when the later ones were written.
    let (first, (_, place)) = last_segment(&found);
    damaged = disk.image().remove(0).1;
    damaged[place.offset as usize + 9] ^= 1;
    let refusal = cut(&disk_of(&damaged)).expect_err("it is damaged");
    assert_eq!(refusal.cause, Cause::Damaged(Some(first)));
    for kind in [FileWorkKind::Read, FileWorkKind::Write, FileWorkKind::Allocate] {
        let disk = opened(&content).0;
        let fault = Fault::Error(FileError::IO);
        let planned = vec![PlannedFault { kind: Some(kind), number: 1, forever: true, fault }];
        disk.set_plan(FaultPlan { planned, ..FaultPlan::default() });
        let refusal = cut(&disk).expect_err("the disk fails");
        assert_eq!(refusal.cause, Cause::Failed(FileError::IO), "{kind:?}");
        let file = if kind == FileWorkKind::Read { "data/log" } else { "copy/log" };
        assert_eq!(&*refusal.file, file, "{kind:?}");
    }
    let disk = opened(&content).0;
    disk.set_blocks_max(disk.used_blocks() + 2);
    let refusal = cut(&disk).expect_err("the disk is full");
    assert!(matches!(refusal.cause, Cause::NoSpaceForCopy(_)), "{refusal}");
}
