//! io_uring for all shards, or for none.
//!
//! Upstream:   the thread of each shard opens a ring, because only that thread may submit to it.
//! Downstream: `shards` makes each shard with the backend that its thread has then.
//!
//! ```text
//! thread of a shard:  open a ring --> wait --> keep the ring, or drop it and open epoll
//!                          |           ^
//! main thread:             +--> decide-+    when all threads have tried
//! ```
//!
//! The memory of a ring counts against the limit of locked memory, which all processes of a user
//! share (Linux 6.14 and later; root has no limit). So the limit may be reached at any ring.
//!
//! Invariants, cited by number where they are asserted:
//! - R1  All threads get the same kind of backend, and no shard exists before.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use kachel_io::{AnyIo, Epoll, Limits, Uring};
use kachel_options::IoChoice;

/// The part of one shard's thread.
pub(crate) struct Vote {
    /// Whether the thread has a ring; an error if it wanted one and got none.
    opened: Sender<io::Result<bool>>,
    /// Whether all keep their rings.
    decided: Receiver<bool>,
}

/// The part of the main thread.
pub(crate) struct Votes {
    opened: Receiver<io::Result<bool>>,
    deciding: Vec<Sender<bool>>,
}

/// The parts of a decision among `threads` threads.
pub(crate) fn votes(threads: u16) -> (Votes, Vec<Vote>) {
    let (opening, opened) = channel();
    let (deciding, votes) = (0..threads)
        .map(|_| {
            let (decide, decided) = channel();
            (decide, Vote { opened: opening.clone(), decided })
        })
        .unzip();
    (Votes { opened, deciding }, votes)
}

impl Vote {
    /// Opens the backend of the calling thread, of the kind that all threads get (R1). Waits until
    /// all have tried. `None` if the start has failed meanwhile.
    ///
    /// Errors: epoll cannot be opened.
    pub(crate) fn backend(
        self,
        choice: IoChoice,
        limits: Limits,
        has_datagrams: bool,
    ) -> Option<io::Result<AnyIo>> {
        let (ring, opened) = match choice {
            IoChoice::Epoll => (None, Ok(false)),
            IoChoice::Auto | IoChoice::Uring => match open(limits, has_datagrams) {
                Ok(ring) => (Some(ring), Ok(true)),
                Err(error) => (None, Err(error)),
            },
        };
        self.opened.send(opened).ok()?;
        match (self.decided.recv().ok()?, ring) {
            (true, ring) => Some(Ok(AnyIo::Uring(Box::new(ring.expect("R1: all have a ring"))))),
            (false, ring) => {
                drop(ring);
                Some(Epoll::new(limits).map(|epoll| AnyIo::Epoll(Box::new(epoll))))
            }
        }
    }
}

/// Opens a ring with all the memory that it will need.
fn open(limits: Limits, has_datagrams: bool) -> io::Result<Uring> {
    let mut ring = Uring::new(limits)?;
    if has_datagrams {
        ring.prepare_datagrams()?;
    }
    Ok(ring)
}

impl Votes {
    /// Waits until all threads have tried, and decides for all (R1).
    ///
    /// Errors: a sentence, if `choice` is io_uring and a thread got no ring.
    pub(crate) fn decide(self, choice: IoChoice) -> io::Result<()> {
        let Self { opened, deciding } = self;
        let (mut rings, mut refused) = (0, None);
        for opened in opened.iter().take(deciding.len()) {
            match opened {
                Ok(has_ring) => rings += usize::from(has_ring),
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = &refused {
            let sentence = sentence(rings, deciding.len(), error);
            if choice == IoChoice::Uring {
                return Err(io::Error::new(error.kind(), sentence));
            }
            // A kernel that forbids io_uring altogether is no surprise, but a limit is.
            if rings > 0 || is_memory(error) {
                say!(Warning, "{sentence}; all shards use epoll");
            }
        }
        let keep = refused.is_none() && rings == deciding.len();
        for thread in deciding {
            let _thread_has_ended = thread.send(keep);
        }
        Ok(())
    }
}

fn is_memory(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOMEM)
}

/// The refusal in words, with the limit that may be the cause, and the remedy.
fn sentence(rings: usize, threads: usize, error: &io::Error) -> String {
    let refused = format!("io_uring: {rings} of {threads} rings could be opened: {error}");
    match kachel_host::locked_memory_bytes_max() {
        Some(bytes) if is_memory(error) => format!(
            "{refused}; all processes of a user together may lock {} KiB of memory: raise the \
             limit (LimitMEMLOCK= of the unit, ulimit -l), or start fewer threads (-t)",
            bytes >> 10
        ),
        _ => refused,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Threads that vote, of which some have died before; the kinds that they got.
    fn kinds(choice: IoChoice, threads: u16) -> (io::Result<()>, Vec<&'static str>) {
        let (all, each) = votes(threads);
        let threads: Vec<_> = each
            .into_iter()
            .map(|vote| {
                thread::spawn(move || match vote.backend(choice, Limits::default(), true) {
                    None => "none",
                    Some(io) => kachel_io::Io::kind(&io.expect("a backend")),
                })
            })
            .collect();
        let decided = all.decide(choice);
        (decided, threads.into_iter().map(|thread| thread.join().expect("a vote")).collect())
    }

    #[test]
    fn all_get_the_same_backend() {
        let (decided, got) = kinds(IoChoice::Epoll, 3);
        assert!(decided.is_ok() && got == ["epoll"; 3], "{got:?}");
        let (decided, got) = kinds(IoChoice::Auto, 3);
        assert!(decided.is_ok() && (got == ["uring"; 3] || got == ["epoll"; 3]), "{got:?}");
    }

    #[test]
    fn one_refusal_is_one_for_all() {
        for (choice, wanted) in [(IoChoice::Auto, Some(false)), (IoChoice::Uring, None)] {
            let (all, each) = votes(3);
            let error = io::Error::from_raw_os_error(libc::ENOMEM);
            for (vote, opened) in each.iter().zip([Ok(true), Err(error), Ok(true)]) {
                vote.opened.send(opened).expect("main waits");
            }
            let decided = all.decide(choice);
            let said = decided.err().map(|error| error.to_string());
            assert_eq!(said.is_some(), wanted.is_none(), "{said:?}");
            assert!(said.is_none_or(|said| said.contains("io_uring: 2 of 3 rings")));
            assert!(each.iter().all(|vote| vote.decided.recv().ok() == wanted));
        }
    }

    #[test]
    fn a_start_that_fails_leaves_no_thread_waiting() {
        let (all, each) = votes(2);
        drop(all);
        for vote in each {
            assert!(vote.backend(IoChoice::Epoll, Limits::default(), false).is_none());
        }
    }
}
