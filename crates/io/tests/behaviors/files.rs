//! Operations on files: their results, their errors, and that each is reported once with its
//! memory.

use std::any::Any;
use std::collections::HashSet;
use std::fs::File;
use std::time::Instant;

use kachel_io::{
    AlignedBuffer, FILE_OPERATIONS_MAX, FileError, FileHandle, FileName, FileOperation, FileWork,
    Files as _, FolderHandle, Limits, OpenMode, Transfer, Wait, WaitingCall,
};

use crate::FilesDoor;
use crate::bench::{Bench, PATIENCE, pattern};

crate::behaviors! {
    what_is_written_is_read_back: epoll uring memory;
    a_file_is_found_by_its_name_only: epoll uring memory;
    a_rename_replaces_and_an_unlinked_file_lives_while_it_is_open: epoll uring memory;
    a_file_that_is_open_for_reading_is_not_written: epoll uring memory;
    allocated_space_reads_as_zeros: epoll uring memory;
    direct_reads_and_writes_go_through_aligned_memory: epoll uring memory;
    many_operations_are_in_flight_and_each_comes_back_once: epoll uring memory;
    operations_in_flight_end_with_their_io: epoll uring memory;
    a_file_is_used_through_two_backends: epoll uring memory;
    a_wait_ends_when_an_operation_is_done: epoll uring;
    polls_that_do_not_wait_report_operations: epoll uring memory;
    an_operation_on_a_file_is_no_wake_of_another_thread: epoll uring memory;
    calls_that_wait_come_back_with_what_they_found_and_stop_nothing: epoll uring memory;
    files_that_refuse_direct_io_use_the_page_cache_and_it_is_said_once: epoll uring;
}

/// A call that computes a square.
#[derive(Debug)]
struct Square {
    of: u64,
    found: Option<u64>,
}

impl WaitingCall for Square {
    fn call(&mut self) -> Result<usize, FileError> {
        if self.of == 0 {
            return Err(FileError::IO);
        }
        self.found = Some(self.of * self.of);
        Ok(self.of as usize)
    }
}

/// A block of the file system: aligned for any disk.
const BLOCK: usize = 4096;

/// Submits an operation, and waits until it comes back.
fn run<D: FilesDoor>(bench: &mut Bench<D>, work: FileWork) -> Box<FileOperation> {
    let mut operation = FileOperation::new(4711);
    operation.work = work;
    bench.io.submit(operation).expect("nothing else is in flight");
    bench.poll_until("the operation", |log| !log.files.is_empty());
    let operation = bench.log.files.pop().expect("it has come back");
    assert!(operation.token == 4711 && bench.log.files.is_empty(), "it comes back once");
    operation
}

fn result<D: FilesDoor>(bench: &mut Bench<D>, work: FileWork) -> Result<usize, FileError> {
    run(bench, work).result()
}

fn name(text: &str) -> FileName {
    FileName::new(text).unwrap()
}

fn opening(folder: &FolderHandle, text: &str, mode: OpenMode, direct: bool) -> FileWork {
    FileWork::Open { folder: folder.clone(), name: name(text), mode, direct, opened: None }
}

/// Opens a file; returns its length, too.
fn open<D: FilesDoor>(
    bench: &mut Bench<D>,
    work: FileWork,
) -> Result<(FileHandle, usize), FileError> {
    let operation = run(bench, work);
    let FileWork::Open { opened, .. } = &operation.work else { panic!("it stays an open") };
    assert_eq!(opened.is_some(), operation.result().is_ok());
    operation.result().map(|length| (opened.clone().expect("it was opened"), length))
}

fn create<D: FilesDoor>(bench: &mut Bench<D>, folder: &FolderHandle, text: &str) -> FileHandle {
    open(bench, opening(folder, text, OpenMode::CreateNew, false)).unwrap().0
}

fn transfer(file: &FileHandle, offset: u64, content: &[u8]) -> Transfer {
    let mut buffer = AlignedBuffer::new(content.len(), BLOCK);
    buffer.copy_from_slice(content);
    Transfer { file: file.clone(), offset, buffer, start: 0, bytes: content.len() }
}

fn write<D: FilesDoor>(
    bench: &mut Bench<D>,
    file: &FileHandle,
    offset: u64,
    content: &[u8],
    durable: bool,
) -> Result<usize, FileError> {
    let transfer = transfer(file, offset, content);
    let mut operation = run(bench, FileWork::Write { transfer, durable });
    let buffer = operation.take_buffer().expect("the memory comes back");
    assert_eq!(*buffer, *content, "the memory is as it was");
    operation.result()
}

/// Reads up to `bytes` bytes.
fn read<D: FilesDoor>(
    bench: &mut Bench<D>,
    file: &FileHandle,
    offset: u64,
    bytes: usize,
) -> Result<Vec<u8>, FileError> {
    let mut operation = run(bench, FileWork::Read(transfer(file, offset, &vec![0; bytes])));
    let buffer = operation.take_buffer().expect("the memory comes back, also after an error");
    assert!(operation.take_buffer().is_none() && matches!(operation.work, FileWork::Idle));
    operation.result().map(|count| buffer[..count].to_vec())
}

fn what_is_written_is_read_back<D: FilesDoor>(mut bench: Bench<D>) {
    let (folder, _shelf) = D::folder(&mut bench.io);
    let file = create(&mut bench, &folder, "a");
    let content = pattern(1, 3 * BLOCK + 100);
    assert_eq!(write(&mut bench, &file, 50, &content, false), Ok(content.len()));
    assert_eq!(write(&mut bench, &file, 60, &[7; 10], true), Ok(10));
    assert_eq!(result(&mut bench, FileWork::Sync { file: file.clone() }), Ok(0));
    assert_eq!(result(&mut bench, FileWork::SyncFolder { folder: folder.clone() }), Ok(0));
    let wanted = [&[0; 50][..], &content[..10], &[7; 10], &content[20..]].concat();
    assert_eq!(read(&mut bench, &file, 0, wanted.len()).unwrap(), wanted);
    assert_eq!(read(&mut bench, &file, BLOCK as u64, 10 * BLOCK).unwrap(), wanted[BLOCK..]);
    assert_eq!(read(&mut bench, &file, 1 << 40, BLOCK).unwrap(), [], "behind the end");
    // A part of the buffer.
    let transfer = Transfer { start: 3, bytes: 5, ..transfer(&file, 60, &[1; 20]) };
    let mut operation = run(&mut bench, FileWork::Read(transfer));
    let buffer = operation.take_buffer().unwrap();
    assert_eq!(*buffer, [&[1; 3][..], &[7; 5], &[1; 12]].concat());
    let (_, length) = open(&mut bench, opening(&folder, "a", OpenMode::Read, false)).unwrap();
    assert_eq!(length, wanted.len());
}

fn a_file_is_found_by_its_name_only<D: FilesDoor>(mut bench: Bench<D>) {
    let (folder, _shelf) = D::folder(&mut bench.io);
    for mode in [OpenMode::Read, OpenMode::ReadWrite] {
        let found = open(&mut bench, opening(&folder, "a", mode, false));
        assert_eq!(found.unwrap_err(), FileError::NOT_FOUND);
    }
    drop(create(&mut bench, &folder, "a"));
    let again = open(&mut bench, opening(&folder, "a", OpenMode::CreateNew, false));
    assert_eq!(again.unwrap_err(), FileError::EXISTS);
    let unlink = |text| FileWork::Unlink { folder: folder.clone(), name: name(text) };
    assert_eq!(result(&mut bench, unlink("b")), Err(FileError::NOT_FOUND));
    assert_eq!(result(&mut bench, unlink("a")), Ok(0));
    assert_eq!(result(&mut bench, unlink("a")), Err(FileError::NOT_FOUND));
    let (from, to) = (name("a"), name("b"));
    let rename = FileWork::Rename { folder: folder.clone(), from, to };
    assert_eq!(result(&mut bench, rename), Err(FileError::NOT_FOUND));
}

fn a_rename_replaces_and_an_unlinked_file_lives_while_it_is_open<D: FilesDoor>(
    mut bench: Bench<D>,
) {
    let (folder, _shelf) = D::folder(&mut bench.io);
    let [old, new] = ["old", "new"].map(|text| {
        let file = create(&mut bench, &folder, text);
        write(&mut bench, &file, 0, text.as_bytes(), false).unwrap();
        file
    });
    let (from, to) = (name("new"), name("old"));
    let rename = FileWork::Rename { folder: folder.clone(), from, to };
    assert_eq!(result(&mut bench, rename), Ok(0));
    let (found, _) = open(&mut bench, opening(&folder, "old", OpenMode::Read, false)).unwrap();
    assert_eq!(read(&mut bench, &found, 0, 10).unwrap(), b"new");
    assert_eq!(read(&mut bench, &old, 0, 10).unwrap(), b"old");
    let unlink = FileWork::Unlink { folder: folder.clone(), name: name("old") };
    assert_eq!(result(&mut bench, unlink), Ok(0));
    assert_eq!(read(&mut bench, &new, 0, 10).unwrap(), b"new");
    for file in [old, found, new.clone()] {
        let operation = run(&mut bench, FileWork::Close { file: Some(file) });
        assert!(matches!(operation.work, FileWork::Close { file: None }));
        assert_eq!(operation.result(), Ok(0));
    }
    assert_eq!(read(&mut bench, &new, 0, 10).unwrap(), b"new", "another handle is left");
    assert_eq!(result(&mut bench, FileWork::Close { file: Some(new) }), Ok(0));
}

fn a_file_that_is_open_for_reading_is_not_written<D: FilesDoor>(mut bench: Bench<D>) {
    let (folder, _shelf) = D::folder(&mut bench.io);
    drop(create(&mut bench, &folder, "a"));
    let (file, _) = open(&mut bench, opening(&folder, "a", OpenMode::Read, false)).unwrap();
    for durable in [false, true] {
        assert_eq!(write(&mut bench, &file, 0, b"x", durable), Err(FileError::BAD_FILE));
    }
    let part = FileWork::Allocate { file: file.clone(), offset: 0, bytes: 1 };
    assert_eq!(result(&mut bench, part), Err(FileError::BAD_FILE));
    assert_eq!(read(&mut bench, &file, 0, 1).unwrap(), []);
}

fn allocated_space_reads_as_zeros<D: FilesDoor>(mut bench: Bench<D>) {
    let (folder, _shelf) = D::folder(&mut bench.io);
    let file = create(&mut bench, &folder, "a");
    write(&mut bench, &file, 0, b"abc", false).unwrap();
    let part = FileWork::Allocate { file: file.clone(), offset: 2, bytes: 5 * BLOCK as u64 };
    assert_eq!(result(&mut bench, part), Ok(0));
    let content = read(&mut bench, &file, 0, 6 * BLOCK).unwrap();
    assert!(content.len() == 5 * BLOCK + 2 && content.starts_with(b"abc"));
    assert!(content[3..].iter().all(|&byte| byte == 0));
}

fn direct_reads_and_writes_go_through_aligned_memory<D: FilesDoor>(mut bench: Bench<D>) {
    let (folder, _shelf) = D::folder(&mut bench.io);
    let work = opening(&folder, "a", OpenMode::CreateNew, true);
    let (file, _) = open(&mut bench, work).unwrap();
    if !file.is_direct() {
        // The folder is on a file system that refuses it: so it was said.
        return assert_eq!(bench.log.refusals.len(), 1);
    }
    assert!(file.alignment().is_power_of_two() && file.alignment() <= BLOCK);
    let content = pattern(3, 4 * BLOCK);
    assert_eq!(write(&mut bench, &file, 0, &content, true), Ok(content.len()));
    assert_eq!(write(&mut bench, &file, BLOCK as u64, &[9; BLOCK], false), Ok(BLOCK));
    let wanted = [&content[..BLOCK], &[9; BLOCK], &content[2 * BLOCK..]].concat();
    assert_eq!(read(&mut bench, &file, 0, 8 * BLOCK).unwrap(), wanted);
    assert!(file.is_direct() && bench.log.refusals.is_empty());
    // The page cache shows the same.
    let (cached, _) = open(&mut bench, opening(&folder, "a", OpenMode::Read, false)).unwrap();
    assert_eq!(read(&mut bench, &cached, 1, 4 * BLOCK).unwrap(), wanted[1..]);
}

fn many_operations_are_in_flight_and_each_comes_back_once<D: FilesDoor>(mut bench: Bench<D>) {
    let (folder, _shelf) = D::folder(&mut bench.io);
    let file = create(&mut bench, &folder, "a");
    for round in 0..3 {
        assert_eq!(bench.io.file_room(), FILE_OPERATIONS_MAX);
        for number in 0..FILE_OPERATIONS_MAX {
            let content = pattern(number + round, BLOCK);
            let mut operation = FileOperation::new(number as u64);
            let transfer = transfer(&file, (number * BLOCK) as u64, &content);
            operation.work = FileWork::Write { transfer, durable: false };
            bench.io.submit(operation).expect("there is room");
        }
        assert_eq!(bench.io.file_room(), 0);
        let mut beyond = FileOperation::new(4711);
        beyond.work = FileWork::Sync { file: file.clone() };
        let beyond = bench.io.submit(beyond).expect_err("there is no room");
        assert!(matches!(beyond.work, FileWork::Sync { .. }), "it is unchanged");
        bench.poll_until("all", |log| log.files.len() == FILE_OPERATIONS_MAX);
        let done = std::mem::take(&mut bench.log.files);
        assert!(done.iter().all(|operation| operation.result() == Ok(BLOCK)));
        let tokens: HashSet<u64> = done.iter().map(|operation| operation.token).collect();
        assert_eq!(tokens.len(), FILE_OPERATIONS_MAX, "each once");
        for number in (0..FILE_OPERATIONS_MAX).step_by(17) {
            let content = read(&mut bench, &file, (number * BLOCK) as u64, BLOCK).unwrap();
            assert_eq!(content, pattern(number + round, BLOCK));
        }
    }
}

fn operations_in_flight_end_with_their_io<D: FilesDoor>(mut bench: Bench<D>) {
    let (folder, shelf) = D::folder(&mut bench.io);
    let file = create(&mut bench, &folder, "a");
    for number in 0..FILE_OPERATIONS_MAX {
        let mut operation = FileOperation::new(number as u64);
        let transfer = transfer(&file, (number * BLOCK) as u64, &[7; BLOCK]);
        operation.work = FileWork::Write { transfer, durable: true };
        bench.io.submit(operation).expect("there is room");
    }
    bench.poll(Wait::Now); // Most are in flight now.
    let mut bench = reopen::<D>(bench, &shelf);
    let content = read(&mut bench, &file, 0, FILE_OPERATIONS_MAX * BLOCK).unwrap();
    for block in content.chunks(BLOCK) {
        let is_done = block.iter().all(|&byte| byte == 7);
        assert!(is_done || block.iter().all(|&byte| byte == 0), "done or not");
    }
    // Nothing is written later.
    let content = write(&mut bench, &file, 0, &[8; BLOCK], true)
        .and_then(|_| read(&mut bench, &file, 0, BLOCK));
    assert_eq!(content.unwrap(), [8; BLOCK]);
}

/// Drops the `Io`, and opens another one for the same files.
fn reopen<D: FilesDoor>(bench: Bench<D>, shelf: &crate::Shelf) -> Bench<D> {
    drop(bench);
    let mut bench = Bench::<D>::open(Limits::default()).expect("it could be opened before");
    D::share(&mut bench.io, shelf);
    bench
}

fn a_file_is_used_through_two_backends<D: FilesDoor>(mut bench: Bench<D>) {
    let (folder, shelf) = D::folder(&mut bench.io);
    let mut other = Bench::<D>::open(Limits::default()).expect("one is open already");
    D::share(&mut other.io, &shelf);
    let file = create(&mut bench, &folder, "a");
    assert_eq!(write(&mut other, &file, 0, b"abc", true), Ok(3));
    assert_eq!(read(&mut bench, &file, 0, 9).unwrap(), b"abc");
    let (again, _) = open(&mut other, opening(&folder, "a", OpenMode::Read, false)).unwrap();
    assert_eq!(read(&mut bench, &again, 0, 9).unwrap(), b"abc");
}

fn a_wait_ends_when_an_operation_is_done<D: FilesDoor>(mut bench: Bench<D>) {
    sync_often(&mut bench, Wait::AtMostNs(PATIENCE.as_nanos() as u64));
    // Also if the wait may go on for more events.
    let limits = Limits { slack_us: 100, ..Limits::default() };
    let mut bench = Bench::<D>::open(limits).expect("one could be opened before");
    sync_often(&mut bench, Wait::AtMostNs(PATIENCE.as_nanos() as u64));
}

fn polls_that_do_not_wait_report_operations<D: FilesDoor>(mut bench: Bench<D>) {
    sync_often(&mut bench, Wait::Now);
}

/// Syncs a file again and again, each time with polls of this wait.
fn sync_often<D: FilesDoor>(bench: &mut Bench<D>, wait: Wait) {
    let (folder, _shelf) = D::folder(&mut bench.io);
    let file = create(bench, &folder, "a");
    for number in 0..50 {
        write(bench, &file, number, b"x", false).unwrap();
        let mut operation = FileOperation::new(1);
        operation.work = FileWork::Sync { file: file.clone() };
        bench.io.submit(operation).expect("there is room");
        let start = Instant::now();
        while bench.log.files.is_empty() {
            bench.poll(wait);
            assert!(start.elapsed() < PATIENCE / 2, "no poll reports the operation");
        }
        bench.log.files.clear();
    }
}

fn an_operation_on_a_file_is_no_wake_of_another_thread<D: FilesDoor>(mut bench: Bench<D>) {
    let (folder, _shelf) = D::folder(&mut bench.io);
    let file = create(&mut bench, &folder, "a");
    for _ in 0..20 {
        write(&mut bench, &file, 0, b"abc", false).unwrap();
    }
    assert_eq!(bench.log.woken, 0);
}

/// The kernel's own files refuse direct I/O.
fn files_that_refuse_direct_io_use_the_page_cache_and_it_is_said_once<D: FilesDoor>(
    mut bench: Bench<D>,
) {
    let fd = File::open("/proc/self").expect("a folder of the kernel");
    let folder = FolderHandle::new(fd.into(), "/proc/self");
    for _ in 0..2 {
        let (file, _) = open(&mut bench, opening(&folder, "maps", OpenMode::Read, true)).unwrap();
        assert!(!file.is_direct());
        assert!(!read(&mut bench, &file, 0, 1000).unwrap().is_empty());
        let [line] = &bench.log.refusals[..] else { panic!("{:?}", bench.log.refusals) };
        let error = FileError::INVALID;
        let wanted =
            format!("/proc/self: direct I/O is refused ({error}), so the page cache is used");
        assert_eq!(*line, wanted);
    }
    assert!(folder.path() == "/proc/self" && D::KIND != "memory");
}

fn calls_that_wait_come_back_with_what_they_found_and_stop_nothing<D: FilesDoor>(
    mut bench: Bench<D>,
) {
    let (folder, _shelf) = D::folder(&mut bench.io);
    let all = FILE_OPERATIONS_MAX as u64;
    for round in 0..3 {
        for number in 0..all {
            let mut operation = FileOperation::new(number);
            // Every other one is an operation of the kernel.
            operation.work = match number % 2 {
                0 => FileWork::Call(Box::new(Square { of: number / 2, found: None })),
                _ => FileWork::SyncFolder { folder: folder.clone() },
            };
            assert_eq!(bench.io.file_room() as u64, all - number, "round {round}");
            bench.io.submit(operation).expect("there is room");
        }
        let mut one_more = FileOperation::new(all);
        one_more.work = FileWork::Call(Box::new(Square { of: 1, found: None }));
        assert!(bench.io.submit(one_more).is_err(), "the limit is that of both kinds");
        bench.poll_until("all", |log| log.files.len() as u64 == all);
        for mut operation in bench.log.files.drain(..) {
            let (number, result) = (operation.token, operation.result());
            match std::mem::take(&mut operation.work) {
                FileWork::SyncFolder { .. } => assert!(number % 2 == 1 && result == Ok(0)),
                FileWork::Call(call) => {
                    let call: Box<dyn Any> = call;
                    let Square { of, found } = *call.downcast().expect("what was submitted");
                    assert!(of == number / 2 && number % 2 == 0);
                    let wanted = (of > 0).then_some(of * of);
                    assert_eq!((found, result.ok()), (wanted, wanted.map(|_| of as usize)));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
