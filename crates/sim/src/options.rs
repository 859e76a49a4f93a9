//! What a run is: everything that follows from its seed, and what a failing run may leave out.
//!
//! Upstream:   the command line, a test, `shrink`.
//! Downstream: `server` is built and `client`s behave as it says.
//!
//! Invariants:
//! - I1  A seed and the options that were given besides say all: two runs of them are the same.

use kachel_testkit::Random;

/// Requests of a run, unless told otherwise.
pub const REQUESTS: u32 = 2_000;
/// Clients of a run at most.
pub const CLIENTS_MAX: u64 = 12;

/// Of a thousand runs, those whose engine delays answers.
const LATE_PERMILLE: u64 = 300;
/// Of a thousand runs, those whose server refuses instead of evicting.
const STORE_PERMILLE: u64 = 250;

/// A kind of fault, or of behavior that a network and its clients are free to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What clients send arrives in pieces.
    Cut,
    /// Some pieces take long.
    Delay,
    /// Connections break.
    Reset,
    /// Clients read little by little.
    Slow,
    /// Clients stop reading for a while.
    Stop,
    /// Shards get their cores at very different times.
    Skew,
    /// The clock jumps.
    Jump,
    /// Clients end their side with requests under way, or go away amid a value.
    Leave,
    /// Everything stored is flushed, at once or later.
    Flush,
    /// The engine delays a part of its answers.
    Late,
}

impl Fault {
    /// All kinds, with the names by which `--without` knows them.
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

/// Which faults a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults(u16);

impl Faults {
    /// Whether there are faults of this kind.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & fault.bit() != 0
    }

    /// The same without one kind.
    #[must_use]
    pub const fn without(self, fault: Fault) -> Self {
        Self(self.0 & !fault.bit())
    }
}

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What everything else follows from.
    pub seed: u64,
    /// Requests until clients stop asking.
    pub requests: u32,
    /// Clients.
    pub clients: u16,
    /// Shards, which are two or more.
    pub shards: u16,
    /// `-m`.
    pub memory_bytes: u64,
    /// Whether the server evicts (`cache`), or refuses (`store`).
    pub evict: bool,
    /// Keys whose every operation is judged.
    pub hot_keys: u16,
    /// Which faults there are.
    pub faults: Faults,
}

impl Options {
    /// The run of a seed.
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
                // Dice of its own, so that other runs stay as they were.
                Fault::Late => Random::for_purpose(seed, "late").chance(LATE_PERMILLE),
                _ => dice.chance(600),
            };
            if happens {
                faults.0 |= fault.bit();
            }
        }
        // At least one that every run shows.
        let sure = [Fault::Cut, Fault::Slow];
        faults.0 |= sure[dice.index(sure.len())].bit();
        Self {
            seed,
            requests,
            clients: dice.between(3, CLIENTS_MAX) as u16,
            shards,
            memory_bytes: u64::from(shards) * (dice.between(10, 20) << 16),
            // A stream of its own, so that other runs stay as they were.
            evict: !Random::for_purpose(seed, "engine").chance(STORE_PERMILLE),
            hot_keys: dice.between(40, 200) as u16,
            faults,
        }
    }

    /// Of a thousand operations, those that the engine delays.
    pub(crate) fn delay_permille(&self) -> u64 {
        let permille = Random::for_purpose(self.seed, "delays").between(150, 500);
        if self.faults.has(Fault::Late) { permille } else { 0 }
    }

    /// The command that runs exactly this.
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
