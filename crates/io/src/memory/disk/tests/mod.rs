//! Tests of the disk in memory: what may survive a crash, each fault, and a model of both.

mod crashes;
mod faults;
mod model;

use super::*;
use crate::event::Wait;
use crate::files::{AlignedBuffer, FileError, FileHandle, FileName, FileWorkKind, Transfer};
use crate::memory::{Memory, MemoryNet};
use crate::{Files as _, Io as _};

/// A process: it has one operation in flight at a time, and one folder.
struct Program {
    disk: Disk,
    clock: ManualClock,
    memory: Memory,
    folder: FolderHandle,
    refusals: usize,
}

type Done = (FileWork, Result<usize, FileError>);

impl Program {
    fn new(seed: u64) -> Self {
        let clock = ManualClock::new(0);
        Self::start(Disk::new(seed, &clock), clock)
    }

    fn start(disk: Disk, clock: ManualClock) -> Self {
        let mut memory = MemoryNet::new().open();
        memory.use_disk(&disk);
        let folder = disk.folder("data");
        Self { disk, clock, memory, folder, refusals: 0 }
    }

    /// The process that runs after a power cut.
    fn crash(&self, seed: u64) -> Self {
        Self::start(self.disk.crash(seed), self.clock.clone())
    }

    fn plan(&self, kind: FileWorkKind, number: u64, forever: bool, fault: Fault) {
        let planned = vec![PlannedFault { kind: Some(kind), number, forever, fault }];
        self.disk.set_plan(FaultPlan { planned, ..FaultPlan::default() });
    }

    fn submit(&mut self, token: u64, work: FileWork) {
        let mut operation = FileOperation::new(token);
        operation.work = work;
        self.memory.submit(operation).expect("there is room");
    }

    #[expect(clippy::vec_box, reason = "they come back in their boxes")]
    fn poll(&mut self) -> Vec<Box<FileOperation>> {
        let mut events = Vec::new();
        self.memory.poll(Wait::Now, &mut events).unwrap();
        let done = events.into_iter().filter_map(|event| match event {
            Event::FileDone { operation } => Some(operation),
            Event::DirectIoRefused { .. } => {
                self.refusals += 1;
                None
            }
            other => panic!("{other:?}"),
        });
        done.collect()
    }

    fn run(&mut self, work: FileWork) -> Done {
        self.submit(0, work);
        let mut done = self.poll();
        let mut operation = done.pop().expect("it is due at once");
        let result = operation.result();
        (std::mem::take(&mut operation.work), result)
    }

    fn open_with(
        &mut self,
        name: &str,
        mode: OpenMode,
        direct: bool,
    ) -> Result<FileHandle, FileError> {
        let folder = self.folder.clone();
        let name = FileName::new(name).unwrap();
        let (work, result) = self.run(FileWork::Open { folder, name, mode, direct, opened: None });
        let FileWork::Open { opened, .. } = work else {
            panic!("the work of an operation changes")
        };
        assert_eq!(opened.is_some(), result.is_ok());
        result.map(|_| opened.expect("it was opened"))
    }

    fn create(&mut self, name: &str) -> FileHandle {
        self.open_with(name, OpenMode::CreateNew, false).unwrap()
    }

    fn write(
        &mut self,
        file: &FileHandle,
        offset: u64,
        bytes: &[u8],
        durable: bool,
    ) -> Result<usize, FileError> {
        let transfer = transfer(file, offset, bytes.len(), bytes);
        self.run(FileWork::Write { transfer, durable }).1
    }

    fn read(&mut self, file: &FileHandle, offset: u64, bytes: usize) -> Result<Vec<u8>, FileError> {
        let (work, result) = self.run(FileWork::Read(transfer(file, offset, bytes, &[])));
        let FileWork::Read(transfer) = work else { panic!("the work of an operation changes") };
        result.map(|bytes| transfer.memory()[..bytes].to_vec())
    }

    fn sync(&mut self, file: &FileHandle) -> Result<usize, FileError> {
        self.run(FileWork::Sync { file: file.clone() }).1
    }

    fn sync_folder(&mut self) -> Result<usize, FileError> {
        let folder = self.folder.clone();
        self.run(FileWork::SyncFolder { folder }).1
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<usize, FileError> {
        let [from, to] = [from, to].map(|name| FileName::new(name).unwrap());
        self.run(FileWork::Rename { folder: self.folder.clone(), from, to }).1
    }

    fn unlink(&mut self, name: &str) -> Result<usize, FileError> {
        let (folder, name) = (self.folder.clone(), FileName::new(name).unwrap());
        self.run(FileWork::Unlink { folder, name }).1
    }

    /// The content of a file, if there is one.
    fn content(&self, name: &str) -> Option<Vec<u8>> {
        let path = format!("data/{name}");
        self.disk.image().into_iter().find(|(each, _)| *each == path).map(|(_, content)| content)
    }
}

fn transfer(file: &FileHandle, offset: u64, bytes: usize, content: &[u8]) -> Transfer {
    let mut buffer = AlignedBuffer::new(bytes, BLOCK_BYTES);
    buffer[..content.len()].copy_from_slice(content);
    Transfer { file: file.clone(), offset, buffer, start: 0, bytes }
}

/// Sectors of different content; those of two versions differ in every byte.
fn sectors(version: u8, count: usize) -> Vec<u8> {
    (0..count * SECTOR_BYTES).map(|at| version.wrapping_mul(64) ^ (at / 7 % 61) as u8).collect()
}

fn sector(content: &[u8], index: usize) -> &[u8] {
    &content[index * SECTOR_BYTES..][..SECTOR_BYTES]
}

/// How a sector looks that had `old` and got `new`.
fn fate(seen: &[u8], old: &[u8], new: &[u8]) -> &'static str {
    let cuts = |first: &[u8], last: &[u8]| {
        (1..SECTOR_BYTES).any(|cut| seen[..cut] == first[..cut] && seen[cut..] == last[cut..])
    };
    match seen {
        _ if seen == old => "dropped",
        _ if seen == new => "kept",
        _ if cuts(old, new) || cuts(new, old) => "torn",
        _ => "garbled",
    }
}
