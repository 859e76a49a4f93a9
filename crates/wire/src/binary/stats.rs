//! The topics of `STAT`.
//!
//! Upstream:   `Admin::Stats` of a binary request contains its key.
//! Downstream: `shard` answers each topic.
//!
//! Source: the replies of 1.6.45. `reset`, `settings` and `detail` count also with more text behind
//! them; topics that only the text protocol has are unknown. `kachel`, `pipe`, `hotkeys`,
//! `mrc` and `prefixes` are Kachel's own.

use crate::text::stats::{DetailTopic, StatsTopic, hot_keys, prefixes};

/// Reads the topic of `STAT`: the key of the request.
///
/// ```
/// use kachel_wire::{StatsTopic, binary_stats_topic};
/// assert_eq!(binary_stats_topic(b""), StatsTopic::General);
/// assert_eq!(binary_stats_topic(b"settings?"), StatsTopic::Settings);
/// assert_eq!(binary_stats_topic(b"s"), StatsTopic::Unknown);
/// ```
pub fn binary_stats_topic(key: &[u8]) -> StatsTopic {
    match key {
        b"" => StatsTopic::General,
        [b'r', b'e', b's', b'e', b't', ..] => StatsTopic::Reset,
        b"items" => StatsTopic::Items,
        b"slabs" => StatsTopic::Slabs,
        b"sizes" => StatsTopic::Sizes,
        b"kachel" => StatsTopic::Kachel,
        b"pipe" => StatsTopic::Pipe,
        b"engine" => StatsTopic::Engine,
        b"hotkeys" => hot_keys(None),
        b"mrc" => StatsTopic::MissCurve,
        b"prefixes" => prefixes(None),
        _ if key.starts_with(b"settings") => StatsTopic::Settings,
        _ => of_parts(key),
    }
}

/// The topic of a key with more text behind its first word.
fn of_parts(key: &[u8]) -> StatsTopic {
    if let Some(form) = key.strip_prefix(b"detail") {
        StatsTopic::Detail(detail(form))
    } else if let Some(count) = key.strip_prefix(b"hotkeys ") {
        hot_keys(Some(count))
    } else if let Some(count) = key.strip_prefix(b"prefixes ") {
        prefixes(Some(count))
    } else {
        StatsTopic::Unknown
    }
}

fn detail(form: &[u8]) -> DetailTopic {
    let forms = [
        (&b" on"[..], DetailTopic::On),
        (b" off", DetailTopic::Off),
        (b" dump", DetailTopic::Dump),
    ];
    let found = forms.into_iter().find(|(text, _)| form.starts_with(text));
    found.map_or(DetailTopic::Usage, |(_, topic)| topic)
}
