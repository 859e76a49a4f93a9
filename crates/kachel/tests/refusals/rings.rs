//! Rings that the kernel refuses half-way, and operations that it keeps at the end.

use std::path::Path;

use kachel_testkit::{Ended, Launch, Server, is_usable, wait_until};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::kernel::{Refusal, refusing, refusing_after};
use crate::{noop, program, start};

const THREADS: usize = 6;
/// Rings that the kernel grants. The server needs more.
const GRANTED: u32 = 4;
/// IORING_REGISTER_SYNC_CANCEL (linux/io_uring.h).
const SYNC_CANCEL: u32 = 24;

fn start_with_few_rings(io: &str) -> Result<Server, Ended> {
    let options = ["-t", &THREADS.to_string(), "--io", io];
    refusing_after(libc::SYS_io_uring_setup, GRANTED, Errno::NOMEM, || {
        Launch::memcached(program(), &options).try_start()
    })
}

/// `--io=auto`: the other shards give up their rings, and the server says why.
#[test]
fn a_ring_that_is_refused_half_way_leaves_all_shards_with_epoll() {
    if !is_usable("uring") {
        return; // `is_usable` has said so.
    }
    let mut server = start_with_few_rings("auto").expect("it starts");
    assert_eq!(noop(&server), "MN\r\n");
    assert_eq!(rings_of(&server), 0, "all or none");
    let said = server.last_words();
    let wanted = format!("io_uring: {GRANTED} of {THREADS} rings could be opened");
    assert!(said.contains(&wanted) && said.contains("all shards use epoll"), "{said}");
    server.assert_alive();
}

/// `--io=uring` does not start, and says why.
#[test]
fn a_ring_that_is_refused_ends_a_server_that_must_have_it() {
    if !is_usable("uring") {
        return; // `is_usable` has said so.
    }
    let said = start_with_few_rings("uring").expect_err("no ring for the last ones").said;
    assert!(said.contains(&format!("io_uring: {GRANTED} of {THREADS} rings")), "{said}");
    assert!(said.contains("Cannot allocate memory"), "{said}");
}

/// The rings among the open files of a server.
fn rings_of(server: &Server) -> usize {
    let folder = Path::new("/proc").join(server.pid().as_raw_pid().to_string()).join("fd");
    let files = std::fs::read_dir(folder).expect("a process").filter_map(Result::ok);
    let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("io_uring")).count()
}

/// Operations that cannot be cancelled keep their memory, and the server ends all the same.
#[test]
fn an_end_that_cancels_nothing_frees_nothing_and_says_so() {
    if !is_usable("uring") {
        return; // `is_usable` has said so.
    }
    let interrupted = Refusal {
        call: libc::SYS_io_uring_register,
        argument: Some((1, SYNC_CANCEL)),
        error: Errno::INTR,
    };
    let mut server = refusing(&[interrupted], || start(&["-t", "2", "--io=uring"]));
    assert_eq!(noop(&server), "MN\r\n");
    server.signal(Signal::TERM);
    let mut status = None;
    wait_until("the end", || {
        status = server.process.try_wait().expect("a child");
        status.is_some()
    });
    let said = server.last_words();
    assert!(status.is_some_and(|status| status.success()), "{status:?}: {said}");
    let line =
        "the kernel keeps operations after they were cancelled, so their memory is not freed";
    assert_eq!(said.matches(line).count(), 2, "{said}");
}
