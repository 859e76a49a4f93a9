//! Replays a trace, look-aside.
//!
//! Upstream:   `trace` holds the records; each thread walks over all of them and sends those of its
//!             keys.
//! Downstream: `drive` sends the formatted requests on any connection below its depth.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  At most one request is in flight for a key, and requests of a key keep the trace's order.
//!   Hits and misses are therefore those of one client that waits for each answer, with any number
//!   of connections (except for the order among different keys).
//! - I2  At most `WAITING_MAX` records wait for their keys; the trace pauses at that number.
//! - I3  A get that misses keeps its key busy until the set that follows is answered.

use std::collections::{HashMap, VecDeque};

use kachel_wire::client::{StoreRequest, decr, delete, get, incr, store_head};
use kachel_wire::request::StoreMode;

use crate::keys::{is_value, put_value};
use crate::request::{Asked, Cause, Kind, Next, Outbox, Outcome, Pending, Source};
use crate::trace::{Operation, Record, Trace};
use crate::ttl::RELATIVE_TTL_S_MAX;

/// Maximum number of records that wait for busy keys.
const WAITING_MAX: usize = 4096;
/// Marks the token of a set that follows a miss.
const FOLLOWS: u64 = 1 << 63;
/// Maximum digits of a counter's value.
const COUNTER_DIGITS_MAX: usize = 10;

/// One thread's share of a trace.
#[derive(Debug)]
pub(crate) struct Replay<'t> {
    trace: &'t Trace,
    share: Share,
    /// Maps the trace's time to the run's; absent at full speed.
    pacing: Option<Pacing>,
    check: bool,
    unix_start_s: u32,
    cursor: usize,
    is_busy: Vec<bool>,
    waiting: HashMap<u32, VecDeque<u32>>,
    waiting_count: usize,
    ready: VecDeque<u32>,
    cas_tokens: Vec<u64>,
}

/// The keys of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Index of the thread.
    pub(crate) index: u64,
    /// Number of threads.
    pub(crate) threads: u64,
}

/// Maps the trace's time to the run's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing {
    /// When the first record is due.
    pub(crate) start_ns: u64,
    /// Factor for the speed.
    pub(crate) speed: f64,
}

/// A time of the trace, at this speed.
fn paced_ns(offset_ns: u64, speed: f64) -> u64 {
    (offset_ns as f64 / speed) as u64
}

/// Errors: at this speed the trace takes longer than 64 bits of ns can count, as a message for the
/// user.
pub(crate) fn check_speed(trace: &Trace, speed: f64) -> Result<(), String> {
    let last = trace.records.len().checked_sub(1);
    match last.map_or(0, |last| paced_ns(trace.offset_ns(last), speed)) {
        last_ns if last_ns < u64::MAX / 2 => Ok(()),
        _ => Err(format!("--speed {speed}: the trace takes more than 290 years")),
    }
}

impl<'t> Replay<'t> {
    /// A thread's share, from the beginning of the trace. `unix_start_s` converts long TTLs to
    /// points in time.
    pub(crate) fn new(
        trace: &'t Trace,
        share: Share,
        pacing: Option<Pacing>,
        check: bool,
        unix_start_s: u32,
    ) -> Self {
        assert!(share.index < share.threads, "I1: keys are shared out over the threads");
        let has_cas = trace.records.iter().any(|record| record.operation == Operation::Cas);
        Self {
            trace,
            share,
            pacing,
            check,
            unix_start_s,
            cursor: 0,
            is_busy: vec![false; trace.key_count()],
            waiting: HashMap::new(),
            waiting_count: 0,
            ready: VecDeque::new(),
            cas_tokens: vec![0; if has_cas { trace.key_count() } else { 0 }],
        }
    }

    fn due_ns(&self, index: usize) -> u64 {
        self.pacing.map_or(0, |pacing| {
            pacing.start_ns.saturating_add(paced_ns(self.trace.offset_ns(index), pacing.speed))
        })
    }

    fn request(&mut self, index: u32, cause: Cause, now_ns: u64, outbox: &mut Outbox) -> Next {
        let record = self.trace.records[index as usize];
        assert!(self.is_busy[record.key as usize], "I1");
        let kind = self.word(record, &mut outbox.bytes);
        let intended_ns = match self.pacing {
            None => now_ns,
            Some(_) => self.due_ns(index as usize),
        };
        let keys = 1;
        Next::Request(Pending {
            cause,
            kind,
            keys,
            token: u64::from(index),
            intended_ns,
            sent_ns: now_ns,
        })
    }

    fn word(&self, record: Record, out: &mut Vec<u8>) -> Kind {
        let key = self.trace.key(record.key);
        let mode = match record.operation {
            Operation::Get | Operation::Gets => {
                get(out, [key], record.operation == Operation::Gets);
                return Kind::Get;
            }
            Operation::Delete => {
                delete(out, key, false);
                return Kind::Other;
            }
            Operation::Incr => {
                incr(out, key, 1, false);
                return Kind::Other;
            }
            Operation::Decr => {
                decr(out, key, 1, false);
                return Kind::Other;
            }
            Operation::Set | Operation::Cas => StoreMode::Set,
            Operation::Add => StoreMode::Add,
            Operation::Replace => StoreMode::Replace,
            Operation::Append => StoreMode::Append,
            Operation::Prepend => StoreMode::Prepend,
        };
        let is_cas = record.operation == Operation::Cas;
        let compare_cas = is_cas.then(|| self.cas_tokens[record.key as usize]);
        self.put_store(record, mode, compare_cas, out);
        Kind::Set
    }

    fn put_store(
        &self,
        record: Record,
        mode: StoreMode,
        compare_cas: Option<u64>,
        out: &mut Vec<u8>,
    ) {
        let ttl_s = match record.ttl_s {
            ttl_s if ttl_s <= RELATIVE_TTL_S_MAX as u32 => ttl_s,
            // memcached stores seconds as i32.
            ttl_s => self.unix_start_s.saturating_add(ttl_s),
        };
        let ttl = i32::try_from(ttl_s).unwrap_or(i32::MAX);
        let key = self.trace.key(record.key);
        let request = StoreRequest { mode, ttl, compare_cas, ..StoreRequest::set(key) };
        let value_bytes = self.trace.value_bytes(&record) as usize;
        if self.trace.key_use(record.key).is_counter {
            let digits = value_bytes.clamp(1, COUNTER_DIGITS_MAX);
            store_head(out, &request, digits);
            out.extend(std::iter::repeat_n(b'1', digits));
        } else {
            store_head(out, &request, value_bytes);
            put_value(self.trace.seed(record.key), value_bytes, out);
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Releases a key; the next record that waits for it becomes ready.
    fn release(&mut self, key: u32) {
        assert!(self.is_busy[key as usize], "I1");
        if self.waiting_count > 0
            && let Some(queue) = self.waiting.get_mut(&key)
        {
            let index = queue.pop_front().expect("I2: queues are removed when empty");
            if queue.is_empty() {
                self.waiting.remove(&key);
            }
            self.waiting_count -= 1;
            self.ready.push_back(index);
            return;
        }
        self.is_busy[key as usize] = false;
    }

    fn is_mine(&self, key: u32) -> bool {
        // The stream's seed determines the value's first bytes, so another part of it selects the
        // thread.
        self.share.threads == 1
            || (self.trace.seed(key) >> 17) % self.share.threads == self.share.index
    }
}

impl Source for Replay<'_> {
    #[inline]
    fn next(&mut self, now_ns: u64, outbox: &mut Outbox) -> Next {
        if let Some(index) = self.ready.pop_front() {
            return self.request(index, Cause::Waited, now_ns, outbox);
        }
        while let Some(record) = self.trace.records.get(self.cursor) {
            let key = record.key;
            if !self.is_mine(key) {
                self.cursor += 1;
                continue;
            }
            let due_ns = self.due_ns(self.cursor);
            if due_ns > now_ns {
                return Next::At(due_ns);
            }
            let index = self.cursor as u32;
            if self.is_busy[key as usize] {
                if self.waiting_count >= WAITING_MAX {
                    return Next::Blocked; // I2
                }
                self.waiting.entry(key).or_default().push_back(index);
                self.waiting_count += 1;
                self.cursor += 1;
                continue;
            }
            self.is_busy[key as usize] = true;
            self.cursor += 1;
            return self.request(index, Cause::Due, now_ns, outbox);
        }
        if self.waiting_count > 0 { Next::Blocked } else { Next::Finished }
    }

    #[inline]
    fn item(
        &mut self,
        pending: &Pending,
        key: Option<&[u8]>,
        value: &[u8],
        cas: Option<u64>,
        _asked: &mut Asked,
    ) -> bool {
        let number = self.trace.records[pending.token as usize].key;
        if let (Some(cas), Some(token)) = (cas, self.cas_tokens.get_mut(number as usize)) {
            *token = cas;
        }
        if !self.check {
            return true;
        }
        key == Some(self.trace.key(number))
            && (self.trace.key_use(number).is_loose || is_value(self.trace.seed(number), value))
    }

    #[inline]
    fn answered(
        &mut self,
        pending: &Pending,
        outcome: Outcome,
        now_ns: u64,
        outbox: &mut Outbox,
    ) -> Option<Pending> {
        let record = self.trace.records[(pending.token & !FOLLOWS) as usize];
        if pending.kind == Kind::Get && outcome == Outcome::Hits(0) {
            self.put_store(record, StoreMode::Set, None, &mut outbox.bytes);
            let (intended_ns, sent_ns) = (now_ns, now_ns);
            let token = pending.token | FOLLOWS; // I3
            return Some(Pending {
                cause: Cause::Follows,
                kind: Kind::Set,
                keys: 1,
                token,
                intended_ns,
                sent_ns,
            });
        }
        self.release(record.key);
        None
    }

    fn until_ns(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Share = Share { index: 0, threads: 1 };

    fn trace(text: &str) -> Trace {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Trace::read(file.path(), 1.0, None).expect("valid")
    }

    fn take(replay: &mut Replay<'_>) -> (Pending, String) {
        let mut outbox = Outbox::default();
        match replay.next(0, &mut outbox) {
            Next::Request(pending) => {
                (pending, String::from_utf8_lossy(&outbox.bytes).into_owned())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn operations_are_worded_as_they_are() {
        let trace = trace(
            "0,a,1,0,1,gets,0\n0,b,1,0,1,set,60\n0,c,1,3,1,add,2592001\n0,d,1,0,1,delete,0\n\
             0,e,1,2,1,incr,0\n0,f,1,0,1,cas,9\n0,g,1,0,1,prepend,0\n",
        );
        let mut replay = Replay::new(&trace, ALONE, None, true, 1_000_000_000);
        let lines: Vec<String> = (0..7)
            .map(|_| take(&mut replay).1.split("\r\n").next().unwrap_or_default().to_owned())
            .collect();
        let expected = [
            "gets a",
            "set b 0 60 0",
            "add c 0 1002592001 3",
            "delete d",
            "incr e 1",
            "cas f 0 9 0 0",
            "prepend g 0 0 0",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn requests_of_one_key_follow_each_other_and_a_miss_is_set_first() {
        let trace = trace("0,a,1,4,1,get,0\n0,a,1,4,1,get,0\n0,b,1,4,1,get,0\n");
        let mut replay = Replay::new(&trace, ALONE, None, true, 0);
        let mut outbox = Outbox::default();
        let (first, words) = take(&mut replay);
        assert_eq!((words.as_str(), first.cause), ("get a\r\n", Cause::Due));
        assert_eq!(take(&mut replay).1, "get b\r\n", "I1: a is busy, b is not");
        assert!(matches!(replay.next(0, &mut outbox), Next::Blocked), "I1");
        let set = replay.answered(&first, Outcome::Hits(0), 5, &mut outbox).expect("a set");
        assert!(outbox.bytes.starts_with(b"set a 0 0 4\r\n"));
        assert!(matches!(replay.next(0, &mut outbox), Next::Blocked), "I3");
        assert!(replay.answered(&set, Outcome::Done, 6, &mut outbox).is_none());
        let (second, words) = take(&mut replay);
        assert_eq!((words.as_str(), second.cause), ("get a\r\n", Cause::Waited));
        assert_eq!(set.cause, Cause::Follows);
        assert!(matches!(replay.next(0, &mut outbox), Next::Finished));
    }

    #[test]
    fn a_failed_request_gives_its_key_back() {
        let trace = trace("0,a,1,4,1,get,0\n0,a,1,4,1,get,0\n");
        let mut replay = Replay::new(&trace, ALONE, None, true, 0);
        let (first, _) = take(&mut replay);
        assert!(matches!(replay.next(0, &mut Outbox::default()), Next::Blocked));
        assert!(replay.answered(&first, Outcome::Failed, 0, &mut Outbox::default()).is_none());
        assert_eq!(take(&mut replay).0.token, 1);
    }

    #[test]
    fn a_hot_key_holds_the_trace_back_before_the_list_overflows() {
        let text = "0,a,1,4,1,get,0\n".repeat(WAITING_MAX + 10);
        let trace = trace(&text);
        let mut replay = Replay::new(&trace, ALONE, None, false, 0);
        take(&mut replay);
        assert!(matches!(replay.next(0, &mut Outbox::default()), Next::Blocked));
        assert_eq!(replay.waiting_count, WAITING_MAX, "I2");
    }

    #[test]
    fn the_traces_time_passes_as_fast_as_asked() {
        let trace = trace("0,a,1,4,1,get,0\n4,b,1,4,1,get,0\n");
        let pacing = Some(Pacing { start_ns: 100, speed: 2.0 });
        let mut replay = Replay::new(&trace, ALONE, pacing, false, 0);
        let mut outbox = Outbox::default();
        assert!(matches!(replay.next(99, &mut outbox), Next::At(100)));
        assert!(matches!(replay.next(100, &mut outbox), Next::Request(_)));
        assert!(matches!(replay.next(100, &mut outbox), Next::At(2_000_000_100)));
        let Next::Request(late) = replay.next(9_000_000_000, &mut outbox) else { panic!("due") };
        assert_eq!(late.intended_ns, 2_000_000_100);
    }

    #[test]
    fn a_speed_that_leads_beyond_the_clock_is_refused() {
        let trace = trace("0,a,1,4,1,get,0\n4,b,1,4,1,get,0\n");
        assert_eq!(check_speed(&trace, 1e-6), Ok(()));
        let error = check_speed(&trace, 1e-300).expect_err("too slow");
        assert!(error.contains("290 years"), "{error}");
        let pacing = Some(Pacing { start_ns: 100, speed: 1e-300 });
        let mut replay = Replay::new(&trace, ALONE, pacing, false, 0);
        assert!(matches!(replay.next(100, &mut Outbox::default()), Next::Request(_)));
        assert!(matches!(replay.next(100, &mut Outbox::default()), Next::At(u64::MAX)));
    }

    #[test]
    fn threads_share_the_keys_out() {
        let text: String = (0..100).map(|key| format!("0,k{key},3,4,1,get,0\n")).collect();
        let trace = trace(&text);
        let mut seen = vec![0; 100];
        for index in 0..3 {
            let mut replay = Replay::new(&trace, Share { index, threads: 3 }, None, false, 0);
            let mut outbox = Outbox::default();
            let mut count = 0;
            while let Next::Request(pending) = replay.next(0, &mut outbox) {
                seen[pending.token as usize] += 1;
                count += 1;
            }
            assert!(count > 15, "{count}");
        }
        assert_eq!(seen, vec![1; 100]);
    }
}
