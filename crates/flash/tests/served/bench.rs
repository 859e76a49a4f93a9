//! A server in memory over a store, which can be stopped and started again.
//!
//! Upstream:   the tests.
//! Downstream: `kachel_testkit::World`.

use kachel_flash::{Flash, FlashOptions};
use kachel_io::memory::disk::{Disk, FaultPlan};
use kachel_io::{FarEnd, ManualClock};
use kachel_log::{Geometry, SyncMode};
use kachel_testkit::{FlashFiles, KeptServer, Uncounted, World, WorldOptions};

/// The segments of the logs here, and the space for each.
const SEGMENT_BYTES: u64 = 1 << 20;
const SPACE: u64 = 64 << 20;

/// A server, and its disk.
pub(crate) struct Bench {
    files: FlashFiles,
    engines: Option<u16>,
    world: Option<World<Uncounted, Flash>>,
    client: Option<FarEnd>,
    /// The Unix time of the next start.
    unix_s: i64,
    memory_bytes: u64,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(SyncMode::Always, Geometry::new(SEGMENT_BYTES, SPACE))
    }

    pub(crate) fn with(sync: SyncMode, geometry: Geometry) -> Self {
        let disk = Disk::new(1, &ManualClock::new(0));
        let files = FlashFiles::new(&disk, FlashOptions { geometry, sync, target_percent: 135 });
        let (engines, world, client, unix_s) = (None, None, None, 1_800_000_000);
        let memory_bytes = WorldOptions::default().memory_bytes;
        Self { files, engines, world, client, unix_s, memory_bytes }
    }

    /// Has the next start use less memory.
    pub(crate) fn with_memory(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Ends the server as `kill -9` does: what the kernel has is there.
    pub(crate) fn stop(&mut self) {
        self.client = None;
        self.world = None;
        // Operations of a dead process reach the disk.
        self.files.disk().advance_to_next_due();
    }

    pub(crate) fn is_running(&self) -> bool {
        self.world.is_some()
    }

    /// Cuts the power, and starts the server again.
    pub(crate) fn cut_power(&mut self, shards: u16, seed: u64) {
        let disk = self.files.disk().crash(seed);
        (self.client, self.world) = (None, None);
        self.files = self.files.on(&disk);
        self.start(shards);
    }

    /// Lets seconds pass.
    pub(crate) fn pass(&mut self, seconds: u64) {
        let world = self.world.as_mut().expect("it runs");
        world.clock.advance_ns(seconds * 1_000_000_000);
        world.settle();
        self.unix_s += seconds as i64;
    }

    /// Lets the disk end what is due next, this number of times.
    pub(crate) fn disk_ends(&mut self, times: u64) {
        for _ in 0..times {
            self.files.disk().advance_to_next_due();
            self.pass(0);
        }
    }

    pub(crate) fn disk(&self) -> &Disk {
        self.files.disk()
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
}

impl KeptServer for Bench {
    fn start(&mut self, shards: u16) {
        let engines = Some(*self.engines.get_or_insert(shards));
        let (start_unix_s, memory_bytes) = (self.unix_s, self.memory_bytes);
        let mut options =
            WorldOptions { shards, engines, start_unix_s, memory_bytes, ..WorldOptions::default() };
        options.plain.scans_allowed = true;
        let mut world = World::over(options, |_| Uncounted, &self.files.opener());
        world.use_disk(self.files.disk());
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
        self.disk().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    }

    fn other(&self) -> FarEnd {
        self.client()
    }

    fn step(&mut self) {
        self.world.as_mut().expect("it runs").turn();
        self.files.disk().advance_to_next_due();
    }

    fn ask(&mut self, input: &str) -> String {
        self.send(input);
        let world = self.world.as_mut().expect("it runs");
        let client = self.client.as_ref().expect("a client");
        world.settle();
        while self.files.disk().advance_to_next_due() {
            world.settle();
        }
        String::from_utf8(client.read()).expect("text")
    }
}
