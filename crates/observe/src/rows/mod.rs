//! Statistics as rows of data: each has a name, a value, a kind and a unit, and is made once.
//!
//! Upstream:   [`Totals`] and [`ProcessFacts`], on any thread.
//! Downstream: sinks, which write the rows as text, in the binary protocol, or as metrics.
//!
//! The tables of rows are in `general` (`stats`), `own` (`stats kachel`) and `classes` (`stats
//! items`, `slabs` and `sizes`). `engines` has the rows of `stats engine`. `others` has those of
//! TLS and of the pipe. A row that is added to a table appears in every sink.

use std::fmt;

use kachel_stdx::Counter;

use crate::counters::Counters;
use crate::engine_counters::EngineCounters;
use crate::totals::Totals;

pub(crate) mod classes;
pub(crate) mod engines;
pub(crate) mod general;
pub(crate) mod others;
pub(crate) mod own;

/// One statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The name, as `stats` shows it.
    pub name: &'a str,
    /// The value.
    pub value: RowValue<'a>,
    /// What the value tells.
    pub kind: Kind,
    /// The unit of the value.
    pub unit: Unit,
    /// A sentence for operators. Empty if the name is memcached's and Kachel has nothing that it
    /// counts.
    pub help: &'static str,
}

/// The value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowValue<'a> {
    /// A number.
    Number(u64),
    /// Microseconds, which are shown as seconds with six decimals.
    Micros(u64),
    /// Words, such as a version.
    Text(&'a str),
}

impl fmt::Display for RowValue<'_> {
    /// The value as `stats` shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Micros(us) => write!(f, "{}.{:06}", us / 1_000_000, us % 1_000_000),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// What a value tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// How often something has happened. It never falls, except at `stats reset` or a restart.
    Counter,
    /// How much of something there is now.
    Gauge,
    /// A fact about the server that never changes, or that is no number.
    Info,
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count of things.
    One,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Microseconds.
    Micros,
}

/// The facts about a process that its counters do not tell, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessFacts<'a> {
    /// The process ID.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u32,
    /// The Unix time in seconds.
    pub unix_s: u64,
    /// The memcached version that clients see.
    pub version: &'a str,
    /// Kachel's own version.
    pub own_version: &'a str,
    /// The kind of the I/O backends.
    pub io_kind: &'a str,
    /// Processor time in user mode, in microseconds.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_us: u64,
    /// Connections open at once, at most (`-c`).
    pub connections_max: u32,
    /// Connections open now.
    pub connections: u32,
    /// The memory budget (`-m`) in bytes.
    pub limit_bytes: u64,
    /// Bytes of the budget that are spent.
    pub spent_bytes: u64,
    /// Bytes of values that are being sent, and so stay in memory.
    pub pinned_bytes: u64,
    /// Prefixes whose flush is not over.
    pub flushed_prefixes: u64,
    /// Whether the process accepts connections.
    pub is_accepting: bool,
    /// Shards, each of which is a thread.
    pub threads: u16,
    /// How many cores serve clients now.
    pub awake_cores: u16,
    /// How often clients were spread over more cores.
    pub spreads: u64,
    /// How often clients were gathered on fewer cores.
    pub gathers: u64,
    /// How often another number of cores was tried.
    pub core_trials: u64,
}

/// How the value of a statistic is found.
#[derive(Clone, Copy)]
enum Of {
    /// The sum of a counter over all cores.
    Sum(fn(&Counters) -> &Counter),
    /// The sum of a counter over all engines.
    Engines(fn(&EngineCounters) -> &Counter),
    /// The sum of two counters of cores, of which a request counts in one.
    Both(fn(&Counters) -> &Counter, fn(&Counters) -> &Counter),
    /// The greatest value of a gauge over all cores.
    Max(fn(&Counters) -> &Counter),
    /// A number that is computed of several counters.
    Computed(fn(&Totals) -> u64),
    /// A fact.
    Fact(for<'f> fn(&'f ProcessFacts<'_>) -> RowValue<'f>),
    /// Always 0, because Kachel has nothing that the name counts.
    Zero,
}

/// A statistic of a table.
pub(crate) struct Stat {
    pub(crate) name: &'static str,
    of: Of,
    pub(crate) kind: Kind,
    pub(crate) unit: Unit,
    pub(crate) help: &'static str,
}

const fn counter(name: &'static str, of: Of, help: &'static str) -> Stat {
    Stat { name, of, kind: Kind::Counter, unit: Unit::One, help }
}

const fn gauge(name: &'static str, of: Of, help: &'static str) -> Stat {
    Stat { name, of, kind: Kind::Gauge, unit: Unit::One, help }
}

const fn info(name: &'static str, of: Of, help: &'static str) -> Stat {
    Stat { name, of, kind: Kind::Info, unit: Unit::One, help }
}

/// A name of memcached for something that Kachel does not have.
const fn zero(name: &'static str) -> Stat {
    Stat { name, of: Of::Zero, kind: Kind::Gauge, unit: Unit::One, help: "" }
}

impl Stat {
    const fn bytes(self) -> Self {
        Self { unit: Unit::Bytes, ..self }
    }

    const fn seconds(self) -> Self {
        Self { unit: Unit::Seconds, ..self }
    }

    const fn micros(self) -> Self {
        Self { unit: Unit::Micros, ..self }
    }

    fn row<'a>(&self, totals: &Totals, facts: &'a ProcessFacts<'_>) -> Row<'a> {
        let value = match self.of {
            Of::Sum(counter) => RowValue::Number(totals.sum(counter)),
            Of::Engines(counter) => RowValue::Number(totals.sum_of_engines(counter)),
            Of::Both(one, other) => RowValue::Number(totals.sum(one) + totals.sum(other)),
            Of::Max(gauge) => RowValue::Number(totals.max(gauge)),
            Of::Computed(number) => RowValue::Number(number(totals)),
            Of::Fact(fact) => fact(facts),
            Of::Zero => RowValue::Number(0),
        };
        let &Self { name, kind, unit, help, .. } = self;
        Row { name, value, kind, unit, help }
    }
}

/// Gives the rows of a table to `sink`.
fn each(table: &[Stat], totals: &Totals, facts: &ProcessFacts<'_>, sink: &mut dyn FnMut(&Row<'_>)) {
    debug_assert!(!table.is_empty(), "rows of a table");
    for stat in table {
        sink(&stat.row(totals, facts));
    }
}

impl<'a> Row<'a> {
    /// A row that another part of the process counts.
    pub const fn counter(name: &'a str, number: u64, help: &'static str) -> Self {
        Self { name, value: RowValue::Number(number), kind: Kind::Counter, unit: Unit::One, help }
    }

    /// A row of how much there is now of something that another part of the process has.
    pub const fn gauge(name: &'a str, number: u64, unit: Unit, help: &'static str) -> Self {
        Self { name, value: RowValue::Number(number), kind: Kind::Gauge, unit, help }
    }
}
