//! What waits for the disk: the calls of the library that a thread of the I/O backend makes.
//!
//! Upstream:   the engine fills a call, and hands it to the shard as an operation.
//! Downstream: the database. The call comes back with what it has found.

use std::any::Any;
use std::sync::Arc;

use kachel_engine::FileReport;
use kachel_io::{FileError, FileOperation, FileWork, WaitingCall};

use crate::database::{Database, DatabaseError, PAGE_RECORDS_MAX, Page};
use crate::pending::Batch;
use crate::scans::WantedPage;

/// What a call does, and what it has found.
#[derive(Debug)]
pub(crate) enum Task {
    /// Writes a batch.
    Write {
        batch: Batch,
        /// Whether it is durable then.
        syncs: bool,
    },
    /// Reads keys.
    Read {
        keys: Vec<Arc<[u8]>>,
        /// For each key.
        found: Vec<Result<Option<Vec<u8>>, DatabaseError>>,
    },
    /// Reads the records behind a key, for a walk.
    Page {
        /// The number of the walk.
        walk: u64,
        behind: Vec<u8>,
        page: Page,
    },
    /// Reads the records behind a key, for a scan.
    ScanPage { wanted: WantedPage, page: Page },
    /// Makes what was written durable.
    Sync,
    /// Asks for the numbers of the database, and counts its items.
    Measure { measured: FileReport, items: u64 },
}

/// A call of the library.
#[derive(Debug)]
pub(crate) struct RocksCall {
    database: Arc<Database>,
    task: Task,
    /// Why the task was not done.
    failure: Option<DatabaseError>,
}

/// A task that has come back.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) task: Task,
    /// Why the task was not done, in RocksDB's words or those of the system.
    pub(crate) failure: Option<String>,
}

/// The bytes of the records of a page, at most about.
const PAGE_BYTES_MAX: usize = 1 << 20;

impl WaitingCall for RocksCall {
    fn call(&mut self) -> Result<usize, FileError> {
        let done = self.try_call();
        self.failure = done.err();
        if self.failure.is_some() { Err(FileError::IO) } else { Ok(0) }
    }
}

impl RocksCall {
    /// The operation that does a task.
    pub(crate) fn operation(database: &Arc<Database>, task: Task) -> Box<FileOperation> {
        let mut operation = FileOperation::new(0);
        let call = Self { database: Arc::clone(database), task, failure: None };
        operation.work = FileWork::Call(Box::new(call));
        operation
    }

    /// The task of an operation that has completed.
    ///
    /// Panics: if the operation is no call of ours.
    pub(crate) fn completed(operation: &mut FileOperation) -> Completed {
        let result = operation.result();
        let FileWork::Call(call) = std::mem::take(&mut operation.work) else {
            unreachable!("the engine has no other operations")
        };
        let call: Box<dyn Any> = call;
        let Self { task, failure, .. } = *call.downcast().expect("the engine has no other calls");
        let failure = match (failure, result) {
            (Some(failure), _) => Some(failure.to_string()),
            // It was not begun: there is no thread, or a simulation has a fault.
            (None, Err(error)) => Some(error.to_string()),
            (None, Ok(_)) => None,
        };
        Completed { task, failure }
    }

    fn try_call(&mut self) -> Result<(), DatabaseError> {
        let database = &*self.database;
        match &mut self.task {
            Task::Write { batch, syncs } => database.write(&batch.changes, *syncs)?,
            Task::Read { keys, found } => *found = database.get_many(keys),
            Task::Page { behind, page, .. } => {
                *page = database.page(behind, PAGE_RECORDS_MAX, PAGE_BYTES_MAX)?;
            }
            Task::ScanPage { wanted, page } => {
                *page = database.page(&wanted.behind, wanted.records_max, PAGE_BYTES_MAX)?;
            }
            Task::Sync => database.sync()?,
            Task::Measure { measured, items } => {
                (*measured, *items) = (database.measure(), database.items());
            }
        }
        Ok(())
    }
}
