//! A few threads execute operations that wait, for a backend whose poll cannot carry them out, and
//! wake its poll.
//!
//! Upstream:   `Files::submit` of a backend queues an operation.
//! Downstream: a thread carries it out (`execute`); the next poll reports `FileDone`.
//!
//! ```text
//!   submit --> waiting --> a thread: execute --> done --> poll
//!                                                  |
//!                                                  +-- was empty: ring the eventfd
//! ```
//!
//! The threads start with the first operation. They inherit the processors and the signals of the
//! thread that polls.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  `in_flight` counts the operations between `submit` and the report, and is at most
//!   `FILE_OPERATIONS_MAX`. Both queues have memory for this number, so neither grows.
//! - I2  The thread that adds the first operation to an empty `done` rings the eventfd. Only the
//!   poll that takes this edge empties `done`. So no poll sleeps while `done` has an operation.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

use super::error::FileError;
use super::execute::execute;
use super::operation::FileOperation;
use crate::event::Event;
use crate::limits::{FILE_OPERATIONS_MAX, FILE_THREADS};

/// The operations of one backend that wait, and their threads.
#[derive(Debug, Default)]
pub(crate) struct FileThreads {
    /// `None` before the first operation.
    shared: Option<Arc<Shared>>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
    /// Operations that found no thread to carry them out, because the threads could not start.
    refused: VecDeque<Box<FileOperation>>,
}

#[derive(Debug)]
struct Shared {
    queues: Mutex<Queues>,
    /// Signaled for each operation that waits, and at the end.
    work: Condvar,
    /// Rung by the threads (I2).
    bell: OwnedFd,
}

#[derive(Debug)]
struct Queues {
    waiting: VecDeque<Box<FileOperation>>,
    done: VecDeque<Box<FileOperation>>,
    is_over: bool,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("a thread that panics ends the process")
    }

    /// The life of a thread.
    fn serve(&self) {
        while let Some(mut operation) = self.next() {
            execute(&mut operation);
            let mut queues = self.queues();
            debug_assert!(queues.done.len() < FILE_OPERATIONS_MAX, "I1");
            let was_empty = queues.done.is_empty();
            queues.done.push_back(operation);
            drop(queues);
            if was_empty {
                // It fails only when the counter is full, and then the sleeper is woken anyway.
                let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes()); // I2
            }
        }
    }

    /// Waits for an operation; `None` at the end.
    fn next(&self) -> Option<Box<FileOperation>> {
        let mut queues = self.queues();
        loop {
            if queues.is_over {
                return None;
            }
            if let Some(operation) = queues.waiting.pop_front() {
                return Some(operation);
            }
            queues = self.work.wait(queues).expect("a thread that panics ends the process");
        }
    }
}

impl FileThreads {
    /// Starts the threads, and has `watch` watch their bell.
    ///
    /// Errors: out of descriptors, memory or threads.
    fn start(&mut self, watch: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        assert!(self.shared.is_none() && self.threads.is_empty(), "the threads start once");
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let queue = || VecDeque::with_capacity(FILE_OPERATIONS_MAX);
        let queues = Queues { waiting: queue(), done: queue(), is_over: false };
        let queues = Mutex::new(queues);
        let shared = Arc::new(Shared { queues, work: Condvar::new(), bell });
        for _ in 0..FILE_THREADS {
            let builder = Builder::new().name("kachel-files".to_owned());
            let own = Arc::clone(&shared);
            match builder.spawn(move || own.serve()) {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => return Err(error),
                Err(_) => break, // The others do all the work.
            }
        }
        let watched = watch(shared.bell.as_fd());
        self.shared = Some(shared);
        watched
    }

    /// The number of operations that were submitted and not reported.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Has a thread carry an operation out. The first one starts the threads, and has `watch` watch
    /// their bell. The backend has room for the operation (I1), which has begun.
    pub(crate) fn submit(
        &mut self,
        mut operation: Box<FileOperation>,
        watch: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) {
        self.in_flight += 1; // I1
        if self.shared.is_none()
            && let Err(error) = self.start(watch)
        {
            self.end();
            operation.complete(Err(FileError::from(error)));
            return self.refused.push_back(operation);
        }
        let shared = self.shared.as_ref().expect("the threads were started");
        shared.queues().waiting.push_back(operation);
        shared.work.notify_one();
    }

    /// Whether an operation is done that was not reported.
    #[cfg(test)]
    pub(crate) fn is_any_done(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| !shared.queues().done.is_empty())
    }

    /// The bell that the threads ring; `None` before the first operation.
    pub(crate) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().map(|shared| shared.bell.as_fd())
    }

    /// Whether operations are to be reported that no thread rings for.
    pub(crate) fn are_ready(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Reports the operations that are done; for the edge of the eventfd (I2).
    pub(crate) fn report_done(&mut self, events: &mut Vec<Event>) {
        let Some(shared) = &self.shared else { return };
        let mut queues = shared.queues();
        assert!(queues.done.len() <= self.in_flight, "I1");
        self.in_flight -= queues.done.len();
        queues.done.drain(..).for_each(|operation| Event::report_file(operation, events));
    }

    /// Reports the operations that found no thread.
    pub(crate) fn report_refused(&mut self, events: &mut Vec<Event>) {
        assert!(self.refused.len() <= self.in_flight, "I1");
        self.in_flight -= self.refused.len();
        self.refused.drain(..).for_each(|operation| Event::report_file(operation, events));
    }

    /// Ends the threads. Operations that no thread has begun are not carried out. Waits for the
    /// others.
    fn end(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let mut queues = shared.queues();
        queues.is_over = true;
        queues.waiting.clear();
        drop(queues);
        shared.work.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("a thread that panics ends the process");
        }
    }
}

impl Drop for FileThreads {
    fn drop(&mut self) {
        self.end();
    }
}
