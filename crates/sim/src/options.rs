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

/// How many runs in a thousand have an engine that delays answers.
const LATE_PERMILLE: u64 = 300;
/// How many runs in a thousand have a server that refuses items instead of evicting others.
const STORE_PERMILLE: u64 = 250;

/// How many runs in a thousand have shards that read each other's items (`crew`).
const CREW_PERMILLE: u64 = 500;
/// How many of these in a thousand have cores that follow the load.
const GATHERING_PERMILLE: u64 = 500;

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
    /// Clients flush everything stored, at once or after a delay.
    Flush,
    /// The engine delays some of its answers.
    Late,
}

impl Fault {
    /// All kinds, each with its name in `--without`.
    pub const ALL: [(Self, &'static str); 10] = [
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
    ];

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// The faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults(u16);

impl Faults {
    /// Whether there are faults of this kind.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & fault.bit() != 0
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
    /// The memory limit of the server (`-m`), in bytes.
    pub memory_bytes: u64,
    /// Whether a server without free memory evicts items (`cache`) or refuses new ones (`store`).
    pub evict: bool,
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
        let shards = match dice.below(20) {
            0..12 => 2,
            12..16 => 3,
            16..19 => 4,
            _ => 8,
        };
        let mut faults = Faults(0);
        for (fault, _) in Fault::ALL {
            let happens = match fault {
                // A separate random stream keeps the other options of each seed unchanged.
                Fault::Late => Random::for_purpose(seed, "late").chance(LATE_PERMILLE),
                _ => dice.chance(600),
            };
            if happens {
                faults.0 |= fault.bit();
            }
        }
        // Every run has at least one fault that is certain to happen.
        let sure = [Fault::Cut, Fault::Slow];
        faults.0 |= sure[dice.index(sure.len())].bit();
        let crew = Random::for_purpose(seed, "reads").chance(CREW_PERMILLE);
        Self {
            seed,
            requests,
            clients: dice.between(3, CLIENTS_MAX) as u16,
            shards,
            memory_bytes: u64::from(shards) * (dice.between(10, 20) << 16),
            // A separate random stream keeps the other options of each seed unchanged.
            evict: !Random::for_purpose(seed, "engine").chance(STORE_PERMILLE),
            crew,
            gathering: crew && Random::for_purpose(seed, "cores").chance(GATHERING_PERMILLE),
            hot_keys: dice.between(40, 200) as u16,
            faults,
        }
    }

    /// How many operations in a thousand the engine delays.
    pub(crate) fn delay_permille(&self) -> u64 {
        let permille = Random::for_purpose(self.seed, "delays").between(150, 500);
        if self.faults.has(Fault::Late) { permille } else { 0 }
    }

    /// The command that repeats exactly this run.
    pub fn command(&self) -> String {
        let plain = Self::of_seed(self.seed, REQUESTS);
        let mut command = format!("cargo run --profile sim -p kachel-sim -- --seed {}", self.seed);
        if self.requests != plain.requests {
            command += &format!(" --requests {}", self.requests);
        }
        if self.clients != plain.clients {
            command += &format!(" --clients {}", self.clients);
        }
        if self.shards != plain.shards {
            command += &format!(" --shards {}", self.shards);
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
