//! Lines for the operator from threads that must not wait.
//!
//! Upstream:   `kachel`, on the threads of shards.
//! Downstream: standard error, if it takes a line at once.
//!
//! Invariants:
//! - I1  A line is no longer than a pipe takes as one piece, so a pipe with room takes all of it
//!   without waiting.

use std::os::fd::AsFd;
use std::sync::Mutex;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Bytes of a line, its end included: PIPE_BUF of Linux (I1).
const LINE_BYTES_MAX: usize = 4096;

/// Only one thread writes a line at a time, because a ready pipe may have room for only one.
static ONE: Mutex<()> = Mutex::new(());

/// Writes a line to standard error, or drops it if standard error cannot take it now: a full pipe,
/// or a terminal that is stopped. Cost: two system calls.
///
/// It may still wait if another process fills the same pipe at that moment.
pub fn log_line(line: &str) {
    let _dropped = write_if_taken(rustix::stdio::stderr(), line);
}

/// Writes `line` and a line end if that does not wait. Returns `false` if it would wait, or failed.
fn write_if_taken(file: impl AsFd, line: &str) -> bool {
    let mut bytes = [0; LINE_BYTES_MAX];
    let count = line.len().min(LINE_BYTES_MAX - 1); // I1
    bytes[..count].copy_from_slice(&line.as_bytes()[..count]);
    bytes[count] = b'\n';
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut asked = [PollFd::new(&file, PollFlags::OUT)];
    let has_room = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let is_ready = has_room == Ok(1) && asked[0].revents().contains(PollFlags::OUT);
    is_ready && rustix::io::write(&file, &bytes[..=count]) == Ok(count + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn lines_that_a_pipe_has_no_room_for_are_dropped() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let line = "x".repeat(1_000);
        let taken = (0..10_000).take_while(|_| write_if_taken(&writer, &line)).count();
        assert!((1..10_000).contains(&taken), "{taken} lines");
        let mut read = vec![0; 1_001 * taken];
        reader.read_exact(&mut read).expect("all of them");
        assert!(read.chunks(1_001).all(|read| read == [line.as_bytes(), b"\n"].concat()));
        assert!(write_if_taken(&writer, "again"), "there is room");
        assert!(write_if_taken(&writer, &"long".repeat(LINE_BYTES_MAX)), "it is cut");
        drop(writer);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).expect("the rest");
        assert_eq!(rest.len(), "again\n".len() + LINE_BYTES_MAX);
        assert!(rest.ends_with(b"\n"));
    }
}
