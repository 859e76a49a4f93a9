//! A run: the server, its clients and the network between them, in one thread, on virtual time.
//!
//! Upstream:   the options, which by default follow from a seed.
//! Downstream: `phases`, which wait for events and judge the server; a report, or a description of
//!             the failure.
//!
//! Invariants:
//! - I1  Time passes only between events. No system clock and no other thread affects a run.

mod phases;

use std::collections::{BTreeSet, VecDeque};

use kachel_cache::CacheOpener;
use kachel_engine::OpenEngines;
use kachel_io::Clock as _;
use kachel_testkit::{DelayingOpener, FlashFiles, PlainOpener, Random};

use crate::acknowledged::Acknowledged;
use crate::answer::Asked;
use crate::ask::{Asker, Expect};
use crate::client::{Around, Client, End, Received, Tally};
use crate::disk::RunDisk;
use crate::kept::Kept;
use crate::options::{EngineChoice, Fault, Options};
use crate::queue::{Event, Queue};
use crate::record::{Moment, Record};
use crate::report::{Coverage, Report};
use crate::rocks_place::new_rocks_store;
use crate::server::{Running, Server, Start};
use crate::subject::Subject;
use crate::trace::Trace;

/// The most clients that read all hot keys when a flush is answered or falls due, not counting the
/// client that sent it. With more of them, too many operations would overlap for the judge.
const LOOKS_MAX: usize = 4;
/// The segments of a log, and the space of it without large values: less than the clients write.
const SEGMENT_BYTES: u64 = 128 << 10;
const LOG_BYTES: u64 = 4 << 20;
/// While less than this percentage of the requests is sent, values are small and none is evicted.
const SMALL_PERCENT: u64 = 40;
const SECOND_NS: u64 = 1_000_000_000;

/// Runs the simulation with these options.
///
/// Errors: a description of what went wrong.
pub fn run(options: &Options) -> Result<Report, String> {
    let inner = CacheOpener::default();
    match options.engine {
        EngineChoice::Cache => Run::new(options, &inner, None, None).all(),
        EngineChoice::Delaying => {
            let (disk, permille, seed) =
                (RunDisk::new(options), options.delay_permille(), options.seed);
            let opener = DelayingOpener { inner, folder: disk.folder(), permille, seed };
            Run::new(options, &opener, Some(disk), None).all()
        }
        EngineChoice::Plain => {
            let disk = options.faults.has(Fault::Late).then(|| RunDisk::new(options));
            let folder = disk.as_ref().map(RunDisk::folder);
            Run::new(options, &PlainOpener(folder), disk, None).all()
        }
        EngineChoice::Flash => {
            let mut disk = RunDisk::new(options);
            let log_bytes = if options.has_large() { 4 * LOG_BYTES } else { LOG_BYTES };
            if options.faults.has(Fault::Full) {
                let percent = Random::for_purpose(options.seed, "space").between(40, 80);
                disk.limit_space(log_bytes * u64::from(options.engines) * percent / 100);
            }
            let files = FlashFiles::of_space(disk.disk(), SEGMENT_BYTES, log_bytes);
            let opener = files.opener();
            let reopen = Box::new(move |disk: RunDisk, queue: &mut Queue, start| {
                let opener = files.on(disk.disk()).opener();
                Server::new(options, &opener, Some(disk), queue, start)
            });
            Run::new(options, &opener, Some(disk), Some(reopen)).all()
        }
        EngineChoice::Rocks => {
            let opener = new_rocks_store().map_err(|error| error.to_string())?;
            let again = opener.clone();
            let reopen = Box::new(move |disk: RunDisk, queue: &mut Queue, start| {
                Server::new(options, &again, Some(disk), queue, start)
            });
            Run::new(options, &opener, Some(RunDisk::new(options)), Some(reopen)).all()
        }
    }
}

/// Starts a server again over what a power cut has left.
type Reopen<'o, E> = Box<dyn Fn(RunDisk, &mut Queue, Start) -> Server<E> + 'o>;

/// A run over engines of kind `E`.
struct Run<'o, E: Subject> {
    options: &'o Options,
    queue: Queue,
    server: Running<E>,
    /// If its engines survive a power cut.
    reopen: Option<Reopen<'o, E>>,
    /// What the servers before the last power cut have done.
    seen_before: Coverage,
    clients: Vec<Client>,
    asker: Asker,
    trace: Trace,
    tally: Tally,
    record: Record,
    kept: Kept,
    acknowledged: Acknowledged,
    now_ns: u64,
    /// How far jumps have moved the server's clock ahead of virtual time.
    jumped_ns: u64,
    stormy: bool,
    /// The second by which the newest delayed flush is certainly due; `None`: nothing to check.
    flush_due: Option<u32>,
    /// See [`Around`].
    pinned_closes: u64,
    end: End,
    /// The keys of the last listing.
    listed: Vec<Vec<u8>>,
    /// The keys whose values were read after the stormy phase.
    found: BTreeSet<Vec<u8>>,
}

impl<'o, E: Subject> Run<'o, E> {
    fn new(
        options: &'o Options,
        opener: &impl OpenEngines<Engine = E>,
        disk: Option<RunDisk>,
        reopen: Option<Reopen<'o, E>>,
    ) -> Self {
        let mut queue = Queue::default();
        let server = Server::new(options, opener, disk, &mut queue, Start::default());
        let clients = (0..usize::from(options.clients))
            .map(|index| Client::new(options, index, &mut queue))
            .collect();
        let mut dice = Random::for_purpose(options.seed, "clock");
        if options.faults.has(Fault::Jump) {
            let mut at_ns = 0;
            for _ in 0..40 {
                at_ns += dice.between(1_000_000, 20_000_000);
                let jump_ns = match dice.below(20) {
                    0..16 => dice.between(100_000_000, 2_500_000_000),
                    16..19 => dice.between(2_000_000_000, 15_000_000_000),
                    _ => 70_000_000_000,
                };
                queue.schedule(at_ns, Event::Jump(jump_ns));
            }
        }
        Self {
            options,
            queue,
            server: Running::new(server),
            reopen,
            seen_before: Coverage::default(),
            clients,
            asker: Asker::new(options),
            trace: Trace::default(),
            tally: Tally::default(),
            record: Record::default(),
            kept: Kept::default(),
            acknowledged: Acknowledged::default(),
            now_ns: 0,
            jumped_ns: 0,
            stormy: true,
            flush_due: None,
            pinned_closes: 0,
            end: End::default(),
            listed: Vec::new(),
            found: BTreeSet::new(),
        }
    }

    /// Performs events until `done` holds.
    ///
    /// Errors: that takes longer than `most_ns`, or an event fails.
    fn until(
        &mut self,
        what: &str,
        most_ns: u64,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let deadline_ns = self.now_ns + most_ns;
        while !done(self) {
            if self.now_ns > deadline_ns {
                let waiting: Vec<String> = self.clients.iter().map(Client::waits_for).collect();
                let waiting = waiting.join("; ");
                return Err(format!("timed out waiting until {what} ({waiting})"));
            }
            self.next()?;
        }
        Ok(())
    }

    /// Moves virtual time to the next event and performs it (I1).
    fn next(&mut self) -> Result<(), String> {
        let Some((at_ns, event)) = self.queue.next() else {
            return Err("no event is left".to_owned());
        };
        assert!(at_ns >= self.now_ns, "I1");
        self.server.advance_ns(at_ns - self.now_ns);
        self.now_ns = at_ns;
        self.note(&event);
        let (now, clock_ns) = (self.moment(), self.clock_ns());
        match event {
            Event::Run(shard) => {
                self.pinned_closes = self.server.run(shard, at_ns, &mut self.queue)?;
                self.receive()?;
                self.pinned_closes = 0;
            }
            Event::Overslept { shard, nap } => {
                self.server.overslept(shard, nap, at_ns, &mut self.queue);
            }
            Event::FileDue => self.server.file_due(at_ns, &mut self.queue),
            Event::Step(client) => self.step(client),
            Event::Arrive { client, link, bytes } => {
                self.clients[client].arrive(link, &bytes, now, clock_ns);
                self.wake();
            }
            Event::Finish { client, link } => {
                self.clients[client].arrive_finish(link);
                self.wake();
            }
            Event::Reset { client, link } => {
                let unknown = self.clients[client].reset(link, &mut self.tally);
                self.lose(client, unknown);
                self.wake();
            }
            Event::Read { client, link, bytes } => {
                self.at(client, |client, around| client.read_more(link, bytes, around));
                self.wake();
            }
            Event::Jump(ns) => {
                if self.stormy {
                    self.tally.jumps += 1;
                    self.jump(ns);
                    if self.tally.jumps % 8 == 1 {
                        // An item's life does not depend on the time of day.
                        let clock = &self.server.world.clock;
                        clock.set_unix_s(clock.unix_s() - 3_600);
                        self.tally.clock_steps += 1;
                    }
                    self.look_when_due();
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, event: &Event) {
        let (kind, of) = match event {
            Event::Run(shard) => (1, *shard),
            Event::Overslept { shard, .. } => (2, *shard),
            Event::Step(client) => (3, *client),
            Event::Arrive { client, bytes, .. } => {
                self.trace.add_bytes(bytes);
                (4, *client)
            }
            Event::Finish { client, .. } => (5, *client),
            Event::Reset { client, .. } => (6, *client),
            Event::Read { client, .. } => (7, *client),
            Event::Jump(_) => (8, 0),
            Event::FileDue => (9, 0),
        };
        self.trace.add(self.now_ns << 4 | kind);
        self.trace.add(of as u64);
    }

    fn wake(&mut self) {
        self.server.wake(self.now_ns, &mut self.queue);
    }

    fn jump(&mut self, ns: u64) {
        self.jumped_ns += ns;
        self.server.world.clock.advance_ns(ns);
    }

    fn clock_ns(&self) -> u64 {
        self.now_ns + self.jumped_ns
    }

    /// The virtual time, and the second of the server's clock.
    fn moment(&self) -> Moment {
        let second = (self.clock_ns() / 1_000_000_000) as u32 + 2;
        Moment { ns: self.now_ns, second }
    }

    fn at<R>(&mut self, client: usize, act: impl FnOnce(&mut Client, &mut Around<'_>) -> R) -> R {
        let clock_ns = self.clock_ns();
        let mut around = Around {
            now_ns: self.now_ns,
            clock_ns,
            queue: &mut self.queue,
            trace: &mut self.trace,
            asker: &mut self.asker,
            tally: &mut self.tally,
            pinned_closes: &mut self.pinned_closes,
            failures: &mut self.server.failures,
            end: self.end,
        };
        act(&mut self.clients[client], &mut around)
    }

    fn each(&mut self, act: impl Fn(&mut Client, &mut Around<'_>)) {
        for client in 0..self.clients.len() {
            self.at(client, &act);
        }
    }

    fn step(&mut self, client: usize) {
        if !self.stormy {
            return;
        }
        if self.tally.asked * 100 >= u64::from(self.options.requests) * SMALL_PERCENT {
            if !self.asker.pressing {
                self.record.note_pressure(self.now_ns);
            }
            self.asker.pressing = true;
        }
        let Server { world, failures, .. } = &mut *self.server;
        let mut around = Around {
            now_ns: self.now_ns,
            clock_ns: self.now_ns + self.jumped_ns,
            queue: &mut self.queue,
            trace: &mut self.trace,
            asker: &mut self.asker,
            tally: &mut self.tally,
            pinned_closes: &mut self.pinned_closes,
            failures,
            end: self.end,
        };
        self.clients[client].step(|| world.connect(), &mut around);
        self.wake();
    }

    /// Every client reads what the server has sent to it.
    fn receive(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            if !self.clients[client].is_connected() {
                continue;
            }
            let Some(received) = self.at(client, Client::receive)? else { continue };
            let Received { settled, unknown } = received;
            let (now, connection) = (self.moment(), self.clients[client].connection());
            for asked in settled {
                self.tally.settled += 1;
                self.tally.refused += u64::from(asked.is_refused());
                self.tally.stores += u64::from(asked.ask.stores());
                self.tally.large_stores += u64::from(asked.has_stored_large());
                self.note_listing(&asked);
                let under_way = |key: &[u8]| {
                    let mut all = self.clients.iter().flat_map(|client| &client.asked);
                    all.any(|other| !other.ask.only_reads() && other.ask.names(key))
                };
                let failures = &mut self.server.failures;
                failures.excuse_errors(&asked)?;
                self.tally.disk_errors += asked.disk_errors().count() as u64;
                self.tally.unread += asked.unread().count() as u64;
                if asked.disk_errors().next().is_some() && failures.has_failed_read() {
                    self.kept.lose(&asked);
                } else {
                    self.kept.settle(&asked, now, self.options.calm_bytes(), under_way);
                }
                if self.options.keeps_old_values() {
                    self.acknowledged.note(&asked);
                }
                self.record.settle(connection, &asked, now, failures)?;
                if let Some(delay_s) = asked.ask.flush_delay_s().filter(|_| self.stormy) {
                    self.tally.flushes += 1;
                    self.flush_due = (delay_s > 0).then(|| now.second + delay_s);
                    self.look(Some(client));
                }
            }
            self.lose(client, unknown);
        }
        let served = self.clients.iter().filter(|client| client.is_served()).count();
        let places = self.options.connections_max();
        if served > places as usize {
            return Err(format!("{served} clients are served, and {places} may be connected"));
        }
        Ok(())
    }

    /// Notes the keys of a listing, or those whose values were read.
    fn note_listing(&mut self, asked: &Asked) {
        match &asked.ask.expect {
            Expect::Dump => {
                self.tally.dumps += u64::from(self.stormy);
                self.tally.listed += asked.replies.len() as u64;
                self.listed = asked.replies.iter().map(|(_, key)| key.clone()).collect();
            }
            Expect::Values(keys) if !self.stormy => {
                self.found.extend(asked.found.iter().map(|place| keys[*place].clone()));
            }
            _ => {}
        }
    }

    /// Has `flusher`, and clients that wait for nothing, read all hot keys when a flush is answered
    /// or a delayed one falls due. Their reads find a shard that the flush has not reached.
    fn look(&mut self, flusher: Option<usize>) {
        let others = (0..self.clients.len()).filter(|client| Some(*client) != flusher);
        let others = others.filter(|client| self.clients[*client].may_look()).take(LOOKS_MAX);
        for client in others.chain(flusher).collect::<Vec<_>>() {
            let asks = self.asker.all_hot();
            self.at(client, |client, around| client.send_at_once(asks, around));
        }
    }

    /// Has clients read all hot keys when the clock has reached the second of a delayed flush.
    fn look_when_due(&mut self) {
        let second = self.moment().second;
        if self.flush_due.take_if(|due| *due <= second).is_some() {
            self.look(None);
        }
    }

    /// What has happened in the servers of this run.
    fn seen(&self) -> Coverage {
        let mut seen = Coverage::of(&self.server);
        seen.add(&self.seen_before);
        seen
    }

    /// Cuts the power in a run that has such faults, and starts the server again. All clients lose
    /// their connections. The clock of a server begins with a second, so the time that is left of
    /// this one passes before.
    pub(super) fn cut_power(&mut self) {
        let is_cut = self.options.faults.has(Fault::PowerCut);
        let Some(reopen) = self.reopen.take().filter(|_| is_cut) else { return };
        self.jump(SECOND_NS - self.clock_ns() % SECOND_NS);
        for client in 0..self.clients.len() {
            let unknown = self.clients[client].lose_server();
            self.lose(client, unknown);
        }
        self.record.lose_silent();
        self.queue.forget_server();
        self.tally.restarts += 1;
        let disk = self.server.disk_after_power_cut(self.options.seed ^ self.tally.restarts);
        // The disk goes on with its counts.
        self.seen_before = self.seen().without_files();
        let start = Start { now_ns: self.now_ns, passed_s: self.clock_ns() / SECOND_NS };
        let queue = &mut self.queue;
        self.server.replace(|| reopen(disk, queue, start));
        self.reopen = Some(reopen);
        if !self.stormy {
            self.server.calm();
        }
        self.wake();
    }

    fn lose(&mut self, client: usize, unknown: VecDeque<Asked>) {
        let connection = self.clients[client].connection();
        for asked in unknown {
            self.record.lose(connection, &asked);
            self.kept.lose(&asked);
        }
    }
}
