//! Finds out whether a run fails: by an error, by a panic, or because a second run differs. Reduces
//! a failing run to a smaller one that still fails.
//!
//! Upstream:   `main`, tests.
//! Downstream: `run`.
//!
//! Invariants:
//! - I1  A failure contains the options that reproduce it.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::options::{Fault, Options};
use crate::report::Report;
use crate::run::run;

/// The most runs in the search for a smaller failure.
const SHRINK_RUNS_MAX: u32 = 60;

/// A failed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The options of the run (I1).
    pub options: Options,
    /// A description of what went wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}\n  reproduce with: {}", self.what, self.options.command())
    }
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the message of each panic for the [`Failure`], instead of printing it.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|panic| {
        PANIC.with_borrow_mut(|kept| *kept = Some(panic.to_string()));
    }));
}

/// Runs the simulation with `options`; if `twice`, runs it again and compares the reports.
///
/// Errors: the run failed, or the reports differ.
pub fn examine(options: &Options, twice: bool) -> Result<Report, Failure> {
    let failure = |what| Failure { options: *options, what };
    let first = caught(options).map_err(failure)?;
    if twice {
        let second = caught(options).map_err(failure)?;
        if first != second {
            let what = format!("two runs differ: {first:?}\nand: {second:?}");
            return Err(failure(what));
        }
    }
    Ok(first)
}

fn caught(options: &Options) -> Result<Report, String> {
    match catch_unwind(AssertUnwindSafe(|| run(options))) {
        Ok(ended) => ended,
        Err(panic) => {
            let kept = PANIC.with_borrow_mut(Option::take);
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Err(kept.or(text).unwrap_or_else(|| "a panic without a message".to_owned()))
        }
    }
}

/// Reduces a failing run while it still fails: fewer requests, clients and kinds of fault.
pub fn shrink(failure: &Failure) -> Failure {
    let mut least = failure.clone();
    let mut runs_left = SHRINK_RUNS_MAX;
    loop {
        let before = least.options;
        for smaller in smaller(&before) {
            if runs_left == 0 {
                return least;
            }
            runs_left -= 1;
            if let Err(failure) = examine(&smaller, false) {
                least = failure;
                break;
            }
        }
        if least.options == before {
            return least;
        }
    }
}

fn smaller(options: &Options) -> Vec<Options> {
    let mut all = Vec::new();
    for part in [2, 4] {
        let requests = options.requests - options.requests / part;
        if requests < options.requests && requests >= 10 {
            all.push(Options { requests, ..*options });
        }
    }
    for clients in [options.clients / 2, options.clients - 1] {
        if clients > 0 && clients < options.clients {
            all.push(Options { clients, ..*options });
        }
    }
    for (fault, _) in Fault::ALL {
        if options.faults.has(fault) {
            all.push(Options { faults: options.faults.without(fault), ..*options });
        }
    }
    all
}
