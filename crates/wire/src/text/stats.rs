//! The topics of `stats`.
//!
//! Upstream:   `Admin::Stats` contains the text after the verb.
//! Downstream: `shard` answers each topic.
//!
//! Invariants:
//! - I1  Topics are recognized as in 1.6.45. Most topics may be abbreviated, and the first that
//!   matches counts. `items`, `slabs` and `sizes` may not be abbreviated, nor may `kachel`,
//!   `pipe`, `hotkeys`, `mrc` and `prefixes`, which are Kachel's own.

use crate::number::read_u32;
use crate::reply::Reply;
use crate::words::{Words, abbreviates};

/// `stats cachedump` may name slab classes below this.
const CLASS_COUNT: u32 = 64;

/// The number of keys of each list that `stats hotkeys` without a number asks for.
const HOT_KEYS_USUAL: u32 = 20;

/// The number of prefixes that `stats prefixes` without a number asks for.
const PREFIXES_USUAL: u32 = 20;

/// A topic of `stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsTopic {
    /// No topic: the general statistics.
    General,
    /// `stats reset`.
    Reset,
    /// `stats detail on`, `off` or `dump`. If dumps are not allowed, every form of it is refused
    /// (`Reply::StatsDetailNotAllowed`).
    Detail(DetailTopic),
    /// `stats settings`.
    Settings,
    /// `stats cachedump CLASS LIMIT`. If dumps are not allowed, every form of it is refused
    /// (`Reply::CachedumpNotAllowed`).
    Cachedump(Result<Cachedump, Reply>),
    /// `stats conns`.
    Conns,
    /// `stats extstore`.
    Extstore,
    /// `stats items`.
    Items,
    /// `stats slabs`.
    Slabs,
    /// `stats sizes`.
    Sizes,
    /// `stats kachel`: what only Kachel counts. 1.6.45 has no such topic.
    Kachel,
    /// `stats pipe`. 1.6.45 has no such topic.
    Pipe,
    /// `stats engine`: the files of the engines. 1.6.45 has no such topic.
    Engine,
    /// `stats hotkeys [COUNT]`: the hottest keys, at most `COUNT` of each list. 1.6.45 has no such
    /// topic.
    HotKeys(u32),
    /// `stats mrc`: the miss-ratio curve. 1.6.45 has no such topic.
    MissCurve,
    /// `stats prefixes [COUNT]`: what prefixes have, of at most `COUNT` of them. 1.6.45 has no such
    /// topic.
    Prefixes(u32),
    /// None of these: `ERROR`.
    Unknown,
}

/// The topics of `stats detail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetailTopic {
    /// Begin to count by prefix.
    On,
    /// Stop counting.
    Off,
    /// Show the counts.
    Dump,
    /// None of these: `Reply::StatsDetailUsage`.
    Usage,
}

/// The arguments of `stats cachedump`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cachedump {
    /// The slab class, below 64.
    pub class: u32,
    /// The most items to list; 0 means no limit.
    pub limit: u32,
}

/// Reads the topic of `Admin::Stats`.
///
/// ```
/// use kachel_wire::{StatsTopic, stats_topic};
/// assert_eq!(stats_topic(b""), StatsTopic::General);
/// assert_eq!(stats_topic(b"s"), StatsTopic::Settings);
/// assert_eq!(stats_topic(b"noreply"), StatsTopic::Unknown);
/// ```
pub fn stats_topic(topic: &[u8]) -> StatsTopic {
    let mut words = Words::new(topic);
    let Some(name) = words.next() else { return StatsTopic::General };
    // I1
    let is = |full: &[u8]| abbreviates(name, full);
    if is(b"reset") {
        StatsTopic::Reset
    } else if is(b"detail") {
        StatsTopic::Detail(detail(words.next()))
    } else if is(b"settings") {
        StatsTopic::Settings
    } else if is(b"cachedump") {
        StatsTopic::Cachedump(cachedump(words))
    } else if is(b"conns") {
        StatsTopic::Conns
    } else if is(b"extstore") {
        StatsTopic::Extstore
    } else {
        match name {
            b"items" => StatsTopic::Items,
            b"slabs" => StatsTopic::Slabs,
            b"sizes" => StatsTopic::Sizes,
            b"kachel" => StatsTopic::Kachel,
            b"pipe" => StatsTopic::Pipe,
            b"engine" => StatsTopic::Engine,
            b"hotkeys" => hot_keys(words.next()),
            b"mrc" => StatsTopic::MissCurve,
            b"prefixes" => prefixes(words.next()),
            _ => StatsTopic::Unknown,
        }
    }
}

/// The topic for this count of keys. It is unknown if the count is not a number.
pub(crate) fn hot_keys(count: Option<&[u8]>) -> StatsTopic {
    let count = count.map_or(Some(HOT_KEYS_USUAL), read_u32);
    count.map_or(StatsTopic::Unknown, StatsTopic::HotKeys)
}

/// As [`hot_keys`], for prefixes.
pub(crate) fn prefixes(count: Option<&[u8]>) -> StatsTopic {
    let count = count.map_or(Some(PREFIXES_USUAL), read_u32);
    count.map_or(StatsTopic::Unknown, StatsTopic::Prefixes)
}

fn detail(word: Option<&[u8]>) -> DetailTopic {
    match word {
        Some(word) if abbreviates(word, b"on") => DetailTopic::On,
        Some(word) if abbreviates(word, b"off") => DetailTopic::Off,
        Some(word) if abbreviates(word, b"dump") => DetailTopic::Dump,
        _ => DetailTopic::Usage,
    }
}

fn cachedump(mut words: Words<'_>) -> Result<Cachedump, Reply> {
    let (Some(class), Some(limit)) = (words.next(), words.next()) else {
        return Err(Reply::StatsBadLine);
    };
    let (Some(class), Some(limit)) = (read_u32(class), read_u32(limit)) else {
        return Err(Reply::BadLine);
    };
    if class >= CLASS_COUNT {
        return Err(Reply::IllegalSlabId);
    }
    Ok(Cachedump { class, limit })
}

#[cfg(test)]
mod tests {
    use super::{Cachedump, DetailTopic, StatsTopic, stats_topic};
    use crate::reply::Reply;

    #[test]
    fn topics_are_recognized_as_1_6_45_does() {
        for (text, topic) in [
            (&b""[..], StatsTopic::General),
            (b"reset", StatsTopic::Reset),
            (b"r", StatsTopic::Reset),
            (b"s", StatsTopic::Settings),
            (b"slabs", StatsTopic::Slabs),
            (b"slab", StatsTopic::Unknown),
            (b"items x", StatsTopic::Items),
            (b"conns", StatsTopic::Conns),
            (b"pipe", StatsTopic::Pipe),
            (b"pip", StatsTopic::Unknown),
            (b"engine", StatsTopic::Engine),
            (b"hotkeys", StatsTopic::HotKeys(20)),
            (b"hotkeys 5", StatsTopic::HotKeys(5)),
            (b"hotkeys x", StatsTopic::Unknown),
            (b"hot", StatsTopic::Unknown),
            (b"mrc", StatsTopic::MissCurve),
            (b"mr", StatsTopic::Unknown),
            (b"prefixes", StatsTopic::Prefixes(20)),
            (b"prefixes 7", StatsTopic::Prefixes(7)),
            (b"prefixes -1", StatsTopic::Unknown),
            (b"prefix", StatsTopic::Unknown),
            (b"kachel", StatsTopic::Kachel),
            (b"k", StatsTopic::Unknown),
            (b"bogus", StatsTopic::Unknown),
            (b"detail", StatsTopic::Detail(DetailTopic::Usage)),
            (b"detail on", StatsTopic::Detail(DetailTopic::On)),
            (b"detail of", StatsTopic::Detail(DetailTopic::Off)),
            (b"detail x", StatsTopic::Detail(DetailTopic::Usage)),
            (b"cachedump", StatsTopic::Cachedump(Err(Reply::StatsBadLine))),
            (b"cachedump -1 -1", StatsTopic::Cachedump(Err(Reply::BadLine))),
            (b"cachedump 200 0", StatsTopic::Cachedump(Err(Reply::IllegalSlabId))),
            (b"cachedump 1 2", StatsTopic::Cachedump(Ok(Cachedump { class: 1, limit: 2 }))),
        ] {
            assert_eq!(stats_topic(text), topic, "{}", text.escape_ascii());
        }
    }
}
