//! The messages between the leader and an agent.
//!
//! Upstream:   `leader` and `mod` make and read them.
//! Downstream: `frame` sends them as JSON.
//!
//! ```text
//! leader: hello            plan            step             ping (8 x)   start
//! agent:         welcome          planned      (preload) ready      pong       (run)  done
//!                                              ^-- once for each step of a scan or a search --^
//! ```
//! An agent that cannot go on sends `failed`. The leader ends a measurement by closing the
//! connection. Both send `alive` while they wait.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  `hello`, `welcome` and `failed` are the same in every version, so that two versions can
//!   tell the user that they differ.

use serde::{Deserialize, Serialize};

use super::counts::{Counts, Preloaded};
use crate::part::Part;

/// The version of the protocol; it grows with every change of a message. The options of the load
/// and their meaning are those of the program's version, so both versions must be the same.
pub(crate) const PROTOCOL: u32 = 2;
/// The version of this program.
pub(crate) const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// A message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Message {
    /// The leader's first message (I1).
    Hello {
        /// The leader's `PROTOCOL`.
        protocol: u32,
        /// The leader's `PROGRAM`.
        program: String,
        /// The token, if the leader has one.
        token: Option<String>,
    },
    /// The agent's answer (I1).
    Welcome {
        /// The agent's `PROTOCOL`.
        protocol: u32,
        /// The agent's `PROGRAM`.
        program: String,
    },
    /// The agent cannot go on (I1).
    Failed {
        /// A message for the user.
        reason: String,
    },
    /// The load, and the agent's part of it.
    Plan {
        /// The leader's command line, with the options of a preset.
        words: Vec<String>,
        /// The agent's part.
        part: Part,
    },
    /// The agent has understood the plan.
    Planned,
    /// Measure once.
    Step {
        /// The rate of all machines together; `None`: a closed loop.
        rate: Option<f64>,
    },
    /// The agent has preloaded its part, and waits for the start.
    Ready {
        /// What it has preloaded.
        preload: Option<Box<Preloaded>>,
    },
    /// Asks for the agent's time.
    Ping,
    /// The agent's time.
    Pong {
        /// In ns.
        at_ns: u64,
    },
    /// The start of the warm-up, in the agent's time.
    Start {
        /// In ns.
        at_ns: u64,
    },
    /// The end of a measurement.
    Done(Box<Done>),
    /// The machine is there.
    Alive,
}

/// The result of an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    /// What it counted.
    pub(crate) counts: Counts,
    /// Its connections.
    pub(crate) connections: usize,
    /// Its threads.
    pub(crate) threads: usize,
    /// Length of its window.
    pub(crate) window_s: f64,
    /// Its processor time, divided by the elapsed time.
    pub(crate) busy_cores: f64,
    /// The time between the two readings of its processor time.
    pub(crate) elapsed_s: f64,
    /// How much after the agreed time it started.
    pub(crate) late_ns: u64,
}

impl Message {
    /// The first message of either side.
    pub(crate) fn welcome() -> Self {
        Self::Welcome { protocol: PROTOCOL, program: PROGRAM.into() }
    }
}

/// Errors: the versions differ, as a message for the user.
pub(crate) fn agree(protocol: u32, program: &str) -> Result<(), String> {
    if protocol == PROTOCOL && program == PROGRAM {
        return Ok(());
    }
    Err(format!(
        "version {program} speaks version {protocol} of the agents' protocol, and version {PROGRAM} \
         on the other machine speaks version {PROTOCOL}; install the same version on both"
    ))
}
