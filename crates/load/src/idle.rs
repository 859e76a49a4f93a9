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

use std::time::Instant;

use kachel_stdx::plural;
use serde::Serialize;

use crate::address::Target;
use crate::client::{Duplex, ask_version, connect};
use crate::control::{Control, Pulse};
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
    /// Errors: a connection fails or has no answer, or the control ends the run, as a message for
    /// the user.
    pub(crate) fn open(
        target: &Target,
        count: usize,
        meter: &Meter,
        control: &mut dyn Control,
    ) -> Result<Self, String> {
        assert!(count > 0, "a run without idle connections has no `Idle`");
        let rss_before_bytes = meter.rss_bytes();
        let mut clients = Vec::with_capacity(count);
        let mut pulse = Pulse::new(control);
        for number in 1..=count {
            let client = connect(target).and_then(|mut client| {
                ask_version(&mut *client)?;
                Ok(client)
            });
            let failed = |error| format!("idle connection {number} of {count}: {error}");
            clients.push(client.map_err(failed)?);
            pulse.step(Instant::now())?;
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
    ///
    /// Errors: the control ends the run, as a message for the user.
    pub(crate) fn close(
        mut self,
        meter: &Meter,
        control: &mut dyn Control,
    ) -> Result<IdleMemory, String> {
        assert!(self.clients.len() == self.memory.connections, "I1");
        self.memory.rss_end_bytes = meter.rss_bytes();
        let mut pulse = Pulse::new(control);
        for mut client in self.clients {
            self.memory.closed += usize::from(ask_version(&mut *client).is_err());
            pulse.step(Instant::now())?;
        }
        Ok(self.memory)
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
            "idle       {} {}, {} closed by the server",
            self.connections,
            plural(self.connections as u64, "connection", "connections"),
            self.closed
        )?;
        if let (Some(each), Some(end)) = (self.bytes_each, self.rss_end_bytes) {
            let end_mib = end as f64 / f64::from(1 << 20);
            write!(f, ", {:.2} KiB of its memory each, {end_mib:.1} MiB in all", each / 1024.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use clap::Parser as _;

    use super::*;
    use crate::control::tests::Deserted;
    use crate::options::Options;
    use crate::session::Session;
    use crate::transport::Transport;

    /// Starts a server that tells its version, until the test process ends. Returns its address.
    fn serve() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
                    for line in lines.map_while(Result::ok) {
                        let is_version = line == "version";
                        let answer = if is_version { "VERSION 1\r\n" } else { "END\r\n" };
                        stream.write_all(answer.as_bytes()).expect("a client");
                    }
                });
            }
        });
        address
    }

    #[test]
    fn the_other_machines_are_told_while_connections_are_opened_and_closed() {
        let words = ["load", "--connections", "3", "--server", &serve()].map(str::to_owned);
        let options = Options::try_parse_from(words).expect("valid options").steady.common;
        let transport = Transport::plain(&options).expect("an address");
        let meter = Meter::new(None).expect("no process");
        let mut present = Deserted { polls: 0, polls_max: usize::MAX };
        let mut gone = Deserted { polls: 0, polls_max: 0 };
        let idle = Idle::open(&transport.targets[0], 3, &meter, &mut present).expect("a server");
        assert!(present.polls > 0);
        assert_eq!(idle.close(&meter, &mut gone).err(), Some("deserted".into()));
        let idle = Idle::open(&transport.targets[0], 3, &meter, &mut gone);
        assert_eq!(idle.err(), Some("deserted".into()));
        let session = Session::open(&options, transport, &mut gone);
        assert_eq!(session.err(), Some("deserted".into()));
    }
}
