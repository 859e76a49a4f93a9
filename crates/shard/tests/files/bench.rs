//! A server over plain engines with files, on each backend, and its clients.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kachel_io::memory::disk::{Disk, Fault, FaultPlan, PlannedFault};
use kachel_io::{
    Around, Choice, Event, FarEnd, FileError, FileWorkKind, FolderHandle, Io, ManualClock,
    Surrounded, Wait,
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

/// The backends of the kernel.
const CHOICES: [Choice; 2] = [Choice::Epoll, Choice::Uring];
/// The size of a file system that is soon full.
const SMALL: &str = "size=64k";

/// The plan of a disk on which all operations of a kind fail, or none.
fn plan(fails: Option<FileWorkKind>) -> FaultPlan {
    let fault = Fault::Error(FileError::IO);
    let planned = |kind| PlannedFault { kind: Some(kind), number: 1, forever: true, fault };
    let planned = fails.map(planned).into_iter().collect();
    FaultPlan { planned, latency_ns: Some(1..=LATENCY_NS_MAX), ..FaultPlan::default() }
}

/// What `unshare` and `mount` say if this process may not mount a file system.
const FORBIDDEN: [&str; 2] = ["Operation not permitted", "permission denied"];

/// A folder on a file system in memory of 64 KiB, which is gone when the folder is closed. It is
/// mounted on `path`, for a process that ends here.
///
/// Errors: what the commands say.
fn small_file_system(path: &Path) -> Result<File, String> {
    let script = r#"mount -t tmpfs -o "$1" tmpfs "$2" && echo mounted && read -r line"#;
    let mut process = Command::new("unshare")
        .env("LC_ALL", "C")
        .args(["--mount", "sh", "-c", script, "sh", SMALL])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("each Debian has unshare");
    let mut said = [0; 7];
    let is_mounted = process.stdout.take().expect("it is piped").read_exact(&mut said).is_ok();
    let seen = format!("/proc/{}/root{}", process.id(), path.display());
    let opened = is_mounted.then(|| File::open(seen).expect("it is mounted"));
    drop(process.stdin.take());
    let ended = process.wait_with_output().expect("our child");
    opened.ok_or_else(|| String::from_utf8_lossy(&ended.stderr).trim().to_owned())
}

/// Whether `why`, of [`small_file_system`], is the lack of a right.
fn is_forbidden(why: &str) -> bool {
    FORBIDDEN.iter().any(|text| why.contains(text))
}

/// Where the shards and the files of a server are.
enum Place {
    Memory { world: Box<World<Returns, Plain>>, disk: Disk },
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
        let (disk, returns) = (Disk::new(1, &ManualClock::new(0)), Returns::default());
        disk.set_plan(plan(None));
        let opener = PlainOpener(Some(disk.folder("data")));
        let mut world = Box::new(World::over(options, |_| returns.clone(), &opener));
        let shards = world.shards.iter_mut();
        shards.for_each(|shard| Surrounded::use_disk(shard.io_mut(), &disk));
        Self { place: Place::Memory { world, disk }, about: "memory".to_owned(), returns }
    }

    /// A server whose files are in a folder, which is opened. `None` if the kernel forbids the
    /// backend.
    fn in_kernel(
        choice: Choice,
        (folder, opened): (TempDir, File),
        options: WorldOptions,
    ) -> Option<Self> {
        let about = format!("{choice:?}, {}", folder.path().display());
        let opener = PlainOpener(Some(FolderHandle::new(opened.into(), &about)));
        let returns = Returns::default();
        match LiveWorld::over(choice, options, &returns, &opener) {
            Ok(world) => Some(Self { place: Place::Kernel { world, folder }, about, returns }),
            Err(error) => {
                let kinds = [ErrorKind::Unsupported, ErrorKind::PermissionDenied];
                let is_forbidden = choice == Choice::Uring && kinds.contains(&error.kind());
                assert!(is_forbidden, "{about}: {error}");
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
        for parent in parents {
            if !parent.is_dir() {
                skip("files.tmpfs", &format!("there is no {}", parent.display()));
                continue;
            }
            for choice in CHOICES {
                let folder = tempfile::tempdir_in(parent).expect("a folder");
                let opened = File::open(folder.path()).expect("a folder");
                let server = Self::in_kernel(choice, (folder, opened), options);
                server.into_iter().for_each(&mut check);
            }
        }
    }

    /// Calls `check` with a server on each backend, on file systems that are soon full.
    pub(crate) fn each_small(options: WorldOptions, mut check: impl FnMut(Self)) {
        for choice in CHOICES {
            let folder = tempfile::tempdir().expect("a folder");
            match small_file_system(folder.path()) {
                Ok(opened) => {
                    let server = Self::in_kernel(choice, (folder, opened), options);
                    server.into_iter().for_each(&mut check);
                }
                Err(why) => {
                    assert!(is_forbidden(&why), "{why}");
                    return skip("files.full", &why);
                }
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
        self.shared().totals.sum(counter)
    }

    pub(crate) fn connect(&self) -> Client {
        match &self.place {
            Place::Memory { world, .. } => Client::Far(world.connect()),
            Place::Kernel { world, .. } => Client::Stream(world.connect()),
        }
    }

    /// Has all reads fail: by the disk in memory, until it is healed; or because what the files had
    /// until now is gone.
    pub(crate) fn lose_files(&self) {
        match &self.place {
            Place::Memory { disk, .. } => disk.set_plan(plan(Some(FileWorkKind::Read))),
            Place::Kernel { folder, .. } => {
                for file in std::fs::read_dir(folder.path()).expect("a folder").flatten() {
                    let file = File::options().write(true).open(file.path()).expect("a file");
                    file.set_len(0).expect("a file");
                }
            }
        }
    }

    /// Has all writes of a disk in memory fail from now on.
    pub(crate) fn refuse_writes(&self) {
        self.disk().set_plan(plan(Some(FileWorkKind::Write)));
    }

    /// Has a disk in memory work again. Returns whether it is one.
    pub(crate) fn heal(&self) -> bool {
        let Place::Memory { disk, .. } = &self.place else { return false };
        disk.set_plan(plan(None));
        true
    }

    /// The server, if it is in memory.
    pub(crate) fn world(&mut self) -> Option<&mut World<Returns, Plain>> {
        match &mut self.place {
            Place::Memory { world, .. } => Some(world),
            Place::Kernel { .. } => None,
        }
    }

    /// Whether the server has closed the connection of a client that has read everything.
    pub(crate) fn is_closed(&self, client: &mut Client) -> bool {
        match client {
            Client::Far(far) => far.is_finished(),
            Client::Stream(stream) => match stream.read(&mut [0]) {
                Ok(bytes) => bytes == 0,
                Err(error) => error.kind() == ErrorKind::ConnectionReset,
            },
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
        let Place::Memory { disk, .. } = &self.place else { return false };
        let is_due = disk.advance_to_next_due();
        if is_due {
            self.rest();
        }
        is_due
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

    /// The bytes that a server in memory has sent so far. Does not wait.
    pub(crate) fn so_far(&mut self) -> Vec<u8> {
        let Self::Far(far) = self else { panic!("a client of a server in memory") };
        far.read()
    }
}

#[test]
fn only_the_lack_of_a_right_to_mount_skips_a_full_file_system() {
    let folder = tempfile::tempdir().expect("a folder");
    let why = small_file_system(&folder.path().join("none")).expect_err("nothing is there");
    assert_ne!(why.contains("does not exist"), is_forbidden(&why), "{why}");
}
