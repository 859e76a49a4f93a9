//! The options of a run. By default all of them follow from a seed; `shrink` lowers some to reduce
//! a failing run.
//!
//! Upstream:   the command line, a test, `shrink`.
//! Downstream: `server` and `client`, which take their settings from here.
//!
//! Invariants:
//! - I1  The options determine a run completely: two runs with equal options are the same.

use kachel_testkit::Random;

/// The number of requests in a run by default.
pub const REQUESTS: u32 = 2_000;
/// The most clients that a seed gives to a run.
pub const CLIENTS_MAX: u64 = 12;

/// How many runs in a thousand are over engines that delay answers, unless the caller chooses.
const DELAYING_PERMILLE: u64 = 300;
/// How many of the other runs in a thousand are over plain engines, unless the caller chooses.
const PLAIN_PERMILLE: u64 = 250;
/// How many runs over plain engines in a thousand have files.
const FILES_PERMILLE: u64 = 700;
/// How many of the runs with files in a thousand have a disk with faults.
const DISK_PERMILLE: u64 = 800;
/// How many of the runs with files in a thousand have a disk with errors.
const DISK_ERROR_PERMILLE: u64 = 300;
/// The most engines over RocksDB, and the memory that each has beside that of other engines: its
/// caches and buffers.
const ROCKS_ENGINES_MAX: u16 = 3;
const ROCKS_MEMORY_BYTES: u64 = 8 << 20;
/// How many runs over logs in a thousand have a disk with less space than the logs may take.
const FULL_PERMILLE: u64 = 250;
/// How many runs in a thousand have a server that refuses items instead of evicting others.
const STORE_PERMILLE: u64 = 250;
/// How many runs in a thousand have items without CAS tokens (`-C`).
const NO_CAS_PERMILLE: u64 = 150;
/// How many runs in a thousand have values of up to 1 MiB, and more memory for them.
const LARGE_PERMILLE: u64 = 120;
/// How many runs in a thousand have fewer connections (`-c`) than clients.
const LIMIT_PERMILLE: u64 = 200;
/// How many runs in a thousand end the server while clients work.
const END_PERMILLE: u64 = 120;

/// How many runs in a thousand have a number of engines of their own.
const OTHER_ENGINES_PERMILLE: u64 = 500;
/// The most engines that such a seed gives to a run.
const ENGINES_MAX: u64 = 9;

/// The additional memory of a server with values of up to 1 MiB: four of them.
const LARGE_MEMORY_BYTES: u64 = 4 << 20;

/// How many runs in a thousand have shards that read each other's items (`crew`).
const CREW_PERMILLE: u64 = 500;
/// How many of these in a thousand have cores that follow the load.
const GATHERING_PERMILLE: u64 = 500;

/// The most bytes of an item beside the padding of its value.
const PADDING_SPARE: u64 = 400;

/// The engines of a run's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineChoice {
    /// Caches.
    Cache,
    /// Caches, a part of whose answers is delayed by a disk.
    Delaying,
    /// Plain engines, which evict nothing.
    Plain,
    /// Engines over durable logs, which evict nothing.
    Flash,
    /// Engines over databases of a library that stands in for RocksDB, which evict nothing.
    Rocks,
}

impl EngineChoice {
    /// All kinds, each with its name in `--engine`.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Cache, "cache"),
        (Self::Delaying, "delaying"),
        (Self::Plain, "plain"),
        (Self::Flash, "flash"),
        (Self::Rocks, "rocks"),
    ];

    /// What only an engine over a log does.
    const OF_FLASH: [&str; 4] =
        ["files: no space", "no memory for cold reads", "cold reads", "segments collected"];

    /// What a cache never does. It has no files. How often it waits for room is counted by the
    /// delaying engine around it.
    const NOT_OF_CACHE: [&str; 14] = [
        "operations of engines that delay",
        "delayed before",
        "delayed after",
        "waits for room",
        "operations on files",
        "files: done in part",
        "files: slow",
        "files: reads that failed",
        "files: writes and syncs that failed",
        "closed by a failed disk",
        "refused by a failed disk",
        "values found after a power cut",
        "restarts after a power cut",
        "files: calls that failed",
    ];

    /// What a delaying engine never does. Its items are in memory.
    const NOT_OF_DELAYING: [&str; 4] = [
        "refused by a failed disk",
        "values found after a power cut",
        "restarts after a power cut",
        "files: calls that failed",
    ];

    /// What a plain engine never does, by the names of the coverage and of what a run may lack. It
    /// has no segments, no index that grows by itself, and no readers beside its owner. What it
    /// pins stays charged, so nothing is pinned beyond that. A run need not spend its memory,
    /// because it evicts nothing and may have few requests; all runs together must.
    const NOT_OF_PLAIN: [&str; 16] = [
        "growth",
        "shrinking",
        "eviction or refusal",
        "compaction",
        "index grown",
        "index shrunk",
        "evicted",
        "compacted",
        "operations of engines that delay",
        "delayed before",
        "delayed after",
        "reads beside the owner",
        "waits for room",
        "pinned closes",
        "restarts after a power cut",
        "files: calls that failed",
    ];

    /// What an engine over a log never does. What leaves its caches is not evicted. Its files are
    /// judged by restarts.
    const NOT_OF_FLASH: [&str; 8] = [
        "eviction or refusal",
        "evicted",
        "waits for room",
        "operations of engines that delay",
        "delayed before",
        "delayed after",
        "values found after a power cut",
        "files: calls that failed",
    ];

    /// What an engine over RocksDB never does, beside what a plain engine never does. Its files are
    /// the library's, which the engine calls. Its memory does not fill.
    const NOT_OF_ROCKS: [&str; 5] = [
        "refused",
        "files: done in part",
        "files: reads that failed",
        "files: writes and syncs that failed",
        "values found after a power cut",
    ];

    /// Whether runs over such engines may show what has this name in their report.
    pub fn may_show(self, name: &str) -> bool {
        let never: &[&str] = match self {
            Self::Cache => &Self::NOT_OF_CACHE,
            Self::Delaying => &Self::NOT_OF_DELAYING,
            Self::Plain => &Self::NOT_OF_PLAIN,
            Self::Flash => &Self::NOT_OF_FLASH,
            Self::Rocks => &Self::NOT_OF_ROCKS,
        };
        let is_of_flash = self != Self::Flash && Self::OF_FLASH.contains(&name);
        let is_kept = ["restarts after a power cut", "files: calls that failed"].contains(&name);
        let is_of_others = self == Self::Rocks && !is_kept && Self::NOT_OF_PLAIN.contains(&name);
        !never.contains(&name) && !is_of_flash && !is_of_others
    }
}

/// A kind of fault, or of unusual behavior that the server must tolerate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The bytes that clients send arrive in pieces.
    Cut,
    /// Some pieces arrive late.
    Delay,
    /// Connections break.
    Reset,
    /// Some clients read only a few bytes at a time.
    Slow,
    /// Clients stop reading for a while.
    Stop,
    /// Shards sometimes get no core for a while.
    Skew,
    /// The clock jumps.
    Jump,
    /// Clients end their side while requests are in flight, or leave in the middle of a value.
    Leave,
    /// Clients flush everything stored, at once or after a delay, or the keys of a prefix.
    Flush,
    /// Engines wait for their files: delaying engines delay some answers, and plain engines have
    /// files. Never with caches.
    Late,
    /// The disk of the files is slow, does some operations in part, and completes them in another
    /// order. Only with [`Self::Late`].
    Disk,
    /// Some operations of the disk fail, once or from then on. Only with [`Self::Late`].
    DiskError,
    /// Clients list all items.
    Dump,
    /// There are fewer connections than clients.
    Limit,
    /// The server is ended while clients work.
    End,
    /// The power is cut while clients work, and the server starts again. Only with engines over
    /// logs, and without [`Self::DiskError`]. A process over RocksDB is killed instead.
    PowerCut,
    /// The disk has less space than the logs may take, until the calm phase. Only with engines over
    /// logs.
    Full,
}

impl Fault {
    /// All kinds, each with its name in `--without`.
    pub const ALL: [(Self, &'static str); 17] = [
        (Self::Cut, "cut"),
        (Self::Delay, "delay"),
        (Self::Reset, "reset"),
        (Self::Slow, "slow"),
        (Self::Stop, "stop"),
        (Self::Skew, "skew"),
        (Self::Jump, "jump"),
        (Self::Leave, "leave"),
        (Self::Flush, "flush"),
        (Self::Late, "late"),
        (Self::Disk, "disk"),
        (Self::DiskError, "disk-error"),
        (Self::Dump, "dump"),
        (Self::Limit, "limit"),
        (Self::End, "end"),
        (Self::PowerCut, "power-cut"),
        (Self::Full, "full"),
    ];

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults(u32);

impl Faults {
    /// Whether there are faults of this kind.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & fault.bit() != 0
    }

    /// Returns these faults, with one kind as well or without it.
    #[must_use]
    const fn with(self, fault: Fault, happens: bool) -> Self {
        if happens { Self(self.0 | fault.bit()) } else { self.without(fault) }
    }

    /// Returns these faults without one kind.
    #[must_use]
    pub const fn without(self, fault: Fault) -> Self {
        Self(self.0 & !fault.bit())
    }
}

/// The options of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The seed of all random choices.
    pub seed: u64,
    /// Clients send at least this number of requests, without those that only fill memory.
    pub requests: u32,
    /// The number of clients.
    pub clients: u16,
    /// The number of shards. A seed gives at least two.
    pub shards: u16,
    /// The number of engines. Half of the seeds give as many as shards, the others any number up to
    /// [`ENGINES_MAX`].
    pub engines: u16,
    /// The memory limit of the server (`-m`), in bytes.
    pub memory_bytes: u64,
    /// The engines of the server.
    pub engine: EngineChoice,
    /// Whether a server without free memory evicts items (`cache`) or refuses new ones (`store`).
    pub evict: bool,
    /// Whether items have CAS tokens; without them as with `-C`.
    pub cas: bool,
    /// The largest item (`-I`), in bytes as memcached counts them.
    pub item_bytes_max: u64,
    /// Whether shards read each other's items (`crew`), and another reader of them stays awake now
    /// and then, as a core does that loses its processor in the middle of a tick.
    pub crew: bool,
    /// Whether clients move between shards, because cores follow a load that rises and falls. Only
    /// with `crew`.
    pub gathering: bool,
    /// The number of hot keys. Every operation on a hot key is judged.
    pub hot_keys: u16,
    /// The faults that may happen.
    pub faults: Faults,
}

impl Options {
    /// The options that follow from a seed.
    pub fn of_seed(seed: u64, requests: u32) -> Self {
        let mut dice = Random::for_purpose(seed, "options");
        // Separate random streams keep the other options of each seed unchanged.
        let chance = |purpose, permille| Random::for_purpose(seed, purpose).chance(permille);
        let shards = match dice.below(20) {
            0..12 => 2,
            12..16 => 3,
            16..19 => 4,
            _ => 8,
        };
        let mut engine_dice = Random::for_purpose(seed, "engines");
        let engines = match engine_dice.chance(OTHER_ENGINES_PERMILLE) {
            true => engine_dice.between(1, ENGINES_MAX) as u16,
            false => shards,
        };
        let mut faults = Faults(0);
        for (fault, _) in Fault::ALL {
            let happens = match fault {
                // They depend on the engine.
                Fault::Late | Fault::Disk | Fault::DiskError => continue,
                Fault::PowerCut | Fault::Full => continue,
                Fault::Dump => chance("dump", 600),
                Fault::Limit => chance("limit", LIMIT_PERMILLE),
                Fault::End => chance("end", END_PERMILLE),
                _ => dice.chance(600),
            };
            if happens {
                faults.0 |= fault.bit();
            }
        }
        // Every run has at least one fault that is certain to happen.
        let sure = [Fault::Cut, Fault::Slow];
        faults.0 |= sure[dice.index(sure.len())].bit();
        let engine = match (chance("late", DELAYING_PERMILLE), chance("plain", PLAIN_PERMILLE)) {
            (true, _) => EngineChoice::Delaying,
            (false, true) => EngineChoice::Plain,
            (false, false) => EngineChoice::Cache,
        };
        let crew = chance("reads", CREW_PERMILLE);
        let large = chance("large", LARGE_PERMILLE);
        let options = Self {
            seed,
            requests,
            clients: dice.between(3, CLIENTS_MAX) as u16,
            shards,
            engines,
            memory_bytes: u64::from(shards.max(engines)) * (dice.between(10, 20) << 16)
                + if large { LARGE_MEMORY_BYTES } else { 0 },
            engine,
            evict: true,
            cas: !chance("tokens", NO_CAS_PERMILLE),
            item_bytes_max: if large { 1 << 20 } else { 80_000 },
            crew,
            gathering: crew && chance("cores", GATHERING_PERMILLE),
            hot_keys: dice.between(40, 200) as u16,
            faults,
        };
        options.over(engine)
    }

    /// The same options for a server over engines of this kind.
    #[must_use]
    pub fn over(self, engine: EngineChoice) -> Self {
        let chance = |purpose, permille| Random::for_purpose(self.seed, purpose).chance(permille);
        let (is_late, evict) = match engine {
            EngineChoice::Cache => (false, !chance("engine", STORE_PERMILLE)),
            EngineChoice::Delaying => (true, !chance("engine", STORE_PERMILLE)),
            EngineChoice::Plain => (chance("files", FILES_PERMILLE), false),
            EngineChoice::Flash | EngineChoice::Rocks => (true, false),
        };
        let has_faults = is_late && chance("disk", DISK_PERMILLE);
        let has_errors = is_late && chance("disk errors", DISK_ERROR_PERMILLE);
        let faults = self.faults.with(Fault::Late, is_late).with(Fault::Disk, has_faults);
        let faults = faults.with(Fault::DiskError, has_errors);
        let is_flash = engine == EngineChoice::Flash;
        let may_restart = matches!(engine, EngineChoice::Flash | EngineChoice::Rocks);
        let faults = faults.with(Fault::PowerCut, may_restart && !has_errors);
        let faults = faults.with(Fault::Full, is_flash && chance("full", FULL_PERMILLE));
        let mut options = Self { engine, evict, faults, ..self };
        if engine == EngineChoice::Rocks {
            options.engines = self.engines.min(ROCKS_ENGINES_MAX);
            options.memory_bytes += u64::from(options.engines) * ROCKS_MEMORY_BYTES;
        }
        options
    }

    /// The most connections (`-c`): one less than there are clients, or enough for all.
    pub(crate) fn connections_max(&self) -> u32 {
        if self.faults.has(Fault::Limit) { u32::from(self.clients - 1).max(1) } else { 200 }
    }

    /// Memory that stores do not use while they are received, if values are large and may be
    /// evicted. Otherwise all memory, because it is that of many values.
    pub(crate) fn calm_bytes(&self) -> u64 {
        let uploads = if self.evict && self.has_large() { self.item_bytes_max } else { 0 };
        self.memory_bytes.saturating_sub(uploads * u64::from(self.clients))
    }

    /// Whether values are up to 1 MiB.
    pub(crate) fn has_large(&self) -> bool {
        self.item_bytes_max == 1 << 20
    }

    /// Whether values leave the memory.
    pub(crate) fn has_cold_values(&self) -> bool {
        let is_on_disk = matches!(self.engine, EngineChoice::Flash | EngineChoice::Rocks);
        is_on_disk || self.keeps_old_values()
    }

    /// Whether every value that was ever acknowledged stays in the files.
    pub(crate) fn keeps_old_values(&self) -> bool {
        self.engine == EngineChoice::Plain && self.faults.has(Fault::Late)
    }

    /// The padding of the largest value of a token. It takes several blocks.
    pub(crate) fn padding_max(&self) -> u64 {
        self.item_bytes_max - PADDING_SPARE
    }

    /// How many operations in a thousand the engine delays.
    pub(crate) fn delay_permille(&self) -> u64 {
        let permille = Random::for_purpose(self.seed, "delays").between(150, 500);
        if self.faults.has(Fault::Late) { permille } else { 0 }
    }

    /// The command that repeats exactly this run.
    pub fn command(&self) -> String {
        let mut plain = Self::of_seed(self.seed, REQUESTS);
        let mut command = format!("cargo run --profile sim -p kachel-sim -- --seed {}", self.seed);
        if self.engine != plain.engine {
            plain = plain.over(self.engine);
            let named = EngineChoice::ALL.iter().find(|(engine, _)| *engine == self.engine);
            command += &format!(" --engine {}", named.expect("all have a name").1);
        }
        if self.requests != plain.requests {
            command += &format!(" --requests {}", self.requests);
        }
        if self.clients != plain.clients {
            command += &format!(" --clients {}", self.clients);
        }
        if self.shards != plain.shards {
            command += &format!(" --shards {}", self.shards);
        }
        if self.engines != plain.engines {
            command += &format!(" --engines {}", self.engines);
        }
        let gone = Fault::ALL
            .iter()
            .filter(|(fault, _)| plain.faults.has(*fault) && !self.faults.has(*fault));
        let gone: Vec<&str> = gone.map(|(_, name)| *name).collect();
        if !gone.is_empty() {
            command += &format!(" --without {}", gone.join(","));
        }
        command
    }
}
