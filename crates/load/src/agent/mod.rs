//! Measurements of several machines: `kachel load agent` waits for a leader and sends a part of its
//! load; `leader` is the other side.
//!
//! Upstream:   a leader connects and sends its plan (`message`).
//! Downstream: `step` measures this machine's part; the counts go back to the leader.
//!
//! ```text
//! leader                                  agent
//!   hello with the token          ->      welcome, or the reason of a refusal
//!   the plan and a part           ->      prepare the mix
//!   a step                        ->      open connections, preload
//!   (its own part, too)           <-      ready
//!   round trips, start            ->      warm-up, window, late answers
//!   add, report                   <-      the counts
//! ```
//! Response times are differences of one machine's clock. The clocks of two machines are compared
//! for the start alone.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  An agent sends nothing to a server for a leader without its token.
//! - I2  An agent whose leader is gone stops its load.

mod counts;
mod frame;
mod leader;
mod message;
mod token;
#[cfg(test)]
mod tests;

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use clap::Parser as _;

use self::counts::{Counts, Preloaded};
use self::frame::{Broken, Wire};
use self::message::{Done, Message, agree};
use self::token::Token;
use crate::clock::Watch;
use crate::control::{Control, soon};
use crate::options::{AgentOptions, CpuList, Options, SteadyOptions};
use crate::session::Measured;
use crate::step::Step;
use crate::tally::Filled;

pub(crate) use self::leader::Leader;

/// How long a stranger may take to greet.
const GREETING: Duration = Duration::from_secs(10);
/// The pause after a failed accept, for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves one leader after the other until the process is ended. `say` gets a line for each event.
///
/// Errors: the agent cannot listen, as a message for the user.
pub(crate) fn serve(options: &AgentOptions, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    let token = Token::read(options.token.as_deref())?;
    let failed = |error: std::io::Error| format!("--listen {}: {error}", options.listen);
    let listener = TcpListener::bind(&options.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    if !address.ip().is_loopback() && token.is_none() {
        return Err(format!(
            "--listen {address}: anybody who reaches this address could send load to any other, so \
             it needs --token FILE, or KACHEL_LOAD_TOKEN"
        ));
    }
    say(&format!("listening on {address}"));
    loop {
        match listener.accept() {
            Ok((stream, leader)) => {
                say(&format!("{leader}: connected"));
                let outcome = talk(stream, token.as_ref(), options.pin.as_ref());
                match outcome {
                    Ok(steps) => say(&format!("{leader}: measured {steps} times")),
                    Err(reason) => say(&format!("{leader}: {reason}")),
                }
            }
            Err(error) => {
                say(&format!("accept: {error}"));
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Serves one leader; returns the number of measurements.
///
/// Errors: as messages for the user; the leader was told, too, if it could be.
fn talk(stream: TcpStream, token: Option<&Token>, pin: Option<&CpuList>) -> Result<u64, String> {
    let mut wire = Wire::new(stream).map_err(|error| error.to_string())?;
    let outcome = converse(&mut wire, token, pin);
    if let Err(reason) = &outcome {
        // A leader that is gone hears nothing.
        let _ = wire.send(&Message::Failed { reason: reason.clone() });
    }
    outcome
}

fn converse(wire: &mut Wire, token: Option<&Token>, pin: Option<&CpuList>) -> Result<u64, String> {
    greet(wire, token)?;
    let Message::Plan { words, part } = wire.next().map_err(|error| error.to_string())? else {
        return Err("no plan".into());
    };
    // I1: the leader has the token.
    let options = options_of(&words, pin)?;
    if !part.is_valid() || part.count > options.machines() as u64 {
        return Err(format!("{part:?} is no part of this plan"));
    }
    let mut step = Step::new(&options, Some(part))?;
    let broken = |error: Broken| error.to_string();
    wire.send(&Message::Planned).map_err(broken)?;
    let mut steps = 0;
    loop {
        let rate = match wire.next() {
            Ok(Message::Step { rate }) => rate,
            Ok(other) => return Err(format!("no step: {other:?}")),
            Err(Broken::Closed) => return Ok(steps),
            Err(error) => return Err(error.to_string()),
        };
        let mut follower = Follower { wire, watch: Watch::new(), late_ns: 0 };
        let (_, measured) = step.measure(rate, &mut follower)?;
        let done = done(&measured, step.connections(), follower.late_ns);
        wire.send(&Message::Done(Box::new(done))).map_err(broken)?;
        steps += 1;
    }
}

/// Learns whether the leader may use this agent.
fn greet(wire: &mut Wire, token: Option<&Token>) -> Result<(), String> {
    match wire.next_within(GREETING).map_err(|error| error.to_string())? {
        Message::Hello { protocol, program, token: offered } => {
            agree(protocol, &program)?;
            if token.is_some_and(|token| !token.is(offered.as_deref().unwrap_or_default())) {
                return Err("the token is missing or wrong (--token, KACHEL_LOAD_TOKEN)".into());
            }
        }
        _ => return Err("no greeting".into()),
    }
    wire.trust();
    wire.send(&Message::welcome()).map_err(|error| error.to_string())
}

/// The options of a plan, as they are for an agent.
fn options_of(words: &[String], pin: Option<&CpuList>) -> Result<SteadyOptions, String> {
    let words = std::iter::once("kachel load").chain(words.iter().map(String::as_str));
    let options = Options::try_parse_from(words).map_err(|error| error.to_string())?;
    if options.command.is_some() {
        return Err("a plan has no subcommand".into());
    }
    let mut options = options.steady;
    let common = &mut options.common;
    (common.json, common.server_pid) = (None, None);
    (common.pin, common.quiet) = (pin.cloned(), true);
    options.check()?;
    Ok(options)
}

fn done(measured: &Measured, connections: usize, late_ns: u64) -> Done {
    Done {
        counts: Counts::of(&measured.tally),
        connections,
        threads: measured.threads,
        window_s: measured.window_s,
        busy_cores: measured.cost.generator_busy_cores,
        elapsed_s: measured.cost.elapsed_s,
        late_ns,
    }
}

/// An agent's side of a run: starts when the leader says so.
struct Follower<'w> {
    wire: &'w mut Wire,
    watch: Watch,
    late_ns: u64,
}

impl Control for Follower<'_> {
    fn begin(&mut self, preload: Option<&Filled>) -> Result<Instant, String> {
        let broken = |error: Broken| format!("the leader: {error}");
        self.wire
            .send(&Message::Ready {
                preload: preload.map(|filled| Box::new(Preloaded::of(filled))),
            })
            .map_err(broken)?;
        loop {
            match self.wire.next().map_err(broken)? {
                Message::Ping => {
                    let at_ns = self.watch.now_ns();
                    self.wire.send(&Message::Pong { at_ns }).map_err(broken)?;
                }
                Message::Start { at_ns } => {
                    // The leader is moments away from the start; a wrong time is not waited for.
                    let earliest = soon();
                    let at = self.watch.instant(at_ns).min(earliest + leader::LEAD * 2);
                    self.late_ns = earliest.saturating_duration_since(at).as_nanos() as u64;
                    std::thread::sleep(at.saturating_duration_since(earliest));
                    return Ok(at.max(earliest));
                }
                other => return Err(format!("no start: {other:?}")),
            }
        }
    }

    fn poll(&mut self) -> Result<bool, String> {
        match self.wire.poll(Duration::ZERO) {
            Ok(None) => Ok(false),
            Ok(Some(other)) => Err(format!("the leader sent {other:?} in a run")),
            Err(error) => Err(format!("the leader: {error}")), // I2
        }
    }
}
