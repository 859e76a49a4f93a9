//! The first line of a frame: whether the server is well, in a sentence.
//!
//! Upstream:   `frame`.
//! Downstream: the readings and rates of `view`.
//!
//! Only the worst fault that the statistics show is told. The limits are guesses. The alert rules
//! in `packaging/prometheus/` have the same limits for evictions, connections and processor time.

use crate::reading::{Counts, Reading};
use crate::units::{shown_percent, shown_rate, shown_time, whole};
use crate::view::{Standing, View};

/// Items that are evicted earlier than this after their last use were still wanted.
const EVICTED_AGE_MIN_S: f64 = 300.0;
/// Fewer evictions a second tell nothing.
const EVICTIONS_MIN: f64 = 1.0;
/// The part of the connections that is nearly all.
const NEARLY_ALL: f64 = 0.95;
/// The part of the processor time of all threads that is nearly all.
const BUSY: f64 = 0.9;
/// Fewer reads a second tell nothing about their hits.
const GETS_MIN: f64 = 10.0;
const MISSES_MANY: f64 = 0.5;

/// A sentence about a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) grade: Grade,
    pub(crate) sentence: String,
}

/// How a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grade {
    Well,
    /// Something should be looked at.
    Notable,
    /// Clients notice it.
    Bad,
}

/// The finding about a server.
pub(crate) fn finding(view: &View) -> Finding {
    let told = |grade, sentence| Finding { grade, sentence };
    let reading = match view.standing() {
        Standing::Unknown => return told(Grade::Notable, "Waiting for the first answer.".into()),
        Standing::Waits(seconds) => {
            let time = shown_time(seconds);
            let figures = match view.last() {
                None => "the server is slow, or its name is not found",
                Some(_) => "the figures are from before",
            };
            return told(Grade::Bad, format!("Waiting for an answer for {time}: {figures}."));
        }
        Standing::Silent(seconds, why) => {
            let time = shown_time(seconds);
            return told(Grade::Bad, format!("No answer for {time}: {why}."));
        }
        Standing::Answers(reading) => reading,
    };
    if let Some(sentence) = state_fault(reading) {
        return told(Grade::Bad, sentence);
    }
    if view.is_restarted() {
        let time = shown_time(reading.uptime_s);
        let sentence = format!("The server was restarted {time} ago; rates begin anew.");
        return told(Grade::Notable, sentence);
    }
    let Some(rates) = &view.rates else {
        return told(Grade::Well, "The server answers; rates follow with the next answer.".into());
    };
    if let Some((grade, sentence)) = rate_fault(reading, rates) {
        return told(grade, sentence);
    }
    if rates.requests < 1.0 {
        return told(Grade::Well, "Well: the server is idle.".into());
    }
    let requests = shown_rate(rates.requests);
    told(Grade::Well, format!("Well: {requests} requests/s, nothing is refused."))
}

/// What is wrong with the state of a server.
fn state_fault(reading: &Reading) -> Option<String> {
    if reading.stopped_shards > 0.0 {
        let count = whole(reading.stopped_shards);
        let threads = if count == "1" { "thread stands" } else { "threads stand" };
        return Some(format!("{count} {threads} still: look at the log of the server."));
    }
    if !reading.is_ready {
        return Some("The server is not ready for clients: it drains.".into());
    }
    let most = reading.connections_max.filter(|most| *most > 0.0)?;
    (reading.connections / most > NEARLY_ALL).then(|| {
        let (open, most) = (whole(reading.connections), whole(most));
        format!("{open} of {most} connections are open: raise -c, or close some.")
    })
}

/// What is wrong with what a server did in the last second.
fn rate_fault(reading: &Reading, rates: &Counts) -> Option<(Grade, String)> {
    if rates.refused_clients > 0.0 {
        let sentence = "Clients are refused at the limit of connections: raise -c.";
        return Some((Grade::Bad, sentence.into()));
    }
    if rates.refused_stores > 0.0 {
        let refused = shown_rate(rates.refused_stores);
        let sentence = format!("{refused} stores/s are refused for lack of memory: raise -m.");
        return Some((Grade::Bad, sentence));
    }
    let age_s = reading.evicted_age_s(rates).filter(|_| rates.evictions >= EVICTIONS_MIN);
    if let Some(age_s) = age_s.filter(|age_s| *age_s < EVICTED_AGE_MIN_S) {
        let age = shown_time(age_s);
        let sentence = format!("Evicting items that were used {age} ago: too little memory (-m).");
        return Some((Grade::Notable, sentence));
    }
    let busy = reading.threads.map_or(0.0, |threads| (rates.user_s + rates.system_s) / threads);
    if busy > BUSY {
        let busy = shown_percent(busy);
        let sentence = format!("The threads use {busy} of their cores: raise -t, add servers.");
        return Some((Grade::Notable, sentence));
    }
    let missed = rates.misses / rates.gets();
    (rates.gets() >= GETS_MIN && missed > MISSES_MANY).then(|| {
        let missed = shown_percent(missed);
        (Grade::Notable, format!("{missed} of the reads miss: were these keys ever stored?"))
    })
}
