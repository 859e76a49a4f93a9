//! One run: opens connections, starts threads, times the phases, reads meters, shows progress.
//!
//! Upstream:   `lib` chooses the sources.
//! Downstream: each thread runs a `drive`; the merged tally and the cost go to `report`.
//!
//! ```text
//! open -> preload (each thread its share) -> rest -> start -> warm-up | window | late answers
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  All threads have the same start, set once all have finished preloading.
//! - I2  The meter is read at both ends of the measured window.

use std::io::{IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::address::{Address, Target};
use crate::clock::Watch;
use crate::connection::Connection;
use crate::connects::{ConnectPlan, Connecting, Connects};
use crate::control::{Control, Pulse};
use crate::drive::{Drive, Live, Pace};
use crate::flow::Flow;
use crate::idle::{Idle, IdleMemory};
use crate::member::Member;
use crate::meter::{Cost, Meter, Reading};
use crate::options::{CommonOptions, ServerPid};
use crate::process;
use crate::request::Source;
use crate::server::{self, Facts};
use crate::tally::{Filled, Tally, Window};
use crate::transport::Transport;

/// Minimum requests in flight on each connection during the preload.
const PRELOAD_DEPTH: usize = 64;
/// Interval of the progress line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// The phases of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phases {
    /// Length of the warm-up.
    pub(crate) warm_up_ns: u64,
    /// Length of the window; `None`: until the sources are finished.
    pub(crate) duration_ns: Option<u64>,
    /// Whether requests have intended send times.
    pub(crate) open: bool,
    /// Whether those of the preload have.
    pub(crate) open_fill: bool,
    /// Time between the preload and the warm-up.
    pub(crate) rest_ns: u64,
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Counts of all threads.
    pub(crate) tally: Tally,
    /// Threads of the load.
    pub(crate) threads: usize,
    /// Actual length of the window, in seconds.
    pub(crate) window_s: f64,
    /// When the window began, in Unix seconds of this machine's clock.
    pub(crate) begin_unix_s: f64,
    /// Cost of the window.
    pub(crate) cost: Cost,
    /// The preload, if the run had one.
    pub(crate) preload: Option<Filled>,
    /// The idle connections, if the run had any.
    pub(crate) idle: Option<IdleMemory>,
    /// The new connections during the run, if it had any.
    pub(crate) connects: Option<Connects>,
    /// The machines, if there were several.
    pub(crate) members: Vec<Member>,
}

/// A server and open connections to it.
#[derive(Debug)]
pub(crate) struct Session {
    /// What the server reports about itself.
    pub(crate) facts: Facts,
    /// The servers.
    pub(crate) targets: Vec<Target>,
    /// The process that the meter reads.
    pub(crate) pid: Option<u32>,
    meter: Meter,
    shares: Vec<Links>,
    options: CommonOptions,
    idle: usize,
    connects: Option<ConnectPlan>,
}

/// The clients of one thread.
#[derive(Debug, Default)]
struct Links {
    /// With flows, one connection for the preload.
    connections: Vec<Connection>,
    flows: Vec<Flow>,
}

/// Messages of the threads to the session.
enum Notice {
    Preloaded(Box<Tally>),
    Done(Box<Tally>),
    Failed(std::io::Error),
}

/// State shared by all threads.
struct Shared<'s, MakeP, MakeS> {
    make_preload: &'s MakeP,
    make_source: &'s MakeS,
    options: &'s CommonOptions,
    servers: usize,
    phases: Phases,
    epoch: Instant,
}

impl Session {
    /// Asks the server for its version and opens all connections, or flows.
    ///
    /// Errors: as messages for the user; those of the control end the run.
    pub(crate) fn open(
        options: &CommonOptions,
        transport: Transport,
        control: &mut dyn Control,
    ) -> Result<Self, String> {
        let Transport { targets, protocol, udp_timeout_ns, idle, connects, .. } = transport;
        allow_descriptors();
        let mut pulse = Pulse::new(control);
        let mut facts = Vec::with_capacity(targets.len());
        for target in &targets {
            let failed = |error: std::io::Error| format!("server {}: {error}", target.address);
            facts.push(server::ask(target).map_err(failed)?);
        }
        let facts = facts.swap_remove(0);
        let pid = match options.server_pid {
            None => None,
            Some(ServerPid::Pid(pid)) => Some(pid),
            Some(ServerPid::Auto) => Some(process::of_server(&facts, &targets[0].address)?),
        };
        let meter = Meter::new(pid)?;
        let mut shares: Vec<Links> = Vec::new();
        shares.resize_with(options.threads, Links::default);
        let refused = |index: usize, address: &Address, error: std::io::Error| {
            format!("server {address}: client {} of {}: {error}", index + 1, options.connections)
        };
        let connections =
            if udp_timeout_ns.is_some() { options.threads } else { options.connections };
        for index in 0..connections {
            for target in &targets {
                let connection = Connection::open(target, protocol);
                let connection =
                    connection.map_err(|error| refused(index, &target.address, error))?;
                shares[index % options.threads].connections.push(connection);
                pulse.step(Instant::now())?;
            }
        }
        for index in 0..udp_timeout_ns.map_or(0, |_| options.connections) {
            let Address::Tcp(address) = targets[0].address else {
                return Err("--udp needs --server HOST:PORT".into());
            };
            let flow = Flow::open(address, protocol, udp_timeout_ns.unwrap_or_default());
            let flow = flow.map_err(|error| refused(index, &targets[0].address, error))?;
            shares[index % options.threads].flows.push(flow);
        }
        let options = options.clone();
        Ok(Self { facts, targets, pid, meter, shares, options, idle, connects })
    }

    /// Runs all phases. `make_preload` makes a thread's preload (or none) at a time. `make_source`
    /// makes its source from the start and the end of requests (ns of the run's clock). A session
    /// without connections only reads the meter.
    ///
    /// Errors: as messages for the user; errors of the server are counted in the tally instead.
    pub(crate) fn run<P, S>(
        mut self,
        phases: Phases,
        preload_keys: Option<u64>,
        make_preload: &(impl Fn(usize, u64) -> P + Sync),
        make_source: &(impl Fn(usize, u64, u64) -> S + Sync),
        control: &mut dyn Control,
    ) -> Result<Measured, String>
    where
        P: Source,
        S: Source,
    {
        let epoch = Instant::now();
        let shares = std::mem::take(&mut self.shares);
        let threads = shares.len();
        let mut lives = Vec::new();
        lives.resize_with(2 * threads, Live::default);
        let (options, servers) = (&self.options, self.targets.len());
        let shared = Shared { make_preload, make_source, options, servers, phases, epoch };
        let (notice_sender, notices) = channel();
        std::thread::scope(|scope| {
            let mut starters = Vec::new();
            for (index, (share, live)) in shares.into_iter().zip(lives.chunks(2)).enumerate() {
                let (starter, start) = channel();
                starters.push(starter);
                let notice_sender = notice_sender.clone();
                let shared = &shared;
                let has_preload = preload_keys.is_some();
                scope.spawn(move || {
                    shared.work(index, share, live, has_preload, &start, &notice_sender);
                });
            }
            // The threads alone have senders, if there are threads.
            let silent = (threads == 0).then_some(notice_sender);
            let conductor = Conductor {
                session: &self,
                epoch,
                notices,
                starters,
                lives: &lives,
                phases,
                preload_keys,
            };
            let outcome = conductor.conduct(control);
            // Threads that still run when one of them, or another machine, has failed.
            lives
                .iter()
                .for_each(|live| live.is_stopped.store(outcome.is_err(), Ordering::Relaxed));
            drop(silent);
            outcome
        })
    }
}

impl<P: Source, S: Source, MakeP: Fn(usize, u64) -> P, MakeS: Fn(usize, u64, u64) -> S>
    Shared<'_, MakeP, MakeS>
{
    /// Runs one thread, from its first request to its tally.
    fn work(
        &self,
        index: usize,
        mut share: Links,
        live: &[Live],
        has_preload: bool,
        start: &Receiver<u64>,
        notices: &Sender<Notice>,
    ) {
        let outcome = self.phases_of_thread(index, &mut share, live, has_preload, start, notices);
        // The session receives until every sender is dropped.
        let _ = match outcome {
            Ok(Some(tally)) => notices.send(Notice::Done(Box::new(tally))),
            Ok(None) => Ok(()),
            Err(error) => notices.send(Notice::Failed(error)),
        };
    }

    fn phases_of_thread(
        &self,
        index: usize,
        share: &mut Links,
        live: &[Live],
        has_preload: bool,
        start: &Receiver<u64>,
        notices: &Sender<Notice>,
    ) -> std::io::Result<Option<Tally>> {
        if let Some(list) = &self.options.pin {
            let mut cpus = CpuSet::new();
            cpus.set(list.0[index % list.0.len()]);
            sched_setaffinity(None, &cpus)?;
        }
        let window = Window { from_ns: 0, until_ns: u64::MAX, open: self.phases.open_fill };
        let mut pace = Pace {
            epoch: self.epoch,
            depth: self.options.depth.max(PRELOAD_DEPTH),
            servers: self.servers,
            patience_ns: (self.options.patience_s * 1e9) as u64,
            spin: self.options.spin,
            window,
        };
        let preloaded = match has_preload {
            false => Tally::new(window),
            true => {
                let preload = (self.make_preload)(index, pace.now_ns());
                Drive::new(&mut share.connections, preload, pace, &live[0])?.run()?
            }
        };
        // The receiver is gone only if another thread failed; the start does not come then either.
        let _ = notices.send(Notice::Preloaded(Box::new(preloaded)));
        let Ok(start_ns) = start.recv() else {
            return Ok(None);
        };
        let from_ns = start_ns + self.phases.warm_up_ns;
        let until_ns =
            self.phases.duration_ns.map_or(u64::MAX, |duration_ns| from_ns + duration_ns);
        pace.depth = self.options.depth;
        pace.window = Window { from_ns, until_ns, open: self.phases.open };
        while pace.now_ns() < start_ns {
            std::hint::spin_loop();
        }
        let source = (self.make_source)(index, start_ns, until_ns);
        if share.flows.is_empty() {
            // The links of a client are together; flows have one server.
            return Drive::new(&mut share.connections, source, pace, &live[1])?.run().map(Some);
        }
        Drive::new(&mut share.flows, source, pace, &live[1])?.run().map(Some)
    }
}

/// The session's thread: waits, reads meters, shows progress.
struct Conductor<'s> {
    session: &'s Session,
    epoch: Instant,
    notices: Receiver<Notice>,
    starters: Vec<Sender<u64>>,
    lives: &'s [Live],
    phases: Phases,
    preload_keys: Option<u64>,
}

impl Conductor<'_> {
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn conduct(self, control: &mut dyn Control) -> Result<Measured, String> {
        let mut progress = Progress::new(self.session.options.quiet);
        let preload = self.await_preload(&mut progress, control)?;
        self.rest(&mut progress, control)?;
        let Session { targets, meter, .. } = self.session;
        let idle = match self.session.idle {
            0 => None,
            count => Some(Idle::open(&targets[0], count, meter, control)?),
        };
        let watch = Watch::new();
        let start = control.begin(preload.as_ref())?;
        let start_ns = start.saturating_duration_since(self.epoch).as_nanos() as u64;
        for starter in &self.starters {
            // A thread that ended early has sent its error or will send it.
            let _ = starter.send(start_ns); // I1
        }
        let from_ns = start_ns + self.phases.warm_up_ns;
        let until_ns = self.phases.duration_ns.map(|duration_ns| from_ns + duration_ns);
        let connecting = self.session.connects.as_ref().zip(until_ns).map(|(plan, until_ns)| {
            let at = |ns| self.epoch + Duration::from_nanos(ns);
            plan.start(at(start_ns), at(until_ns))
        });
        let mut earlier: Option<Reading> = None;
        let mut later: Option<Reading> = None;
        let mut sum: Option<Tally> = None;
        let mut running = self.starters.len();
        let only_reads = running == 0;
        if only_reads {
            sum = Some(Tally::new(Window { from_ns, until_ns: u64::MAX, open: self.phases.open }));
        }
        let mut are_others_over = false;
        while running > 0 || (only_reads && later.is_none()) {
            let boundary_ns = if earlier.is_none() { Some(from_ns) } else { until_ns };
            let boundary_ns = boundary_ns.filter(|_| later.is_none());
            running -= usize::from(self.gather(self.wait(boundary_ns), &mut sum)?);
            let now_ns = self.now_ns();
            // A run that fails during its warm-up has an empty window; its errors still count.
            let is_over = running == 0 && (!only_reads || are_others_over);
            if earlier.is_none() && (now_ns >= from_ns || is_over) {
                earlier = Some(self.session.meter.read(now_ns)); // I2
            }
            let is_end = until_ns.is_some_and(|until_ns| now_ns >= until_ns) || is_over;
            if earlier.is_some() && later.is_none() && is_end {
                later = Some(self.session.meter.read(self.now_ns())); // I2
            }
            progress.show_run(&self, now_ns, from_ns, until_ns);
            are_others_over = control.poll()?;
        }
        progress.clear();
        let (Some(tally), Some(earlier), Some(later)) = (sum, earlier, later) else {
            unreachable!("I2: read at the latest when the last thread ended");
        };
        let end_ns = match until_ns {
            Some(until_ns) => until_ns.min(self.now_ns()),
            None => tally.last_ns,
        };
        let window_ns = end_ns.saturating_sub(from_ns).max(1);
        let begin = self.epoch + Duration::from_nanos(from_ns);
        Ok(Measured {
            tally,
            threads: self.starters.len(),
            window_s: window_ns as f64 / 1e9,
            begin_unix_s: watch.at_ns(begin) as f64 / 1e9,
            cost: self.session.meter.cost(&earlier, &later),
            preload,
            idle: idle.map(|idle| idle.close(meter, control)).transpose()?,
            connects: connecting.map(Connecting::finish),
            members: Vec::new(),
        })
    }

    /// Waits for the tally of a thread, and adds it. False: none has come.
    fn gather(&self, wait: Duration, sum: &mut Option<Tally>) -> Result<bool, String> {
        match self.notices.recv_timeout(wait) {
            Ok(Notice::Done(tally)) => {
                match sum {
                    None => *sum = Some(*tally),
                    Some(sum) => sum.merge(&tally),
                }
                Ok(true)
            }
            Ok(Notice::Preloaded(_)) => unreachable!("I1: all were counted before the start"),
            Ok(Notice::Failed(error)) => Err(format!("generator: {error}")),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err("a thread ended early".into()),
        }
    }

    /// Leaves the server alone for a while.
    fn rest(&self, progress: &mut Progress, control: &mut dyn Control) -> Result<(), String> {
        let began = Instant::now();
        let rest = Duration::from_nanos(self.phases.rest_ns);
        while let Some(left) = rest.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            progress.show(|| format!("rest: {:.0} s to go", left.as_secs_f64()));
            std::thread::sleep(left.min(PROGRESS_INTERVAL));
            control.poll()?;
        }
        progress.clear();
        Ok(())
    }

    fn await_preload(
        &self,
        progress: &mut Progress,
        control: &mut dyn Control,
    ) -> Result<Option<Filled>, String> {
        let began = Instant::now();
        let mut sum: Option<Tally> = None;
        let mut waiting = self.starters.len();
        while waiting > 0 {
            match self.notices.recv_timeout(PROGRESS_INTERVAL) {
                Ok(Notice::Preloaded(tally)) if tally.errors.total() > 0 => {
                    let words = tally.errors.first.unwrap_or_default();
                    return Err(format!("preload: {} errors: {words}", self.errors()));
                }
                Ok(Notice::Preloaded(tally)) => {
                    waiting -= 1;
                    match &mut sum {
                        None => sum = Some(*tally),
                        Some(sum) => sum.merge(&tally),
                    }
                }
                Ok(Notice::Failed(error)) => return Err(format!("generator: {error}")),
                Ok(Notice::Done(_)) => unreachable!("I1: none has started"),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(keys) = self.preload_keys {
                        let done = total(self.lives, 0, |live| &live.answered);
                        progress.show(|| format!("preload {done} of {keys} keys"));
                    }
                    control.poll()?;
                }
                Err(RecvTimeoutError::Disconnected) => return Err("a thread ended early".into()),
            }
        }
        progress.clear();
        let elapsed_s = began.elapsed().as_secs_f64();
        Ok(self.preload_keys.zip(sum).map(|(keys, tally)| Filled { keys, elapsed_s, tally }))
    }

    fn errors(&self) -> u64 {
        total(self.lives, 0, |live| &live.errors) + total(self.lives, 1, |live| &live.errors)
    }

    fn wait(&self, boundary_ns: Option<u64>) -> Duration {
        let boundary = boundary_ns
            .map(|boundary_ns| Duration::from_nanos(boundary_ns.saturating_sub(self.now_ns())));
        boundary.map_or(PROGRESS_INTERVAL, |boundary| boundary.min(PROGRESS_INTERVAL))
    }
}

/// Allows this process as many descriptors as it may have.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // If it fails, opening the connections fails with the kernel's reason.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Sums one counter over all threads; `phase` is 0 for the preload and 1 for the run.
fn total(
    lives: &[Live],
    phase: usize,
    counter: impl Fn(&Live) -> &std::sync::atomic::AtomicU64,
) -> u64 {
    lives.chunks(2).map(|live| counter(&live[phase]).load(Ordering::Relaxed)).sum()
}

/// The progress line, which is shown only on a terminal.
struct Progress {
    is_shown: bool,
    is_dirty: bool,
    last: Instant,
    last_answered: u64,
}

impl Progress {
    fn new(quiet: bool) -> Self {
        let is_shown = !quiet && std::io::stderr().is_terminal();
        Self { is_shown, is_dirty: false, last: Instant::now(), last_answered: 0 }
    }

    fn show(&mut self, words: impl FnOnce() -> String) {
        if self.is_shown {
            self.is_dirty = true;
            let mut terminal = std::io::stderr().lock();
            // A closed terminal needs no progress.
            let _ = write!(terminal, "\r\x1b[K{}", words());
            let _ = terminal.flush();
        }
    }

    fn show_run(&mut self, of: &Conductor<'_>, now_ns: u64, from_ns: u64, until_ns: Option<u64>) {
        let elapsed = self.last.elapsed();
        if !self.is_shown || elapsed < PROGRESS_INTERVAL {
            return;
        }
        let answered = total(of.lives, 1, |live| &live.answered);
        let keys = total(of.lives, 1, |live| &live.keys).max(1);
        let hits = total(of.lives, 1, |live| &live.hits);
        let rate = (answered.saturating_sub(self.last_answered)) as f64 / elapsed.as_secs_f64();
        (self.last, self.last_answered) = (Instant::now(), answered);
        let phase = match until_ns {
            _ if now_ns < from_ns => "warm-up".to_owned(),
            Some(until_ns) if now_ns < until_ns => {
                format!("{:.0} s to go", (until_ns - now_ns) as f64 / 1e9)
            }
            Some(_) => "late answers".to_owned(),
            None => format!("{:.0} s", (now_ns - from_ns) as f64 / 1e9),
        };
        let hit_percent = 100.0 * hits as f64 / keys as f64;
        let errors = of.errors();
        self.show(|| {
            format!(
                "{phase}: {answered} answered, {rate:.0}/s, hits {hit_percent:.2} %, \
                 {errors} errors"
            )
        });
    }

    fn clear(&mut self) {
        if self.is_dirty {
            self.is_dirty = false;
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
