//! An owner of a log over a disk in memory, and what it knows of its records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use kachel_io::memory::disk::{ChanceFault, Disk, Fault, FaultPlan};
use kachel_io::{
    AlignedBuffer, Event, FileOperation, FileWork, Files as _, Io as _, ManualClock, Memory,
    MemoryNet, Rng as _, SeededRng, Wait,
};
use kachel_log::{
    AppendRefused, ClosedSegment, Completed, DurableLog, FoundRecord, Geometry, LogIdentity,
    LogOptions, Position, ReadFault, Refusal, Replay, SEGMENT_BYTES_MIN, Scanned, SegmentIndex,
    SegmentScan, SyncMode, Task, UNIT_BYTES, create_log, open_log,
};
use kachel_stdx::{DurableWord, Sequence};
use kachel_testkit::{operation_name, random_value};

/// The segments of the logs here.
pub(crate) const SEGMENTS: u64 = 7;
/// The operations that anything here takes at most.
const OPERATIONS_MAX: u64 = 20_000;

/// A backend over a disk.
pub(crate) struct Rig {
    pub(crate) disk: Disk,
    memory: Memory,
    pub(crate) submitted: u64,
    /// What the last operation is.
    pub(crate) last: &'static str,
    /// Writes and syncs that were submitted.
    pub(crate) writes: u64,
    /// Syncs and durable writes that were submitted.
    pub(crate) syncs: u64,
}

impl Rig {
    pub(crate) fn new(disk: Disk) -> Self {
        let mut memory = MemoryNet::new().open();
        memory.use_disk(&disk);
        Self { disk, memory, submitted: 0, last: "", writes: 0, syncs: 0 }
    }

    pub(crate) fn submit(&mut self, operation: Box<FileOperation>) {
        self.submitted += 1;
        assert!(self.submitted < OPERATIONS_MAX, "it does not end");
        self.last = operation_name(&operation.work);
        self.writes += u64::from(!matches!(operation.work, FileWork::Read(_)));
        let is_durable = matches!(
            operation.work,
            FileWork::Write { durable: true, .. }
                | FileWork::Sync { .. }
                | FileWork::SyncFolder { .. }
        );
        self.syncs += u64::from(is_durable);
        self.memory.submit(operation).expect("there is room");
    }

    /// Completes what is due next.
    pub(crate) fn completions(&mut self) -> impl Iterator<Item = Box<FileOperation>> + use<> {
        self.disk.advance_to_next_due();
        let mut events = Vec::new();
        self.memory.poll(Wait::Now, &mut events).expect("memory never fails");
        events.into_iter().filter_map(|event| match event {
            Event::FileDone { operation } => Some(operation),
            _ => None,
        })
    }

    /// Runs a task. `None` if it is to be cut off after an operation: `cut` has returned true.
    pub(crate) fn run<T>(
        &mut self,
        mut task: Task<T>,
        mut cut: impl FnMut(&Self) -> bool,
    ) -> Option<T> {
        for _ in 0..OPERATIONS_MAX {
            if let Some(operation) = task.next_submission() {
                self.submit(operation);
                if cut(self) {
                    return None;
                }
            }
            if let Some(output) = task.take_output() {
                return Some(output);
            }
            self.completions().for_each(|operation| task.complete(operation));
        }
        panic!("the task does not end");
    }
}

/// The content of a record.
pub(crate) type Entry = (u8, u32, Vec<u8>);

/// What recovery gives, in the order of the sequences.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collected(pub(crate) BTreeMap<u64, (Entry, Position)>);

impl Replay for Collected {
    fn record(&mut self, found: FoundRecord<'_>) -> Result<(), String> {
        let FoundRecord { position, kind, epoch, sequence, payload } = found;
        let last = self.0.last_key_value().map_or(0, |(&last, _)| last);
        assert!(sequence > last, "in their order: {sequence} after {last}");
        self.0.insert(sequence, ((kind, epoch, payload.to_vec()), position));
        Ok(())
    }
}

impl Collected {
    /// The contents, which stay the same if they are copied.
    pub(crate) fn digest(&self) -> BTreeMap<u64, Entry> {
        self.0.iter().map(|(&sequence, (entry, _))| (sequence, entry.clone())).collect()
    }
}

pub(crate) fn identity() -> LogIdentity {
    LogIdentity { store: 0x0123_4567_89ab_cdef, engine: 3 }
}

pub(crate) fn geometry() -> Geometry {
    Geometry::new(SEGMENT_BYTES_MIN, SEGMENTS * SEGMENT_BYTES_MIN)
}

pub(crate) fn options(disk: &Disk, mode: SyncMode) -> LogOptions {
    LogOptions {
        folder: disk.folder("data"),
        identity: identity(),
        geometry: geometry(),
        mode,
        from: 0,
        durable: Arc::new(DurableWord::default()),
    }
}

pub(crate) type Opened = Result<(DurableLog, Collected), Refusal>;

pub(crate) fn open(disk: &Disk, mode: SyncMode) -> Task<Opened> {
    open_log(options(disk, mode), Collected::default())
}

/// A disk with an empty log.
pub(crate) fn disk_with_log(seed: u64) -> Disk {
    let disk = Disk::new(seed, &ManualClock::new(0));
    let mut rig = Rig::new(disk.clone());
    let made = rig.run(create_log(disk.folder("data"), identity(), geometry()), |_| false);
    made.expect("it is not cut off").expect("the disk is empty");
    disk
}

/// The records that must, may and must not be there after a power cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) entries: BTreeMap<u64, Entry>,
    /// All records up to this sequence are acknowledged.
    pub(crate) acknowledged: u64,
    /// All records up to this sequence are written.
    pub(crate) written: u64,
    /// Freed, and being freed.
    gone: Vec<Range<u64>>,
    pub(crate) going: Vec<Range<u64>>,
    /// Records that were appended again, with the sequence of the copy.
    copies: BTreeMap<u64, u64>,
    /// Records that are given up without a copy.
    dead: BTreeSet<u64>,
}

impl Model {
    /// Checks what recovery has found, in a log that goes on at `next`. Takes over what a crash has
    /// decided.
    pub(crate) fn check(&mut self, found: &Collected, next: u64) -> Result<(), String> {
        let is_in = |ranges: &[Range<u64>], sequence: &u64| {
            ranges.iter().any(|range| range.contains(sequence))
        };
        for (sequence, (entry, _)) in &found.0 {
            match self.entries.get(sequence) {
                Some(known) if known == entry => {}
                Some(_) => return Err(format!("record {sequence} has another content")),
                None => return Err(format!("record {sequence} was never appended")),
            }
            if is_in(&self.gone, sequence) {
                return Err(format!("record {sequence} is back"));
            }
        }
        for sequence in self.entries.keys() {
            let may_miss = is_in(&self.gone, sequence) || is_in(&self.going, sequence);
            if *sequence < next && !may_miss && !found.0.contains_key(sequence) {
                return Err(format!("record {sequence} of {} is missing", next - 1));
            }
        }
        for sequence in self.copies.keys().filter(|&&sequence| sequence < next) {
            let mut at = sequence;
            while !found.0.contains_key(at) && !self.dead.contains(at) {
                let copy = self.copies.get(at);
                at = copy.ok_or(format!("the copies of record {sequence} are missing"))?;
            }
        }
        if next <= self.acknowledged {
            return Err(format!(
                "it ends before {next}, and {} is acknowledged",
                self.acknowledged
            ));
        }
        for range in std::mem::take(&mut self.going) {
            let there = range.clone().filter(|sequence| found.0.contains_key(sequence)).count();
            if there == 0 {
                self.gone.push(range);
            } else if there as u64 != range.end - range.start {
                return Err(format!("{there} records of {range:?} are there"));
            }
        }
        self.entries.retain(|&sequence, _| sequence < next);
        self.copies.retain(|&sequence, &mut copy| sequence < next && copy < next);
        Ok(())
    }
}

impl Model {
    /// Checks what is found in a copy that ends before `next` and was made after `begun`.
    pub(crate) fn check_copy(
        &self,
        begun: &Self,
        found: &Collected,
        next: u64,
    ) -> Result<(), String> {
        let is_in = |ranges: &[Range<u64>], sequence: &u64| {
            ranges.iter().any(|range| range.contains(sequence))
        };
        for (sequence, (entry, _)) in &found.0 {
            if self.entries.get(sequence) != Some(entry) {
                return Err(format!("record {sequence} was never appended like this"));
            }
            if is_in(&begun.gone, sequence) {
                return Err(format!("record {sequence} is back"));
            }
        }
        let first_missing = |sequence: &&u64| {
            let may_miss = is_in(&self.gone, sequence) || is_in(&self.going, sequence);
            **sequence < next && !may_miss && !found.0.contains_key(sequence)
        };
        if let Some(sequence) = self.entries.keys().find(first_missing) {
            return Err(format!("record {sequence} of {} is missing", next - 1));
        }
        for sequence in self.copies.keys().filter(|&&sequence| sequence < next) {
            let mut at = sequence;
            while !found.0.contains_key(at) && !self.dead.contains(at) {
                let copy = self.copies.get(at);
                at = copy.ok_or(format!("the copies of record {sequence} are missing"))?;
            }
        }
        if next <= begun.written.max(begun.acknowledged) {
            return Err(format!("it ends before {next}, and {} was written", begun.written));
        }
        Ok(())
    }
}

/// An owner of a log.
pub(crate) struct Owner {
    pub(crate) rig: Rig,
    pub(crate) log: DurableLog,
    pub(crate) model: Model,
    mode: SyncMode,
    dice: SeededRng,
    /// Commits that are not acknowledged, with the last sequence of each.
    waiting: VecDeque<(Sequence, u64)>,
    freeing: Vec<(SegmentIndex, Range<u64>)>,
    /// A completed operation that is not the log's.
    beside: Option<Box<FileOperation>>,
    /// Segments that were freed after their records were copied.
    pub(crate) collected: u64,
}

impl Owner {
    pub(crate) fn new(disk: Disk, mode: SyncMode, model: Model, seed: u64) -> Self {
        let mut rig = Rig::new(disk);
        let task = open(&rig.disk, mode);
        let opened = rig.run(task, |_| false).expect("it is not cut off");
        let (log, found) = opened.unwrap_or_else(|refusal| panic!("{refusal}"));
        Self::over(rig, log, &found, mode, model, seed)
    }

    pub(crate) fn over(
        rig: Rig,
        log: DurableLog,
        found: &Collected,
        mode: SyncMode,
        mut model: Model,
        seed: u64,
    ) -> Self {
        model.check(found, log.next_sequence()).unwrap_or_else(|fault| panic!("{fault}"));
        // What the owner gets is durable.
        (model.acknowledged, model.written) = (log.next_sequence() - 1, 0);
        let dice = SeededRng::new(seed);
        let (waiting, freeing, beside) = Default::default();
        Self { rig, log, model, mode, dice, waiting, freeing, beside, collected: 0 }
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.dice.next_u64() % end
    }

    /// Appends a record of this length. Returns its position.
    pub(crate) fn append(&mut self, bytes: usize, spares: u32) -> Result<Position, AppendRefused> {
        let bits = self.dice.next_u64();
        let (kind, epoch) = (1 + (bits % 255) as u8, (bits >> 8) as u32);
        let payload = random_value(bits, bytes);
        let (front, back) = payload.split_at(bytes / 3);
        let appended = self.log.append(kind, epoch, &[front, back], spares)?;
        self.model.entries.insert(appended.sequence, (kind, epoch, payload));
        self.waiting.push_back((appended.commit, appended.sequence));
        Ok(appended.position)
    }

    /// A closed segment, if there are several.
    fn victim(&mut self) -> Option<ClosedSegment> {
        let closed: Vec<_> = self.log.closed().collect();
        (closed.len() > 1).then(|| closed[self.below(closed.len() as u64) as usize])
    }

    fn free(&mut self, ClosedSegment { segment, first, end }: ClosedSegment) {
        self.freeing.push((segment, first..end));
        self.model.going.push(first..end);
        let is_copied = |sequence: &u64| self.model.copies.contains_key(sequence);
        self.model.dead.extend((first..end).filter(|sequence| !is_copied(sequence)));
        self.log.free(segment);
    }

    /// Frees a closed segment, if there are several.
    pub(crate) fn free_one(&mut self) {
        if let Some(victim) = self.victim() {
            self.free(victim);
        }
    }

    /// Collects the garbage of a closed segment, if there are several: appends two thirds of its
    /// records again, and frees it at once.
    ///
    /// Errors: the segment cannot be read.
    fn collect_one(&mut self, seen: &mut dyn FnMut(&Rig, &Model)) -> Result<(), Refusal> {
        let Some(victim) = self.victim() else { return Ok(()) };
        let mut scan = self.log.scan(victim.segment, 5);
        loop {
            match scan.record()? {
                Scanned::Record(found) if found.sequence % 3 == 0 => scan.advance(),
                Scanned::Record(found) => {
                    let FoundRecord { kind, epoch, sequence, payload, .. } = found;
                    match self.log.append(kind, epoch, &[payload], 0) {
                        Ok(copy) => {
                            let entry = (kind, epoch, payload.to_vec());
                            self.model.entries.insert(copy.sequence, entry);
                            self.model.copies.insert(sequence, copy.sequence);
                            self.waiting.push_back((copy.commit, copy.sequence));
                            scan.advance();
                        }
                        Err(AppendRefused::Wait) => drop(self.pump(&mut *seen)),
                        Err(_) => return Ok(()),
                    }
                }
                Scanned::Wait => self.go_on(&mut scan, &mut *seen),
                Scanned::End => break,
            }
        }
        self.free(victim);
        self.collected += 1;
        Ok(())
    }

    /// Collects the garbage of a segment, if there are several, while the disk has no faults.
    pub(crate) fn collect(&mut self) {
        let collected = self.collect_one(&mut |_, _| {});
        collected.unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    fn go_on(&mut self, scan: &mut SegmentScan, seen: impl FnMut(&Rig, &Model)) {
        if let Some(operation) = scan.next_submission() {
            self.rig.submit(operation);
        }
        self.pump(seen);
        if let Some(operation) = self.beside.take() {
            scan.complete(operation);
        }
    }

    /// All records of a closed segment.
    pub(crate) fn scan(&mut self, segment: SegmentIndex) -> Collected {
        let mut scan = self.log.scan(segment, 5);
        let mut found = Collected::default();
        loop {
            match scan.record().unwrap_or_else(|refusal| panic!("{refusal}")) {
                Scanned::Record(record) => {
                    found.record(record).expect("it takes all");
                    scan.advance();
                }
                Scanned::Wait => self.go_on(&mut scan, |_, _| {}),
                Scanned::End => return found,
            }
        }
    }

    /// Does something that owners do. `seen`: see [`Self::pump`].
    pub(crate) fn act(&mut self, seen: &mut dyn FnMut(&Rig, &Model)) {
        match self.below(20) {
            0 => self.free_one(),
            1 => {
                let collected = self.collect_one(seen);
                let counts = self.rig.disk.counts();
                let faults = counts.errors + counts.cancelled + counts.misdirected_writes;
                assert!(collected.is_ok() || faults > 0, "{collected:?}");
            }
            2 => self.log.sync(),
            3 => self.log.tend(u64::MAX),
            _ => {
                for _ in 0..=self.below(4) {
                    let scale = [40, 700, 3000, 7000][self.below(4) as usize];
                    let bytes = self.below(scale) as usize;
                    if self.append(bytes, 1) == Err(AppendRefused::NoSpace) {
                        self.free_one();
                    }
                }
            }
        }
    }

    /// Submits what is queued, and completes what is due next. `seen` is called while each
    /// operation is in flight.
    pub(crate) fn pump(&mut self, mut seen: impl FnMut(&Rig, &Model)) -> Vec<Completed> {
        while let Some(operation) = self.log.next_submission() {
            self.rig.submit(operation);
            seen(&self.rig, &self.model);
        }
        let mut completed = Vec::new();
        for operation in self.rig.completions() {
            if !DurableLog::owns(&operation) {
                self.beside = Some(operation);
                continue;
            }
            let done = self.log.complete(operation);
            if let Completed::Freed(segment) = done {
                let at = self.freeing.iter().position(|(freed, _)| *freed == segment);
                let (_, range) = self.freeing.remove(at.expect("it is being freed"));
                self.model.going.retain(|going| *going != range);
                self.model.gone.push(range);
            }
            completed.push(done);
        }
        while let Some(&(commit, sequence)) = self.waiting.front()
            && self.log.durable().has_reached(commit)
        {
            self.waiting.pop_front();
            self.model.written = sequence;
            if self.mode == SyncMode::Always {
                self.model.acknowledged = sequence;
            }
        }
        completed
    }

    /// Reads a record, while nothing else is under way.
    pub(crate) fn read(&mut self, position: Position) -> Result<Vec<u8>, Refusal> {
        let buffer = AlignedBuffer::new(position.buffer_bytes(), UNIT_BYTES);
        self.log.read(77, position, buffer);
        for _ in 0..100 {
            for completed in self.pump(|_, _| {}) {
                let Completed::Read(done) = completed else { continue };
                assert_eq!(done.token, 77);
                return match done.outcome {
                    Ok(record) => Ok(done.buffer[record.payload].to_vec()),
                    Err(ReadFault::Refused(refusal)) => Err(refusal),
                    Err(ReadFault::Gone) => panic!("its segment is not freed"),
                };
            }
        }
        panic!("the read does not end");
    }

    /// Makes everything durable.
    pub(crate) fn settle(&mut self) {
        let mut rounds = 0;
        while !self.log.is_idle() && self.log.failure().is_none() || rounds == 0 {
            self.log.sync();
            self.log.tend(0);
            self.pump(|_, _| {});
            rounds += 1;
            assert!(rounds < OPERATIONS_MAX, "it does not end");
        }
        if self.log.failure().is_none() {
            assert!(self.waiting.is_empty(), "all is written");
            self.model.acknowledged = self.log.next_sequence() - 1;
        }
    }
}

/// Faults that lose nothing: operations complete in another order, or in part, and direct I/O is
/// refused.
pub(crate) fn delays() -> FaultPlan {
    let chance = |permille, fault| ChanceFault { kind: None, permille, fault };
    let chances = vec![chance(100, Fault::Short), chance(2, Fault::DirectRefused)];
    FaultPlan { chances, latency_ns: Some(1_000..=100_000), ..FaultPlan::default() }
}
