//! Files that are damaged, truncated, foreign or of a later version.

use kachel_io::memory::disk::{Disk, Fault, FaultPlan, PlannedFault};
use kachel_io::{
    AlignedBuffer, FileName, FileOperation, FileWork, FileWorkKind, ManualClock, OpenMode,
    SeededRng, Transfer,
};
use kachel_log::{
    AppendRefused, Cause, Geometry, LOG_FILE, LogIdentity, LogOptions, Refusal, SEGMENT_BYTES_MIN,
    SyncMode, create_log, open_log,
};
use kachel_testkit::{DAMAGE_KINDS, count, damaged};

use crate::rig::{
    Collected, Model, Opened, Owner, Rig, disk_with_log, geometry, identity, open, options,
};
use crate::verify::verify;

/// A file with closed, freed and open segments, and what it has. Only the last commit may be lost.
pub(crate) fn store() -> (Vec<u8>, Model) {
    let mut owner = Owner::new(disk_with_log(6), SyncMode::Always, Model::default(), 6);
    while owner.log.closed().count() < 5 {
        owner.append(2000, 0).ok();
        owner.pump(|_, _| {});
    }
    owner.free_one();
    for _ in 0..6 {
        owner.append(1500, 0).expect("there is room");
        owner.settle();
    }
    let last = owner.log.next_sequence() - 1;
    for _ in 0..3 {
        owner.append(500, 0).expect("there is room");
    }
    owner.settle();
    owner.model.acknowledged = last;
    let [(path, content)] = owner.rig.disk.image().try_into().expect("one file");
    assert_eq!(path, "data/log");
    (content, owner.model.clone())
}

fn perform(rig: &mut Rig, work: FileWork) -> Box<FileOperation> {
    let mut operation = FileOperation::new(0);
    operation.work = work;
    rig.submit(operation);
    let done = rig.completions().next().expect("it is due");
    done.result().expect("the disk has no faults");
    done
}

/// A disk with a log of this content.
pub(crate) fn disk_of(content: &[u8]) -> Disk {
    let disk = Disk::new(1, &ManualClock::new(0));
    let mut rig = Rig::new(disk.clone());
    let (folder, name) = (disk.folder("data"), FileName::new(LOG_FILE).expect("a short name"));
    let mode = OpenMode::CreateNew;
    let done =
        perform(&mut rig, FileWork::Open { folder, name, mode, direct: false, opened: None });
    let FileWork::Open { opened: Some(file), .. } = done.work else { panic!("it is opened") };
    for (piece, offset) in content.chunks(1 << 16).zip((0..).step_by(1 << 16)) {
        let mut buffer = AlignedBuffer::new(piece.len(), 1);
        buffer.copy_from_slice(piece);
        let bytes = piece.len();
        let transfer = Transfer { file: file.clone(), offset, buffer, start: 0, bytes };
        perform(&mut rig, FileWork::Write { transfer, durable: true });
    }
    perform(&mut rig, FileWork::SyncFolder { folder: disk.folder("data") });
    disk
}

pub(crate) fn opened(content: &[u8]) -> (Disk, Opened) {
    let disk = disk_of(content);
    let task = open(&disk, SyncMode::Always);
    let opened = Rig::new(disk.clone()).run(task, |_| false).expect("it is not cut off");
    (disk, opened)
}

/// Opens a damaged file: it is refused by name and left alone, or has all but its last commit.
/// Returns whether it was refused.
fn is_refused(content: &[u8], model: &Model, what: &str) -> bool {
    let (disk, opened) = opened(content);
    match opened {
        Ok((log, found)) => {
            let checked = model.clone().check(&found, log.next_sequence());
            checked.unwrap_or_else(|fault| panic!("{what}: {fault}"));
            false
        }
        Err(refusal) => {
            assert_eq!(&*refusal.file, "data/log", "{what}");
            assert!(refusal.offset.is_some(), "{what}: {refusal}");
            assert!(!matches!(refusal.cause, Cause::Failed(_)), "{what}: {refusal}");
            assert!(disk.image()[0].1 == content, "{what}: it is as it was");
            let (_, told) = verify(&disk);
            assert!(!told.faults.is_empty(), "{what}: {refusal}, and nothing is named");
            true
        }
    }
}

#[test]
fn a_damaged_file_is_refused_by_name_or_has_all_of_its_records() {
    let (content, model) = store();
    assert!(!is_refused(&content, &model, "as it is"));
    let mut dice = SeededRng::new(9);
    let mut refused = [0; DAMAGE_KINDS];
    for number in 0..count(600, 10_000) {
        let (damaged, what) = damaged(&content, number, &mut dice);
        let kind = number as usize % DAMAGE_KINDS;
        refused[kind] += u64::from(is_refused(&damaged, &model, &what));
    }
    println!("refused: {refused:?}");
    assert!(refused.iter().all(|&count| count > 20), "{refused:?}");
}

#[test]
fn a_header_is_covered_by_its_checksum_and_by_the_other_slot() {
    let (content, model) = store();
    for bit in (0..76 * 8).step_by(7) {
        for slot in [0, 4096] {
            let mut damaged = content.clone();
            damaged[slot + bit / 8] ^= 1 << (bit % 8);
            assert!(!is_refused(&damaged, &model, "one slot"), "the other slot has it");
        }
    }
    let mut damaged = content;
    (damaged[20], damaged[4096 + 20]) = (9, 9);
    let (_, opened) = opened(&damaged);
    let refusal = opened.expect_err("both slots are damaged");
    assert_eq!(refusal.to_string(), "data/log, offset 0: what was durable here is damaged");
}

fn refusal(disk: &Disk, change: impl FnOnce(&mut LogOptions)) -> Refusal {
    let mut options = options(disk, SyncMode::Always);
    change(&mut options);
    let task = open_log(options, Collected::default());
    let opened: Opened = Rig::new(disk.clone()).run(task, |_| false).expect("it is not cut off");
    opened.expect_err("it is not opened")
}

#[test]
fn what_is_not_this_log_is_refused_by_name() {
    let (content, model) = store();
    let disk = disk_of(&content);
    let foreign = LogIdentity { engine: 4, ..identity() };
    assert_eq!(refusal(&disk, |options| options.identity = foreign).cause, Cause::Foreign);
    let foreign = LogIdentity { store: 1, ..identity() };
    assert_eq!(refusal(&disk, |options| options.identity = foreign).cause, Cause::Foreign);
    let larger = Geometry::new(2 * SEGMENT_BYTES_MIN, 0);
    let other = refusal(&disk, |options| options.geometry = larger).cause;
    assert_eq!(other, Cause::OtherSize(SEGMENT_BYTES_MIN as u32));
    let short = refusal(&disk_of(&content[..512]), |_| {});
    assert_eq!(short.to_string(), "data/log, offset 512: the file was truncated");
    let next = model.entries.len() as u64 + 1;
    let behind = refusal(&disk, |options| options.from = next + 1);
    assert_eq!(behind.cause, Cause::Damaged(Some(next)), "the owner knows of later records");
    assert_eq!(disk.image()[0].1, content, "it is as it was");
    let made = Rig::new(disk.clone())
        .run(create_log(disk.folder("data"), identity(), geometry()), |_| false);
    let exists = made.expect("it is not cut off").expect_err("it has content");
    assert_eq!(exists.to_string(), "data/log: there is another file of this name already");
    let missing = Disk::new(1, &ManualClock::new(0));
    assert_eq!(refusal(&missing, |_| {}).to_string(), "data/log: the file is missing");
    let empty = disk_with_log(1);
    let again = Rig::new(empty.clone())
        .run(create_log(empty.folder("data"), identity(), geometry()), |_| false);
    assert_eq!(again.expect("it is not cut off"), Ok(()), "without a root it is made again");
    let folder = empty.crash(1);
    assert!(opened_log(&folder).is_ok(), "its name is durable");
}

fn opened_log(disk: &Disk) -> Opened {
    let task = open(disk, SyncMode::Always);
    Rig::new(disk.clone()).run(task, |_| false).expect("it is not cut off")
}

/// Changes a byte of both headers of the first segment, which stay valid.
fn change_header(content: &mut [u8], at: usize, byte: u8) {
    for slot in [0, 4096] {
        content[slot + at] = byte;
        let checksum = crc32c::crc32c(&content[slot + 4..slot + 4096]);
        content[slot..slot + 4].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// A later version may have another format of headers, or of records, whose checksum or codec this
/// version does not know.
#[test]
fn a_later_format_is_refused_with_both_numbers() {
    for (at, found) in [(12, 7), (76, 2)] {
        let (mut content, _) = store();
        change_header(&mut content, at, found);
        let refusal = opened_log(&disk_of(&content)).expect_err("it is of a later version");
        let wanted = format!(
            "data/log, offset 0: it has format {found} of a later version; this version reads \
             format 1"
        );
        assert_eq!(refusal.to_string(), wanted);
    }
}

#[test]
fn zeros_in_the_place_of_a_segment_or_of_the_whole_file_are_damage() {
    let (content, _) = store();
    for at in (0..content.len()).step_by(SEGMENT_BYTES_MIN as usize) {
        for bytes in [3 * 4096, SEGMENT_BYTES_MIN as usize] {
            let mut damaged = content.clone();
            damaged[at..at + bytes].fill(0);
            let refusal = opened_log(&disk_of(&damaged)).expect_err("a segment is missing");
            let wanted = format!("data/log, offset {at}: what was durable here is damaged");
            assert_eq!(refusal.to_string(), wanted);
        }
    }
    let zeros = vec![0; content.len()];
    let refusal = opened_log(&disk_of(&zeros)).expect_err("all is missing");
    assert_eq!(refusal.to_string(), "data/log, offset 0: what was durable here is damaged");
    // Zeros behind the last segment are the space of one that was being added.
    let longer = [content, vec![0; 3 * SEGMENT_BYTES_MIN as usize / 2]].concat();
    let (log, found) = opened_log(&disk_of(&longer)).expect("nothing is missing");
    assert_eq!(found.0.last_key_value().map(|(&last, _)| last + 1), Some(log.next_sequence()));
}

/// One slot of each segment is damaged, then, after a start, the other one.
#[test]
fn a_start_mends_the_headers_of_which_one_slot_is_damaged() {
    let (content, model) = store();
    for (first, second) in [(0, 4096), (4096, 0)] {
        let mut damaged = content.clone();
        damaged.chunks_mut(SEGMENT_BYTES_MIN as usize).for_each(|segment| segment[first + 40] ^= 1);
        let (disk, opened) = opened(&damaged);
        assert!(opened.is_ok());
        let mut damaged = disk.image().remove(0).1;
        damaged.chunks_mut(SEGMENT_BYTES_MIN as usize).for_each(|segment| segment[second] ^= 1);
        assert!(!is_refused(&damaged, &model, "the other slot"), "{second}");
    }
}

/// Two logs whose identities differ have the same records in the same places.
#[test]
fn a_record_of_another_log_is_no_record() {
    let others =
        [LogIdentity { engine: 4, ..identity() }, LogIdentity { store: 1 << 63, ..identity() }];
    let made = [identity(), others[0], others[1]].map(|identity| {
        let disk = Disk::new(1, &ManualClock::new(0));
        let mut rig = Rig::new(disk.clone());
        let made = rig.run(create_log(disk.folder("data"), identity, geometry()), |_| false);
        made.expect("it is not cut off").expect("the disk is empty");
        let options = LogOptions { identity, ..options(&disk, SyncMode::Always) };
        let opened: Opened =
            rig.run(open_log(options, Collected::default()), |_| false).expect("not cut off");
        let (log, found) = opened.expect("it is empty");
        let mut owner = Owner::over(rig, log, &found, SyncMode::Always, Model::default(), 5);
        for _ in 0..3 {
            owner.append(100, 0).expect("there is room");
            owner.settle();
        }
        (disk.image().remove(0).1, owner.model.clone())
    });
    let [(own, model), others @ ..] = made;
    for (other, _) in others {
        for commit in (8192..SEGMENT_BYTES_MIN as usize).step_by(4096).take(3) {
            assert_eq!(own[commit + 24..commit + 48], other[commit + 24..commit + 48], "alike");
            let mut damaged = own.clone();
            damaged[commit..commit + 4096].copy_from_slice(&other[commit..commit + 4096]);
            let (_, opened) = opened(&damaged);
            let records = opened.map_or(0, |(log, _)| log.next_sequence() - 1);
            assert!(records < model.entries.len() as u64, "{records} at {commit}");
        }
    }
}

#[test]
fn a_write_that_goes_elsewhere_is_noticed_by_what_follows_it() {
    let (mut refused, mut unharmed) = (0, 0);
    for number in 1..=90 {
        let mut owner = Owner::new(disk_with_log(8), SyncMode::Always, Model::default(), 8);
        let (kind, fault) = (Some(FileWorkKind::Write), Fault::MisdirectedWrite);
        let planned = vec![PlannedFault { kind, number, forever: false, fault }];
        owner.rig.disk.set_plan(FaultPlan { planned, ..FaultPlan::default() });
        while owner.rig.disk.counts().misdirected_writes == 0 || owner.log.closed().count() < 3 {
            owner.act(&mut |_, _| {});
            owner.pump(|_, _| {});
        }
        // A commit tells of those before it, and then there is the last one.
        for _ in 0..2 {
            owner.settle();
            owner.model.acknowledged = owner.log.next_sequence() - 1;
            while owner.append(100, 0) == Err(AppendRefused::Wait) {
                owner.pump(|_, _| {});
            }
        }
        let acknowledged = owner.model.acknowledged;
        owner.settle();
        let mut model = owner.model.clone();
        model.acknowledged = acknowledged;
        let content = owner.rig.disk.image().remove(0).1;
        let what = format!("write {number}");
        let counter =
            if is_refused(&content, &model, &what) { &mut refused } else { &mut unharmed };
        *counter += 1;
    }
    println!("{refused} refused, {unharmed} unharmed");
    assert!(refused > 20 && unharmed > 5, "{refused}, {unharmed}");
}
