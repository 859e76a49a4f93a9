//! A server over plain engines with files, on each backend, and its clients.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kachel_io::memory::disk::{Disk, FaultPlan};
use kachel_io::{
    Around, Choice, Clock as _, Event, FarEnd, FolderHandle, Io, ManualClock, Surrounded, Wait,
};
use kachel_shard::{Counter, Counters, Shared};
use kachel_testkit::{LiveWorld, Plain, PlainOpener, World, WorldOptions, skip};
use tempfile::TempDir;

/// Far more than anything here takes; only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest time that an operation takes on the disk in memory.
const LATENCY_NS_MAX: u64 = 1_000_000;
/// Steps within which a disk in memory is done.
const STEPS_MAX: usize = 100_000;
/// A file system in memory, where there is one.
const TMPFS: &str = "/dev/shm";

/// Where the shards and the files of a server are.
enum Place {
    Memory { world: Box<World<Returns, Plain>>, disk: Disk, clock: ManualClock },
    Kernel { world: LiveWorld<Plain>, folder: TempDir },
}

/// A server over plain engines with files.
pub(crate) struct Server {
    place: Place,
    /// Where it runs, for messages.
    pub(crate) about: String,
    pub(crate) returns: Returns,
}

/// The returns from the kernel, and their causes. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Returns {
    polls: Arc<AtomicU64>,
    /// Completions and events of clients.
    events: Arc<AtomicU64>,
    /// Waits that lasted as long as they could.
    timers: Arc<AtomicU64>,
}

impl Returns {
    /// Returns from the kernel so far, and how many of them have a cause if each has one of its
    /// own.
    pub(crate) fn count(&self) -> (u64, u64) {
        let [polls, events, timers] = [&self.polls, &self.events, &self.timers];
        (polls.load(Relaxed), events.load(Relaxed) + timers.load(Relaxed))
    }
}

impl Around for Returns {
    fn poll(&self, io: &mut impl Io, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        let (before, start) = (events.len(), Instant::now());
        io.poll(wait, events)?;
        let new = events[before..].iter().filter(|event| !matches!(event, Event::Woken));
        let is_over = matches!(wait, Wait::AtMostNs(ns) if start.elapsed().as_nanos() >= ns.into());
        self.polls.fetch_add(1, Relaxed);
        self.events.fetch_add(new.count() as u64, Relaxed);
        self.timers.fetch_add(u64::from(is_over), Relaxed);
        Ok(())
    }
}

/// A client of such a server.
pub(crate) enum Client {
    Far(FarEnd),
    Stream(TcpStream),
}

impl Server {
    /// A server with a disk in memory, whose operations take different times.
    pub(crate) fn in_memory(options: WorldOptions) -> Self {
        let (clock, returns) = (ManualClock::new(0), Returns::default());
        let disk = Disk::new(1, &clock);
        let latency_ns = Some(1..=LATENCY_NS_MAX);
        disk.set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let opener = PlainOpener(Some(disk.folder("data")));
        let mut world = Box::new(World::over(options, |_| returns.clone(), &opener));
        let shards = world.shards.iter_mut();
        shards.for_each(|shard| Surrounded::use_disk(shard.io_mut(), &disk));
        Self { place: Place::Memory { world, disk, clock }, about: "memory".to_owned(), returns }
    }

    /// A server whose files are in a new folder of `parent`. `None` if the kernel forbids the
    /// backend.
    fn in_kernel(choice: Choice, parent: &Path, options: WorldOptions) -> Option<Self> {
        let folder = tempfile::tempdir_in(parent).expect("a folder");
        let about = format!("{choice:?}, {}", folder.path().display());
        let opened = std::fs::File::open(folder.path()).expect("a folder");
        let opener = PlainOpener(Some(FolderHandle::new(opened.into(), &about)));
        let returns = Returns::default();
        match LiveWorld::over(choice, options, &returns, &opener) {
            Ok(world) => Some(Self { place: Place::Kernel { world, folder }, about, returns }),
            Err(error) => {
                skip("io_uring", &format!("the kernel forbids it: {error}"));
                None
            }
        }
    }

    /// Calls `check` with a server on each backend and each kind of file system.
    pub(crate) fn each(options: WorldOptions, mut check: impl FnMut(Self)) {
        check(Self::in_memory(options));
        let temporary = std::env::temp_dir();
        let parents = [temporary.as_path(), Path::new(TMPFS)];
        for parent in parents.into_iter().filter(|parent| parent.is_dir()) {
            for choice in [Choice::Epoll, Choice::Uring] {
                Self::in_kernel(choice, parent, options).into_iter().for_each(&mut check);
            }
        }
    }

    fn shared(&self) -> &Shared {
        match &self.place {
            Place::Memory { world, .. } => &world.shared,
            Place::Kernel { world, .. } => &world.shared,
        }
    }

    /// The sum over all cores of the counter that `counter` picks.
    pub(crate) fn sum(&self, counter: fn(&Counters) -> &Counter) -> u64 {
        self.shared().sum(counter)
    }

    pub(crate) fn connect(&self) -> Client {
        match &self.place {
            Place::Memory { world, .. } => Client::Far(world.connect()),
            Place::Kernel { world, .. } => Client::Stream(world.connect()),
        }
    }

    /// The disk in memory.
    pub(crate) fn disk(&self) -> &Disk {
        let Place::Memory { disk, .. } = &self.place else { panic!("{} has none", self.about) };
        disk
    }

    /// The contents of the files, as a program sees them, without what a disk in memory may lose.
    pub(crate) fn files(&self) -> Vec<Vec<u8>> {
        match &self.place {
            Place::Memory { disk, .. } => disk
                .crash(disk.counts().operations)
                .image()
                .into_iter()
                .map(|file| file.1)
                .collect(),
            Place::Kernel { folder, .. } => {
                let files = std::fs::read_dir(folder.path()).expect("a folder").flatten();
                files.map(|file| std::fs::read(file.path()).expect("a file")).collect()
            }
        }
    }

    /// Lets the cores of a server in memory do what they can do before the next operation on a file
    /// completes.
    pub(crate) fn rest(&mut self) {
        if let Place::Memory { world, .. } = &mut self.place {
            world.rest();
        }
    }

    /// Completes the operation of a disk in memory that is due next. Returns whether there was one.
    pub(crate) fn step(&mut self) -> bool {
        self.rest();
        let Place::Memory { disk, clock, .. } = &self.place else { return false };
        let Some(due_ns) = disk.next_due_ns() else { return false };
        clock.advance_ns(due_ns.saturating_sub(clock.now_ns()));
        self.rest();
        true
    }

    /// Sends all of `input`, and waits for a reply of `count` bytes.
    pub(crate) fn ask(&mut self, client: &mut Client, input: &[u8], count: usize) -> Vec<u8> {
        client.write(input);
        self.read(client, count)
    }

    /// Waits until a client has `count` bytes. Returns what it has got, which may be less if its
    /// connection was closed.
    pub(crate) fn read(&mut self, client: &mut Client, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        match client {
            Client::Far(far) => {
                let mut steps = 0;
                loop {
                    self.rest();
                    bytes.extend(far.read());
                    if bytes.len() >= count || !self.step() {
                        bytes.extend(far.read());
                        return bytes;
                    }
                    steps += 1;
                    assert!(steps < STEPS_MAX, "{}: no reply", self.about);
                }
            }
            Client::Stream(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
                match stream.take(count as u64).read_to_end(&mut bytes) {
                    Ok(_) => bytes,
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
                    Err(error) => panic!("{}: {error} after {} bytes", self.about, bytes.len()),
                }
            }
        }
    }
}

impl Client {
    pub(crate) fn write(&mut self, input: &[u8]) {
        match self {
            Self::Far(far) => far.write(input),
            Self::Stream(stream) => stream.write_all(input).expect("the server reads"),
        }
    }

    /// What has come until now, without waiting, from a server in memory.
    pub(crate) fn so_far(&mut self) -> Vec<u8> {
        let Self::Far(far) = self else { panic!("a client of a server in memory") };
        far.read()
    }
}
