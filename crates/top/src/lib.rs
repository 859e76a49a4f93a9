//! `kachel top`: the state of a server in a terminal, once a second.
//!
//! Upstream:   `kachel` passes the arguments.
//! Downstream: any server that answers `stats`, also a memcached, or that has an admin address.
//!
//! ```text
//! asker (a thread) --> numbers --> reading --> view --> frame --> screen
//!   server's answer     by name     typed      rates    lines     terminal
//! ```
//!
//! Reading order: `arguments`, `numbers`, `asker`, `reading`, `view`, `findings`, `frame`,
//! `screen`, `run`.
//!
//! Invariants:
//! - T1  Nothing that a server sends reaches the terminal, except numbers that were parsed, and
//!   words of printable ASCII ([`kachel_stdx::printable`]).
//! - T2  An answer has limits: [`ANSWER_BYTES_MAX`](numbers::ANSWER_BYTES_MAX) bytes, and
//!   [`ASK_TIME_MAX`](asker::ASK_TIME_MAX).
//! - T3  A frame has no line longer than the terminal is wide, and not more lines than it has.
//! - T4  A server is only asked. No request of this crate changes it.

#![forbid(unsafe_code)]

mod arguments;
mod asker;
mod findings;
mod frame;
mod numbers;
mod reading;
mod run;
mod screen;
#[cfg(test)]
mod tests;
mod view;

pub use run::top;
