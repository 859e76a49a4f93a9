//! The steady mix: requests for synthetic keys at a ratio.
//!
//! Upstream:   `session` makes one per thread, from the options and the thread's seed; `preload`
//!             sets the keys of its mix.
//! Downstream: `drive` sends the requests that this module formats.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  With a schedule, every request is sent, at or after its intended time. Without one, a
//!   request is sent as soon as a connection is below its depth.
//! - I2  The sequence of requests depends only on options and seed.

use std::sync::Arc;

use rand::{Rng as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::inserts::Inserts;
use crate::ketama::Ring;
use crate::keys::{Keys, is_value};
use crate::mix::{Ratio, Verb};
use crate::popularity::Popularity;
use crate::protocol::{Protocol, Value};
use crate::random::{below, mix};
use crate::request::{Asked, Cause, Kind, Next, Outbox, Outcome, Pending, Source};
use crate::schedule::Schedule;
use crate::ttl::Ttls;

/// Marks the token of a get that a `cas` follows.
const COMPARES: u64 = 1 << 63;
/// The most items of a scan, as YCSB has it. Scans ask for 1 to as many.
const SCAN_ITEMS_MAX: u64 = 100;
/// Marks the token of an insert.
const INSERTED: u64 = 1 << 62;

/// Parameters of the mix.
#[derive(Clone, Debug)]
pub(crate) struct Mix {
    /// The protocol of the requests.
    pub(crate) protocol: Protocol,
    /// The keys and their values.
    pub(crate) keys: Keys,
    /// The distribution of requests over the keys.
    pub(crate) popularity: Popularity,
    /// The shares of the kinds of requests.
    pub(crate) ratio: Ratio,
    /// The numbers of inserted keys, if the ratio has inserts.
    pub(crate) inserts: Option<Arc<Inserts>>,
    /// Keys of one get.
    pub(crate) keys_per_get: u32,
    /// TTLs of sets.
    pub(crate) ttls: Ttls,
    /// Whether to verify every value.
    pub(crate) check: bool,
    /// Whether to set a key after a get missed it.
    pub(crate) look_aside: bool,
    /// Chooses the server of a key, if there are several.
    pub(crate) ring: Option<Arc<Ring>>,
}

impl Mix {
    /// Formats a set of the key; `scratch` is a buffer for reuse.
    #[inline]
    pub(crate) fn put_set(
        &self,
        number: u64,
        ttl_s: i32,
        compare_cas: Option<u64>,
        scratch: &mut Vec<u8>,
        outbox: &mut Outbox,
    ) {
        let seed = self.keys.stream_seed(number);
        let value = Value::Stream { seed, bytes: self.keys.value_bytes(seed) };
        let key = self.key(number, scratch);
        self.protocol.put_set(key, ttl_s, value, compare_cas, outbox);
    }

    /// The counter beside a key.
    pub(crate) fn counter<'s>(&self, number: u64, scratch: &'s mut Vec<u8>) -> &'s [u8] {
        scratch.clear();
        // Keys that were inserted have no counter.
        self.keys.put_counter(number % self.keys.count(), scratch);
        scratch
    }

    #[inline]
    pub(crate) fn key<'s>(&self, number: u64, scratch: &'s mut Vec<u8>) -> &'s [u8] {
        scratch.clear();
        self.keys.put_key(number, scratch);
        scratch
    }

    fn is_item(&self, number: u64, value: &[u8]) -> bool {
        let stream_seed = self.keys.stream_seed(number);
        value.len() == self.keys.value_bytes(stream_seed) && is_value(stream_seed, value)
    }
}

/// One thread's share of the mix.
#[derive(Debug)]
pub(crate) struct Steady {
    mix: Mix,
    random: Xoshiro256PlusPlus,
    schedule: Option<Schedule>,
    until_ns: u64,
    scratch: Vec<u8>,
    /// The CAS token of the item that was read last.
    last_cas: Option<u64>,
    /// Whether the mix has gets and sets alone.
    is_plain: bool,
    /// The next request, if its server was looked up before it was formatted.
    drawn: Option<Drawn>,
}

/// A request before it is formatted: what it does, and the number of its first key.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    verb: Verb,
    number: u64,
}

impl Steady {
    /// A thread's share; `schedule` makes it an open loop. No request begins at or after
    /// `until_ns`.
    pub(crate) fn new(mix: Mix, schedule: Option<Schedule>, until_ns: u64, seed: u64) -> Self {
        assert!(mix.keys_per_get > 0, "I1: a get has a key");
        assert!(mix.inserts.is_some() == (mix.ratio.inserts > 0), "inserts have numbers");
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let is_plain = !mix.ratio.has_others();
        Self {
            mix,
            random,
            schedule,
            until_ns,
            scratch: Vec::new(),
            last_cas: None,
            is_plain,
            drawn: None,
        }
    }

    /// Takes the intended time of the next request.
    ///
    /// Errors: no request is due now.
    #[inline(always)]
    fn take_time(&mut self, now_ns: u64) -> Result<u64, Next> {
        let intended_ns = match &mut self.schedule {
            None => now_ns,
            Some(schedule) => schedule.next_ns(),
        };
        if intended_ns >= self.until_ns {
            return Err(Next::Finished);
        }
        if intended_ns > now_ns {
            return Err(Next::At(intended_ns));
        }
        if let Some(schedule) = &mut self.schedule {
            schedule.advance();
        }
        Ok(intended_ns)
    }

    /// Draws what the next request does, and its first key.
    #[inline(always)]
    fn draw(&mut self) -> Drawn {
        let Self { mix, random, .. } = self;
        if !self.is_plain {
            return self.draw_any();
        }
        let verb = mix.ratio.choose_plain(random);
        Drawn { verb, number: mix.popularity.draw(random) }
    }

    fn draw_any(&mut self) -> Drawn {
        let Self { mix, random, .. } = self;
        let verb = mix.ratio.choose_any(random);
        if let Some(inserts) = &mix.inserts {
            if verb == Verb::Insert {
                return Drawn { verb, number: inserts.take() };
            }
            mix.popularity.grow(inserts.count());
        }
        Drawn { verb, number: mix.popularity.draw(random) }
    }

    #[inline]
    fn word(&mut self, outbox: &mut Outbox) -> (Kind, u32, u64) {
        let Drawn { verb, mut number } = match self.mix.ring {
            None => self.draw(),
            Some(_) => self.drawn.take().unwrap_or_else(|| self.draw()),
        };
        let mix = &mut self.mix;
        match verb {
            Verb::Get => {}
            Verb::Set => {
                let ttl_s = mix.ttls.draw(&mut self.random);
                mix.put_set(number, ttl_s, None, &mut self.scratch, outbox);
                return (Kind::Set, 1, number);
            }
            verb => return self.other(verb, number, outbox),
        }
        let (protocol, keys) = (mix.protocol, mix.keys_per_get);
        if keys > 1 {
            protocol.begin_get(outbox);
        }
        for index in 0..keys {
            if index > 0 {
                number = mix.popularity.draw(&mut self.random);
            }
            let key = mix.key(number, &mut self.scratch);
            match keys {
                1 => protocol.put_get(key, outbox),
                _ => protocol.put_key(key, outbox),
            }
            if mix.check {
                outbox.asked.push(number);
            }
        }
        if keys > 1 {
            protocol.end_get(outbox);
        }
        (Kind::Get, keys, number)
    }

    /// Formats a request that is neither a get nor a set.
    fn other(&mut self, verb: Verb, number: u64, outbox: &mut Outbox) -> (Kind, u32, u64) {
        let Self { mix, random, scratch, .. } = self;
        match verb {
            Verb::Delete => {
                mix.protocol.put_delete(mix.key(number, scratch), outbox);
                (Kind::Other, 1, number)
            }
            Verb::Incr => {
                mix.protocol.put_incr(mix.counter(number, scratch), outbox);
                (Kind::Other, 1, number)
            }
            Verb::Cas => {
                mix.protocol.put_gets(mix.key(number, scratch), outbox);
                if mix.check {
                    outbox.asked.push(number);
                }
                (Kind::Get, 1, number | COMPARES)
            }
            Verb::Insert => {
                let ttl_s = mix.ttls.draw(random);
                mix.put_set(mix.keys.inserted(number), ttl_s, None, scratch, outbox);
                (Kind::Set, 1, number | INSERTED)
            }
            Verb::Scan => {
                let items = 1 + below(random.next_u64(), SCAN_ITEMS_MAX) as u32;
                mix.protocol.put_scan(mix.key(number, scratch), items, outbox);
                (Kind::Scan, items, number)
            }
            Verb::Get | Verb::Set => unreachable!("formatted before"),
        }
    }
}

impl Drop for Steady {
    /// A run may end between the draw of an insert and its request. The numbers are those of all
    /// threads and of later runs, which must not wait for it.
    fn drop(&mut self) {
        if let (Some(inserts), Some(Drawn { verb: Verb::Insert, number })) =
            (&self.mix.inserts, self.drawn)
        {
            inserts.acknowledge(number);
        }
    }
}

impl Source for Steady {
    fn server_of_next(&mut self) -> usize {
        if self.drawn.is_none() {
            self.drawn = Some(self.draw());
        }
        let Drawn { verb, number } = self.drawn.expect("drawn above");
        let Self { mix, scratch, .. } = self;
        let key = match verb {
            Verb::Incr => mix.counter(number, scratch),
            Verb::Insert => mix.key(mix.keys.inserted(number), scratch),
            _ => mix.key(number, scratch),
        };
        mix.ring.as_ref().map_or(0, |ring| ring.server(key))
    }

    #[inline]
    fn next(&mut self, now_ns: u64, outbox: &mut Outbox) -> Next {
        let intended_ns = match self.take_time(now_ns) {
            Ok(intended_ns) => intended_ns,
            Err(none) => return none,
        };
        let (kind, keys, token) = self.word(outbox);
        Next::Request(Pending::due(kind, keys, token, intended_ns, now_ns))
    }

    fn skip(&mut self, now_ns: u64) -> Next {
        assert!(self.schedule.is_some(), "I1: a closed loop has no request that is not sent");
        let intended_ns = match self.take_time(now_ns) {
            Ok(intended_ns) => intended_ns,
            Err(none) => return none,
        };
        let Self { mix, random, .. } = self;
        let verb = match self.is_plain {
            true => mix.ratio.choose_plain(random),
            false => mix.ratio.choose_any(random),
        };
        Next::Request(Pending::due(verb.kind(), 1, 0, intended_ns, now_ns))
    }

    #[inline]
    fn item(
        &mut self,
        pending: &Pending,
        key: Option<&[u8]>,
        value: &[u8],
        cas: Option<u64>,
        asked: &mut Asked,
    ) -> bool {
        self.last_cas = cas;
        if !self.mix.check {
            return true;
        }
        if pending.kind == Kind::Scan {
            let number = key.and_then(|key| self.mix.keys.number(key));
            return number
                .is_some_and(|number| number >= pending.token && self.mix.is_item(number, value));
        }
        while let Some(number) = asked.next(pending.keys) {
            if key.is_none_or(|key| self.mix.keys.is_key(number, key)) {
                return self.mix.is_item(number, value);
            }
        }
        false
    }

    #[inline]
    fn answered(
        &mut self,
        pending: &Pending,
        outcome: Outcome,
        now_ns: u64,
        outbox: &mut Outbox,
    ) -> Option<Pending> {
        if pending.token & INSERTED != 0 {
            // Also if it failed: later keys must not wait for it. The error is counted.
            self.mix.inserts.as_ref()?.acknowledge(pending.token & !INSERTED);
            return None;
        }
        let number = pending.token & !COMPARES;
        let compare_cas = match outcome {
            Outcome::Hits(0) if pending.kind == Kind::Get && self.mix.look_aside => None,
            Outcome::Hits(1) if pending.token != number => Some(self.last_cas?),
            _ => return None,
        };
        let ttl_s = self.mix.ttls.draw(&mut self.random);
        self.mix.put_set(number, ttl_s, compare_cas, &mut self.scratch, outbox);
        let (intended_ns, sent_ns) = (now_ns, now_ns);
        Some(Pending {
            cause: Cause::Follows,
            kind: Kind::Set,
            keys: 1,
            token: number,
            intended_ns,
            sent_ns,
        })
    }

    fn until_ns(&self) -> Option<u64> {
        Some(self.until_ns)
    }
}

/// Derives the seed of one thread from the run's seed.
pub(crate) fn thread_seed(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(mix(index + 1)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::keys::{Room, Sizes};
    use crate::popularity::Choice;
    use crate::schedule::Arrivals;

    pub(crate) fn mix_of(gets: u32, sets: u32, keys_per_get: u32) -> Mix {
        Mix {
            protocol: Protocol::Text,
            keys: Keys::new(100, Sizes::Fixed(4), Sizes::Fixed(3), 9).expect("valid"),
            popularity: Popularity::new(100, Choice::Uniform).expect("valid"),
            ratio: Ratio { gets, sets, ..Ratio::default() },
            inserts: None,
            keys_per_get,
            ttls: "0".parse().expect("valid"),
            check: true,
            look_aside: true,
            ring: None,
        }
    }

    fn sequence(seed: u64) -> Vec<u8> {
        let mut steady = Steady::new(mix_of(9, 1, 2), None, u64::MAX, seed);
        let mut outbox = Outbox::default();
        for _ in 0..100 {
            assert!(matches!(steady.next(0, &mut outbox), Next::Request(_)));
        }
        outbox.bytes
    }

    #[test]
    fn the_ratio_holds_and_the_sequence_is_the_seeds() {
        let mut steady = Steady::new(mix_of(9, 1, 1), None, u64::MAX, 5);
        let mut outbox = Outbox::default();
        let sets = (0..100_000)
            .filter(|_| match steady.next(0, &mut outbox) {
                Next::Request(pending) => pending.kind == Kind::Set,
                other => panic!("{other:?}"),
            })
            .count();
        assert!((9_500..10_500).contains(&sets), "{sets}");
        assert_eq!(sequence(1), sequence(1), "I2");
        assert_ne!(sequence(1), sequence(2));
    }

    #[test]
    fn an_open_loop_hands_out_late_requests_with_their_intended_times() {
        let schedule = Schedule::new(1_000.0, Arrivals::Fixed, 0, 0);
        let mut steady = Steady::new(mix_of(1, 0, 1), Some(schedule), 50_000_000, 0);
        let mut outbox = Outbox::default();
        let mut late = Vec::new();
        loop {
            match steady.next(100_000_000, &mut outbox) {
                Next::Request(pending) => late.push(pending.intended_ns),
                Next::Finished => break,
                other => panic!("I1: {other:?}"),
            }
        }
        assert_eq!(late.len(), 50, "I1");
        assert!(late.windows(2).all(|pair| pair[1] - pair[0] >= 999_999));
    }

    #[test]
    fn requests_that_are_skipped_have_the_times_and_the_shares_of_others() {
        let drain = |is_skipped: bool| {
            let schedule = Schedule::new(100_000.0, Arrivals::Poisson, 0, 0);
            let mut steady = Steady::new(mix_of(3, 1, 1), Some(schedule), 1_000_000_000, 0);
            let (mut outbox, mut times, mut sets) = (Outbox::default(), Vec::new(), 0);
            loop {
                let next = match is_skipped {
                    true => steady.skip(u64::MAX),
                    false => steady.next(u64::MAX, &mut outbox),
                };
                let Next::Request(pending) = next else { break };
                times.push(pending.intended_ns);
                sets += usize::from(pending.kind == Kind::Set);
            }
            (times, sets)
        };
        let (sent, skipped) = (drain(false), drain(true));
        assert_eq!(sent.0, skipped.0, "I1");
        for (times, sets) in [sent, skipped] {
            assert!((times.len() / 4).abs_diff(sets) < 1_000, "{} {sets}", times.len());
        }
    }

    #[test]
    fn a_read_with_a_token_is_followed_by_a_cas() {
        let mut mix = mix_of(0, 0, 1);
        (mix.ratio.cas, mix.look_aside) = (1, false);
        let mut steady = Steady::new(mix, None, u64::MAX, 0);
        let mut outbox = Outbox::default();
        let Next::Request(read) = steady.next(0, &mut outbox) else { panic!("a request") };
        assert_eq!(read.kind, Kind::Get);
        assert!(outbox.bytes.starts_with(b"gets k"));
        let number = outbox.asked.next(1).expect("the key is checked");
        let mut value = Vec::new();
        crate::keys::put_value(steady.mix.keys.stream_seed(number), 3, &mut value);
        let mut asked = Asked::default();
        asked.push(number);
        assert!(steady.item(&read, None, &value, Some(77), &mut asked));
        outbox.bytes.clear();
        let write = steady.answered(&read, Outcome::Hits(1), 5, &mut outbox).expect("a cas");
        assert_eq!((write.kind, write.token), (Kind::Set, number));
        assert_eq!([read.cause, write.cause], [Cause::Due, Cause::Follows]);
        let line = outbox.bytes.escape_ascii().to_string();
        assert!(line.starts_with("cas k") && line.contains(" 0 0 3 77\\r\\n"), "{line}");
        assert!(steady.answered(&write, Outcome::NotDone, 6, &mut outbox).is_none());
        assert!(steady.answered(&read, Outcome::Hits(0), 6, &mut outbox).is_none());
    }

    #[test]
    fn inserts_have_new_keys_and_count_when_they_are_answered() {
        let mut mix = mix_of(0, 0, 1);
        (mix.ratio.inserts, mix.inserts) = (1, Some(Arc::new(Inserts::new(100))));
        let room = Room { inserts: true, counters: false };
        mix.keys = Keys::with(100, room, Sizes::Fixed(12), Sizes::Fixed(3), 9).expect("valid");
        let inserts = mix.inserts.clone().expect("there");
        let mut steady = Steady::new(mix, None, u64::MAX, 0);
        let mut outbox = Outbox::default();
        for number in 100..103 {
            outbox.bytes.clear();
            let Next::Request(insert) = steady.next(0, &mut outbox) else { panic!("a request") };
            assert!(outbox.bytes.starts_with(format!("set k{number:011} ").as_bytes()));
            assert_eq!(inserts.count(), number);
            let outcome = if number == 101 { Outcome::Failed } else { Outcome::Done };
            assert!(steady.answered(&insert, outcome, 0, &mut outbox).is_none());
            assert_eq!(inserts.count(), number + 1);
        }
    }

    #[test]
    fn a_missed_key_is_set_and_a_wrong_item_is_noticed() {
        let mut steady = Steady::new(mix_of(1, 0, 1), None, u64::MAX, 0);
        let mut outbox = Outbox::default();
        let Next::Request(pending) = steady.next(0, &mut outbox) else { panic!("a request") };
        outbox.bytes.clear();
        let set = steady.answered(&pending, Outcome::Hits(0), 0, &mut outbox).expect("a set");
        assert_eq!((set.kind, set.cause), (Kind::Set, Cause::Follows));
        assert!(outbox.bytes.starts_with(b"set k"));
        let (key, value) = (outbox.bytes[4..8].to_vec(), outbox.bytes[16..19].to_vec());
        assert_eq!(outbox.asked.next(1), Some(pending.token));
        for (key, value, right) in [
            (&key[..], &value[..], true),
            (&key[..], &value[..2], false),
            (&key[..], &b"zzz"[..], false),
            (&b"k9xx"[..], &value[..], false),
        ] {
            let mut asked = Asked::default();
            asked.push(pending.token);
            assert_eq!(steady.item(&pending, Some(key), value, None, &mut asked), right);
        }
        assert!(steady.answered(&pending, Outcome::Hits(1), 0, &mut outbox).is_none());
    }
}
