//! The phases of a run, and what must hold in each.
//!
//! Upstream:   `run`.
//! Downstream: `Run::until`, which performs events until a phase is over; `audit` at the end.
//!
//! ```text
//! phase   what happens                     when it ends
//! stormy  clients send requests,
//!         faults happen, among them a
//!         power cut in some runs (I11)     enough requests are sent
//! end     in some runs, which end with it:
//!         the server is ended              every shard has finished (I7)
//! calm    no faults, no new requests       every request is answered (I2). A run whose engines
//!                                          have failed ends here, after all clients have left
//! list    in some runs: nothing changes
//!         while all items are listed       the hot keys listed are those that are read (I8)
//! hoard   new clients hold large values    at most a quarter of memory is pinned (I3)
//! full    in a store: a client fills
//!         memory, then replaces items      the replacements are done, none was refused (I4)
//! gone    clients disconnect               no client is connected
//! limit   in some runs: as many clients
//!         connect as may, and one more     one is rejected, and its place is used again (I9)
//! expire  if no item has expired yet:
//!         a client stores one that does    the item has expired, and a client has requested it
//! cut     in the runs with a power cut:
//!         it is cut again (I11)            the server has started
//! empty   one flush, counters are reset,
//!         all hot keys are read            all memory is given back; then it is audited
//! ```
//!
//! Invariants, beside that of `run`:
//! - I2  In the calm phase every request is answered within `CALM_NS_MAX`.
//! - I3  However many large values clients request and do not read, at most a quarter of memory is
//!   pinned after `HOARD_SECONDS`.
//! - I4  A full store in which nothing is pinned accepts every item that is not larger than the
//!   item that it replaces, if the old value is in memory, whose room the new one takes.
//! - I5  Of the stores to a server that evicts, at most `REFUSED_PERCENT_MAX` are refused.
//! - I6  Of the keys that were stored a short time before, a server that evicts misses at most
//!   `MISSING_PERCENT_MAX`, and a store none (`kept`).
//! - I7  A server that is ended finishes, at the latest when it gives clients up. Nothing of a
//!   client is left then.
//! - I8  A listing of items that do not move has each of them once.
//! - I9  At most as many clients are served as there may be connections, and that number can be.
//! - I10 After a power cut at the end, the values of all stores that were acknowledged are in the
//!   files of plain engines.
//! - I11 A server starts after a power cut, and the history goes on: what was acknowledged is
//!   there. Over RocksDB the process is killed instead.

use std::collections::BTreeSet;

use kachel_engine::Common as _;
use kachel_testkit::Random;

use super::Run;
use crate::ask::{Ask, NUMBER_DIGITS, dump, flush_all, noop, reset_stats, shutdown};
use crate::audit;
use crate::client::{Client, End};
use crate::kept::Kept;
use crate::options::Fault;
use crate::report::{Coverage, Report};
use crate::subject::Subject;

/// Virtual time within which every request must be answered in the calm phase (I2).
const CALM_NS_MAX: u64 = 3_000_000_000;
/// The most virtual time for each part of the stormy phase. A run without progress fails then.
const STORM_NS_MAX: u64 = 60_000_000_000;
/// Virtual time within which every shard wakes.
const HOARD_NS: u64 = 150_000_000;
/// Seconds for which clients may pin any amount of memory.
const HOARD_SECONDS: u32 = 5;
/// Virtual time for which a server that is ended waits for its clients.
const GRACE_NS: u64 = 20_000_000;
/// Virtual time to wait for memory to be given back, after the last flush and the last client.
const EMPTY_NS: u64 = 300_000_000;
/// The most waits of `EMPTY_NS`. The server scans all segments once in each.
const ROUNDS_MAX: u32 = 6;
/// Clients send at most this multiple of `requests` in addition, until memory was used in every way
/// (`Coverage::has_spent_memory`).
const SHORT_TIMES: u64 = 3;
/// The most stores that a server that evicts may refuse (I5).
const REFUSED_PERCENT_MAX: u64 = 1;
/// The most of the keys stored a short time before that a server that evicts may miss (I6). A run
/// has few reads of such keys, so it may miss `MISSING_MAX` in any case; `main` judges the sum.
const MISSING_PERCENT_MAX: u64 = 10;
const MISSING_MAX: u64 = 2;

/// After this number of refused values a store counts as full.
const REFUSED_MIN: u64 = 40;
/// The most values that fill the store.
const HELD_MAX: usize = 3_000;
/// Values that are sent together until memory is used up, so that requests that wait take memory,
/// too. Later values may be refused, so each is sent alone.
const FILLED_AT_ONCE: usize = 32;
/// The longest value that fills the store.
const FULL_BYTES_MAX: u64 = 14_000;
/// The most replacements in a full store.
const REPLACED_MAX: usize = 600;

impl<E: Subject> Run<'_, E> {
    /// All phases.
    pub(super) fn all(mut self) -> Result<Report, String> {
        let wanted = u64::from(self.options.requests);
        let cut = Random::for_purpose(self.options.seed, "power").between(0, wanted);
        self.until("the power is cut", STORM_NS_MAX, |run| run.tally.asked >= cut)?;
        self.cut_power();
        self.until("enough requests are sent", STORM_NS_MAX, |run| run.tally.asked >= wanted)?;
        if self.options.faults.has(Fault::End) {
            self.judge_memory()?;
            self.end()?;
            let seen = self.seen();
            return self.report(seen);
        }
        // Every run must use up memory and get it back, whatever the size of its memory.
        self.asker.short = true;
        self.until("memory was used in every way", STORM_NS_MAX, |run| {
            let enough = run.tally.asked >= wanted * (1 + SHORT_TIMES);
            // A look at all shards costs as much as some events.
            let looks = run.queue.scheduled().is_multiple_of(64);
            enough || looks && run.seen().has_spent_memory(run.options)
        })?;
        self.stormy = false;
        self.server.calm();
        for client in &mut self.clients {
            client.calm();
        }
        self.wake();
        self.until("every request is answered", CALM_NS_MAX, |run| {
            run.clients.iter().all(Client::is_content) && !run.server.has_files_in_flight()
        })?;
        self.judge_memory()?;
        if self.options.has_cold_values() && self.server.failures.engines() > 0 {
            self.leave_all()?;
            self.until("what is left is done", CALM_NS_MAX, |run| run.server.is_asleep())?;
            audit::audit_clients(&self.server)?;
            let seen = self.seen();
            return self.report(seen);
        }
        if self.options.faults.has(Fault::Limit) {
            // The clients of the next phases need their places.
            self.leave_all()?;
        }
        self.list()?;
        self.hoard()?;
        self.replace_in_full()?;
        self.leave_all()?;
        self.use_all_places()?;
        if self.seen().expired == 0 {
            self.expire()?;
        }
        self.cut_power();
        let before = self.seen();
        self.flush_and_read()?;
        // An item that was pinned during one scan is found by the scan of a later second.
        for _ in 0..ROUNDS_MAX {
            self.jump(2_000_000_000);
            let later_ns = self.now_ns + EMPTY_NS;
            self.until("all memory is given back", CALM_NS_MAX, |run| {
                run.now_ns >= later_ns && run.server.is_asleep()
            })?;
            if audit::is_empty(&self.server) {
                break;
            }
        }
        audit::audit(&self.server, self.options.hot_keys)?;
        self.report(before)
    }

    /// Judges the history, and what is on the disk (I10). `seen` counts only what happened before
    /// the last flush.
    fn report(mut self, seen: Coverage) -> Result<Report, String> {
        let now = self.moment();
        self.server.failures.check()?;
        if let Some(disk) = self.server.disk().filter(|_| self.options.keeps_old_values()) {
            self.tally.after_power_cut = self.acknowledged.check(disk, self.options.seed)?;
        }
        let judged = self.record.judge(now, self.options, &self.server.failures)?;
        let coverage = seen.with(&self.tally);
        Ok(Report { digest: self.trace.digest(), tally: self.tally, coverage, judged })
    }

    /// Checks what was refused and what is missing. A server that evicts refuses hardly anything,
    /// and does not evict what was just stored; a server that does not evict loses nothing.
    ///
    /// Errors: too many stores were refused (I5), or too many keys are missing (I6).
    fn judge_memory(&mut self) -> Result<(), String> {
        let Kept { reads, missing, .. } = self.kept;
        (self.tally.kept_reads, self.tally.kept_missing) = (reads, missing);
        let refused = self.tally.refused.max(self.seen().refused);
        let stores = self.tally.stores;
        if self.options.evict && refused * 100 > stores * REFUSED_PERCENT_MAX {
            return Err(format!("{refused} of {stores} stores were refused, though it may evict"));
        }
        let missing_max =
            if self.options.evict { MISSING_MAX + reads * MISSING_PERCENT_MAX / 100 } else { 0 };
        if missing > missing_max {
            return Err(format!("{missing} of {reads} keys are missing that were just stored"));
        }
        Ok(())
    }

    /// Ends the server while clients work, as a signal does or by a client's `shutdown`.
    ///
    /// Errors: I7 does not hold. A client checks by itself that its reply was not cut.
    fn end(&mut self) -> Result<(), String> {
        assert!(self.stormy, "clients work while the server is ended");
        self.end = End::Begun;
        if self.options.seed.is_multiple_of(2) && !self.options.faults.has(Fault::Limit) {
            let index = self.arrive();
            self.at(index, |client, around| client.send(vec![shutdown()], b"", around));
            self.until("a client has ended the server", CALM_NS_MAX, |run| {
                run.server.world.shared.is_stopping()
            })?;
        } else {
            self.server.stop(self.now_ns, &mut self.queue);
        }
        self.stormy = false;
        self.tally.ends += 1;
        let given_up_ns = self.now_ns + GRACE_NS;
        self.until("clients have time for their replies", CALM_NS_MAX, |run| {
            run.server.is_over() || run.now_ns >= given_up_ns
        })?;
        self.end = End::GivenUp;
        self.server.give_up_clients(self.now_ns, &mut self.queue);
        self.until("every shard has finished", CALM_NS_MAX, |run| run.server.is_over())?;
        if self.clients.iter().any(Client::is_connected) {
            return Err("a client is connected to a server that has finished".to_owned());
        }
        audit::audit_clients(&self.server)
    }

    /// A client lists all items while nothing changes, and reads all hot keys. Errors: I8 does not
    /// hold.
    fn list(&mut self) -> Result<(), String> {
        if !self.options.faults.has(Fault::Dump) {
            return Ok(());
        }
        let index = self.arrive();
        let hot = self.asker.all_hot();
        self.until("upkeep is done", CALM_NS_MAX, |run| run.server.is_asleep())?;
        let state = |run: &Self| {
            let Coverage { compacted, evicted, .. } = run.seen();
            (run.moment().second, compacted, evicted)
        };
        let before = state(self);
        let ask = dump(self.options.seed.is_multiple_of(2));
        self.at(index, |client, around| client.send(vec![noop()], b"", around));
        self.until("it is admitted", CALM_NS_MAX, |run| run.clients[index].is_content())?;
        self.at(index, |client, around| client.send(vec![ask], b"", around));
        self.until("items are listed", CALM_NS_MAX, |run| run.clients[index].is_content())?;
        self.found.clear();
        self.at(index, |client, around| client.send(hot, b"", around));
        self.leave(index)?;
        // Items may be evicted to make room for the reads, or expire. One that moves may be
        // missing, or be listed twice.
        if state(self) != before {
            return Ok(());
        }
        let hot = |key: &&Vec<u8>| key[0] != b'f';
        let listed: BTreeSet<_> = self.listed.iter().filter(hot).cloned().collect();
        if self.listed.len() != self.listed.iter().collect::<BTreeSet<_>>().len() {
            return Err("an item is listed twice".to_owned());
        }
        if listed != self.found {
            let only = |one: &BTreeSet<Vec<u8>>, other| {
                let keys = one.difference(other).map(|key| key.escape_ascii().to_string());
                keys.collect::<Vec<_>>().join(" ")
            };
            let (extra, missing) = (only(&listed, &self.found), only(&self.found, &listed));
            return Err(format!("listed, but not read: {extra}; read, but not listed: {missing}"));
        }
        self.tally.exact_listings += 1;
        Ok(())
    }

    /// As many clients connect as may, and one more. One leaves, and another one takes its place.
    /// Errors: I9 does not hold.
    fn use_all_places(&mut self) -> Result<(), String> {
        if !self.options.faults.has(Fault::Limit) {
            return Ok(());
        }
        let before = self.tally.rejected;
        let mut served = Vec::new();
        for _ in 0..self.options.connections_max() {
            served.push(self.greet()?);
        }
        let rejected = self.tally.rejected;
        self.greet()?;
        let last = self.tally.rejected;
        self.leave(served[0])?;
        self.greet()?;
        if (rejected, last, self.tally.rejected) != (before, before + 1, before + 1) {
            return Err(format!("of {} clients the wrong ones were rejected", served.len() + 2));
        }
        self.leave_all()
    }

    /// A new client sends a request and is answered, or is rejected.
    fn greet(&mut self) -> Result<usize, String> {
        let index = self.arrive();
        self.at(index, |client, around| client.send(vec![noop()], b"", around));
        self.until("a client is admitted or not", CALM_NS_MAX, |run| {
            run.clients[index].is_content()
        })?;
        Ok(index)
    }

    /// All clients disconnect.
    fn leave_all(&mut self) -> Result<(), String> {
        self.each(|client, around| client.finish(around));
        self.until("all clients are gone", CALM_NS_MAX, |run| {
            !run.clients.iter().any(Client::is_connected)
        })
    }

    /// New clients request a large value each and do not read it; at the end they read.
    ///
    /// Errors: I3 does not hold. A client that is closed checks by itself that there was a reason.
    fn hoard(&mut self) -> Result<(), String> {
        let pinned_max = self.options.memory_bytes / 4;
        // Some values are evicted before they are requested.
        let padding = self.options.padding_max();
        let hoarders = pinned_max / padding * 2;
        // The client of the next phase needs a place, too.
        let taken = 1 + self.clients.iter().filter(|client| client.is_connected()).count();
        let places = (self.options.connections_max() as usize).saturating_sub(taken);
        for _ in 0..hoarders.min(places as u64) {
            let index = self.arrive();
            let [set, get] = self.asker.own(padding, 0);
            self.at(index, |client, around| client.send(vec![set], b"", around));
            self.until("a value is stored", CALM_NS_MAX, |run| run.clients[index].is_content())?;
            self.clients[index].stop();
            self.at(index, |client, around| client.send(vec![get], b"", around));
        }
        for _ in 0..HOARD_SECONDS {
            let later_ns = self.now_ns + HOARD_NS;
            self.until("requested values are pinned", CALM_NS_MAX, |run| run.now_ns >= later_ns)?;
            self.jump(1_000_000_000);
        }
        let later_ns = self.now_ns + HOARD_NS;
        self.until("enough memory is unpinned", CALM_NS_MAX, |run| run.now_ns >= later_ns)?;
        let pinned = self.server.world.engines.common().pinned_bytes();
        if pinned > pinned_max {
            return Err(format!("{pinned} bytes are still pinned, the limit is {pinned_max}"));
        }
        self.clients.iter_mut().for_each(Client::calm);
        self.wake();
        self.until("hoarders are answered", CALM_NS_MAX, |run| {
            run.clients.iter().all(Client::is_content)
        })
    }

    /// A client fills a store with values of many lengths, and then replaces random ones by values
    /// that are not longer, with each kind of request that can. Errors: I4 does not hold.
    fn replace_in_full(&mut self) -> Result<(), String> {
        if self.options.evict {
            return Ok(());
        }
        let index = self.arrive();
        let mut dice = Random::for_purpose(self.options.seed, "full");
        let (mut held, mut refused) = (Vec::new(), 0);
        while refused < REFUSED_MIN && held.len() < HELD_MAX {
            let spent_bytes = self.server.world.shared.budget.spent_bytes();
            let is_early = spent_bytes < self.options.memory_bytes;
            let count = if is_early { FILLED_AT_ONCE } else { 1 };
            let mut values = Vec::new();
            let sets = (0..count).map(|_| {
                let bytes = dice.skewed(NUMBER_DIGITS, FULL_BYTES_MAX) as usize;
                let (key, set) = self.asker.own_number(bytes);
                values.push((key, bytes));
                set
            });
            let sets = sets.collect();
            match self.refused(index, sets)? {
                0 => held.append(&mut values),
                some => refused += some,
            }
        }
        let pinned = self.server.world.engines.common().pinned_bytes();
        for _ in 0..held.len().min(REPLACED_MAX) {
            let (key, bytes) = &held[dice.index(held.len())];
            let ask = self.asker.replacement(&mut dice, key, *bytes);
            let shown = crate::answer::shown(&ask.text);
            let may_refuse = pinned > 0 || self.options.has_cold_values();
            if self.refused(index, vec![ask])? > 0 && !may_refuse {
                return Err(format!("a full store refuses an item that is not larger: {shown}"));
            }
        }
        self.leave(index)
    }

    /// Sends requests and waits for their replies. Returns how many were refused for lack of
    /// memory.
    fn refused(&mut self, index: usize, asks: Vec<Ask>) -> Result<u64, String> {
        let before = self.tally.refused;
        self.at(index, |client, around| client.send(asks, b"", around));
        self.until("requests are answered", CALM_NS_MAX, |run| run.clients[index].is_content())?;
        Ok(self.tally.refused - before)
    }

    /// A new client stores a value that expires after a second, then reads it, and stores it again.
    /// It flushes first, because a store may be full. A core that reads beside the owner leaves an
    /// expired item where it is, so the second store is what makes the owner find it.
    fn expire(&mut self) -> Result<(), String> {
        let index = self.arrive();
        let [set, get] = self.asker.own(0, 1);
        let again = set.clone();
        self.at(index, |client, around| client.send(vec![flush_all(), set], b"", around));
        self.until("a value is stored", CALM_NS_MAX, |run| run.clients[index].is_content())?;
        self.jump(2_000_000_000);
        self.at(index, |client, around| client.send(vec![get, again], b"", around));
        self.leave(index)
    }

    /// The last client reads all hot keys, flushes everything, resets the counters, and reads all
    /// hot keys again.
    fn flush_and_read(&mut self) -> Result<(), String> {
        let index = self.arrive();
        let mut asks = self.asker.all_hot();
        asks.extend([flush_all(), reset_stats()]);
        asks.extend(self.asker.all_hot());
        self.at(index, |client, around| client.send(asks, b"", around));
        self.leave(index)
    }

    /// Connects a client that does nothing by itself, and returns its index.
    fn arrive(&mut self) -> usize {
        let index = self.clients.len();
        self.clients.push(Client::tool(self.options, index));
        let far = self.server.world.connect();
        self.at(index, |client, around| client.connect(far, around));
        index
    }

    /// Disconnects a client once all its requests are answered.
    fn leave(&mut self, index: usize) -> Result<(), String> {
        self.until("the last client is answered", CALM_NS_MAX, |run| {
            run.clients[index].is_content()
        })?;
        self.at(index, |client, around| client.finish(around));
        self.until("the last client is gone", CALM_NS_MAX, |run| !run.clients[index].is_connected())
    }
}
