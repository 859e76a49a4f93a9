//! What every backend does, said once: each behavior runs over epoll and io_uring with real
//! sockets, and, where a far end in memory can play the peer, over the network in memory.
//!
//! io_uring is skipped, with a line that `./test` counts, only where the kernel forbids it
//! altogether.

mod asking;
mod bench;
mod datagrams;
mod landing;
mod listening;
mod moving;
mod receiving;
mod sending;
mod waiting;

use kachel_io::{Epoll, Io, Limits, Memory, MemoryNet, Uring};

/// Opens one kind of `Io`, and tells how clients reach it.
pub(crate) trait Door {
    type Io: Io;
    const KIND: &'static str;
    /// `None` when this machine's kernel forbids it.
    fn open(limits: Limits) -> Option<(Self::Io, Option<MemoryNet>)>;
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
