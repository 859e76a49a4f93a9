//! The first line of a frame: whether the server is well, in a sentence.
//!
//! Upstream:   `frame`.
//! Downstream: the readings and rates of `view`.
//!
//! Only the worst fault that the statistics show is told. The thresholds are those of the live page
//! and of the alert rules.

use kachel_observe::{
    CONNECTIONS_NEAR, EVICTED_AGE_MIN_S, EVICTIONS_MIN, MISSES_MANY, Severity, THREADS_BUSY,
    shown_count, shown_percent, shown_rate, shown_time,
};

use crate::reading::{Counts, Reading};
use crate::view::{Standing, View};

/// Fewer reads a second tell nothing about their hits.
const GETS_MIN: f64 = 10.0;

/// A sentence about a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) sentence: String,
}

/// The finding about a server.
pub(crate) fn finding(view: &View) -> Finding {
    let told = |severity, sentence| Finding { severity, sentence };
    let reading = match view.standing() {
        Standing::Unknown => return told(Severity::Note, "Waiting for the first answer.".into()),
        Standing::Waits(seconds) => {
            let time = shown_time(seconds);
            let figures = match view.last() {
                None => "the server is slow, or its name is not found",
                Some(_) => "the figures are from before",
            };
            return told(
                Severity::Problem,
                format!("Waiting for an answer for {time}: {figures}."),
            );
        }
        Standing::Silent(seconds, why) => {
            let time = shown_time(seconds);
            return told(Severity::Problem, format!("No answer for {time}: {why}."));
        }
        Standing::Answers(reading) => reading,
    };
    if let Some(sentence) = state_fault(reading) {
        return told(Severity::Problem, sentence);
    }
    if view.is_restarted() {
        let time = shown_time(reading.uptime_s);
        let sentence = format!("The server was restarted {time} ago; rates begin anew.");
        return told(Severity::Warning, sentence);
    }
    let Some(rates) = &view.rates else {
        return told(
            Severity::Good,
            "The server answers; rates follow with the next answer.".into(),
        );
    };
    if let Some((severity, sentence)) = rate_fault(reading, rates) {
        return told(severity, sentence);
    }
    if rates.requests < 1.0 {
        return told(Severity::Good, "Well: the server is idle.".into());
    }
    let requests = shown_rate(rates.requests);
    told(Severity::Good, format!("Well: {requests} requests/s, nothing is refused."))
}

/// What is wrong with the state of a server.
fn state_fault(reading: &Reading) -> Option<String> {
    if reading.stopped_shards > 0.0 {
        let count = shown_count(reading.stopped_shards);
        let shards = if count == "1" { "shard has" } else { "shards have" };
        let sentence = "not answered for a second: look at the log of the server.";
        return Some(format!("{count} {shards} {sentence}"));
    }
    if !reading.is_ready {
        return Some("The server is not ready for clients: it drains.".into());
    }
    let most = reading.connections_max.filter(|most| *most > 0.0)?;
    (reading.connections / most > CONNECTIONS_NEAR).then(|| {
        let (open, most) = (shown_count(reading.connections), shown_count(most));
        format!("{open} of {most} connections are open: raise -c, or close some.")
    })
}

/// What is wrong with what a server did in the last second.
fn rate_fault(reading: &Reading, rates: &Counts) -> Option<(Severity, String)> {
    if rates.refused_clients > 0.0 {
        let sentence = "Clients are refused at the limit of connections: raise -c.";
        return Some((Severity::Problem, sentence.into()));
    }
    if rates.refused_stores > 0.0 {
        let refused = shown_rate(rates.refused_stores);
        let sentence = format!("{refused} stores/s are refused for lack of memory: raise -m.");
        return Some((Severity::Problem, sentence));
    }
    let age_s = reading.evicted_age_s(rates).filter(|_| rates.evictions >= EVICTIONS_MIN);
    if let Some(age_s) = age_s.filter(|age_s| *age_s < EVICTED_AGE_MIN_S) {
        let age = shown_time(age_s);
        let sentence = format!("Evicting items that were used {age} ago: too little memory (-m).");
        return Some((Severity::Warning, sentence));
    }
    let busy = reading.threads.map_or(0.0, |threads| (rates.user_s + rates.system_s) / threads);
    if busy > THREADS_BUSY {
        let busy = shown_percent(busy);
        let sentence = format!("The threads use {busy} of their cores: raise -t, add servers.");
        return Some((Severity::Warning, sentence));
    }
    let missed = rates.misses / rates.gets();
    (rates.gets() >= GETS_MIN && missed > MISSES_MANY).then(|| {
        let missed = shown_percent(missed);
        (Severity::Warning, format!("{missed} of the reads miss: were these keys ever stored?"))
    })
}
