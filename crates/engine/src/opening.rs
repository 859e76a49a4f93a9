//! Opens all engines of a process.
//!
//! Upstream:   the server, the worlds of `testkit` and the simulation, which know no kind of
//! engine.
//! Downstream: the crate of an engine, which knows how its engines are made and what they share.

use std::io;
use std::sync::Arc;

use kachel_host::Budget;

use crate::contract::Engine;
use crate::key::KeyHasher;
use crate::options::EngineOptions;
use crate::time::Now;

/// What every kind of engine needs to be opened.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The number of engines.
    pub engines: u16,
    /// The number of cores that use the engines. Each of them reads items of all engines.
    pub cores: u16,
    /// The hasher of the process's keys.
    pub hasher: KeyHasher,
    /// How the engines behave.
    pub options: EngineOptions,
    /// The memory of the process, to which the engines charge theirs.
    pub budget: Arc<Budget>,
    /// The highest limit, in bytes, that the budget may get later.
    pub budget_bytes_max: u64,
    /// Address space, in bytes, that the rest of the process needs. An engine that reserves address
    /// space in several pieces first checks that all pieces and these bytes are free together.
    /// Otherwise a small allocation after one of the pieces could fail and end the process.
    pub process_bytes: u64,
    /// The time at which the process starts. By it an engine that keeps Unix times over a restart
    /// converts them.
    pub start: Now,
}

/// Opens all engines of a process. It is no part of [`Engine`], because what the engines of one
/// process share is made before the first of them.
pub trait OpenEngines {
    /// The kind of the engines.
    type Engine: Engine;

    /// The smallest budget, in bytes, with which each of `engines` engines has room for an item.
    fn budget_bytes_min(engines: u16) -> u64;

    /// Opens the engines, in the order of their numbers.
    ///
    /// Errors: memory, or a file, cannot be had.
    fn open(&self, opening: &Opening) -> io::Result<Vec<Self::Engine>>;
}
