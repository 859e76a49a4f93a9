//! Why the judge rejected a history, as a report for a person.
//!
//! Upstream:   `judge`.
//! Downstream: the reader of a failed test.

use std::fmt;

use crate::{Entry, NEVER, State, Stats, Value};

/// Why a history was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// No order of the operations explains the replies for a key.
    Contradiction(Box<Contradiction>),
    /// The search was given up for some keys, and nothing is known about them. All other keys are
    /// correct.
    TooLarge {
        /// The first key that was given up.
        key: Vec<u8>,
        /// How much was judged, and how much was given up.
        stats: Stats,
    },
}

/// The shortest beginning of a key's history that no order explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The key.
    pub key: Vec<u8>,
    /// The entries of the key, sorted by invocation time.
    pub prefix: Vec<Entry>,
    /// The longest order that was found, as indexes into `prefix`.
    pub order: Vec<usize>,
    /// The states in which the key may be after `order`.
    pub states: Vec<State>,
}

/// A report shows at least this many of the last entries, and at most twice as many.
const SHOWN_MAX: usize = 40;

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contradiction(contradiction) => contradiction.fmt(formatter),
            Self::TooLarge { key, stats } => {
                let (key, keys) = (key.escape_ascii(), stats.keys_given_up);
                write!(formatter, "gave up on {keys} keys, including {key}: no verdict")
            }
        }
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, count) = (self.key.escape_ascii(), self.prefix.len());
        writeln!(
            formatter,
            "key {key}: no order of these {count} operations explains the replies."
        )?;
        let left: Vec<usize> = (0..count).filter(|index| !self.order.contains(index)).collect();
        // Only the end of a long prefix is of interest, because no shorter one is contradictory.
        let first = left.first().copied().unwrap_or(count).min(count.saturating_sub(SHOWN_MAX));
        let first = first.max(count.saturating_sub(2 * SHOWN_MAX));
        if first > 0 {
            writeln!(formatter, "  (the first {first} are not shown)")?;
        }
        writeln!(formatter, "  place client invoked..returned")?;
        for (index, entry) in self.prefix.iter().enumerate().skip(first) {
            let place = self.order.iter().position(|placed| *placed == index);
            let place = place.map_or_else(|| "-".to_owned(), |place| (place + 1).to_string());
            writeln!(formatter, "  {place:>5} {}", Line(entry))?;
        }
        let placed = self.order.len();
        writeln!(
            formatter,
            "The longest order places {placed} operations and leaves the key in one of the states"
        )?;
        for state in &self.states {
            writeln!(formatter, "  {}", Shown(state))?;
        }
        write!(formatter, "and no operation without a place (-) could come next.")
    }
}

/// One entry, as one line of the report.
struct Line<'e>(&'e Entry);

impl fmt::Display for Line<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { client, operation, outcome, invoked, returned, window } = self.0;
        write!(formatter, "{client:>6} {invoked}..")?;
        if *returned != NEVER {
            write!(formatter, "{returned}")?;
        }
        write!(formatter, " {operation:?} -> {outcome:?}")?;
        write!(formatter, " in second {}", window.earliest_s)?;
        match window.latest_s {
            u32::MAX => write!(formatter, " or later"),
            latest if latest > window.earliest_s => write!(formatter, "..{latest}"),
            _ => Ok(()),
        }
    }
}

/// A state, as one line of the report.
struct Shown<'s>(&'s State);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { item, remnant, token_floor, flush } = self.0;
        match item {
            None => write!(formatter, "absent")?,
            Some(item) => {
                let value = Value::clone(&item.value);
                write!(formatter, "{value:?}, client flags {}", item.client_flags)?;
                match item.token {
                    Some(token) => write!(formatter, ", token {token}")?,
                    None => write!(formatter, ", token above {token_floor}")?,
                }
                if let Some(expiry) = item.expiry {
                    write!(formatter, ", expires in second {}..{}", expiry.first, expiry.last)?;
                }
                if item.stale {
                    write!(formatter, ", stale")?;
                }
                if item.win_sent {
                    write!(formatter, ", win sent")?;
                }
                if item.base64_key {
                    write!(formatter, ", key in base64")?;
                }
            }
        }
        if let Some(remnant) = remnant {
            write!(formatter, "; for leases {:?}", remnant.value)?;
            match remnant.token {
                Some(token) => write!(formatter, ", token {token}")?,
                None if remnant.win_sent => write!(formatter, ", its token is invalid")?,
                None => write!(formatter, ", no token")?,
            }
            let (first, last) = (remnant.expiry.first, remnant.expiry.last);
            write!(formatter, ", until second {first}..{last}")?;
        }
        if let Some(due) = flush {
            write!(formatter, "; a flush is due in second {}..{}", due.first, due.last)?;
        }
        Ok(())
    }
}
