//! The preload: each key of the mix is set once before the load, and the counters beside them.
//!
//! Upstream:   `session` makes one per thread, from the options.
//! Downstream: `drive` sends the requests that this module formats.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  All threads together set each key once. With a schedule, a key is set at its time.

use std::ops::Range;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::part::range;
use crate::protocol::Value;
use crate::request::{Asked, Kind, Next, Outbox, Outcome, Pending, Source};
use crate::schedule::Schedule;
use crate::steady::Mix;

/// Sets each key of a range once, and the counters beside them.
#[derive(Debug)]
pub(crate) struct Preload {
    mix: Mix,
    /// Of the fill, if it has a rate.
    schedule: Option<Schedule>,
    /// For the TTLs.
    random: Xoshiro256PlusPlus,
    rest: Range<u64>,
    /// Whether the counter of the first key of the rest is next, not the key.
    is_counter: bool,
    scratch: Vec<u8>,
}

impl Preload {
    /// The share of thread `index` of `threads`; `schedule` makes it an open loop.
    pub(crate) fn new(mix: Mix, schedule: Option<Schedule>, index: u64, threads: u64) -> Self {
        assert!(index < threads, "I1: the index is below the number of threads");
        let random = Xoshiro256PlusPlus::seed_from_u64(index);
        let rest = range(mix.keys.count(), index, threads);
        Self { mix, schedule, random, rest, is_counter: false, scratch: Vec::new() }
    }
}

impl Source for Preload {
    fn next(&mut self, now_ns: u64, outbox: &mut Outbox) -> Next {
        let Self { mix, random, scratch, .. } = self;
        let token = self.rest.start;
        if token == self.rest.end {
            return Next::Finished;
        }
        let intended_ns = self.schedule.as_ref().map_or(now_ns, Schedule::next_ns);
        if intended_ns > now_ns {
            return Next::At(intended_ns);
        }
        if let Some(schedule) = &mut self.schedule {
            schedule.advance();
        }
        if self.is_counter {
            let key = mix.counter(token, scratch);
            mix.protocol.put_set(key, 0, Value::Counter, None, outbox);
        } else {
            let ttl_s = mix.ttls.draw(random);
            mix.put_set(token, ttl_s, None, scratch, outbox);
        }
        self.is_counter = mix.ratio.incrs > 0 && !self.is_counter;
        if !self.is_counter {
            self.rest.start += 1;
        }
        Next::Request(Pending::due(Kind::Set, 1, token, intended_ns, now_ns))
    }

    fn server_of_next(&mut self) -> usize {
        let Self { mix, scratch, .. } = self;
        let key = match self.is_counter {
            true => mix.counter(self.rest.start, scratch),
            false if self.rest.is_empty() => return 0,
            false => mix.key(self.rest.start, scratch),
        };
        mix.ring.as_ref().map_or(0, |ring| ring.server(key))
    }

    fn item(
        &mut self,
        _: &Pending,
        _: Option<&[u8]>,
        _: &[u8],
        _: Option<u64>,
        _: &mut Asked,
    ) -> bool {
        false
    }

    fn answered(&mut self, _: &Pending, _: Outcome, _: u64, _: &mut Outbox) -> Option<Pending> {
        None
    }

    fn until_ns(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ketama::Ring;
    use crate::keys::{Keys, Room, Sizes};
    use crate::popularity::{Choice, Popularity};
    use crate::schedule::Arrivals;
    use crate::steady::Steady;
    use crate::steady::tests::mix_of;

    #[test]
    fn a_preload_sets_every_key_once_over_all_threads() {
        let mut seen = vec![0; 100];
        for index in 0..3 {
            let mut preload = Preload::new(mix_of(1, 0, 1), None, index, 3);
            let mut outbox = Outbox::default();
            while let Next::Request(pending) = preload.next(0, &mut outbox) {
                seen[pending.token as usize] += 1;
            }
        }
        assert_eq!(seen, vec![1; 100]);
    }

    #[test]
    fn a_fill_with_a_rate_sets_each_key_at_its_time() {
        let schedule = Schedule::new(1_000.0, Arrivals::Fixed, 0, 0);
        let mut preload = Preload::new(mix_of(1, 0, 1), Some(schedule), 0, 1);
        let mut outbox = Outbox::default();
        let (mut now_ns, mut set) = (0, 0);
        loop {
            match preload.next(now_ns, &mut outbox) {
                Next::Request(pending) => set += u64::from(pending.intended_ns == now_ns),
                Next::At(at_ns) => now_ns = at_ns,
                Next::Finished => break,
                Next::Blocked => panic!("I1"),
            }
        }
        assert_eq!(set, 100);
        assert!((99_000_000..101_000_000).contains(&now_ns), "{now_ns}");
    }

    #[test]
    fn counters_are_preloaded_beside_their_keys() {
        let mut mix = mix_of(1, 0, 1);
        mix.ratio.incrs = 1;
        let room = Room { inserts: false, counters: true };
        mix.keys = Keys::with(3, room, Sizes::Fixed(4), Sizes::Fixed(1), 9).expect("valid");
        mix.popularity = Popularity::new(3, Choice::Uniform).expect("valid");
        let mut preload = Preload::new(mix, None, 0, 1);
        let mut outbox = Outbox::default();
        while let Next::Request(_) = preload.next(0, &mut outbox) {}
        let text = outbox.bytes.escape_ascii().to_string();
        for number in 0..3 {
            assert!(text.contains(&format!("set k00{number} 0 0 1\\r\\n")), "{text}");
            let counter = format!("set c00{number} 0 0 10\\r\\n1000000000\\r\\n");
            assert!(text.contains(&counter), "{text}");
        }
        let mut mix = preload.mix;
        (mix.ratio.gets, mix.ratio.incrs) = (0, 1);
        outbox.bytes.clear();
        let mut steady = Steady::new(mix, None, u64::MAX, 0);
        assert!(matches!(steady.next(0, &mut outbox), Next::Request(_)));
        assert!(outbox.bytes.starts_with(b"incr c00"), "{}", outbox.bytes.escape_ascii());
    }

    #[test]
    fn the_server_of_a_request_is_that_of_its_key() {
        let names = ["a:1", "b:1", "c:1"].map(String::from);
        let ring = Arc::new(Ring::new(&names));
        let mut mix = mix_of(1, 1, 1);
        (mix.ratio.incrs, mix.ratio.deletes, mix.ring) = (1, 1, Some(Arc::clone(&ring)));
        let room = Room { inserts: false, counters: true };
        mix.keys = Keys::with(100, room, Sizes::Fixed(6), Sizes::Fixed(3), 9).expect("valid");
        let mut preload = Preload::new(mix.clone(), None, 0, 1);
        let mut steady = Steady::new(mix, None, u64::MAX, 0);
        let mut seen = [0; 3];
        for _ in 0..200 {
            for is_preload in [true, false] {
                let mut outbox = Outbox::default();
                let (server, _) = match is_preload {
                    true => (preload.server_of_next(), preload.next(0, &mut outbox)),
                    false => (steady.server_of_next(), steady.next(0, &mut outbox)),
                };
                let key = outbox.bytes.split(|byte| byte.is_ascii_whitespace()).nth(1);
                assert_eq!(server, ring.server(key.expect("a key")));
                seen[server] += 1;
            }
        }
        assert!(seen.iter().all(|&seen| seen > 40), "{seen:?}");
        let unsent = steady.next(0, &mut Outbox::default());
        assert!(matches!(unsent, Next::Request(_)), "a request without a look-up of its server");
    }
}
