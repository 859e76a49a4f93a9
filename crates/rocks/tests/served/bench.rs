//! A server in memory over a data directory, which can be stopped and started again.
//!
//! Upstream:   the tests.
//! Downstream: `kachel_testkit::World`.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use kachel_engine::OpenEngines as _;
use kachel_io::memory::disk::{Disk, FaultPlan};
use kachel_io::{FarEnd, ManualClock};
use kachel_rocks::{Rocks, RocksOpener, RocksOptions, RocksSync};
use kachel_testkit::{FakeRocksdb, KeptServer, Uncounted, World, WorldOptions};
use tempfile::TempDir;

/// Which library the engines use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// RocksDB.
    Real,
    /// The library that stands in for it.
    Fake,
}

impl Kind {
    /// The libraries of this machine.
    pub(crate) fn all() -> Vec<Self> {
        let is_missing = std::env::var_os("KACHEL_FAKE_ROCKSDB").is_some();
        if is_missing { vec![Self::Fake] } else { vec![Self::Real, Self::Fake] }
    }
}

/// Requests that change something, or would if the change of the key `lost` were not lost.
pub(crate) fn sentences() -> [&'static str; 12] {
    [
        "set x 0 0 1\r\n1\r\n",
        "add x 0 0 1\r\n1\r\n",
        "ms x 1\r\n1\r\n",
        "touch lost 9\r\n",
        "gat 9 lost\r\n",
        "incr lost 1\r\n",
        "delete lost\r\n",
        "append lost 0 0 1\r\n1\r\n",
        "mg x N9\r\n",
        "flush_all\r\n",
        "flush_all 9\r\n",
        "flush_prefix x\r\n",
    ]
}

/// The library that stands in for RocksDB. Tests that run at the same time share it.
fn fake() -> Arc<FakeRocksdb> {
    static SHARED: Mutex<Weak<FakeRocksdb>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let built = Arc::new(FakeRocksdb::build(None));
        *shared = Arc::downgrade(&built);
        built
    })
}

/// A server, and what its files are in.
pub(crate) struct Bench {
    opener: RocksOpener,
    place: TempDir,
    _library: Option<Arc<FakeRocksdb>>,
    world: Option<World<Uncounted, Rocks>>,
    disk: Disk,
    client: Option<FarEnd>,
    /// The Unix time of the next start.
    unix_s: i64,
    /// Whether each core takes all engines, from the next start on.
    crew: bool,
}

impl Bench {
    pub(crate) fn new(kind: Kind) -> Self {
        Self::with(kind, RocksSync::Always)
    }

    pub(crate) fn with(kind: Kind, sync: RocksSync) -> Self {
        let library = (kind == Kind::Fake).then(fake);
        Self::over(library, sync)
    }

    /// Over a library that lacks a function.
    pub(crate) fn without(function: &str) -> Self {
        Self::over(Some(Arc::new(FakeRocksdb::build(Some(function)))), RocksSync::Always)
    }

    fn over(library: Option<Arc<FakeRocksdb>>, sync: RocksSync) -> Self {
        let place = tempfile::tempdir().expect("a folder");
        let data = place.path().join("data");
        let path = library.as_ref().map(|library| library.path().to_owned());
        let opener = RocksOpener(RocksOptions { data, sync, library: path, text: String::new() });
        let disk = Disk::new(1, &ManualClock::new(0));
        let (world, client, unix_s, crew) = (None, None, 1_800_000_000, true);
        Self { opener, place, _library: library, world, disk, client, unix_s, crew }
    }

    fn world_options(&self, shards: u16, engines: Option<u16>) -> WorldOptions {
        let (start_unix_s, crew) = (self.unix_s, self.crew);
        let mut options = WorldOptions {
            shards,
            engines,
            evict: false,
            start_unix_s,
            crew,
            ..WorldOptions::default()
        };
        options.plain.scans_allowed = true;
        options
    }

    /// Whether each core takes all engines, from the next start on.
    pub(crate) fn crew(&mut self, crew: bool) {
        self.crew = crew;
    }

    /// Starts the server as [`Self::start`] does, or sees that it cannot start.
    pub(crate) fn start_and_see_it_fail(&mut self, fails: bool) {
        if fails {
            let said = self.refusal(1);
            assert!(said.ends_with("IO error: as the test wants it"), "{said}");
        } else {
            self.start(1);
        }
    }

    pub(crate) fn stop(&mut self) {
        self.client = None;
        self.world = None;
    }

    /// Lets each core make one tick.
    pub(crate) fn turn(&mut self) {
        self.world.as_mut().expect("it runs").turn();
    }

    /// Lets seconds pass.
    pub(crate) fn pass(&mut self, seconds: u64) {
        let world = self.world.as_mut().expect("it runs");
        world.clock.advance_ns(seconds * 1_000_000_000);
        world.settle();
        self.unix_s += seconds as i64;
    }

    /// A client beside the one that asks.
    pub(crate) fn client(&self) -> FarEnd {
        self.world.as_ref().expect("it runs").connect()
    }

    /// Has a new client ask.
    pub(crate) fn connect(&mut self) {
        self.client = Some(self.client());
    }

    /// Sends a request, and does not wait.
    pub(crate) fn send(&self, input: &str) {
        self.client.as_ref().expect("a client").write(input.as_bytes());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.as_ref().expect("a client").is_closed()
    }

    /// Has every write of the file of the flushes fail: a folder has the name of the new file.
    pub(crate) fn refuse_flushes(&self) {
        let new = self.place.path().join("data/kachel.flush.new");
        std::fs::create_dir(new).expect("no file is left there");
    }

    /// Writes a file that directs the library that stands in for RocksDB.
    pub(crate) fn direct(&self, name: &str, text: &str) {
        let folder = self.place.path().join("data/engine-0000");
        std::fs::write(folder.join(name), text).expect("the folder of the first engine");
    }

    /// Takes a part of the data directory away. What is returned brings it back.
    pub(crate) fn take_away(&self, part: &str) -> impl FnOnce(&Self) + use<> {
        let (whole, away) =
            (self.place.path().join("data").join(part), self.place.path().join("away"));
        std::fs::rename(&whole, &away).expect("it is there");
        move |bench| {
            assert!(!whole.exists(), "{}: it was made anew", whole.display());
            assert!(bench.world.is_none(), "nobody has it open");
            std::fs::rename(&away, &whole).expect("it was taken away");
        }
    }

    /// The bytes of a file in the data directory.
    pub(crate) fn copy_of(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.place.path().join("data").join(name)).expect("a file")
    }

    /// Replaces a file in the data directory.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.place.path().join("data").join(name), bytes).expect("a folder");
    }

    /// Sets the options for RocksDB.
    pub(crate) fn options(&mut self, text: &str) {
        self.opener.0.text = text.to_owned();
    }

    /// What an opener says that cannot open the directory for this number of engines.
    pub(crate) fn refusal(&mut self, engines: u16) -> String {
        let opening = self.world_options(1, Some(engines)).opening_alone();
        let refused = self.opener.open(&opening).expect_err("refused");
        refused.to_string()
    }
}

impl KeptServer for Bench {
    fn start(&mut self, shards: u16) {
        let engines = self.opener.engines().expect("it is ours");
        let options = self.world_options(shards, engines);
        let mut world = World::over(options, |_| Uncounted, &self.opener);
        self.disk = Disk::new(1, &world.clock);
        world.use_disk(&self.disk);
        self.world = Some(world);
        self.connect();
    }

    fn restart(&mut self, shards: u16, seconds: i64) {
        self.stop();
        self.unix_s += seconds;
        self.start(shards);
    }

    fn disk_that_takes(&self, ns: u64) {
        let latency_ns = Some(ns..=ns);
        self.disk.set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    }

    fn other(&self) -> FarEnd {
        self.client()
    }

    fn step(&mut self) {
        self.world.as_mut().expect("it runs").turn();
        self.disk.advance_to_next_due();
    }

    fn ask(&mut self, input: &str) -> String {
        self.send(input);
        let world = self.world.as_mut().expect("it runs");
        let client = self.client.as_ref().expect("a client");
        world.settle();
        while self.disk.advance_to_next_due() {
            world.settle();
        }
        String::from_utf8(client.read()).expect("text")
    }
}
