//! Running out of descriptors: clients wait, operations on files fail, the server does not spin,
//! and goes on by itself.
//!
//! Alone in its process, because the limit is the process's.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use kachel_io::{ACCEPT_RETRY_NS, Epoll, Event, Io, Limits, Uring, Wait, listener};
use kachel_io::{FileError, FileOperation, FileWork, Files, FolderHandle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn accepted(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Accepted { .. })).count()
}

fn clients_wait_until_a_descriptor_is_free(mut io: impl Io) {
    let socket = listener::tcp("127.0.0.1:0".parse().unwrap(), 64, false).unwrap();
    let address = listener::local_addr(&socket).unwrap();
    let before = getrlimit(Resource::Nofile);
    let mut clients: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
    let highest = clients.iter().map(AsRawFd::as_raw_fd).max().unwrap() as u64;
    // Two more descriptors than are taken now, if those below are all taken.
    let limit = Rlimit { current: Some(highest + 3), ..before };
    io.listen(socket);
    setrlimit(Resource::Nofile, limit).unwrap();

    let mut events = Vec::new();
    let start = Instant::now();
    let mut polls = 0;
    while start.elapsed() < Duration::from_millis(100) {
        io.poll(Wait::Forever, &mut events).unwrap();
        polls += 1;
    }
    let first = accepted(&events);
    assert!((1..8).contains(&first), "{first} accepted under a limit for 2");
    let retries = 100_000_000 / ACCEPT_RETRY_NS;
    assert!(polls <= 2 * retries + 10, "a busy loop: {polls} polls");

    // Only the limit changes. The Io gets no notice of it.
    setrlimit(Resource::Nofile, before).unwrap();
    while accepted(&events) < clients.len() {
        io.poll(Wait::Forever, &mut events).unwrap();
        assert!(start.elapsed() < Duration::from_secs(20), "still waiting");
    }
    clients.clear();
}

/// Syncs a folder, with the first operation on files of the backend or a later one.
fn sync_folder(io: &mut impl Files, folder: &FolderHandle) -> Result<usize, FileError> {
    let mut operation = FileOperation::new(1);
    operation.work = FileWork::SyncFolder { folder: folder.clone() };
    io.submit(operation).expect("there is room");
    let mut events = Vec::new();
    while events.is_empty() {
        io.poll(Wait::Forever, &mut events).unwrap();
    }
    let [Event::FileDone { operation }] = &events[..] else { panic!("{events:?}") };
    operation.result()
}

fn an_operation_fails_while_its_threads_cannot_start(mut io: Epoll) {
    let place = tempfile::tempdir().unwrap();
    let folder = std::fs::File::open(place.path()).unwrap();
    let folder = FolderHandle::new(folder.into(), "a folder");
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
    let failed = sync_folder(&mut io, &folder);
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(failed.unwrap_err().raw_os_error(), libc::EMFILE);
    assert_eq!(sync_folder(&mut io, &folder), Ok(0), "the next one starts them");
}

#[test]
fn clients_wait_and_files_fail_until_a_descriptor_is_free() {
    an_operation_fails_while_its_threads_cannot_start(Epoll::new(Limits::default()).unwrap());
    clients_wait_until_a_descriptor_is_free(Epoll::new(Limits::default()).unwrap());
    match Uring::new(Limits::default()) {
        Ok(uring) => clients_wait_until_a_descriptor_is_free(uring),
        Err(error) => {
            assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{error}");
            println!("skip io_uring the kernel forbids it: {error}");
        }
    }
}
