//! The files of a store on a disk in memory, for a start that may be interrupted.
//!
//! Upstream:   `process`.
//! Downstream: the disk. The file of the flushes is kept beside it, and no crash loses one.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use kachel_engine::{FLUSH_FILE, KeptFlushes};
use kachel_flash::{FlashOptions, KeepFlushes, StoreFiles};
use kachel_io::memory::disk::Disk;
use kachel_io::{
    AlignedBuffer, Event, FileName, FileOperation, FileWork, Files as _, FolderHandle, Io as _,
    ManualClock, Memory, MemoryNet, OpenMode, Transfer, Wait,
};
use kachel_log::{Geometry, LOG_FILE, LogIdentity, SEGMENT_BYTES_MIN, SyncMode, Task, create_log};

/// The number that tells these logs from those of other stores.
const IDENTITY: u64 = 0x1d5c_62f0_9e47_ab83;

/// The segments of most logs here.
pub(crate) const SEGMENTS: u64 = 24;
/// The memory for each engine: less than its items take, so that some are read from the disk.
const MEMORY_BYTES: u64 = 1 << 20;

/// The step at which the file of the flushes cannot be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushFault {
    /// The new file cannot be written.
    Write,
    /// The new file is not durable.
    Sync,
    /// The new file cannot get its name.
    Rename,
    /// Its name may be lost in a power cut.
    SyncFolder,
}

/// The file of the flushes.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlushFile {
    pub(crate) content: Vec<u8>,
    /// `None`: it is replaced.
    pub(crate) fault: Option<FlushFault>,
}

/// A store.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) disk: Disk,
    pub(crate) clock: ManualClock,
    pub(crate) options: FlashOptions,
    /// The number that tells its logs from those of other stores.
    pub(crate) identity: u64,
    pub(crate) engines: u16,
    pub(crate) memory_bytes: u64,
    /// Whether items have CAS tokens; without them as with `-C`.
    pub(crate) cas: bool,
    pub(crate) flushes: Arc<Mutex<FlushFile>>,
    /// Where a start adds the disk as a power cut at each of its writes leaves it.
    pub(crate) cuts: Option<Rc<RefCell<Vec<Disk>>>>,
}

#[derive(Debug)]
struct Keeper(Arc<Mutex<FlushFile>>);

impl KeepFlushes for Keeper {
    fn keep(&mut self, flushes: &KeptFlushes) -> io::Result<()> {
        let mut file = self.0.lock().expect("a panic ends the test");
        match file.fault {
            None | Some(FlushFault::SyncFolder) => file.content = flushes.text().into_bytes(),
            Some(FlushFault::Write | FlushFault::Sync | FlushFault::Rename) => {}
        }
        file.fault.map_or(Ok(()), |fault| Err(other(format!("{fault:?}"))))
    }
}

/// A backend over a disk.
pub(crate) fn backend(disk: &Disk) -> Memory {
    let mut memory = MemoryNet::new().open();
    memory.use_disk(disk);
    memory
}

/// The operations that are due.
pub(crate) fn completions(memory: &mut Memory) -> impl Iterator<Item = Box<FileOperation>> + use<> {
    let mut events = Vec::new();
    memory.poll(Wait::Now, &mut events).expect("memory never fails");
    events.into_iter().filter_map(|event| match event {
        Event::FileDone { operation } => Some(operation),
        _ => None,
    })
}

/// Does some work on a disk, and waits for it.
fn perform(memory: &mut Memory, disk: &Disk, work: FileWork) -> FileWork {
    let mut operation = FileOperation::new(0);
    operation.work = work;
    memory.submit(operation).expect("there is room");
    disk.advance_to_next_due();
    let done = completions(memory).next().expect("it is due");
    done.result().expect("the disk has no faults");
    done.work
}

/// Makes a log with this content in a folder.
pub(crate) fn write_log(disk: &Disk, folder: &str, content: &[u8]) {
    let mut memory = backend(disk);
    let folder = || disk.folder(folder);
    let name = FileName::new(LOG_FILE).expect("a short name");
    let (mode, direct, opened) = (OpenMode::CreateNew, false, None);
    let open = FileWork::Open { folder: folder(), name, mode, direct, opened };
    let FileWork::Open { opened: Some(file), .. } = perform(&mut memory, disk, open) else {
        panic!("it is opened")
    };
    for (piece, offset) in content.chunks(1 << 16).zip((0..).step_by(1 << 16)) {
        let mut buffer = AlignedBuffer::new(piece.len(), 1);
        buffer.copy_from_slice(piece);
        let bytes = piece.len();
        let transfer = Transfer { file: file.clone(), offset, buffer, start: 0, bytes };
        perform(&mut memory, disk, FileWork::Write { transfer, durable: true });
    }
    perform(&mut memory, disk, FileWork::SyncFolder { folder: folder() });
}

fn other(error: impl ToString) -> io::Error {
    io::Error::other(error.to_string())
}

impl Store {
    /// Makes a store on an empty disk, with a number of segments in each log.
    pub(crate) fn create(seed: u64, sync: SyncMode, engines: u16, segments: u64) -> Self {
        let geometry = Geometry::new(SEGMENT_BYTES_MIN, segments * SEGMENT_BYTES_MIN);
        let options = FlashOptions { geometry, sync, target_percent: 150 };
        let clock = ManualClock::new(1_800_000_000);
        let disk = Disk::new(seed, &clock);
        let memory_bytes = u64::from(engines) * MEMORY_BYTES;
        let content = KeptFlushes::default().text().into_bytes();
        let flushes = Arc::new(Mutex::new(FlushFile { content, fault: None }));
        let cuts = None;
        let identity = IDENTITY;
        let mut store = Self {
            identity,
            disk,
            clock,
            options,
            engines,
            memory_bytes,
            cas: true,
            flushes,
            cuts,
        };
        for engine in 0..engines {
            let folder = store.folder(engine).expect("a folder in memory");
            let identity = LogIdentity { store: IDENTITY, engine: engine.into() };
            let made = store.run(create_log(folder, identity, options.geometry));
            made.expect("the disk has no faults").expect("it is empty");
        }
        store
    }

    /// The same store on another disk, with flushes of its own from now on.
    pub(crate) fn on(&self, disk: &Disk) -> Self {
        let file = FlushFile { content: self.flush_file(), fault: None };
        let flushes = Arc::new(Mutex::new(file));
        Self { disk: disk.clone(), flushes, cuts: None, ..self.clone() }
    }

    /// The content of the file of the flushes.
    pub(crate) fn flush_file(&self) -> Vec<u8> {
        self.flushes.lock().expect("a panic ends the test").content.clone()
    }

    /// What the file of the flushes says.
    pub(crate) fn kept_flushes(&self) -> KeptFlushes {
        KeptFlushes::parse(&self.flush_file()).expect("it is whole")
    }

    /// Has the file of the flushes fail from now on.
    pub(crate) fn refuse_flushes(&self, fault: FlushFault) {
        self.flushes.lock().expect("a panic ends the test").fault = Some(fault);
    }
}

impl StoreFiles for Store {
    fn folder(&mut self, engine: u16) -> io::Result<FolderHandle> {
        Ok(self.disk.folder(&self.path(engine)))
    }

    fn path(&self, engine: u16) -> String {
        format!("engine-{engine:04}")
    }

    fn identity(&self) -> u64 {
        self.identity
    }

    fn run<T>(&mut self, mut task: Task<T>) -> io::Result<T> {
        let mut memory = backend(&self.disk);
        loop {
            if let Some(operation) = task.next_submission() {
                let is_read = matches!(operation.work, FileWork::Read(_));
                memory.submit(operation).map_err(|_| other("the backend is full"))?;
                if let Some(cuts) = &self.cuts
                    && !is_read
                {
                    let mut cuts = cuts.borrow_mut();
                    let seed = cuts.len() as u64;
                    cuts.push(self.disk.crash(seed));
                }
            }
            if let Some(output) = task.take_output() {
                return Ok(output);
            }
            self.disk.advance_to_next_due();
            completions(&mut memory).for_each(|operation| task.complete(operation));
        }
    }

    fn flushes(&mut self) -> io::Result<KeptFlushes> {
        let refused = |why| other(format!("{FLUSH_FILE} {why}"));
        KeptFlushes::parse(&self.flush_file()).map_err(refused)
    }

    fn keeper(&mut self) -> Box<dyn KeepFlushes> {
        Box::new(Keeper(Arc::clone(&self.flushes)))
    }
}
