//! The leader of a measurement: sends the plan to its agents, starts all machines together and adds
//! what they counted.
//!
//! Upstream:   `lib`, for `kachel load --agents`.
//! Downstream: the agents, and `step` for the leader's own part; the sum goes to `report`.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A measurement has the counts of every machine, or it fails: an agent that is gone, or that
//!   fails, ends it for all.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::GREETING;
use super::counts::Preloaded;
use super::frame::{Broken, Wire};
use super::message::{Done, Message, PROGRAM, PROTOCOL, agree};
use super::token::Token;
use crate::address::Address;
use crate::clock::{Clock, RoundTrip, Watch};
use crate::control::{Control, soon};
use crate::member::{Member, sum};
use crate::options::SteadyOptions;
use crate::part::Part;
use crate::report::Server;
use crate::session::Measured;
use crate::step::Step;
use crate::tally::Filled;

/// How long a connection to an agent may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The time from the leader's decision to the start, in which the start reaches each agent.
pub(super) const LEAD: Duration = Duration::from_millis(200);
/// Round trips to each agent before a start.
const ROUND_TRIPS: usize = 8;
/// How often the leader looks at each agent while it waits for all of them.
const LOOK: Duration = Duration::from_millis(10);

/// The leader.
pub(crate) struct Leader<'o> {
    options: &'o SteadyOptions,
    /// The leader's own part.
    step: Step<'o>,
    team: Team,
}

/// The agents.
struct Team {
    agents: Vec<Agent>,
    watch: Watch,
    /// What they have preloaded.
    preload: Option<Filled>,
    late_ns: u64,
}

/// An agent, as the leader knows it.
struct Agent {
    name: String,
    wire: Wire,
    clock: Option<Clock>,
    /// The answer to the last step: it is ready.
    ready: Option<Option<Box<Preloaded>>>,
    /// The answer to the start.
    done: Option<Box<Done>>,
}

impl<'o> Leader<'o> {
    /// Connects to all agents and sends the plan. `words` are the command line, without the name of
    /// the program.
    ///
    /// Errors: as messages for the user (I1).
    pub(crate) fn new(options: &'o SteadyOptions, words: &[String]) -> Result<Self, String> {
        let count = options.machines() as u64;
        let step = Step::new(options, (!options.agents_only).then_some(Part { index: 0, count }))?;
        let token = Token::read(options.token.as_deref())?;
        let mut agents = Vec::with_capacity(options.agents.len());
        for name in &options.agents {
            agents.push(Agent::greet(name, &step, token.as_ref())?);
        }
        let first = u64::from(!options.agents_only);
        for (index, agent) in (first..).zip(&mut agents) {
            let part = Part { index, count };
            agent.send(&Message::Plan { words: words.to_vec(), part })?;
        }
        for agent in &mut agents {
            match agent.next()? {
                Message::Planned => {}
                other => return Err(agent.unexpected(&other)),
            }
        }
        let team = Team { agents, watch: Watch::new(), preload: None, late_ns: 0 };
        Ok(Self { options, step, team })
    }

    /// Measures once, as `Step::measure` does, with all machines.
    ///
    /// Errors: as messages for the user (I1).
    pub(crate) fn measure(&mut self, rate: Option<f64>) -> Result<(Server, Measured), String> {
        let Self { options, step, team } = self;
        (team.preload, team.late_ns) = (None, 0);
        for agent in &mut team.agents {
            (agent.ready, agent.done, agent.clock) = (None, None, None);
            agent.send(&Message::Step { rate })?;
        }
        let (server, mut measured) = step.measure(rate, team)?;
        team.await_all(|agent| agent.done.is_some())?;
        let rate = rate.map(|rate| rate / options.machines() as f64);
        let mut members = Vec::with_capacity(options.machines());
        if !options.agents_only {
            members.push(Member {
                name: "leader".into(),
                connections: step.connections(),
                threads: measured.threads,
                rate,
                tally: measured.tally.clone(),
                window_s: measured.window_s,
                busy_cores: measured.cost.generator_busy_cores,
                elapsed_s: measured.cost.elapsed_s,
                clock: None,
                late_ns: team.late_ns,
            });
        }
        for agent in &mut team.agents {
            members.push(agent.member(rate)?);
        }
        assert!(members.len() == options.machines(), "I1");
        measured.tally = sum(&members);
        measured.threads = members.iter().map(|member| member.threads).sum();
        measured.cost.generator_busy_cores = members.iter().map(|member| member.busy_cores).sum();
        measured.window_s = members.iter().map(|member| member.window_s).fold(0.0, f64::max);
        measured.preload = match (measured.preload.take(), team.preload.take()) {
            (Some(mut own), Some(theirs)) => {
                own.merge(&theirs);
                Some(own)
            }
            (own, theirs) => own.or(theirs),
        };
        measured.members = members;
        Ok((server, measured))
    }
}

impl Control for Team {
    fn begin(&mut self, _: Option<&Filled>) -> Result<Instant, String> {
        self.await_all(|agent| agent.ready.is_some())?;
        let Self { agents, watch, preload, .. } = self;
        for agent in &mut *agents {
            let ready = agent.ready.take().expect("awaited above");
            if let Some(theirs) = ready {
                let theirs = theirs.filled().map_err(|error| agent.failed(&error))?;
                match preload {
                    None => *preload = Some(theirs),
                    Some(preload) => preload.merge(&theirs),
                }
            }
            agent.compare_clocks(*watch)?;
        }
        let at = Instant::now() + LEAD;
        let at_ns = watch.at_ns(at);
        for agent in &mut *agents {
            let clock = agent.clock.expect("compared above");
            agent.send(&Message::Start { at_ns: clock.there_ns(at_ns) })?;
        }
        let earliest = soon();
        self.late_ns = earliest.saturating_duration_since(at).as_nanos() as u64;
        std::thread::sleep(at.saturating_duration_since(earliest));
        Ok(at.max(earliest))
    }

    fn poll(&mut self) -> Result<bool, String> {
        self.agents.iter_mut().try_for_each(|agent| agent.look(Duration::ZERO))?;
        Ok(self.agents.iter().all(|agent| agent.done.is_some()))
    }
}

impl Team {
    /// Looks at the agents in turn until this is true of all of them.
    fn await_all(&mut self, is_there: impl Fn(&Agent) -> bool) -> Result<(), String> {
        while !self.agents.iter().all(&is_there) {
            for agent in &mut self.agents {
                agent.look(LOOK)?;
            }
        }
        Ok(())
    }
}

impl Agent {
    /// Connects to an agent.
    fn greet(name: &str, step: &Step<'_>, token: Option<&Token>) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("agent {name}: {error}");
        let mut addresses = name.to_socket_addrs().map_err(failed)?;
        let address = addresses.next().ok_or_else(|| format!("agent {name}: no address"))?;
        check_server(name, address, step)?;
        let stream = TcpStream::connect_timeout(&address, CONNECT).map_err(failed)?;
        let wire = Wire::new(stream).map_err(failed)?;
        let mut agent = Self { name: name.into(), wire, clock: None, ready: None, done: None };
        let token = token.map(|token| token.text().to_owned());
        agent.send(&Message::Hello { protocol: PROTOCOL, program: PROGRAM.into(), token })?;
        match agent.wire.next_within(GREETING) {
            Ok(Message::Welcome { protocol, program }) => agree(protocol, &program)
                .map_err(|error| agent.failed(&error))
                .map(|()| agent.wire.trust())?,
            Ok(other) => return Err(agent.unexpected(&other)),
            Err(Broken::Silent(seconds)) => {
                return Err(agent.failed(&format!(
                    "no answer within {seconds} s; an agent serves one leader after the other"
                )));
            }
            Err(error) => return Err(agent.failed(&error.to_string())),
        }
        Ok(agent)
    }

    fn send(&mut self, message: &Message) -> Result<(), String> {
        let sent = self.wire.send(message);
        // An agent that failed has said why before it closed.
        if sent.is_err() {
            self.look(Duration::ZERO)?;
        }
        sent.map_err(|error| self.failed(&error.to_string()))
    }

    fn next(&mut self) -> Result<Message, String> {
        self.wire.next().map_err(|error| self.failed(&error.to_string()))
    }

    /// Takes a message if there is one.
    fn look(&mut self, wait: Duration) -> Result<(), String> {
        match self.wire.poll(wait) {
            Ok(None) => {}
            Ok(Some(Message::Ready { preload })) if self.ready.is_none() => {
                self.ready = Some(preload);
            }
            Ok(Some(Message::Done(done))) if self.done.is_none() => self.done = Some(done),
            Ok(Some(other)) => return Err(self.unexpected(&other)),
            Err(error) => return Err(self.failed(&error.to_string())),
        }
        Ok(())
    }

    /// Measures the offset of the agent's clock.
    fn compare_clocks(&mut self, watch: Watch) -> Result<(), String> {
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let sent_ns = watch.now_ns();
            self.send(&Message::Ping)?;
            match self.next()? {
                Message::Pong { at_ns } => {
                    trips.push(RoundTrip { sent_ns, at_ns, received_ns: watch.now_ns() });
                }
                other => return Err(self.unexpected(&other)),
            }
        }
        self.clock = Some(Clock::of(&trips));
        Ok(())
    }

    /// The agent's counts.
    fn member(&mut self, rate: Option<f64>) -> Result<Member, String> {
        let done = self.done.take().expect("I1: awaited before");
        let tally = done.counts.tally().map_err(|error| self.failed(&error))?;
        let Done { connections, threads, window_s, busy_cores, elapsed_s, late_ns, .. } = *done;
        let (name, clock) = (format!("agent {}", self.name), self.clock);
        Ok(Member {
            name,
            connections,
            threads,
            rate,
            tally,
            window_s,
            busy_cores,
            elapsed_s,
            clock,
            late_ns,
        })
    }

    fn failed(&self, reason: &str) -> String {
        format!("agent {}: {}", self.name, reason.trim_end())
    }

    fn unexpected(&self, message: &Message) -> String {
        match message {
            Message::Failed { reason } => self.failed(reason),
            other => self.failed(&format!("it does not follow the protocol: {other:?}")),
        }
    }
}

/// Errors: the address of a server means another machine there than here; as a message for the
/// user.
fn check_server(name: &str, agent: SocketAddr, step: &Step<'_>) -> Result<(), String> {
    let is_here = |address: &Address| match address {
        Address::Tcp(address) => address.ip().is_loopback(),
        Address::Unix(_) => true,
    };
    match step.targets().iter().find(|target| is_here(&target.address)) {
        Some(target) if !agent.ip().is_loopback() => Err(format!(
            "agent {name}: --server {} is another server on each machine; give the address at \
             which the agents reach it",
            target.address
        )),
        _ => Ok(()),
    }
}
