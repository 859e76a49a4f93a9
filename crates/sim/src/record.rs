//! Records the history of the operations on hot keys, and has it judged.
//!
//! Upstream:   `run`, which passes each request that is settled or lost.
//! Downstream: `kachel_check`, which searches an order of the operations that explains every reply.
//!
//! The times are those at the server: an operation is invoked when the last byte of its request
//! arrives there, and returns when the server has sent the last reply to the request. So the
//! intervals are as short as possible.
//!
//! Invariants:
//! - I1  A client of the history is one connection. So its operations on one key are executed in
//!   order.
//! - I2  Times are in parts of a nanosecond. So requests of a client keep their order when they
//!   arrive in the same nanosecond, and a reply in that nanosecond returns after all of them.

use std::collections::BTreeMap;

use kachel_check::{
    Entry, History, LeaseRules, Mode, NEVER, Operation, Outcome, Rules, Stats, Violation, Window,
    check_history, operations,
};

use crate::answer::{Asked, is_disk_error, shown};
use crate::ask::Expect;
use crate::failures::Failures;
use crate::options::Options;
use crate::server::{LEASES, START_UNIX_S};

/// The parts of a nanosecond (I2).
const PARTS: u64 = 1 << 16;

/// The histories of a run.
#[derive(Default)]
pub(crate) struct Record {
    entries: Vec<Entry>,
    /// For each connection and key: the silent entries that no later reply has shown to be executed
    /// yet.
    silent: BTreeMap<(u32, Vec<u8>), Vec<SilentEntry>>,
    /// The time from which values may be large, so that items may be evicted.
    pressed_ns: Option<u64>,
}

/// A silent entry.
struct SilentEntry {
    index: usize,
    /// Whether the operation needs the value of the old item.
    needs_value: bool,
}

/// Ends a silent operation. It was executed, or its engine may have refused it.
fn end_silent(entry: &mut Entry, returned: u64, latest_s: u32, may_be_refused: bool) {
    if may_be_refused {
        let operation = entry.operation.clone();
        let earliest_s = entry.window.earliest_s;
        *entry = Entry::unknown(entry.client, operation, entry.invoked, earliest_s);
    } else {
        (entry.returned, entry.window.latest_s) = (returned, latest_s);
    }
}

/// A moment: the virtual time, and the second of the server's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) ns: u64,
    pub(crate) second: u32,
}

impl Record {
    /// From now on items may be evicted.
    pub(crate) fn note_pressure(&mut self, now_ns: u64) {
        self.pressed_ns = Some(now_ns);
    }

    /// Adds a settled request with its replies. An operation that was answered with an error of the
    /// disk, or whose item could not be read for lack of memory, has changed nothing and tells
    /// nothing.
    ///
    /// Errors: a reply is not an outcome, or came before its request arrived.
    pub(crate) fn settle(
        &mut self,
        client: u32,
        asked: &Asked,
        now: Moment,
        failures: &Failures,
    ) -> Result<(), String> {
        let is_refusal = matches!(asked.ask.expect, Expect::Refusal(_));
        // Such a refusal does not say whether the old item was removed.
        let is_unclear =
            is_refusal && asked.keys().any(|key| failures.may_have_refused(key, false));
        if !asked.ask.judged || asked.murky || is_unclear {
            self.lose(client, asked);
            return Ok(());
        }
        for (place, operation) in parts(asked) {
            let says_nothing = |reply: &[u8]| is_disk_error(reply) || asked.is_unread(reply);
            if asked.replies.iter().any(|(of, reply)| *of == place && says_nothing(reply)) {
                continue;
            }
            let outcome = outcome(asked, place)?;
            let (invoked, second) = invoked(asked).ok_or("answered before it arrived")?;
            let window = Window { earliest_s: second, latest_s: now.second };
            let (returned, key) = (now.ns * PARTS + (PARTS - 1), operation.key().to_vec());
            let silent = outcome == Outcome::Silent;
            let index = self.entries.len();
            self.entries.push(Entry { client, operation, outcome, invoked, returned, window });
            if silent {
                let entry = SilentEntry { index, needs_value: asked.needs_value() };
                self.silent.entry((client, key)).or_default().push(entry);
            } else {
                self.show(client, &key, failures);
            }
        }
        Ok(())
    }

    /// Ends the silent operations of a connection on a key: a reply about the key shows that they
    /// are executed.
    fn show(&mut self, client: u32, key: &[u8], failures: &Failures) {
        let Some(newest) = self.entries.last() else { return };
        let (returned, latest_s) = (newest.returned, newest.window.latest_s);
        for silent in self.silent.remove(&(client, key.to_vec())).unwrap_or_default() {
            let may_be_refused = failures.may_have_refused(key, silent.needs_value);
            end_silent(&mut self.entries[silent.index], returned, latest_s, may_be_refused);
        }
    }

    /// The power was cut: silent operations that no reply has shown may be lost.
    pub(crate) fn lose_silent(&mut self) {
        for SilentEntry { index, .. } in std::mem::take(&mut self.silent).into_values().flatten() {
            end_silent(&mut self.entries[index], NEVER, 0, true);
        }
    }

    /// Adds a request whose outcome is unknown.
    pub(crate) fn lose(&mut self, client: u32, asked: &Asked) {
        // A request that has not arrived is not executed.
        let Some((invoked, second)) = invoked(asked) else { return };
        if asked.ask.judged {
            let lost = parts(asked).into_iter();
            self.entries.extend(
                lost.map(|(_, operation)| Entry::unknown(client, operation, invoked, second)),
            );
        }
    }

    /// Judges the history at the end of the run. Also judges the part before anything could be
    /// evicted, by stricter rules.
    ///
    /// Errors: no order of the operations explains all replies.
    pub(crate) fn judge(
        mut self,
        now: Moment,
        options: &Options,
        failures: &Failures,
    ) -> Result<Judged, String> {
        // All silent operations are executed by now, because every connection has ended.
        for ((_, key), silent) in self.silent {
            for SilentEntry { index, needs_value } in silent {
                let may_be_refused = failures.may_have_refused(&key, needs_value);
                let entry = &mut self.entries[index];
                end_silent(entry, now.ns * PARTS, now.second, may_be_refused);
            }
        }
        let mut before = History::default();
        let pressed = self.pressed_ns.unwrap_or(now.ns) * PARTS;
        for entry in self.entries.iter().filter(|entry| entry.invoked < pressed) {
            let mut entry = entry.clone();
            if entry.returned >= pressed {
                let latest_s = now.second;
                let window = Window { latest_s, ..entry.window };
                (entry.outcome, entry.returned, entry.window) = (Outcome::Unknown, NEVER, window);
            }
            before.push(entry);
        }
        let strict = check(&before, Mode::Store, !options.evict, options)
            .map_err(|what| format!("before anything could be evicted: {what}"))?;
        let mut history = History::default();
        self.entries.into_iter().for_each(|entry| history.push(entry));
        let mode = if options.evict { Mode::Cache } else { Mode::Store };
        let all = check(&history, mode, true, options)?;
        let judged = |stats: Stats| (stats.operations - stats.operations_given_up) as u64;
        Ok(Judged {
            operations: judged(all),
            strict: judged(strict),
            keys: (all.keys + strict.keys) as u64,
            keys_given_up: (all.keys_given_up + strict.keys_given_up) as u64,
        })
    }
}

/// How many operations were judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Operations on hot keys.
    pub operations: u64,
    /// Operations before anything could be evicted: judged by the rule that nothing is evicted.
    pub strict: u64,
    /// Hot keys, the sum over both judgments.
    pub keys: u64,
    /// Hot keys that the judge gave up because too many of their operations overlap, the sum over
    /// both judgments. Nothing is known about these keys.
    pub keys_given_up: u64,
}

fn check(
    history: &History,
    mode: Mode,
    memory_may_be_short: bool,
    options: &Options,
) -> Result<Stats, String> {
    let unix_s = Some(START_UNIX_S - 2);
    let rules = Rules {
        unix_s,
        cas: options.cas,
        item_bytes_max: options.item_bytes_max,
        memory_may_be_short,
        leases: Some(LeaseRules { lease_s: LEASES.lease_s, stale_s: LEASES.stale_s }),
        ..Rules::new(mode)
    };
    match check_history(history, &rules) {
        Ok(stats) | Err(Violation::TooLarge { stats, .. }) => Ok(stats),
        Err(violation) => Err(violation.to_string()),
    }
}

fn invoked(asked: &Asked) -> Option<(u64, u32)> {
    asked.arrived.map(|arrived| (arrived.ns * PARTS + u64::from(arrived.part), arrived.second))
}

/// The operations of a request that are judged, each with the index of its key.
fn parts(asked: &Asked) -> Vec<(usize, Operation)> {
    let (found, _) = operations(&asked.ask.text).expect("what is judged are operations");
    let found = found.into_iter().enumerate();
    found.filter(|(_, operation)| operation.key().first() != Some(&b'f')).collect()
}

fn outcome(asked: &Asked, place: usize) -> Result<Outcome, String> {
    let reply = asked.replies.iter().find(|(of, _)| *of == place).map(|(_, reply)| reply);
    match (reply, &asked.ask.expect) {
        (Some(reply), _) => {
            let read = Outcome::read(reply).filter(|(_, bytes)| *bytes == reply.len());
            read.map(|(outcome, _)| outcome).ok_or_else(|| format!("bad outcome: {}", shown(reply)))
        }
        (None, Expect::Values(_)) => Ok(Outcome::Miss),
        (None, _) => Ok(Outcome::Silent),
    }
}
