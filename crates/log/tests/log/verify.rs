//! A verification names every fault, and changes nothing.

use kachel_io::memory::disk::{Disk, Fault, FaultPlan, PlannedFault};
use kachel_io::{FileError, FileWorkKind};
use kachel_log::{
    Cause, FoundRecord, Inspector, LOG_FILE, LogIdentity, Position, Refusal, SEGMENT_BYTES_MIN,
    SyncMode, verify_log,
};

use crate::damage::{disk_of, opened, store};
use crate::rig::{Collected, Model, Owner, Rig, disk_with_log, geometry, identity, open};

/// What a verification tells.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) faults: Vec<Refusal>,
    progress: Vec<(u64, u64)>,
    records: u64,
    /// The record that its owner cannot have written.
    pub(crate) foreign: Option<u64>,
}

impl Inspector for Told {
    fn record(&mut self, found: FoundRecord<'_>) -> Result<(), String> {
        self.records += 1;
        if Some(found.sequence) == self.foreign { Err("foreign".to_owned()) } else { Ok(()) }
    }

    fn fault(&mut self, fault: Refusal) {
        self.faults.push(fault);
    }

    fn progress(&mut self, done_bytes: u64, of_bytes: u64) {
        self.progress.push((done_bytes, of_bytes));
    }
}

/// Verifies a log. Returns the number of its records, and what was told.
pub(crate) fn verify(disk: &Disk) -> (u64, Told) {
    let task = verify_log(disk.folder("data"), identity(), geometry(), Told::default());
    let verified = Rig::new(disk.clone()).run(task, |_| false).expect("it is not cut off");
    verified.unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// A file as a start leaves it, and the records in it.
fn sound() -> (Vec<u8>, Collected) {
    let (content, _) = store();
    let (disk, opened) = opened(&content);
    let (_, found) = opened.expect("it is not damaged");
    (disk.image().remove(0).1, found)
}

fn faults(content: &[u8]) -> Vec<(u64, Cause)> {
    let disk = disk_of(content);
    let (_, told) = verify(&disk);
    assert!(disk.image()[0].1 == content, "it is as it was");
    let place = |fault: Refusal| (fault.offset.expect("it has a place"), fault.cause);
    told.faults.into_iter().map(place).collect()
}

#[test]
fn a_sound_log_has_no_fault_and_all_of_its_records() {
    let (content, found) = sound();
    let (records, told) = verify(&disk_of(&content));
    assert_eq!((records, told.faults), (found.0.len() as u64, vec![]));
    assert_eq!(told.records, records);
    assert!(told.progress.is_sorted() && told.progress.len() > 3);
    let bytes = content.len() as u64;
    assert_eq!(told.progress.last(), Some(&(bytes, bytes)));
    let (records, told) = verify(&disk_with_log(1));
    assert_eq!((records, told.faults), (0, vec![]));
}

#[test]
fn a_record_that_its_owner_cannot_have_written_is_named_with_its_place() {
    let (content, found) = sound();
    let (sequence, (_, position)) = found.0.iter().nth(7).expect("more");
    let told = Told { foreign: Some(*sequence), ..Told::default() };
    let disk = disk_of(&content);
    let task = verify_log(disk.folder("data"), identity(), geometry(), told);
    let (records, told) = Rig::new(disk).run(task, |_| false).expect("a log").expect("a log");
    assert_eq!(records, found.0.len() as u64, "the others are counted, too");
    let faults: Vec<_> = told.faults.iter().map(ToString::to_string).collect();
    assert_eq!(faults, [format!("data/log, offset {}: foreign", position.offset)]);
}

#[test]
fn damage_in_any_record_leader_or_header_is_named_with_its_place() {
    let (content, found) = sound();
    let mut places: Vec<(u64, u64, Option<u64>)> = Vec::new();
    for (sequence, (_, position)) in &found.0 {
        let (start, bytes) = (position.offset, 24 + u64::from(position.payload_bytes));
        places.extend([0, 9, bytes / 2, bytes - 1].map(|at| (start, start + at, Some(*sequence))));
        if start % 4096 == 48 {
            places.extend([0, 16, 40].map(|at| (start - 48, start - 48 + at, Some(*sequence))));
        }
    }
    for start in (0..content.len() as u64).step_by(SEGMENT_BYTES_MIN as usize) {
        for slot in [start, start + 4096] {
            places.extend([0, 5, 40, 79, 80, 4095].map(|at| (slot, slot + at, None)));
        }
    }
    for &(offset, at, sequence) in &places {
        let mut damaged = content.clone();
        damaged[at as usize] ^= 1 << (at % 8);
        let named = faults(&damaged);
        assert_eq!(named, [(offset, Cause::Damaged(sequence))], "byte {at}");
    }
    // One verification names the first record of each commit, in the order of the segments' use.
    let mut damaged = content;
    let first = |(_, (_, position)): &(&u64, &(_, Position))| position.offset % 4096 == 48;
    let wanted = found.0.iter().filter(first).map(|(sequence, (_, position))| {
        damaged[position.offset as usize + 9] ^= 1;
        (position.offset, Cause::Damaged(Some(*sequence)))
    });
    let wanted: Vec<_> = wanted.collect();
    assert!(wanted.len() > 30 && wanted.len() < found.0.len(), "{}", wanted.len());
    assert_eq!(faults(&damaged), wanted);
}

#[test]
fn a_read_that_fails_is_named_and_the_rest_is_verified() {
    let (content, found) = sound();
    let mut names = 0;
    for number in 1..20 {
        let disk = disk_of(&content);
        let (kind, fault) = (Some(FileWorkKind::Read), Fault::Error(FileError::IO));
        let planned = vec![PlannedFault { kind, number, forever: false, fault }];
        disk.set_plan(FaultPlan { planned, ..FaultPlan::default() });
        let (records, told) = verify(&disk);
        let failed = disk.counts().failed_reads == 1;
        names += u64::from(failed);
        let is_named = told.faults.iter().any(|fault| fault.cause == Cause::Failed(FileError::IO));
        assert_eq!(is_named, failed, "{:?}", told.faults);
        assert!(records > found.0.len() as u64 / 2 && records <= found.0.len() as u64);
    }
    assert!(names > 8, "{names}");
}

#[test]
fn another_log_a_later_version_and_a_missing_file_are_named() {
    let (content, _) = sound();
    let disk = disk_of(&content);
    let other = LogIdentity { engine: 9, ..identity() };
    let task = verify_log(disk.folder("data"), other, geometry(), Told::default());
    let verified = Rig::new(disk.clone()).run(task, |_| false).expect("it is not cut off");
    let (records, told) = verified.expect("it is opened");
    assert!(records == 0 && told.faults.iter().any(|fault| fault.cause == Cause::Foreign));
    let task = verify_log(disk.folder("none"), other, geometry(), Told::default());
    let verified = Rig::new(disk.clone()).run(task, |_| false).expect("it is not cut off");
    assert_eq!(
        verified.expect_err("it is missing").to_string(),
        format!("none/{LOG_FILE}: the file is missing")
    );
    let mut later = content;
    (later[12], later[4096 + 12]) = (9, 9);
    for slot in [0, 4096] {
        let checksum = crc32c::crc32c(&later[slot + 4..slot + 4096]);
        later[slot..slot + 4].copy_from_slice(&checksum.to_le_bytes());
    }
    assert!(faults(&later).contains(&(0, Cause::Newer { found: 9, known: 1 })));
}

/// What a power cut may leave is no fault, except a header that was being written.
#[test]
fn what_a_power_cut_leaves_is_no_fault() {
    let (mut images, mut headers) = (0, 0);
    for mode in [SyncMode::Always, SyncMode::Os] {
        let mut owner = Owner::new(disk_with_log(3), mode, Model::default(), 3);
        for round in 0..60 {
            owner.act(&mut |_, _| {});
            owner.pump(|rig, _| {
                let image = rig.disk.crash(round);
                let (_, told) = verify(&image);
                let is_header = |fault: &Refusal| {
                    fault.cause == Cause::Damaged(None)
                        && fault.offset.is_some_and(|at| at % SEGMENT_BYTES_MIN < 8192)
                };
                assert!(told.faults.iter().all(is_header), "{:?}", told.faults);
                headers += told.faults.len();
                images += 1;
                // A start mends it.
                let opened = Rig::new(image.clone()).run(open(&image, mode), |_| false);
                assert!(opened.expect("it is not cut off").is_ok());
                assert_eq!(verify(&image).1.faults, []);
            });
        }
    }
    println!("{images} images, {headers} headers");
    assert!(images > 100 && headers > 0, "{images}, {headers}");
}
