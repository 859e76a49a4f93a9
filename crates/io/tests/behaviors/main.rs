//! The behavior that all backends have in common. Each test runs over epoll and io_uring with real
//! sockets and, if the peer can be simulated, over the backend in memory.
//!
//! io_uring is skipped, with a line that `./test` counts, only where the kernel forbids it
//! altogether.

mod asking;
mod bench;
mod datagrams;
mod files;
mod landing;
mod listening;
mod moving;
mod receiving;
mod sending;
mod waiting;

use kachel_io::memory::disk::Disk;
use kachel_io::{Epoll, Files, FolderHandle, Io, Limits, ManualClock, Memory, MemoryNet, Uring};
use tempfile::TempDir;

/// Opens one kind of `Io`, and tells how clients reach it.
pub(crate) trait Door {
    type Io: Io;
    const KIND: &'static str;
    /// `None` when this machine's kernel forbids it.
    fn open(limits: Limits) -> Option<(Self::Io, Option<MemoryNet>)>;
}

/// A door to an `Io` with files.
pub(crate) trait FilesDoor: Door<Io: Files> {
    /// An empty folder for the `Io`, and what keeps it.
    fn folder(io: &mut Self::Io) -> (FolderHandle, Shelf);
    /// Gives another `Io` the files of a folder.
    fn share(io: &mut Self::Io, shelf: &Shelf);
}

/// Where the files of a test are.
pub(crate) enum Shelf {
    /// On the machine's disk, until this is dropped.
    Machine(#[expect(dead_code, reason = "held until it is dropped")] TempDir),
    Memory(Disk),
}

fn machine_folder() -> (FolderHandle, Shelf) {
    let folder = tempfile::tempdir().unwrap();
    let fd = std::fs::File::open(folder.path()).unwrap();
    let handle = FolderHandle::new(fd.into(), &folder.path().display().to_string());
    (handle, Shelf::Machine(folder))
}

impl FilesDoor for EpollDoor {
    fn folder(_io: &mut Epoll) -> (FolderHandle, Shelf) {
        machine_folder()
    }

    fn share(_io: &mut Epoll, _shelf: &Shelf) {}
}

impl FilesDoor for UringDoor {
    fn folder(_io: &mut Uring) -> (FolderHandle, Shelf) {
        machine_folder()
    }

    fn share(_io: &mut Uring, _shelf: &Shelf) {}
}

impl FilesDoor for MemoryDoor {
    fn folder(io: &mut Memory) -> (FolderHandle, Shelf) {
        let disk = Disk::new(1, &ManualClock::new(0));
        io.use_disk(&disk);
        (disk.folder("data"), Shelf::Memory(disk))
    }

    fn share(io: &mut Memory, shelf: &Shelf) {
        let Shelf::Memory(disk) = shelf else { unreachable!("a folder in memory") };
        io.use_disk(disk);
    }
}

pub(crate) struct EpollDoor;
pub(crate) struct UringDoor;
pub(crate) struct MemoryDoor;

impl Door for EpollDoor {
    type Io = Epoll;
    const KIND: &'static str = "epoll";

    fn open(limits: Limits) -> Option<(Epoll, Option<MemoryNet>)> {
        Some((Epoll::new(limits).unwrap(), None))
    }
}

impl Door for UringDoor {
    type Io = Uring;
    const KIND: &'static str = "uring";

    fn open(limits: Limits) -> Option<(Uring, Option<MemoryNet>)> {
        match Uring::new(limits) {
            Ok(uring) => Some((uring, None)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                println!("skip io_uring the kernel forbids it: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl Door for MemoryDoor {
    type Io = Memory;
    const KIND: &'static str = "memory";

    fn open(limits: Limits) -> Option<(Memory, Option<MemoryNet>)> {
        let net = MemoryNet::new();
        Some((net.open_with(limits), Some(net)))
    }
}

/// Runs behaviors of a module for the doors named.
macro_rules! behaviors {
    ($($name:ident: $($door:ident)+;)+) => {
        $(mod $name {
            $(crate::behaviors!(@one $name $door);)+
        })+
    };
    (@one $name:ident epoll) => {
        #[test]
        fn epoll() { crate::run::<crate::EpollDoor>(super::$name::<crate::EpollDoor>); }
    };
    (@one $name:ident uring) => {
        #[test]
        fn uring() { crate::run::<crate::UringDoor>(super::$name::<crate::UringDoor>); }
    };
    (@one $name:ident memory) => {
        #[test]
        fn memory() { crate::run::<crate::MemoryDoor>(super::$name::<crate::MemoryDoor>); }
    };
}
pub(crate) use behaviors;

fn run<D: Door>(behavior: fn(bench::Bench<D>)) {
    if let Some(bench) = bench::Bench::open(Limits::default()) {
        behavior(bench);
    }
}
