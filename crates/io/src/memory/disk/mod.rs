//! A disk in memory that fails as disks do, for tests and simulation. The same seed gives the same
//! faults.
//!
//! Upstream:   `Memory` submits operations; a test plans faults and cuts the power.
//! Downstream: completed operations go back to `Memory`, which reports them.
//!
//! ```text
//!   submit --> in flight --due--> carried out --> reported
//!                  |
//!   crash(seed) ---+--> a new disk: what was durable, and by chance a part of everything else
//! ```
//!
//! Without a plan the disk has no faults and completes operations in their order. A crash may lose,
//! keep or garble all content that is not durable, with or without a plan, because disks may do
//! that. A crash makes a new disk and does not change the old one, so that one state can crash in
//! many ways.
//!
//! The modules: `media` has the content that stays without power, `file` and `folder` the content
//! that programs see, `execute` the operations, `plan` the faults, `crash` the effects of a crash.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  No two disks of a process have the same number, so a handle from before a crash finds
//!   nothing afterwards.
//! - I2  The same seeds, plans and operations give the same disk.
//! - I3  An operation in flight belongs to one user, and is executed at most once.

mod crash;
mod dice;
mod execute;
mod file;
mod folder;
mod media;
mod plan;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Clock, ManualClock};
use crate::event::Event;
use crate::files::{FileOperation, FileWork, FolderHandle, MemoryPlace, OpenMode};
use crate::limits::FILE_OPERATIONS_MAX;
use dice::Dice;
use file::DiskFile;
use folder::DiskFolder;
use media::Media;
pub use media::{BLOCK_BYTES, SECTOR_BYTES};
use plan::Planner;
pub use plan::{ChanceFault, DiskCounts, Fault, FaultPlan, PlannedFault};

/// The size of a new disk, in blocks: 256 MiB. No memory is used before it is written.
const BLOCKS_MAX_AT_FIRST: usize = 1 << 16;

/// The number of the next disk (I1).
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct Disk {
    state: Rc<RefCell<DiskState>>,
}

/// An operation that is not carried out yet.
#[derive(Debug)]
struct Flight {
    /// The `Memory` that submitted it.
    user: u64,
    due_ns: u64,
    fault: Option<Fault>,
    operation: Box<FileOperation>,
}

#[derive(Debug)]
struct DiskState {
    number: u64,
    clock: ManualClock,
    dice: Dice,
    planner: Planner,
    counts: DiskCounts,
    media: Media,
    /// The alignment that direct I/O requires.
    alignment: usize,
    files: Vec<DiskFile>,
    /// Files without name and content, to be used again.
    free_files: Vec<usize>,
    folders: Vec<DiskFolder>,
    /// In the order in which they were submitted.
    flights: Vec<Flight>,
    users: u64,
}

impl Disk {
    /// Makes an empty disk without faults, on the time of `clock`.
    #[must_use]
    pub fn new(seed: u64, clock: &ManualClock) -> Self {
        Self::of(DiskState {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            clock: clock.clone(),
            dice: Dice::new(seed),
            planner: Planner::default(),
            counts: DiskCounts::default(),
            media: Media::new(BLOCKS_MAX_AT_FIRST),
            alignment: SECTOR_BYTES,
            files: Vec::new(),
            free_files: Vec::new(),
            folders: Vec::new(),
            flights: Vec::new(),
            users: 0,
        })
    }

    fn of(state: DiskState) -> Self {
        Self { state: Rc::new(RefCell::new(state)) }
    }

    /// The folder of this path, which is created, durably, if it is not there.
    #[must_use]
    pub fn folder(&self, path: &str) -> FolderHandle {
        let mut state = self.state.borrow_mut();
        let number = state.folders.iter().position(|folder| &*folder.path == path);
        let number = number.unwrap_or_else(|| {
            state.folders.push(DiskFolder::new(path));
            state.folders.len() - 1
        });
        let place = MemoryPlace { disk: state.number, number, writable: true };
        FolderHandle::new_in_memory(place, path)
    }

    /// Sets the faults of operations that are submitted from now on, and counts them from 1.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.state.borrow_mut().planner = Planner::new(plan);
    }

    /// Sets the size, in blocks of [`BLOCK_BYTES`]. Files that have more keep it.
    pub fn set_blocks_max(&self, blocks_max: usize) {
        self.state.borrow_mut().media.resize(blocks_max);
    }

    /// Sets the alignment of direct I/O for files that are opened from now on. At first it is
    /// [`SECTOR_BYTES`]. The unit that becomes durable on its own remains a sector.
    ///
    /// Panics: if it is not a power of two, or less than [`SECTOR_BYTES`].
    pub fn set_alignment(&self, alignment: usize) {
        assert!(alignment.is_power_of_two() && alignment >= SECTOR_BYTES, "as of a disk");
        self.state.borrow_mut().alignment = alignment;
    }

    /// The blocks that files have now.
    #[must_use]
    pub fn used_blocks(&self) -> usize {
        self.state.borrow().media.used_blocks()
    }

    /// The operations and faults counted so far.
    #[must_use]
    pub fn counts(&self) -> DiskCounts {
        self.state.borrow().counts
    }

    /// The number of operations in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.state.borrow().flights.len()
    }

    /// Advances the clock until the first operation in flight is due. The operation completes when
    /// its shard polls. Returns whether there is an operation in flight.
    pub fn advance_to_next_due(&self) -> bool {
        let state = self.state.borrow();
        let Some(due_ns) = state.flights.iter().map(|flight| flight.due_ns).min() else {
            return false;
        };
        state.clock.advance_ns(due_ns.saturating_sub(state.clock.now_ns()));
        true
    }

    /// When the first operation that is not due yet becomes due, on the disk's clock. A simulation
    /// wakes the shard then. An operation that is due stays in flight until its shard polls.
    #[must_use]
    pub fn next_due_later_ns(&self) -> Option<u64> {
        let state = self.state.borrow();
        let now_ns = state.clock.now_ns();
        state.flights.iter().map(|flight| flight.due_ns).filter(|due_ns| *due_ns > now_ns).min()
    }

    /// The path of every folder, a slash and the name of each file, and its content, as a program
    /// reads it that starts now. Sorted by folder, then by name.
    #[must_use]
    pub fn image(&self) -> Vec<(String, Vec<u8>)> {
        let state = self.state.borrow();
        let mut image = Vec::new();
        for folder in &state.folders {
            for (name, number) in folder.names() {
                let file = &state.files[number];
                let mut content = vec![0; file.bytes as usize];
                let bytes = file.read(&state.media, 0, &mut content, false);
                assert_eq!(bytes, content.len(), "a file is as long as it is");
                image.push((format!("{}/{name}", folder.path), content));
            }
        }
        image
    }

    /// Cuts the power: returns the disk as it is after that, without faults and with the same
    /// clock. Operations in flight were carried out, partly carried out, or not at all. This disk
    /// stays as it is. The same seed gives the same disk.
    ///
    /// Handles of this disk are no handles of the new one.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let state = self.state.borrow();
        let mut crashed = DiskState {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            clock: state.clock.clone(),
            dice: Dice::new(seed),
            planner: Planner::default(),
            counts: state.counts,
            media: state.media.clone(),
            alignment: state.alignment,
            files: state.files.clone(),
            free_files: state.free_files.clone(),
            folders: state.folders.clone(),
            flights: Vec::new(),
            users: 0,
        };
        crashed.files.iter_mut().for_each(|file| file.handles.clear());
        for flight in &state.flights {
            let work = &flight.operation.work;
            if crashed.dice.chance(500) && state.has(work) && crashed.begin_in_crash(work) {
                crashed.counts.cut_short += 1;
            }
        }
        crashed.lose_power();
        Self::of(crashed)
    }

    /// Registers a `Memory` that submits operations.
    pub(super) fn register(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.users += 1;
        state.users
    }

    pub(super) fn room(&self, user: u64) -> usize {
        let state = self.state.borrow();
        let count = state.flights.iter().filter(|flight| flight.user == user).count();
        FILE_OPERATIONS_MAX.checked_sub(count).expect("submissions are counted")
    }

    pub(super) fn submit(&self, user: u64, mut operation: Box<FileOperation>) {
        operation.begin();
        let mut state = self.state.borrow_mut();
        let DiskState { planner, dice, counts, clock, .. } = &mut *state;
        let (fault, latency_ns) = planner.draw(operation.work.kind(), dice);
        let slow_ns = if let Some(Fault::Slow(ns)) = fault { ns } else { 0 };
        counts.slow += u64::from(slow_ns > 0);
        let due_ns = clock.now_ns().saturating_add(latency_ns).saturating_add(slow_ns);
        state.flights.push(Flight { user, due_ns, fault, operation });
    }

    /// Whether an operation of a user is due.
    pub(super) fn is_due(&self, user: u64) -> bool {
        let state = self.state.borrow();
        let now_ns = state.clock.now_ns();
        state.flights.iter().any(|flight| flight.user == user && flight.due_ns <= now_ns)
    }

    /// Carries out the operations of a user that are due, in the order in which they are, and
    /// reports them.
    pub(super) fn complete_due(&self, user: u64, events: &mut Vec<Event>) {
        let mut state = self.state.borrow_mut();
        let now_ns = state.clock.now_ns();
        while let Some(at) = state.next_due(user, now_ns) {
            let Flight { mut operation, fault, .. } = state.flights.remove(at); // I3
            state.execute(&mut operation, fault);
            Event::report_file(operation, events);
        }
    }

    /// Ends a user, as a killed process ends: each operation in flight is carried out or not.
    pub(super) fn leave(&self, user: u64) {
        // In a panic of the disk itself the state stays borrowed. A second panic would hide it.
        let Ok(mut state) = self.state.try_borrow_mut() else { return };
        while let Some(at) = state.next_due(user, u64::MAX) {
            let Flight { mut operation, fault, .. } = state.flights.remove(at); // I3
            if state.dice.chance(500) {
                state.execute(&mut operation, fault);
            }
        }
    }
}

impl DiskState {
    /// The operation of a user that is due first, if it is due.
    fn next_due(&self, user: u64, now_ns: u64) -> Option<usize> {
        let own = self.flights.iter().enumerate().filter(|(_, flight)| flight.user == user);
        let first = own.min_by_key(|(at, flight)| (flight.due_ns, *at))?;
        (first.1.due_ns <= now_ns).then_some(first.0)
    }

    /// Whether the handles of an operation belong to this disk.
    fn has(&self, work: &FileWork) -> bool {
        let place = match work {
            FileWork::Read(transfer) | FileWork::Write { transfer, .. } => {
                transfer.file.in_memory()
            }
            FileWork::Sync { file } | FileWork::Allocate { file, .. } => file.in_memory(),
            FileWork::Open { folder, .. }
            | FileWork::Rename { folder, .. }
            | FileWork::Unlink { folder, .. }
            | FileWork::SyncFolder { folder } => folder.in_memory(),
            FileWork::Close { .. } | FileWork::Call(_) | FileWork::Idle => return false,
        };
        place.disk == self.number
    }

    /// Does as much of an operation that was in flight as is not durable, or all of it. Returns
    /// whether anything was done.
    fn begin_in_crash(&mut self, work: &FileWork) -> bool {
        let is_whole = self.dice.chance(500);
        let Self { files, folders, media, dice, .. } = self;
        match work {
            FileWork::Write { transfer, durable } => {
                let file = &mut files[transfer.file.in_memory().number];
                let sectors = transfer.bytes.div_ceil(SECTOR_BYTES);
                let begun = (1 + dice.below(sectors as u64) as usize) * SECTOR_BYTES;
                let bytes = if is_whole { transfer.bytes } else { begun.min(transfer.bytes) };
                let memory = &transfer.memory()[..bytes];
                let written = file.write(media, transfer.offset, memory, true);
                if let (Ok(bytes), true, true) = (written, is_whole, durable) {
                    file.sync(media, transfer.offset, bytes as u64);
                }
            }
            FileWork::Sync { file } if is_whole => {
                files[file.in_memory().number].sync(media, 0, u64::MAX);
            }
            FileWork::SyncFolder { folder } if is_whole => {
                folders[folder.in_memory().number].sync();
            }
            FileWork::Allocate { file, offset, bytes } => {
                // Without space, what was taken stays taken.
                let _ = files[file.in_memory().number].allocate(media, *offset, *bytes);
            }
            FileWork::Rename { folder, from, to } => {
                folders[folder.in_memory().number].rename(*from, *to);
            }
            FileWork::Unlink { folder, name } => {
                folders[folder.in_memory().number].unlink(*name);
            }
            FileWork::Open { folder, name, mode: OpenMode::CreateNew, .. } => {
                let folder = folder.in_memory().number;
                if folders[folder].find(name).is_some() {
                    return false;
                }
                let number = self.new_file();
                self.folders[folder].create(*name, number);
            }
            _ => return false,
        }
        true
    }

    /// Decides what is there after the power cut.
    fn lose_power(&mut self) {
        let Self { folders, files, media, dice, counts, .. } = self;
        counts.crashes += 1;
        for folder in folders {
            let [kept, dropped] = folder.crash(dice);
            counts.names_kept += kept;
            counts.names_dropped += dropped;
        }
        for file in files {
            file.crash(media, dice, counts);
        }
        self.collect();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
