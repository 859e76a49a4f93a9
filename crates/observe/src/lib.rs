//! Counters, samples, listings and the log of a server. Nothing here decides how a request is
//! served.
//!
//! Upstream:   each stage of `shard` counts and notes here while it serves requests.
//! Downstream: `stats`, `/metrics`, the live page, and the clients that watch the log.
//!
//! Invariants:
//! - I1  A counter has one writer, so an addition is a plain load and store. Any thread may read
//!   it at any time, without a lock.
//! - I2  The log, the counts by prefix and the observers cost a request at most a load until a
//!   client asks for them.

#![forbid(unsafe_code)]

mod history;
mod thresholds;
mod figures;
mod metrics;
mod rows;
mod log;
mod prefixes;
mod hot_metrics;
mod prefix_metrics;
mod observers;
mod watchers;
mod census;
mod class_sums;
mod class_metrics;
mod totals;
mod counters;
mod engine_counters;
mod histogram;
mod by_class;
mod sizes;

pub use by_class::{
    ByClass, CLASSED_PER_TICK_MAX, ClassCounters, Found, ItemBefore, look_before, tells_no_lengths,
};
pub use census::{
    CENSUS_BYTES_MAX, Census, Group, Grouping, NOTE_BYTES, SIZE_STEPS_MAX, take_note,
};
pub use class_metrics::{ClassNumbers, REQUEST_KINDS, class_metrics};
pub use class_sums::ClassSums;
pub use counters::{Counters, TICK_UNIT_NS, WAIT_UNIT_NS};
pub use engine_counters::EngineCounters;
pub use figures::{shown_bytes, shown_count, shown_percent, shown_rate, shown_time};
pub use histogram::{Histogram, HistogramSum};
pub use history::{
    Circumstances, CoreReading, CoreSample, Gauges, HOT_KEYS_MAX, HealthFinding, Newest,
    PREFIXES_SHOWN_MAX, PipeReading, Reading, SAMPLES_MAX, Sample, SampleHistory, ServePhase,
    Severity, Tally, findings, write_history, write_now,
};
pub use hot_metrics::hot_key_metrics;
pub use kachel_wire::ObserverSet;
pub use log::Log;
pub use metrics::{Metrics, process_metrics, series_of_rows};
pub use observers::{
    CURVE_BYTES_PER_ENGINE, CURVE_ERROR_MAX, CURVE_KEYS_MIN, CURVE_SAMPLES_MIN, CurvePoint,
    CurveState, DRAWN_EVERY, HOT_KEYS_BYTES_PER_CORE, HOTTEST_MAX, HotKey, HotLists, HotRate,
    HottestKeys, MakeMissModel, MissCurve, Moment, NAMED_PREFIXES_MAX, Noted, NotedAccess, Noting,
    ObservedPrefix, ObservedPrefixes, Observers, PREFIXES_BYTES_PER_CORE,
    PREFIXES_BYTES_PER_ENGINE, PREFIXES_MAX, PREFIXES_NOTE_EVERY, Picked, PrefixErrors,
    PrefixNames, PrefixNumbers, PrefixTable, SampleGate,
};
pub use prefix_metrics::prefix_metrics;
pub use prefixes::{PrefixCounts, PrefixWindow, Prefixes, WINDOW_BYTES_MAX};
pub use rows::classes::{
    CLASS_ROW_BYTES_MAX, Classes, PIECE_ROWS_MAX, SIZE_STEP_BYTES, sampled_requests, sizes,
};
pub use rows::engines::engine_rows;
pub use rows::general::general;
pub use rows::others::{PipeNumbers, TlsNumbers, log_rows, pipe_rows, tls_rows};
pub use rows::own::own;
pub use rows::{Kind, ProcessFacts, Row, RowValue, Unit};
pub use sizes::Sizes;
pub use thresholds::{
    CERTIFICATE_NEAR_DAYS, CONNECTIONS_NEAR, EVICTED_AGE_MIN_S, EVICTIONS_MIN, HOT_SHARE,
    HOT_WARNING, MISSES_MANY, PIPE_FULL, THREADS_BUSY, UNREAD_PART,
};
pub use totals::Totals;
pub use watchers::{Lines, TooManyWatchers, WatcherId, Watchers};
