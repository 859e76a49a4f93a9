//! Segments that are longer than what is read at once, and offsets of more than 4 GiB.

use std::sync::Arc;

use kachel_io::memory::disk::Disk;
use kachel_io::{
    AlignedBuffer, FileName, FileOperation, FileWork, ManualClock, OpenMode, Transfer,
};
use kachel_log::{
    AppendRefused, ClosedSegment, Geometry, LOG_FILE, LogOptions, SEGMENT_BYTES, SyncMode,
    create_log, open_log,
};
use kachel_stdx::DurableWord;

use crate::rig::{Collected, Model, Opened, Owner, Rig, identity};

fn open(disk: &Disk, geometry: Geometry, from: u64, model: &Model) -> (Owner, Collected) {
    let options = LogOptions {
        folder: disk.folder("data"),
        identity: identity(),
        geometry,
        mode: SyncMode::Os,
        from,
        durable: Arc::new(DurableWord::default()),
    };
    let mut rig = Rig::new(disk.clone());
    let opened: Opened =
        rig.run(open_log(options, Collected::default()), |_| false).expect("it is not cut off");
    let (log, found) = opened.unwrap_or_else(|refusal| panic!("{refusal}"));
    (Owner::over(rig, log, &found, SyncMode::Os, model.clone(), 1), found)
}

fn append(owner: &mut Owner, bytes: usize) {
    loop {
        match owner.append(bytes, 0) {
            Ok(_) => return,
            Err(AppendRefused::Wait) => drop(owner.pump(|_, _| {})),
            Err(refused) => panic!("{refused:?}"),
        }
    }
}

#[test]
fn segments_that_are_longer_than_a_read_have_all_of_their_records() {
    let disk = Disk::new(1, &ManualClock::new(0));
    let geometry = Geometry::new(3 << 20, 0);
    let task = create_log(disk.folder("data"), identity(), geometry);
    let made = Rig::new(disk.clone()).run(task, |_| false);
    made.expect("it is not cut off").expect("the disk is empty");
    let (mut owner, _) = open(&disk, geometry, 0, &Model::default());
    while owner.log.closed().count() < 1 || owner.log.next_sequence() < 330 {
        let bytes = [5, 4000, 30_000, geometry.payload_bytes_max()][owner.below(4) as usize];
        append(&mut owner, bytes);
    }
    owner.settle();
    let (first, model) = (owner.log.next_sequence(), owner.model.clone());
    drop(owner);
    let (mut owner, found) = open(&disk, geometry, 0, &model);
    assert_eq!((found.0.len() as u64 + 1, owner.log.next_sequence()), (first, first));
    for (sequence, (entry, position)) in &found.0 {
        assert_eq!(owner.read(*position).as_ref(), Ok(&entry.2), "{sequence}");
    }
    let closed = owner.log.closed().map(|closed| closed.end - closed.first).sum::<u64>();
    assert!(closed > 60 && closed + 20 < first, "{closed} of {first}, and some in the last one");
    let closed: Vec<_> = owner.log.closed().collect();
    for ClosedSegment { segment, first, end } in closed {
        let scanned = owner.scan(segment).digest();
        assert!(
            scanned.into_iter().eq(owner
                .model
                .entries
                .clone()
                .into_iter()
                .filter(|(sequence, _)| (first..end).contains(sequence)))
        );
    }
}

/// A header of a segment of 64 MiB, byte by byte.
fn header(segment: u32, generation: u64, state: u32, first: u64) -> Vec<u8> {
    let mut slot = vec![0; 4096];
    let identity = identity();
    let mut at = 4;
    let mut put = |bytes: &[u8]| {
        slot[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(b"KachelLg");
    [1, identity.engine, segment, 64 << 20].iter().for_each(|word: &u32| put(&word.to_le_bytes()));
    let end = if first > 0 { first + 1 } else { 0 };
    [identity.store, generation, 1000, first, end].iter().for_each(|word| put(&word.to_le_bytes()));
    [segment + 1, state, 1].iter().for_each(|word: &u32| put(&word.to_le_bytes()));
    let checksum = crc32c::crc32c(&slot[4..]);
    slot[..4].copy_from_slice(&checksum.to_le_bytes());
    slot
}

/// The segments of the first 4 GiB are closed, and the owner has their records.
#[test]
fn records_behind_4_gib_are_found_and_read() {
    const CLOSED: u32 = 65;
    let disk = Disk::new(1, &ManualClock::new(0));
    let mut rig = Rig::new(disk.clone());
    let mut perform = |work| {
        let mut operation = FileOperation::new(0);
        operation.work = work;
        rig.submit(operation);
        let done = rig.completions().next().expect("it is due");
        done.result().expect("the disk has no faults");
        done.work
    };
    let (folder, name) = (disk.folder("data"), FileName::new(LOG_FILE).expect("a short name"));
    let mode = OpenMode::CreateNew;
    let opened = perform(FileWork::Open { folder, name, mode, direct: false, opened: None });
    let FileWork::Open { opened: Some(file), .. } = opened else { panic!("it is opened") };
    let segment_bytes = SEGMENT_BYTES.end;
    let mut write = |offset, content: &[u8]| {
        let mut buffer = AlignedBuffer::new(content.len(), 1);
        buffer.copy_from_slice(content);
        let (file, bytes) = (file.clone(), content.len());
        let transfer = Transfer { file, offset, buffer, start: 0, bytes };
        perform(FileWork::Write { transfer, durable: true });
    };
    for segment in 0..CLOSED + 3 {
        let is_closed = segment < CLOSED;
        let (state, first) = if is_closed { (2, u64::from(segment) + 1) } else { (0, 0) };
        let slot = header(segment, u64::from(segment) + 1, state, first);
        write(u64::from(segment) * segment_bytes, &[slot.clone(), slot].concat());
    }
    write(u64::from(CLOSED + 3) * segment_bytes - 1, &[0]);
    let geometry = Geometry::new(segment_bytes, u64::from(CLOSED + 3) * segment_bytes);
    let (mut owner, found) = open(&disk, geometry, 1000, &Model::default());
    assert!(found.0.is_empty());
    for _ in 0..5 {
        append(&mut owner, 3000);
        owner.settle();
    }
    let model = owner.model.clone();
    drop(owner);
    let (mut owner, found) = open(&disk, geometry, 1000, &model);
    assert!(found.0.keys().copied().eq(1000..1005));
    for (entry, position) in found.0.values() {
        assert!(position.offset > 1 << 32, "{position:?}");
        assert_eq!(owner.read(*position).as_ref(), Ok(&entry.2));
    }
}
