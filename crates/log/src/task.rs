//! Work of many operations on files, each after the other: making, opening and verifying a log.
//!
//! Upstream:   the owner of a store, when it starts.
//! Downstream: `io`, one operation at a time.
//!
//! The steps are written as a future, which the compiler makes a state machine of. Nothing but a
//! completion continues it, so it needs no executor.
//!
//! Invariants, cited by number where they are asserted:
//! - T1  One operation is queued or in flight, until the work is done.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use kachel_io::{
    AlignedBuffer, Event, FileError, FileHandle, FileName, FileOperation, FileWork, Files,
    FolderHandle, OpenMode, Wait,
};

use crate::transfer::{Progress, advance};

/// Every token of an operation of a log has this bit, and no other operation of its owner may. The
/// sum of it and a number is the token of the task or the scan with this number.
pub const LOG_TOKEN: u64 = 1 << 47;
/// The tokens of the log itself are not less.
pub(crate) const OWN_TOKEN: u64 = LOG_TOKEN | 1 << 46;

/// The operation of a task, before and after it is carried out.
#[derive(Debug, Default)]
struct Exchange {
    wanted: Option<Box<FileOperation>>,
    done: Option<Box<FileOperation>>,
}

/// By which the steps of a task have operations carried out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Port {
    exchange: Arc<Mutex<Exchange>>,
}

impl Port {
    fn exchange<T>(&self, with: impl FnOnce(&mut Exchange) -> T) -> T {
        // The lock is never held across a panic of the steps.
        with(&mut self.exchange.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has an operation carried out.
    pub(crate) async fn perform(&self, operation: Box<FileOperation>) -> Box<FileOperation> {
        self.exchange(|exchange| {
            assert!(exchange.wanted.is_none() && exchange.done.is_none(), "T1");
            exchange.wanted = Some(operation);
        });
        poll_fn(|_| match self.exchange(|exchange| exchange.done.take()) {
            Some(operation) => Poll::Ready(operation),
            None => Poll::Pending,
        })
        .await
    }

    /// Has work done that is done whole or not at all.
    pub(crate) async fn finish(&self, work: FileWork) -> Result<(), FileError> {
        let mut operation = FileOperation::new(0);
        operation.work = work;
        self.perform(operation).await.result().map(|_| ())
    }

    /// Opens a file. Returns it with its length.
    pub(crate) async fn open(
        &self,
        folder: &FolderHandle,
        name: &str,
        mode: OpenMode,
        direct: bool,
    ) -> Result<(FileHandle, usize), FileError> {
        let (folder, name) = (folder.clone(), FileName::new(name).expect("a short name"));
        let mut operation = FileOperation::new(0);
        operation.work = FileWork::Open { folder, name, mode, direct, opened: None };
        let operation = self.perform(operation).await;
        let bytes = operation.result()?;
        match operation.work {
            FileWork::Open { opened: Some(handle), .. } => Ok((handle, bytes)),
            work => unreachable!("{work:?} has opened nothing"),
        }
    }

    /// Has a read or a write done, in as many operations as it takes. A read ends when the first
    /// `needed` bytes of its buffer are there.
    pub(crate) async fn transfer(
        &self,
        work: FileWork,
        needed: usize,
    ) -> Result<AlignedBuffer, FileError> {
        let (mut operation, mut attempts) = (FileOperation::new(0), 0);
        operation.work = work;
        loop {
            operation = self.perform(operation).await;
            // With direct I/O, the rest of a block at the end of a file is no progress.
            let has_needed = match (&operation.work, operation.result()) {
                (FileWork::Read(read), Ok(bytes)) => read.start + bytes >= needed,
                _ => false,
            };
            let progress = advance(&mut operation, &mut attempts);
            return match progress {
                _ if has_needed => Ok(()),
                Progress::Part => continue,
                Progress::Whole => Ok(()),
                Progress::AtEnd => Err(FileError::IO),
                Progress::NoSpace => Err(FileError::NO_SPACE),
                Progress::Failed(error) => Err(error),
            }
            .map(|()| operation.take_buffer().expect("a transfer has its buffer"));
        }
    }
}

/// Work that is done by operations on files. It ends with a `T`.
pub struct Task<T> {
    port: Port,
    number: u16,
    /// The token of the operation in flight, as the steps have given it.
    token: u64,
    /// `None` once it is done.
    steps: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    output: Option<T>,
}

impl<T> Task<T> {
    /// Begins the work.
    pub(crate) fn new<F>(steps: impl FnOnce(Port) -> F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let port = Port::default();
        let steps: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(steps(port.clone()));
        let mut task = Self { port, number: 0, token: 0, steps: Some(steps), output: None };
        task.step();
        task
    }

    /// Gives the task a number, by which its owner tells its operations from those of other tasks
    /// and scans at the same time. Without, it has the number 0.
    #[must_use]
    pub fn numbered(mut self, number: u16) -> Self {
        self.number = number;
        self
    }

    fn step(&mut self) {
        let Some(steps) = &mut self.steps else { return };
        if let Poll::Ready(output) = steps.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            (self.steps, self.output) = (None, Some(output));
        }
    }

    /// The next operation to be submitted. Its token is the sum of [`LOG_TOKEN`] and the number of
    /// the task.
    pub fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        let mut operation = self.port.exchange(|exchange| exchange.wanted.take())?;
        self.token = operation.token;
        operation.token = LOG_TOKEN | u64::from(self.number);
        Some(operation)
    }

    /// Takes back a completed operation of this task.
    pub fn complete(&mut self, mut operation: Box<FileOperation>) {
        operation.token = self.token;
        self.port.exchange(|exchange| exchange.done = Some(operation));
        self.step();
    }

    /// What the work ended with, once, after it is done.
    pub fn take_output(&mut self) -> Option<T> {
        self.output.take()
    }

    /// Does all the work on an I/O backend that has no other, and waits for it.
    ///
    /// Errors: the backend failed.
    pub fn run(mut self, io: &mut impl Files) -> io::Result<T> {
        let mut events = Vec::new();
        loop {
            if let Some(operation) = self.next_submission() {
                io.submit(operation).map_err(|_| io::Error::other("other operations are there"))?;
            }
            if let Some(output) = self.take_output() {
                return Ok(output);
            }
            io.poll(Wait::Forever, &mut events)?;
            for event in events.drain(..) {
                if let Event::FileDone { operation } = event {
                    self.complete(operation);
                }
            }
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("is_done", &self.steps.is_none()).finish_non_exhaustive()
    }
}
