//! The thresholds from which something counts as wrong, wherever it is judged.
//!
//! Upstream:   the findings of the live page and of `kachel top`; a test compares the expressions
//!             of the alert rules.
//! Downstream: nothing; these are numbers.
//!
//! All of them are guesses. An operator may change those of the alert rules.

/// Items that were used this recently should not be evicted, in seconds. TTLs of caches are minutes
/// to days, so memory that holds five minutes of use is small for nearly every load.
pub const EVICTED_AGE_MIN_S: f64 = 300.0;
/// Evictions a second below which their age tells nothing about the load.
pub const EVICTIONS_MIN: f64 = 1.0;
/// The part of `-c` from which the limit is near.
pub const CONNECTIONS_NEAR: f64 = 0.95;
/// The part of the gets from which misses are many.
pub const MISSES_MANY: f64 = 0.5;
/// The part of the processor time of all threads from which they are busy.
pub const THREADS_BUSY: f64 = 0.9;
/// The part of memory that replies under way to clients may take. Clients that read fast also have
/// some under way at any time.
pub const UNREAD_PART: f64 = 0.1;
/// The part of all reads, or of all writes, from which one key is hot. Fewer do not move the load
/// of a core much.
pub const HOT_SHARE: f64 = 0.2;
/// Requests of a key in a second from which a hot key is a warning. A core serves hundreds of
/// thousands, of which a key that changes has one core.
pub const HOT_WARNING: f64 = 10_000.0;
/// Days before the end of a certificate from which it is reported.
pub const CERTIFICATE_NEAR_DAYS: u64 = 14;
/// The part of the slots of the pipe from which it is full.
pub const PIPE_FULL: f64 = 0.98;
