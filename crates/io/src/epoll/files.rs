//! Files: threads execute the operations, because epoll does not support files.
//!
//! Upstream:   `Files::submit` takes an operation.
//! Downstream: `files::threads` carries it out; the poll that takes the edge of the threads' bell
//!             reports `FileDone`.

use super::{Epoll, watch};
use crate::Files;
use crate::files::FileOperation;
use crate::limits::FILE_OPERATIONS_MAX;

impl Files for Epoll {
    fn file_room(&self) -> usize {
        FILE_OPERATIONS_MAX - self.files.in_flight()
    }

    fn submit(&mut self, mut operation: Box<FileOperation>) -> Result<(), Box<FileOperation>> {
        if self.file_room() == 0 {
            return Err(operation);
        }
        operation.begin();
        let epoll = &self.epoll;
        self.files.submit(operation, |bell| watch::watch_files(epoll, bell));
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::event::{Event, Wait};
    use crate::files::{FileWork, FolderHandle};
    use crate::{Io as _, Limits};

    /// Far more than an operation takes; only a failing test waits so long.
    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn operations_for_which_no_thread_starts_come_back_with_the_error() {
        let mut io = Epoll::new(Limits::default()).unwrap();
        let place = tempfile::tempdir().unwrap();
        let folder =
            FolderHandle::new(std::fs::File::open(place.path()).unwrap().into(), "a folder");
        // The threads cannot start, because nothing can be watched by an eventfd.
        let epoll = std::mem::replace(&mut io.epoll, eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        for token in 0..3 {
            let mut operation = FileOperation::new(token);
            operation.work = FileWork::SyncFolder { folder: folder.clone() };
            assert_eq!(io.file_room(), FILE_OPERATIONS_MAX - token as usize);
            io.submit(operation).expect("there is room");
        }
        io.epoll = epoll;
        let mut events = Vec::new();
        io.poll(Wait::Forever, &mut events).unwrap();
        for (event, token) in events.drain(..).zip(0..) {
            let Event::FileDone { operation } = event else { panic!("{event:?}") };
            assert!(operation.token == token && operation.result().is_err());
        }
        assert_eq!(io.file_room(), FILE_OPERATIONS_MAX);
    }

    #[test]
    fn an_operation_that_is_done_before_the_poll_ends_a_wait_with_slack() {
        let limits = Limits { slack_us: 100, ..Limits::default() };
        let mut io = Epoll::new(limits).unwrap();
        let place = tempfile::tempdir().unwrap();
        let folder = std::fs::File::open(place.path()).unwrap();
        let folder = FolderHandle::new(folder.into(), "a folder");
        let mut operation = Some(FileOperation::new(1));
        for _ in 0..40 {
            let mut next = operation.take().expect("it has come back");
            next.work = FileWork::SyncFolder { folder: folder.clone() };
            io.submit(next).unwrap();
            while !io.files.is_any_done() {
                std::thread::yield_now();
            }
            let mut events = Vec::new();
            let start = Instant::now();
            while operation.is_none() {
                io.poll(Wait::AtMostNs(2 * PATIENCE.as_nanos() as u64), &mut events).unwrap();
                assert!(start.elapsed() < PATIENCE, "the poll slept while an operation was done");
                for event in events.drain(..) {
                    let Event::FileDone { operation: done } = event else { panic!("{event:?}") };
                    operation = Some(done);
                }
            }
        }
    }
}
