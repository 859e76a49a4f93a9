//! The loop: requests in flight, their replies, and those that are lost.
//!
//! Upstream:   `schedule` or the replies say when the next request is due, `popularity` its key.
//! Downstream: the packet socket; `setter`; the tally.
//!
//! ```text
//! a turn:  requests that are due -> send -> sets -> receive -> (each 10 ms) lost ones again
//!          and if nothing happened: wait (closed loop), spin (open loop), sleep until the tick
//! ```
//! A request has a slot, which is a flow and a place in its window. The number of the request has
//! the place in its low bits and a count of the uses of the slot above.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A slot is free or has one request in flight.
//! - I2  A reply is that to the last request of its slot, or stray.
//! - I3  Every request ends once: answered or, at the end, unanswered. One that is lost is sent
//!   again and keeps its intended time. One that was due and never sent is unanswered, too.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::time::Instant;

use kachel_io::{PACKETS_PER_CALL, PacketSocket};
use rand::SeedableRng as _;
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::thread::nanosleep;

use crate::drive::timespec;
use crate::meter::{Cost, Meter, Reading};
use crate::packets::frame::{self, Ends, Found, Reply, Template};
use crate::packets::options::{Options, PORT_FIRST};
use crate::packets::setter::Setter;
use crate::packets::versions::{Judged, Versions};
use crate::popularity::Popularity;
use crate::request::{Kind, Outcome, Pending};
use crate::schedule::Schedule;
use crate::steady::thread_seed;
use crate::tally::{Tally, Window};

/// Room for one frame that is received.
const SLOT_BYTES: usize = 2_048;
/// How often lost requests are looked for.
const EXPIRE_INTERVAL_NS: u64 = 10_000_000;
/// How long replies may come after the last request.
const DRAIN_NS: u64 = 500_000_000;
/// About how many requests that were never sent are counted one by one. Of more, each stands for
/// several, so that the end of a run takes less than a second. A guess.
const BACKLOG_STEPS: u64 = 1 << 20;

/// A place for a request in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    is_busy: bool,
    /// How often the slot was used, modulo 2^16.
    uses: u16,
    number: u64,
    /// The oldest version of the value that its reply may have.
    least: u32,
    intended_ns: u64,
    sent_ns: u64,
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Measured {
    /// The gets.
    pub(crate) tally: Tally,
    /// The sets. The rate is that of the gets, so sets are no part of what was offered.
    pub(crate) sets: Tally,
    /// Replies with a value that was replaced before their get was sent.
    pub(crate) stale: u64,
    pub(crate) cost: Cost,
}

/// The loop's state.
pub(crate) struct Drive<'o> {
    options: &'o Options,
    ends: Ends,
    template: Template,
    socket: PacketSocket,
    versions: Versions,
    setter: Option<Setter>,
    popularity: Popularity,
    random: Xoshiro256PlusPlus,
    schedule: Option<Schedule>,
    slots: Vec<Slot>,
    free: VecDeque<usize>,
    /// Gets that were begun.
    begun: u64,
    /// Those of them that count for the limit: after the warm-up.
    counted: u64,
    /// The key of the last one.
    number: u64,
    /// Bits of a request's number that name the place in the window.
    place_bits: u32,
    epoch: Instant,
    window: Window,
    /// Frames that are not sent yet.
    outbox: Vec<u8>,
    key: Vec<u8>,
    area: Vec<u8>,
    lengths: Vec<usize>,
    expire_at_ns: u64,
    tally: Tally,
    sets: Tally,
    stale: u64,
}

impl<'o> Drive<'o> {
    /// Opens the socket, and the connection for sets.
    ///
    /// Errors: the kernel refuses the socket, or the server the connection, as a message.
    pub(crate) fn new(options: &'o Options) -> Result<Self, String> {
        let keys = options.synthetic_keys()?;
        let popularity = Popularity::new(keys.count(), options.popularity)?;
        let interface = &options.interface;
        let socket = PacketSocket::open(interface)
            .map_err(|error| format!("--interface {interface}: a packet socket: {error}"))?;
        let setter = match options.sets {
            0.0 => None,
            share => Some(Setter::connect(options.server, share)?),
        };
        let (flows, window) = (usize::from(options.flows), usize::from(options.window));
        let from_ns = (options.warm_up_s * 1e9) as u64;
        let until_ns = from_ns + (options.duration_s * 1e9) as u64;
        let span = Window { from_ns, until_ns, open: options.rate.is_some() };
        let ends = options.ends();
        // All flows have their first place before any has its second.
        let free = (0..window).flat_map(|place| (0..flows).map(move |flow| flow * window + place));
        Ok(Self {
            options,
            ends,
            template: Template::new(&ends, options.key_size as usize),
            socket,
            versions: Versions::new(keys, setter.is_some()),
            setter,
            popularity,
            random: Xoshiro256PlusPlus::seed_from_u64(thread_seed(options.seed, 0)),
            schedule: options
                .rate
                .map(|rate| Schedule::new(rate, options.arrivals, 0, options.seed)),
            slots: vec![Slot::default(); flows * window],
            free: free.collect(),
            begun: 0,
            counted: 0,
            number: 0,
            place_bits: options.window.next_power_of_two().trailing_zeros(),
            epoch: Instant::now(),
            window: span,
            outbox: Vec::new(),
            key: Vec::new(),
            area: vec![0; PACKETS_PER_CALL * SLOT_BYTES],
            lengths: Vec::with_capacity(PACKETS_PER_CALL),
            expire_at_ns: 0,
            tally: Tally::new(span),
            sets: Tally::new(span),
            stale: 0,
        })
    }

    /// Runs to the end.
    ///
    /// Errors: the kernel refuses to send, or the connection for sets fails, as a message.
    pub(crate) fn run(mut self, meter: &Meter) -> Result<Measured, String> {
        let mut readings: [Option<Reading>; 2] = [None, None];
        self.epoch = Instant::now();
        loop {
            let now_ns = self.now_ns();
            for (reading, at_ns) in
                readings.iter_mut().zip([self.window.from_ns, self.window.until_ns])
            {
                if reading.is_none() && now_ns >= at_ns {
                    *reading = Some(meter.read(now_ns));
                }
            }
            let is_over = now_ns >= self.window.until_ns || self.is_at_limit();
            if is_over && self.is_drained(now_ns) {
                for reading in readings.iter_mut().filter(|reading| reading.is_none()) {
                    *reading = Some(meter.read(now_ns));
                }
                break;
            }
            let is_any = self.turn(now_ns)?;
            self.tally.turns.all += 1;
            self.tally.turns.empty += u64::from(!is_any);
            if !is_any {
                self.wait();
            }
        }
        self.abandon();
        let [Some(earlier), Some(later)] = readings else {
            unreachable!("both are read at the end")
        };
        let cost = meter.cost(&earlier, &later);
        Ok(Measured { tally: self.tally, sets: self.sets, stale: self.stale, cost })
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn is_at_limit(&self) -> bool {
        self.options.limit.is_some_and(|limit| self.counted >= limit)
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether requests of the schedule are left.
    fn has_backlog(&self) -> bool {
        let next_ns = self.schedule.as_ref().map(Schedule::next_ns);
        next_ns.is_some_and(|next_ns| next_ns < self.window.until_ns) && !self.is_at_limit()
    }

    /// Gets and sets that have no reply.
    fn waiting(&self) -> usize {
        self.in_flight() + self.setter.as_ref().map_or(0, Setter::waiting)
    }

    fn is_drained(&self, now_ns: u64) -> bool {
        let is_done = self.waiting() == 0 && !self.has_backlog();
        is_done || now_ns >= self.window.until_ns + DRAIN_NS
    }

    /// One turn. Returns whether anything was sent or received.
    fn turn(&mut self, now_ns: u64) -> Result<bool, String> {
        let mut is_any = self.take(now_ns);
        self.flush()?;
        if let Some(setter) = &mut self.setter {
            let Self { versions, popularity, random, sets, .. } = self;
            is_any |= setter.step(now_ns, versions, sets, || popularity.draw(random))?;
        }
        is_any |= self.receive()?;
        if now_ns >= self.expire_at_ns {
            self.expire_at_ns = now_ns + EXPIRE_INTERVAL_NS;
            self.expire(now_ns);
        }
        Ok(is_any)
    }

    /// Formats the requests that are due, as many as one call sends. Returns whether there were
    /// any.
    fn take(&mut self, now_ns: u64) -> bool {
        let room = PACKETS_PER_CALL.saturating_sub(self.outbox.len() / self.template.bytes());
        for taken in 0..room {
            let intended_ns = self.schedule.as_ref().map_or(now_ns, Schedule::next_ns);
            let is_due = intended_ns <= now_ns && intended_ns < self.window.until_ns;
            let is_due = is_due && !self.is_at_limit();
            let is_behind = self.setter.as_ref().is_some_and(Setter::is_behind);
            if !is_due || is_behind || self.free.is_empty() {
                return taken > 0;
            }
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
            }
            if let Some(setter) = &mut self.setter {
                setter.note_get();
            }
            let index = self.free.pop_front().expect("it is not empty");
            if self.begun.is_multiple_of(self.options.repeat.into()) {
                self.number = self.popularity.draw(&mut self.random);
            }
            self.begun += 1;
            self.counted += u64::from(intended_ns >= self.window.from_ns);
            let slot = &mut self.slots[index];
            assert!(!slot.is_busy, "I1");
            (slot.is_busy, slot.number, slot.intended_ns) = (true, self.number, intended_ns);
            let pending = self.put(index, now_ns);
            self.tally.note_lateness(&pending);
        }
        room > 0
    }

    /// Formats the request of a slot.
    fn put(&mut self, index: usize, now_ns: u64) -> Pending {
        let window = usize::from(self.options.window);
        let (flow, place) = (index / window, index % window);
        let slot = &mut self.slots[index];
        slot.uses = slot.uses.wrapping_add(1);
        slot.sent_ns = now_ns;
        slot.least = self.versions.least(slot.number);
        let request_id = slot.uses.wrapping_shl(self.place_bits) | place as u16;
        self.key.clear();
        self.versions.keys().put_key(slot.number, &mut self.key);
        self.template.put(PORT_FIRST + flow as u16, request_id, &self.key, &mut self.outbox);
        pending(slot)
    }

    /// Sends as much as the kernel takes.
    fn flush(&mut self) -> Result<(), String> {
        let frame_bytes = self.template.bytes();
        let mut start = 0;
        while start < self.outbox.len() {
            let end = self.outbox.len().min(start + PACKETS_PER_CALL * frame_bytes);
            match self.socket.send(&self.outbox[start..end], frame_bytes) {
                Ok(count) => start += count * frame_bytes,
                Err(Errno::AGAIN | Errno::NOBUFS) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(format!("the kernel sends no frame: {error}")),
            }
        }
        self.outbox.drain(..start);
        Ok(())
    }

    /// Receives what there is, in one call. Returns whether there was a reply.
    fn receive(&mut self) -> Result<bool, String> {
        // One more frame, so that a full call means that there may be more.
        let wanted = (self.in_flight() + 1).min(PACKETS_PER_CALL);
        self.lengths.clear();
        let area = &mut self.area[..wanted * SLOT_BYTES];
        match self.socket.receive(area, SLOT_BYTES, &mut self.lengths) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(format!("the kernel receives no frame: {error}")),
        }
        if self.lengths.is_empty() {
            return Ok(false);
        }
        let now_ns = self.now_ns();
        let mut is_any = false;
        let (area, lengths) = (std::mem::take(&mut self.area), std::mem::take(&mut self.lengths));
        for (slot, &bytes) in area.chunks_exact(SLOT_BYTES).zip(&lengths) {
            if let Some(reply) = frame::read(&self.ends, &slot[..bytes.min(SLOT_BYTES)]) {
                self.answered(&reply, now_ns);
                is_any = true;
            }
        }
        (self.area, self.lengths) = (area, lengths);
        Ok(is_any)
    }

    /// A reply has come.
    #[inline]
    fn answered(&mut self, reply: &Reply<'_>, now_ns: u64) {
        let window = usize::from(self.options.window);
        let place = usize::from(reply.request_id) & ((1 << self.place_bits) - 1);
        let flow = usize::from(reply.port.wrapping_sub(PORT_FIRST));
        let index = flow * window + place;
        let is_last = place < window
            && flow < usize::from(self.options.flows)
            && self.slots[index].is_busy
            && self.slots[index].uses.wrapping_shl(self.place_bits) | place as u16
                == reply.request_id;
        if !is_last {
            self.tally.errors.stray += 1; // I2
            return;
        }
        let slot = &mut self.slots[index];
        slot.is_busy = false;
        let slot = *slot;
        self.free.push_back(index);
        let outcome = self.judge(&slot, reply);
        self.tally.record(&pending(&slot), outcome, now_ns);
    }

    /// What a reply says about the key of its request.
    fn judge(&mut self, slot: &Slot, reply: &Reply<'_>) -> Outcome {
        let judged = match (reply.is_whole, self.options.echo) {
            (false, _) => Judged::Wrong,
            (true, true) => {
                let key = reply.body.strip_prefix(b"get ");
                let key = key.and_then(|rest| rest.strip_suffix(b"\r\n"));
                let is_key = |key| self.versions.keys().is_key(slot.number, key);
                if key.is_some_and(is_key) { Judged::Right } else { Judged::Wrong }
            }
            (true, false) => match frame::item(reply.body) {
                Some(Found::Miss) => return Outcome::Hits(0),
                Some(Found::Value { key, value })
                    if self.versions.keys().is_key(slot.number, key) =>
                {
                    self.versions.judge(slot.number, slot.least, value)
                }
                _ => Judged::Wrong,
            },
        };
        match judged {
            Judged::Right => Outcome::Hits(1),
            Judged::Stale => {
                self.stale += 1;
                self.tally.errors.note(|| format!("a stale value of key {}", slot.number));
                Outcome::Failed
            }
            Judged::Wrong => {
                self.tally.errors.wrong += 1;
                self.tally.errors.note(|| {
                    let start = reply.body[..reply.body.len().min(60)].escape_ascii();
                    format!("not the reply to a get of key {}: \"{start}\"", slot.number)
                });
                Outcome::Failed
            }
        }
    }

    /// Sends the requests again whose replies are late (I3).
    fn expire(&mut self, now_ns: u64) {
        let timeout_ns = (self.options.timeout_ms * 1e6) as u64;
        // At the end nobody would wait for the reply.
        if now_ns >= self.window.until_ns {
            return;
        }
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.is_busy && now_ns.saturating_sub(slot.sent_ns) >= timeout_ns {
                self.tally.errors.dropped += 1;
                self.tally.errors.note(|| "no reply within --timeout-ms".into());
                let _sent_late = self.put(index, now_ns);
            }
        }
    }

    /// Counts the requests without a reply, and in an open loop also those that were due but not
    /// sent (I3).
    fn abandon(&mut self) {
        let now_ns = self.now_ns();
        if self.waiting() > 0 || self.has_backlog() {
            let drain_ms = DRAIN_NS / 1_000_000;
            self.tally.errors.note(|| format!("no reply within {drain_ms} ms after the end"));
        }
        for slot in self.slots.iter().filter(|slot| slot.is_busy) {
            self.tally.record_unanswered(&pending(slot), now_ns);
        }
        for set in self.setter.iter_mut().flat_map(Setter::abandon) {
            self.sets.record_unanswered(&set, now_ns);
        }
        self.abandon_backlog(now_ns);
        assert!(!self.has_backlog(), "I3");
    }

    /// Counts the requests that were due but not sent (I3).
    fn abandon_backlog(&mut self, now_ns: u64) {
        let until_ns = self.window.until_ns;
        let left = self.schedule.as_ref().map_or(0, |schedule| schedule.count_until(until_ns));
        let each = left / BACKLOG_STEPS + 1;
        while self.has_backlog() {
            let to_limit = self.options.limit.map_or(u64::MAX, |limit| limit - self.counted);
            let schedule = self.schedule.as_mut().expect("a backlog is that of a schedule");
            let intended_ns = schedule.next_ns();
            let count = each.min(schedule.count_until(until_ns) + 1).min(to_limit);
            schedule.advance_by(count);
            self.counted += if intended_ns >= self.window.from_ns { count } else { 0 };
            let unsent = Pending::due(Kind::Get, 1, 0, intended_ns, now_ns);
            self.tally.record_unsent(&unsent, count, now_ns);
        }
    }

    /// Waits until there may be something to do.
    fn wait(&mut self) {
        let now_ns = self.now_ns();
        match (self.options.rate, self.options.tick_us) {
            (Some(_), Some(tick_us)) => {
                let tick_ns = tick_us * 1_000;
                let left_ns = tick_ns - now_ns % tick_ns;
                // A signal ends a sleep early; the next turn finds nothing and sleeps again.
                let _early = nanosleep(&timespec(left_ns));
            }
            (Some(_), None) => {}
            (None, _) => {
                let mut fds = Vec::with_capacity(2);
                let of_frames = match self.outbox.is_empty() {
                    true => PollFlags::IN,
                    false => PollFlags::IN | PollFlags::OUT,
                };
                fds.push(PollFd::from_borrowed_fd(self.socket.as_fd(), of_frames));
                if let Some(setter) = &self.setter {
                    let mut flags = PollFlags::IN;
                    flags.set(PollFlags::OUT, setter.has_unsent());
                    fds.push(PollFd::from_borrowed_fd(setter.stream().as_fd(), flags));
                }
                // An error shows in the next call of the socket that has it.
                let _ready = poll(&mut fds, Some(&timespec(EXPIRE_INTERVAL_NS)));
            }
        }
    }
}

fn pending(slot: &Slot) -> Pending {
    let Slot { number, intended_ns, sent_ns, .. } = *slot;
    Pending::due(Kind::Get, 1, number, intended_ns, sent_ns)
}
