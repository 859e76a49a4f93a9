//! One measurement of a steady mix: from the options to the counts.
//!
//! Upstream:   `lib` for a single run, `sweep` for a run at each of several rates.
//! Downstream: `session` runs it.

use std::sync::Arc;

use crate::inserts::Inserts;
use crate::keys::{Keys, Room};
use crate::options::SteadyOptions;
use crate::popularity::Popularity;
use crate::report::Server;
use crate::schedule::{Arrivals, Schedule};
use crate::session::{Measured, Phases, Session};
use crate::steady::{Mix, Preload, Steady, thread_seed};
use crate::transport::Transport;

/// A steady mix that can be measured several times.
pub(crate) struct Step<'o> {
    options: &'o SteadyOptions,
    transport: Transport,
    mix: Mix,
    /// Measurements so far.
    count: u64,
}

impl<'o> Step<'o> {
    /// Prepares the mix that the options describe.
    ///
    /// Errors: an invalid option, as a message for the user.
    pub(crate) fn new(options: &'o SteadyOptions) -> Result<Self, String> {
        options.check()?;
        let ratio = options.ratio;
        let room = Room { counters: ratio.incrs > 0, inserts: ratio.inserts > 0 };
        let (sizes, seed) = ((options.key_size, options.value_size), options.common.seed);
        let keys = Keys::with(options.keys, room, sizes.0, sizes.1, seed)?;
        let transport = Transport::of(options)?;
        let mix = Mix {
            protocol: options.protocol,
            keys,
            popularity: Popularity::new(options.keys, options.choice()?)?,
            ratio,
            inserts: room.inserts.then(|| Arc::new(Inserts::new(options.keys))),
            keys_per_get: options.keys_per_get,
            ttls: options.ttl_s.clone(),
            check: options.common.check,
            look_aside: options.look_aside,
            ring: transport.ring.clone(),
        };
        Ok(Self { options, transport, mix, count: 0 })
    }

    /// Measures once, with new connections; only the first measurement has the preload and the rest
    /// after it. With a rate it is an open loop.
    ///
    /// Errors: as messages for the user; errors of the server are counted in the tally instead.
    pub(crate) fn measure(&mut self, rate: Option<f64>) -> Result<(Server, Measured), String> {
        let Self { options, mix, .. } = self;
        let seed = options.common.seed.wrapping_add(self.count);
        let is_first = self.count == 0;
        self.count += 1;
        let threads = options.common.threads;
        let is_load = !options.preload_only;
        let phases = Phases {
            warm_up_ns: nanoseconds(if is_load { options.warm_up_s } else { 0.0 }),
            duration_ns: Some(if is_load { nanoseconds(options.duration_s) } else { 1 }),
            open: rate.is_some(),
            open_fill: options.fill_rate.is_some(),
            rest_ns: nanoseconds(if is_load && is_first { options.rest_s } else { 0.0 }),
        };
        let make_preload = |index: usize, now_ns: u64| {
            let schedule = options.fill_rate.map(|rate| {
                let seed = thread_seed(seed, index);
                Schedule::new(rate / threads as f64, Arrivals::Fixed, now_ns, seed)
            });
            Preload::new(mix.clone(), schedule, index as u64, threads as u64)
        };
        let make_source = |index: usize, start_ns: u64, until_ns: u64| {
            let seed = thread_seed(seed, index);
            let schedule = rate
                .map(|rate| Schedule::new(rate / threads as f64, options.arrivals, start_ns, seed));
            let mut mix = mix.clone();
            mix.popularity.begin_at(index as u64, threads as u64);
            Steady::new(mix, schedule, until_ns, seed)
        };
        let preload_keys = options.keys * if options.ratio.incrs > 0 { 2 } else { 1 };
        let preload_keys = (is_first && !options.no_preload).then_some(preload_keys);
        let session = Session::open(&options.common, self.transport.clone())?;
        let server = Server::of(&session);
        let measured = session.run(phases, preload_keys, &make_preload, &make_source)?;
        Ok((server, measured))
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
