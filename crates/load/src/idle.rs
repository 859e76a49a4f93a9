//! Idle connections beside the load, and the memory that they cost the server.
//!
//! Upstream:   `session` opens them after the preload and asks them again after the run.
//! Downstream: `report`.
//!
//! Each connection asks once for the version before it is idle, so the server has accepted it, and
//! has used and released whatever a request needs. The connections of the load exist before, so the
//! growth of the server's resident memory is that of the idle ones.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A connection is idle from the answer to its first request until the run is over.

use serde::Serialize;

use crate::address::Target;
use crate::client::{Duplex, ask_version, connect};
use crate::meter::Meter;

/// The idle connections of a run.
pub(crate) struct Idle {
    clients: Vec<Box<dyn Duplex>>,
    memory: IdleMemory,
}

/// The memory that the idle connections cost the server.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct IdleMemory {
    /// The number of connections.
    connections: usize,
    /// Those that the server had closed by the end of the run.
    closed: usize,
    /// Resident memory of the server before they were opened.
    rss_before_bytes: Option<u64>,
    /// The same with all of them open.
    rss_after_bytes: Option<u64>,
    /// The same at the end of the run.
    rss_end_bytes: Option<u64>,
    /// The growth, divided by their number.
    bytes_each: Option<f64>,
}

impl Idle {
    /// Opens `count` connections.
    ///
    /// Errors: a connection fails or has no answer, as a message for the user.
    pub(crate) fn open(target: &Target, count: usize, meter: &Meter) -> Result<Self, String> {
        assert!(count > 0, "a run without idle connections has no `Idle`");
        let rss_before_bytes = meter.rss_bytes();
        let mut clients = Vec::with_capacity(count);
        for number in 1..=count {
            let client = connect(target).and_then(|mut client| {
                ask_version(&mut *client)?;
                Ok(client)
            });
            let failed = |error| format!("idle connection {number} of {count}: {error}");
            clients.push(client.map_err(failed)?);
        }
        let rss_after_bytes = meter.rss_bytes();
        let growth = rss_after_bytes.zip(rss_before_bytes);
        let memory = IdleMemory {
            connections: count,
            closed: 0,
            rss_before_bytes,
            rss_after_bytes,
            rss_end_bytes: None,
            bytes_each: growth.map(|(after, before)| (after as f64 - before as f64) / count as f64),
        };
        Ok(Self { clients, memory })
    }

    /// Asks every connection again, and closes it.
    pub(crate) fn close(mut self, meter: &Meter) -> IdleMemory {
        assert!(self.clients.len() == self.memory.connections, "I1");
        self.memory.rss_end_bytes = meter.rss_bytes();
        for mut client in self.clients {
            self.memory.closed += usize::from(ask_version(&mut *client).is_err());
        }
        self.memory
    }
}

impl IdleMemory {
    /// True if every connection stayed open.
    pub(crate) fn is_clean(&self) -> bool {
        self.closed == 0
    }
}

impl std::fmt::Display for IdleMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "idle       {} connections, {} closed by the server",
            self.connections, self.closed
        )?;
        if let (Some(each), Some(end)) = (self.bytes_each, self.rss_end_bytes) {
            let end_mib = end as f64 / f64::from(1 << 20);
            write!(f, ", {:.2} KiB of its memory each, {end_mib:.1} MiB in all", each / 1024.0)?;
        }
        Ok(())
    }
}
