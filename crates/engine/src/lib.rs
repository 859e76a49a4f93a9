//! The contract of every engine: an [`Operation`] goes in, an [`Outcome`] comes out.
//!
//! Upstream:   `wire` makes operations of requests for `shard`; an embedding program makes its own.
//! Downstream: an engine (`cache`), through its [`Primitives`]; `wire` formats outcomes.
//!
//! ```text
//! Operation --> find --> decide (pure) --> Change: none, mark, put or remove --> Outcome
//!               ^ engine                   ^ engine applies it
//! ```
//!
//! The meaning of each verb is defined once, in `verb`, as a pure function of the operation, the
//! item that was found, and the time. An engine supplies only primitives: find an item, apply a
//! change, pin a value.
//!
//! Invariants:
//! - I1  An operation applies at most one change.
//! - I2  A decision depends on its arguments alone. So it may also run on a core that only reads.
//!   That core can answer if the change is [`Change::None`].
//! - I3  This crate knows neither a protocol nor the internals of an engine.

#![forbid(unsafe_code)]

mod apply;
mod change;
mod contract;
mod copies;
mod extensions;
mod guesses;
mod heap;
mod item;
mod kept;
mod key;
mod last_dead;
mod miss_model;
mod opening;
mod operation;
mod options;
mod outcome;
mod report;
mod stats;
mod time;
mod unchanged;
mod verb;
mod walk;

#[cfg(test)]
mod tests;

pub use apply::{Primitives, apply, get};
pub use change::{Change, Decision, Mark, NoRoom, NotYet, Put, PutValue, Refused, Side};
pub use contract::{
    Answer, Common, Durability, Engine, FlushFailed, INLINE_VALUE_BYTES_MAX, PrefixRefused,
    ReadAnswer, ReadBeside, ReadValue, ReceiveValue,
};
pub use copies::{Changes, CopiedItem, Copies, CopyReads, FlushStamp};
pub use extensions::{BATCH_MAX, Evicted, Extensions, Lookup, Room};
pub use guesses::ReadGuesses;
pub use heap::{
    HeapCommon, HeapEntry, HeapItem, HeapMap, HeapPinned, HeapUpload, HeapValue, NoReader,
    bytes_of_put,
};
pub use item::{Facts, ItemView, Wanted};
pub use kachel_stdx::{DurableWord, Sequence};
pub use kept::{
    FLUSH_BYTES_MAX, FLUSH_FILE, FileReports, FlushesRefused, KeptFlushes, KeptPrefix, KeptSeconds,
    RESERVED_TOKENS, StartFound, StartReport, Tokens, WaitingPrefixes, engine_folder,
    is_engine_folder,
};
pub use key::{EngineIndex, KEY_BYTES_MAX, Key, KeyHasher, KeyHashes, PARTITIONS, Seeds};
pub use last_dead::{DeadFound, LastDead};
pub use miss_model::{
    MISS_MODEL_BYTES_MAX, MODEL_ACTUAL, MODEL_QUARTERS, MODEL_SIZES, MissModel, MissSums,
    ModelMemory, SampledEvent, SampledRequest,
};
pub use opening::{OpenEngines, Opening};
pub use operation::{
    ArithmeticTerms, Block, DeleteTerms, Direction, GetTerms, LifeStep, LifeTerms, Needed,
    Operation, StoreMode, StoreTerms, Ticket, ValueWanted, Verb,
};
pub use options::{EngineOptions, LeaseOptions};
pub use outcome::{Inspection, Outcome, Value, Verdict};
pub use report::FileReport;
pub use stats::{ClassStats, EngineStats};
pub use time::{ClockOrigin, Now, Ttl};
pub use unchanged::get_unchanged;
pub use verb::{NO_TOKEN_MAX, NUMBER_BYTES_MAX, decide, decimal_digits};
pub use walk::{CrawlStep, Cursor, ScanCursor, WalkNext, WalkStep};
