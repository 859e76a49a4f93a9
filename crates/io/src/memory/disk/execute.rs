//! Executes operations on the state of a disk in memory, each with its fault.
//!
//! Upstream:   the disk, when an operation is due.
//! Downstream: `file` and `folder` change.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every handle that an operation names belongs to this disk, or the operation fails.

use super::DiskState;
use super::file::DiskFile;
use super::media::SECTOR_BYTES;
use super::plan::Fault;
use crate::files::{
    FileError, FileHandle, FileName, FileOperation, FileWork, FolderHandle, MemoryPlace, OpenMode,
    Transfer,
};

type Outcome = Result<usize, FileError>;

impl DiskState {
    /// Carries an operation out and completes it.
    pub(super) fn execute(&mut self, operation: &mut FileOperation, fault: Option<Fault>) {
        self.counts.operations += 1;
        let mut work = std::mem::take(&mut operation.work);
        let outcome = match &mut work {
            FileWork::Read(transfer) => {
                let direct = self.is_direct(operation, Some(&transfer.file), fault);
                self.read(transfer, direct, fault)
            }
            FileWork::Write { transfer, durable } => {
                let direct = self.is_direct(operation, Some(&transfer.file), fault);
                self.write(transfer, *durable, direct, fault)
            }
            FileWork::Sync { file } => self.sync(file, fault),
            FileWork::SyncFolder { folder } => self.sync_folder(folder, fault),
            _ => self.execute_whole(operation, &mut work, fault),
        };
        operation.work = work;
        operation.complete(outcome);
    }

    /// Executes an operation that is done whole or not at all.
    fn execute_whole(
        &mut self,
        operation: &mut FileOperation,
        work: &mut FileWork,
        fault: Option<Fault>,
    ) -> Outcome {
        let failure = self.failure(fault);
        let is_done = match fault {
            Some(Fault::Error(_)) => false,
            Some(Fault::Cancelled) => self.dice.chance(500),
            _ => true,
        };
        let outcome = match work {
            FileWork::Close { file } => {
                *file = None;
                self.collect();
                Ok(0)
            }
            FileWork::Call(_) if !is_done => {
                self.counts.failed_calls += 1;
                Ok(0)
            }
            _ if !is_done => Ok(0),
            FileWork::Call(call) => call.call(),
            FileWork::Open { folder, name, mode, opened, .. } => {
                self.collect(); // Handles may have been dropped.
                let direct = self.is_direct(operation, None, fault);
                self.open(folder, *name, *mode, direct).map(|(file, bytes)| {
                    *opened = Some(file);
                    bytes
                })
            }
            FileWork::Allocate { file, offset, bytes } => self.allocate(file, *offset, *bytes),
            FileWork::Rename { folder, from, to } => self.folder(folder).and_then(|folder| {
                let is_there = self.folders[folder].rename(*from, *to);
                if is_there { Ok(0) } else { Err(FileError::NOT_FOUND) }
            }),
            FileWork::Unlink { folder, name } => self.folder(folder).and_then(|folder| {
                let is_there = self.folders[folder].unlink(*name);
                if is_there { Ok(0) } else { Err(FileError::NOT_FOUND) }
            }),
            _ => unreachable!("an operation that is done in part, or none"),
        };
        let Some(error) = failure else { return outcome };
        if let FileWork::Open { opened, .. } = work {
            *opened = None;
        }
        Err(error)
    }

    /// The error that a fault asks for, which is counted.
    fn failure(&mut self, fault: Option<Fault>) -> Option<FileError> {
        match fault? {
            Fault::Error(error) => {
                self.counts.errors += 1;
                Some(error)
            }
            Fault::Cancelled => {
                self.counts.cancelled += 1;
                Some(FileError::CANCELLED)
            }
            _ => None,
        }
    }

    /// The folder behind a handle (I1).
    fn folder(&self, handle: &FolderHandle) -> Result<usize, FileError> {
        let MemoryPlace { disk, number, .. } = handle.in_memory();
        if disk != self.number {
            return Err(FileError::BAD_FILE);
        }
        assert!(number < self.folders.len(), "I1: a folder of this disk");
        Ok(number)
    }

    /// The file behind a handle (I1).
    fn file(&self, handle: &FileHandle, writes: bool) -> Result<usize, FileError> {
        let MemoryPlace { disk, number, writable } = handle.in_memory();
        if disk != self.number || writes && !writable {
            return Err(FileError::BAD_FILE);
        }
        assert!(number < self.files.len(), "I1: a file of this disk");
        Ok(number)
    }

    /// Whether an operation goes past the page cache. If that is refused, the file never does
    /// again.
    fn is_direct(
        &mut self,
        operation: &mut FileOperation,
        file: Option<&FileHandle>,
        fault: Option<Fault>,
    ) -> bool {
        if operation.is_direct() && fault == Some(Fault::DirectRefused) {
            file.into_iter().for_each(FileHandle::leave_direct);
            operation.refuse_direct(FileError::INVALID);
            self.counts.direct_refused += 1;
        }
        operation.is_direct()
    }

    fn open(
        &mut self,
        folder: &FolderHandle,
        name: FileName,
        mode: OpenMode,
        direct: bool,
    ) -> Result<(FileHandle, usize), FileError> {
        let names = self.folder(folder)?;
        let number = match (self.folders[names].find(&name), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(FileError::EXISTS),
            (None, OpenMode::Read | OpenMode::ReadWrite) => return Err(FileError::NOT_FOUND),
            (Some(number), _) => number,
            (None, OpenMode::CreateNew) => {
                let number = self.new_file();
                self.folders[names].create(name, number);
                number
            }
        };
        let place = MemoryPlace { disk: self.number, number, writable: mode != OpenMode::Read };
        let handle = FileHandle::new_in_memory(place, folder, self.alignment, direct);
        let file = &mut self.files[number];
        file.handles.retain(|each| !each.is_last());
        file.handles.push(handle.clone());
        let bytes = usize::try_from(file.bytes).expect("a small file");
        Ok((handle, bytes))
    }

    pub(super) fn new_file(&mut self) -> usize {
        self.free_files.pop().unwrap_or_else(|| {
            self.files.push(DiskFile::default());
            self.files.len() - 1
        })
    }

    fn allocate(&mut self, handle: &FileHandle, offset: u64, bytes: u64) -> Outcome {
        let number = self.file(handle, true)?;
        let Self { files, media, .. } = self;
        if files[number].allocate(media, offset, bytes).is_err() {
            self.make_space();
        }
        let Self { files, media, counts, .. } = self;
        let allocated = files[number].allocate(media, offset, bytes);
        counts.full += u64::from(allocated.is_err());
        allocated.map(|()| 0)
    }

    fn read(&mut self, transfer: &mut Transfer, direct: bool, fault: Option<Fault>) -> Outcome {
        let number = self.file(&transfer.file, false)?;
        if let Some(error) = self.failure(fault) {
            self.counts.failed_reads += 1;
            return Err(error);
        }
        let wanted = self.part(transfer.bytes, fault);
        let mut offset = transfer.offset;
        let Self { files, media, dice, counts, .. } = self;
        let file = &mut files[number];
        match fault {
            Some(Fault::MisdirectedRead) => {
                offset = elsewhere(offset, file.bytes, dice.bits());
                counts.misdirected_reads += 1;
            }
            Some(Fault::RotLasting) => {
                let sector = (offset + dice.below(wanted as u64)) / SECTOR_BYTES as u64;
                counts.rots_lasting += u64::from(file.rot(media, sector, dice.bits()));
            }
            _ => {}
        }
        let memory = &mut transfer.memory_mut()[..wanted];
        let bytes = file.read(media, offset, memory, direct);
        if fault == Some(Fault::RotOnce) && bytes > 0 {
            memory[dice.below(bytes as u64) as usize] ^= 1 << dice.below(8);
            counts.rots_once += 1;
        }
        Ok(bytes)
    }

    /// How much of a transfer is done at most.
    fn part(&mut self, bytes: usize, fault: Option<Fault>) -> usize {
        let sectors = bytes / SECTOR_BYTES;
        if fault != Some(Fault::Short) || sectors < 2 {
            return bytes;
        }
        self.counts.short += 1;
        (1 + self.dice.below(sectors as u64 - 1) as usize) * SECTOR_BYTES
    }

    fn write(
        &mut self,
        transfer: &Transfer,
        durable: bool,
        direct: bool,
        fault: Option<Fault>,
    ) -> Outcome {
        let number = self.file(&transfer.file, true)?;
        let mut offset = transfer.offset;
        if fault == Some(Fault::MisdirectedWrite) {
            offset = elsewhere(offset, self.files[number].bytes, self.dice.bits());
            self.counts.misdirected_writes += 1;
        }
        if let Some(error) = self.failure(fault) {
            let sectors = transfer.bytes.div_ceil(SECTOR_BYTES) as u64;
            let bytes = self.dice.below(sectors + 1) as usize * SECTOR_BYTES;
            let memory = &transfer.memory()[..bytes.min(transfer.bytes)];
            let Self { files, media, dice, counts, .. } = self;
            if files[number].write(media, offset, memory, direct).is_ok() && durable {
                files[number].fail_sync(media, offset, memory.len() as u64, dice);
                counts.failed_syncs += 1;
            }
            return Err(error);
        }
        let wanted = self.part(transfer.bytes, fault);
        let memory = &transfer.memory()[..wanted];
        let Self { files, media, .. } = self;
        let mut outcome = files[number].write(media, offset, memory, direct);
        if outcome != Ok(wanted) {
            self.make_space();
            let Self { files, media, counts, .. } = self;
            outcome = files[number].write(media, offset, memory, direct);
            counts.full += u64::from(outcome != Ok(wanted));
        }
        if let (Ok(bytes), true) = (outcome, durable) {
            let Self { files, media, counts, .. } = self;
            if fault == Some(Fault::FalseSync) {
                counts.false_syncs += 1;
            } else {
                files[number].sync(media, offset, bytes as u64);
            }
        }
        outcome
    }

    fn sync(&mut self, handle: &FileHandle, fault: Option<Fault>) -> Outcome {
        let number = self.file(handle, false)?;
        let failure = self.failure(fault);
        let Self { files, media, dice, counts, .. } = self;
        if let Some(error) = failure {
            files[number].fail_sync(media, 0, u64::MAX, dice);
            counts.failed_syncs += 1;
            return Err(error);
        }
        if fault == Some(Fault::FalseSync) {
            counts.false_syncs += 1;
        } else {
            files[number].sync(media, 0, u64::MAX);
        }
        Ok(0)
    }

    fn sync_folder(&mut self, handle: &FolderHandle, fault: Option<Fault>) -> Outcome {
        let number = self.folder(handle)?;
        let failure = self.failure(fault);
        if failure.is_some() {
            self.counts.failed_syncs += 1;
        } else if fault == Some(Fault::FalseSync) {
            self.counts.false_syncs += 1;
        }
        let is_done = match fault {
            Some(Fault::FalseSync) => false,
            _ => failure.is_none() || self.dice.chance(500),
        };
        if is_done {
            self.folders[number].sync();
            self.collect();
        }
        failure.map_or(Ok(0), Err)
    }

    /// Makes every change of names durable, as a journal does when space is short, so that the
    /// space of removed files is free.
    fn make_space(&mut self) {
        self.folders.iter_mut().for_each(super::folder::DiskFolder::sync);
        self.collect();
    }

    /// Frees the space of files that have no name, durable or not, and are not open.
    pub(super) fn collect(&mut self) {
        for number in 0..self.files.len() {
            let file = &mut self.files[number];
            if file.is_open() || self.free_files.contains(&number) {
                continue;
            }
            file.handles.clear();
            if !self.folders.iter().any(|folder| folder.may_name(number)) {
                file.free(&mut self.media);
                self.free_files.push(number);
            }
        }
    }
}

/// A place in a file of `bytes` bytes that is not `offset`, at a sector.
fn elsewhere(offset: u64, bytes: u64, bits: u64) -> u64 {
    let sectors = (bytes / SECTOR_BYTES as u64).max(2);
    let place = bits % sectors * SECTOR_BYTES as u64;
    if place == offset {
        (place + SECTOR_BYTES as u64) % (sectors * SECTOR_BYTES as u64)
    } else {
        place
    }
}
