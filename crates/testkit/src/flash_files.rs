//! The files of a store of `flash`, on a disk in memory.
//!
//! Upstream:   tests of the engine, with or without a server.
//! Downstream: `io`'s disk in memory, whose operations are completed as soon as they are due.

use std::io;
use std::sync::{Arc, Mutex};

use kachel_engine::KeptFlushes;
use kachel_flash::{FlashOpener, FlashOptions, KeepFlushes, StoreFiles};
use kachel_io::memory::disk::Disk;
use kachel_io::{Event, Files as _, FolderHandle, Io as _, Memory, MemoryNet, Wait};
use kachel_log::{Geometry, LOG_FILE, LogIdentity, SyncMode, Task, create_log};

/// The number that tells these logs from those of other stores.
const IDENTITY: u64 = 0x7a3c_99e1_05b2_d84f;

/// A store on a disk in memory. The flushes are kept beside it, and no crash loses one.
#[derive(Debug)]
pub struct FlashFiles {
    disk: Disk,
    options: FlashOptions,
    flushes: Arc<Mutex<KeptFlushes>>,
}

#[derive(Debug)]
struct Keeper(Arc<Mutex<KeptFlushes>>);

impl KeepFlushes for Keeper {
    fn keep(&mut self, flushes: &KeptFlushes) -> io::Result<()> {
        self.0.lock().expect("a panic ends the test").clone_from(flushes);
        Ok(())
    }
}

impl FlashFiles {
    /// The store of a disk. It is made, engine by engine, when it is opened for the first time.
    pub fn new(disk: &Disk, options: FlashOptions) -> Self {
        Self { disk: disk.clone(), options, flushes: Arc::default() }
    }

    /// The store of a disk, each of whose logs has so many bytes. A change is synced before its
    /// reply.
    pub fn of_space(disk: &Disk, segment_bytes: u64, log_bytes: u64) -> Self {
        let geometry = Geometry::new(segment_bytes, log_bytes);
        Self::new(disk, FlashOptions { geometry, sync: SyncMode::Always, target_percent: 135 })
    }

    /// The same store on another disk: the one that a power cut has left.
    #[must_use]
    pub fn on(&self, disk: &Disk) -> Self {
        Self { disk: disk.clone(), options: self.options, flushes: Arc::clone(&self.flushes) }
    }

    /// Opens engines over the store.
    #[must_use]
    pub fn opener(&self) -> FlashOpener<Self> {
        FlashOpener::new(self.options, self.on(&self.disk))
    }

    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    fn backend(&self) -> Memory {
        let mut memory = MemoryNet::new().open();
        memory.use_disk(&self.disk);
        memory
    }
}

impl StoreFiles for FlashFiles {
    fn path(&self, engine: u16) -> String {
        format!("engine-{engine:04}")
    }

    fn folder(&mut self, engine: u16) -> io::Result<FolderHandle> {
        let path = self.path(engine);
        let folder = self.disk.folder(&path);
        let has_log = |(name, _): &(String, Vec<u8>)| *name == format!("{path}/{LOG_FILE}");
        if !self.disk.image().iter().any(has_log) {
            let identity = LogIdentity { store: IDENTITY, engine: engine.into() };
            let made = self.run(create_log(folder.clone(), identity, self.options.geometry))?;
            made.map_err(|refusal| io::Error::other(refusal.to_string()))?;
        }
        Ok(folder)
    }

    fn identity(&self) -> u64 {
        IDENTITY
    }

    fn run<T>(&mut self, mut task: Task<T>) -> io::Result<T> {
        let mut memory = self.backend();
        let mut events = Vec::new();
        loop {
            if let Some(operation) = task.next_submission() {
                memory.submit(operation).map_err(|_| io::Error::other("the backend is full"))?;
            }
            if let Some(output) = task.take_output() {
                return Ok(output);
            }
            self.disk.advance_to_next_due();
            memory.poll(Wait::Now, &mut events)?;
            for event in events.drain(..) {
                if let Event::FileDone { operation } = event {
                    task.complete(operation);
                }
            }
        }
    }

    fn flushes(&mut self) -> io::Result<KeptFlushes> {
        Ok(self.flushes.lock().expect("a panic ends the test").clone())
    }

    fn keeper(&mut self) -> Box<dyn KeepFlushes> {
        Box::new(Keeper(Arc::clone(&self.flushes)))
    }
}
