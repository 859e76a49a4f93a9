//! The answer to `stats mrc`: the miss-ratio curve, and its advice.
//!
//! Upstream:   `topics`.
//! Downstream: the observers of the process.
//!
//! ```text
//! STAT mrc on
//! STAT state reliable
//! STAT memory:0.50:bytes 33554432            for 0.25, 0.50, 1.00, 2.00 and 4.00 times the memory
//! STAT memory:0.50:miss_percent 6.30
//! STAT advice With twice the memory 3.1 % of gets would miss instead of 5.4 %. ...
//! ```
//!
//! Invariants:
//! - M1  While the curve is not reliable, an answer has only the point of the actual memory, which
//!   the server has counted itself.

use kachel_engine::{Engine, MODEL_ACTUAL, MODEL_QUARTERS};
use kachel_observe::{CurveState, MissCurve};
use kachel_wire::Reply;

use crate::stats::topics::Answering;

impl<E: Engine> Answering<'_, E> {
    /// Sends the miss-ratio curve.
    pub(crate) fn miss_curve(&mut self) {
        match self.context.shared.miss_curve() {
            None => self.stat("mrc", b"off"),
            Some(curve) => {
                self.stat("mrc", b"on");
                let stats = curve_stats(&curve);
                stats.iter().for_each(|(name, value)| self.stat(name, value.as_bytes()));
            }
        }
        self.reply(Reply::End);
    }
}

fn curve_stats(curve: &MissCurve) -> Vec<(String, String)> {
    let percent = |part: f64| format!("{:.2}", part * 100.0);
    let MissCurve { state, points, hopeless_ratio, error, samples, keys, rate } = curve;
    let mut stats = vec![("state".to_owned(), state.word().to_owned())];
    let is_shown = |quarters| {
        *state == CurveState::Reliable || quarters == MODEL_QUARTERS[MODEL_ACTUAL] // M1
    };
    for point in points.iter().filter(|point| is_shown(point.quarters)) {
        let name = format!("memory:{:.2}", f64::from(point.quarters) / 4.0);
        stats.push((format!("{name}:bytes"), point.memory_bytes.to_string()));
        stats.push((format!("{name}:miss_percent"), percent(point.miss_ratio)));
    }
    debug_assert!(stats.len() > 1, "M1: the actual memory has a point");
    for (name, value) in [
        ("never_stored_percent", percent(*hopeless_ratio)),
        ("model_error_percent", percent(*error)),
        ("sampled_reads", samples.to_string()),
        ("sampled_keys", keys.to_string()),
        ("sampled_part", format!("{rate:.6}")),
        ("advice", curve.advice()),
    ] {
        stats.push((name.to_owned(), value));
    }
    stats
}
