//! One measurement of a steady mix: from the options to the counts.
//!
//! Upstream:   `lib` for a single run, `sweep` for a run at each of several rates, `agent` for the
//!             part of one of several machines.
//! Downstream: `session` runs it.

use std::sync::Arc;

use crate::address::Target;
use crate::control::Control;
use crate::inserts::Inserts;
use crate::keys::{Keys, Room};
use crate::options::{CommonOptions, SteadyOptions};
use crate::part::Part;
use crate::popularity::Popularity;
use crate::preload::Preload;
use crate::report::Server;
use crate::schedule::{Arrivals, Schedule};
use crate::session::{Measured, Phases, Session};
use crate::steady::{Mix, Steady, thread_seed};
use crate::transport::Transport;

/// A steady mix that can be measured several times.
pub(crate) struct Step<'o> {
    options: &'o SteadyOptions,
    /// The common options, with this machine's part of the connections.
    common: CommonOptions,
    transport: Transport,
    mix: Mix,
    /// This machine's part of the load; `None`: it sends no requests.
    part: Option<Part>,
    /// Measurements so far.
    count: u64,
}

impl<'o> Step<'o> {
    /// Prepares this machine's part of the mix that the options describe. Without a part this
    /// machine only reads the server's meter.
    ///
    /// Errors: an invalid option, as a message for the user.
    pub(crate) fn new(options: &'o SteadyOptions, part: Option<Part>) -> Result<Self, String> {
        options.check()?;
        let ratio = options.ratio;
        let room = Room { counters: ratio.incrs > 0, inserts: ratio.inserts > 0 };
        let (sizes, seed) = ((options.key_size, options.value_size), options.common.seed);
        let keys = Keys::with(options.keys, room, sizes.0, sizes.1, seed)?;
        let mut transport = Transport::of(options)?;
        if part.is_none_or(|part| part.index > 0) {
            (transport.idle, transport.connects) = (0, None);
        }
        let mut common = options.common.clone();
        common.connections = part.map_or(0, |part| part.connections(common.connections));
        if part.is_none() {
            common.threads = 0;
        }
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
        Ok(Self { options, common, transport, mix, part, count: 0 })
    }

    /// The connections of this machine.
    pub(crate) fn connections(&self) -> usize {
        self.common.connections
    }

    /// The addresses of the servers.
    pub(crate) fn targets(&self) -> &[Target] {
        &self.transport.targets
    }

    /// Measures once, with new connections; only the first measurement has the preload and the rest
    /// after it. With a rate, which is that of all machines together, it is an open loop.
    ///
    /// Errors: as messages for the user; errors of the server are counted in the tally instead.
    pub(crate) fn measure(
        &mut self,
        rate: Option<f64>,
        control: &mut dyn Control,
    ) -> Result<(Server, Measured), String> {
        let Self { options, part, .. } = *self;
        let seed = options.common.seed.wrapping_add(self.count);
        let is_first = self.count == 0;
        self.count += 1;
        let is_load = !options.preload_only;
        let phases = Phases {
            warm_up_ns: nanoseconds(if is_load { options.warm_up_s } else { 0.0 }),
            duration_ns: Some(if is_load { nanoseconds(options.duration_s) } else { 1 }),
            open: rate.is_some(),
            open_fill: options.fill_rate.is_some(),
            rest_ns: nanoseconds(if is_load && is_first { options.rest_s } else { 0.0 }),
        };
        let preload_keys = part.map_or(0, |part| part.keys(options.keys).count() as u64)
            * if options.ratio.incrs > 0 { 2 } else { 1 };
        let has_preload = is_first && !options.no_preload && part.is_some();
        let session = Session::open(&self.common, self.transport.clone(), control)?;
        let server = Server::of(&session);
        let this = &*self;
        let make_preload = |index: usize, now_ns: u64| this.preload(seed, index, now_ns);
        let make_source = |index: usize, start_ns: u64, until_ns: u64| {
            this.source(rate, seed, index, start_ns, until_ns)
        };
        let preload_keys = has_preload.then_some(preload_keys);
        let measured = session.run(phases, preload_keys, &make_preload, &make_source, control)?;
        Ok((server, measured))
    }

    /// The preload of one thread of this machine.
    fn preload(&self, seed: u64, index: usize, now_ns: u64) -> Preload {
        let (index, threads) = self.thread(index);
        let schedule = self.options.fill_rate.map(|rate| {
            let seed = thread_seed(seed, index);
            Schedule::new(rate / threads as f64, Arrivals::Fixed, now_ns, seed)
        });
        Preload::new(self.mix.clone(), schedule, index, threads)
    }

    /// The requests of one thread of this machine.
    pub(crate) fn source(
        &self,
        rate: Option<f64>,
        seed: u64,
        index: usize,
        start_ns: u64,
        until_ns: u64,
    ) -> Steady {
        let (index, threads) = self.thread(index);
        let seed = thread_seed(seed, index);
        let arrivals = self.options.arrivals;
        let schedule =
            rate.map(|rate| Schedule::new(rate / threads as f64, arrivals, start_ns, seed));
        let mut mix = self.mix.clone();
        mix.popularity.begin_at(index, threads);
        Steady::new(mix, schedule, until_ns, seed)
    }

    /// The number of a thread of this machine among those of all machines, and the number of all.
    fn thread(&self, index: usize) -> (u64, u64) {
        let part = self.part.expect("a machine without a part has no thread");
        part.thread(index, self.common.threads)
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
