//! A log on a file system of the kernel, by epoll and by io_uring.

use std::path::Path;
use std::sync::Arc;

use kachel_io::{AlignedBuffer, Epoll, Event, Files, FolderHandle, Limits, Uring, Wait};
use kachel_log::{
    AppendRefused, Completed, DurableLog, Geometry, LogOptions, SEGMENT_BYTES, SyncMode,
    UNIT_BYTES, create_log, open_log,
};
use kachel_stdx::DurableWord;

use crate::rig::{Collected, Opened, identity};

const RECORDS: u64 = 3000;

fn folder(path: &Path) -> FolderHandle {
    let folder = std::fs::File::open(path).expect("a folder");
    FolderHandle::new(folder.into(), &path.display().to_string())
}

fn geometry() -> Geometry {
    Geometry::new(SEGMENT_BYTES.start, 16 << 20)
}

fn open(io: &mut impl Files, path: &Path) -> (DurableLog, Collected) {
    let options = LogOptions {
        folder: folder(path),
        identity: identity(),
        geometry: geometry(),
        mode: SyncMode::Always,
        from: 0,
        durable: Arc::new(DurableWord::default()),
    };
    let opened: Opened = open_log(options, Collected::default()).run(io).expect("it polls");
    opened.unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Submits what is queued, and waits for a completion.
fn turn(io: &mut impl Files, log: &mut DurableLog) -> Vec<Completed> {
    while let Some(operation) = log.next_submission() {
        io.submit(operation).expect("there is room");
    }
    let mut events = Vec::new();
    io.poll(Wait::Forever, &mut events).expect("it polls");
    let done = events.into_iter().filter_map(|event| match event {
        Event::FileDone { operation } => Some(log.complete(operation)),
        _ => None,
    });
    done.collect()
}

fn keeps_its_records(mut io: impl Files) {
    let place = tempfile::tempdir().expect("a folder");
    create_log(folder(place.path()), identity(), geometry())
        .run(&mut io)
        .expect("it polls")
        .expect("it is empty");
    let (mut log, found) = open(&mut io, place.path());
    assert!(found.0.is_empty());
    let mut last = None;
    while log.next_sequence() <= RECORDS {
        let sequence = log.next_sequence();
        match log.append(1, 2, &[&sequence.to_le_bytes(), &[7; 1000]], 0) {
            Ok(appended) => last = Some(appended),
            Err(AppendRefused::Wait) => drop(turn(&mut io, &mut log)),
            Err(refused) => panic!("{refused:?}: {:?}", log.failure()),
        }
    }
    let last = last.expect("some are appended");
    while !log.durable().has_reached(last.commit) || !log.is_idle() {
        turn(&mut io, &mut log);
    }
    let buffer = AlignedBuffer::new(last.position.buffer_bytes(), UNIT_BYTES);
    log.read(5, last.position, buffer);
    let done = turn(&mut io, &mut log).into_iter().next();
    let Some(Completed::Read(read)) = done else { panic!("{done:?}") };
    let record = read.outcome.expect("it is there");
    assert_eq!((record.sequence, record.kind, record.epoch), (RECORDS, 1, 2));
    assert_eq!(read.buffer[record.payload][..8], RECORDS.to_le_bytes());
    io.submit(log.close()).expect("there is room");
    let mut events = Vec::new();
    io.poll(Wait::Forever, &mut events).expect("it polls");
    assert!(matches!(events[..], [Event::FileDone { .. }]), "it is closed");
    for round in 0..2 {
        let (log, found) = open(&mut io, place.path());
        assert_eq!(log.next_sequence(), RECORDS + 1);
        let sequences = found.0.iter().map(|(sequence, ((_, _, payload), _))| {
            assert_eq!(payload[..8], sequence.to_le_bytes(), "start {round}");
            *sequence
        });
        assert!(sequences.eq(1..=RECORDS));
    }
}

#[test]
fn a_log_keeps_its_records_on_a_file_system() {
    keeps_its_records(Epoll::new(Limits::default()).expect("epoll"));
    match Uring::new(Limits::default()) {
        Ok(uring) => keeps_its_records(uring),
        // ENOSYS or EPERM
        Err(error) => {
            assert!(matches!(error.raw_os_error(), Some(38 | 1)), "{error}");
            println!("skip io_uring the kernel forbids it: {error}");
        }
    }
}
