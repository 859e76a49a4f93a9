//! The home core of each engine.
//!
//! Upstream:   `process` assigns the engines at the start, from the numbers of engines and cores.
//! Downstream: `context` and `engines` ask which core must care for an engine.
//!
//! How many engines there are is a property of the data. How many cores there are is an option of
//! each start. So each start gives every engine a home core. It does the engine's upkeep, executes
//! the requests that wait with the engine while no core holds it, and walks the engine for the
//! crawler. With `erew` it is the only core that takes the engine.
//!
//! ```text
//! five engines, three cores, of which the first serves clients only (`--roles=net=1,shard=2`)
//!
//! engine  0  1  2  3  4
//! core    1  2  1  2  1
//! ```
//!
//! Invariants:
//! - H1  Each engine has one home core. A core is the home of any number of engines.

use kachel_engine::{EngineIndex, PARTITIONS};
use kachel_net::CoreIndex;

/// Which core is the home of which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Homes {
    engines: u16,
    cores: u16,
    /// The first core that is a home.
    first: u16,
}

impl Homes {
    /// The home cores of `engines` engines in a process of `cores` cores, of which the first
    /// `net_cores` are no homes.
    ///
    /// # Panics
    /// If there is no engine, no core that can be a home, or more engines than partitions.
    pub fn new(engines: u16, cores: u16, net_cores: u16) -> Self {
        assert!(engines > 0 && u32::from(engines) <= PARTITIONS, "each engine owns a partition");
        assert!(net_cores < cores, "H1: some core is the home of the engines");
        Self { engines, cores, first: net_cores }
    }

    /// The number of engines.
    #[inline]
    pub const fn engines(self) -> u16 {
        self.engines
    }

    /// The number of cores.
    #[inline]
    pub const fn cores(self) -> u16 {
        self.cores
    }

    /// All engines.
    pub fn all(self) -> impl Iterator<Item = EngineIndex> + Clone {
        (0..self.engines).map(EngineIndex)
    }

    /// The home core of an engine (H1). Cost: a division.
    #[inline]
    pub fn core_of(self, engine: EngineIndex) -> CoreIndex {
        debug_assert!(engine.0 < self.engines, "an engine of this process");
        CoreIndex(self.first + engine.0 % (self.cores - self.first))
    }

    /// The engines whose home a core is.
    pub(crate) fn engines_of(self, core: CoreIndex) -> impl Iterator<Item = EngineIndex> {
        debug_assert!(core.0 < self.cores, "a core of this process");
        self.all().filter(move |engine| self.core_of(*engine) == core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_has_one_home_for_any_numbers() {
        for (engines, cores, net_cores) in [(1, 1, 0), (8, 3, 0), (3, 8, 0), (4, 4, 0), (5, 3, 1)] {
            let homes = Homes::new(engines, cores, net_cores);
            let of = |core| homes.engines_of(CoreIndex(core)).map(|engine| engine.0);
            let mut all: Vec<u16> = (0..cores).flat_map(of).collect();
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..engines), "H1: {homes:?}");
            assert!((0..net_cores).all(|core| of(core).count() == 0), "{homes:?}");
            let counts: Vec<usize> = (net_cores..cores).map(|core| of(core).count()).collect();
            let [least, most] = [counts.iter().min(), counts.iter().max()];
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{counts:?}");
        }
    }

    #[test]
    fn as_many_engines_as_cores_have_the_core_of_their_number() {
        let homes = Homes::new(4, 4, 0);
        assert!(homes.all().all(|engine| homes.core_of(engine).0 == engine.0));
    }
}
