//! Verbs without a key: switches, dumps, and the tuning of memcached's slabs and LRU lists.
//!
//! Upstream:   `line` passes lines whose verb is not one of the common verbs.
//! Downstream: `Admin` requests. Most tuning commands get their reply here.
//!
//! Invariants:
//! - I1  A tuning command gets the reply of 1.6.45 and changes nothing, because Kachel has no slab
//!   classes and no LRU lists, and its crawler runs only when a client asks for it.
//! - I2  Spaces before these verbs are accepted, as in 1.6.45, but not before other verbs.

use kachel_engine::KEY_BYTES_MAX;

use crate::number::{read_i32, read_loose_u32, read_u32};
use crate::observers::ObserverSet;
use crate::refusal::{Failure, Outcome};
use crate::reply::Reply;
use crate::request::{Admin, DumpForm, Request, Ttl};
use crate::streams::Streams;
use crate::words::{Counted, Words, abbreviates};

/// The highest slab class of memcached. The lowest is 1.
const CLASS_MAX: u32 = 63;
/// Bytes of the longest word read as a fraction.
const FRACTION_BYTES_MAX: usize = 31;
/// The most microseconds that a crawler may sleep.
const CRAWLER_SLEEP_US_MAX: u32 = 1_000_000;

/// `watch`, with the streams in `rest`.
pub(crate) fn watch(rest: &[u8]) -> Outcome<'_> {
    Ok(Request::Admin(Admin::Watch { streams: Streams::named(Words::new(rest)) }))
}

/// Parses every other line. `line` includes the verb.
pub(crate) fn other(line: &[u8]) -> Outcome<'_> {
    let words = Counted::new(line);
    let noreply = words.last() == b"noreply";
    let reply = match words.at(0) {
        b"flush_all" => return flush_all(&words, noreply),
        b"flush_prefix" => return flush_prefix(&words, noreply),
        b"verbosity" => return verbosity(&words, noreply),
        b"cache_memlimit" => return cache_memlimit(&words, noreply),
        b"shutdown" => return shutdown(&words, noreply),
        b"refresh_certs" => {
            return Ok(Request::Admin(Admin::RefreshCertificates { noreply }));
        }
        b"lru_crawler" => return lru_crawler(&words, noreply),
        b"pipe" => return pipe(&words, noreply),
        b"observe" => return observe(&words, noreply),
        b"debugtime" => return debugtime(&words),
        b"slabs" => slabs(&words),
        b"lru" => lru(&words),
        _ if words.count() > 1 && words.last().starts_with(b"HTTP/") => return Err(Failure::Close),
        _ => return Err(Reply::Error.unless(noreply).into()),
    };
    settled(reply, noreply)
}

fn settled<'b>(reply: Reply, noreply: bool) -> Outcome<'b> {
    Ok(Request::Admin(Admin::Settled { reply, noreply }))
}

fn flush_all<'b>(words: &Counted<'b>, noreply: bool) -> Outcome<'b> {
    let is_plain = words.count() == 1 + usize::from(noreply);
    let delay = if is_plain { Some(0) } else { read_i32(words.at(1)) };
    let delay = Ttl(delay.ok_or(Reply::InvalidExptime.unless(noreply))?);
    Ok(Request::Admin(Admin::FlushAll { delay, noreply }))
}

/// The words `bytes` and `noreply` are prefixes, too, where there is no other.
fn flush_prefix<'b>(words: &Counted<'b>, noreply: bool) -> Outcome<'b> {
    let noreply = noreply && words.count() > 2;
    let bytes = match (words.count() - usize::from(noreply), words.at(2)) {
        (2, _) => false,
        (3, b"bytes") => true,
        _ => return Err(Reply::FlushPrefixUsage.unless(noreply).into()),
    };
    let prefix = words.at(1);
    if prefix.len() > KEY_BYTES_MAX {
        return Err(Reply::PrefixTooLong.unless(noreply).into());
    }
    debug_assert!(!prefix.is_empty(), "words, I1");
    Ok(Request::Admin(Admin::FlushPrefix { prefix, bytes, noreply }))
}

fn verbosity<'b>(words: &Counted<'b>, noreply: bool) -> Outcome<'b> {
    let level = number(words, 1).ok_or(Reply::BadLine.unless(noreply))?;
    Ok(Request::Admin(Admin::Verbosity { level, noreply }))
}

fn cache_memlimit<'b>(words: &Counted<'b>, noreply: bool) -> Outcome<'b> {
    let megabytes = number(words, 1).ok_or(Reply::Error.unless(noreply))?;
    Ok(Request::Admin(Admin::CacheMemlimit { megabytes, noreply }))
}

/// Moves the clock on. memcached's debug build can also set it back, and stop it.
fn debugtime<'b>(words: &Counted<'b>) -> Outcome<'b> {
    let seconds = number(words, 1).ok_or(Reply::Error)?;
    Ok(Request::Admin(Admin::MoveTime { seconds }))
}

fn pipe<'b>(words: &Counted<'b>, noreply: bool) -> Outcome<'b> {
    let on = match (words.at(1), words.count() - usize::from(noreply)) {
        (b"on", 2) => true,
        (b"off", 2) => false,
        _ => return Err(Reply::Error.unless(noreply).into()),
    };
    Ok(Request::Admin(Admin::SwitchPipe { on, noreply }))
}

/// Switches observers, or asks by which hash a key is shown.
fn observe<'b>(words: &Counted<'b>, noreply: bool) -> Outcome<'b> {
    let key = words.at(2);
    if words.at(1) == b"hash" && words.count() == 3 && key.len() <= KEY_BYTES_MAX {
        return Ok(Request::Admin(Admin::ShowHash { key }));
    }
    let on = match (key, words.count() - usize::from(noreply)) {
        (b"on", 3) => true,
        (b"off", 3) => false,
        _ => return Err(Reply::ObserveUsage.unless(noreply).into()),
    };
    let observers = ObserverSet::named(words.at(1)).ok_or(Reply::ObserveUsage.unless(noreply))?;
    Ok(Request::Admin(Admin::Observe { observers, on, noreply }))
}

fn shutdown<'b>(words: &Counted<'b>, noreply: bool) -> Outcome<'b> {
    let graceful = words.count() == 2 && abbreviates(words.at(1), b"graceful");
    if words.count() == 1 || graceful {
        return Ok(Request::Admin(Admin::Shutdown { graceful }));
    }
    settled(Reply::InvalidShutdownMode, noreply)
}

fn lru_crawler<'b>(words: &Counted<'b>, noreply: bool) -> Outcome<'b> {
    let (subcommand, argument) = (words.at(1), words.at(2));
    let is = |full: &[u8]| abbreviates(subcommand, full);
    let dump = |form| Admin::Dump { form, classes: crawled(argument), noreply };
    let switch = |on| Admin::SwitchCrawler { on, noreply };
    let asks = |admin| Ok(Request::Admin(admin));
    let reply = match words.count() {
        3 if is(b"crawl") => return asks(Admin::Crawl { classes: crawled(argument), noreply }),
        3 if is(b"metadump") => return asks(dump(DumpForm::Metadump)),
        3 if is(b"mgdump") => return asks(dump(DumpForm::Mgdump)),
        3 if is(b"tocrawl") => number(words, 2).map_or(Reply::BadLine, |_| Reply::Ok),
        3 if is(b"sleep") => match number(words, 2) {
            None => Reply::BadLine,
            Some(us) if us > CRAWLER_SLEEP_US_MAX => Reply::CrawlerSleep,
            Some(_) => Reply::Ok,
        },
        2 if is(b"enable") => return asks(switch(true)),
        2 if is(b"disable") => return asks(switch(false)),
        _ => Reply::Error,
    };
    settled(reply, noreply)
}

/// Reads a crawler's target: `all`, `hash`, or slab classes with commas between them. Returns the
/// classes, one bit each.
fn crawled(target: &[u8]) -> Result<u64, Reply> {
    if target == b"all" || target == b"hash" {
        return Ok(u64::MAX);
    }
    let mut classes = 0;
    for class in target.split(|&byte| byte == b',').filter(|class| !class.is_empty()) {
        let class = read_loose_u32(class).filter(|class| (1..=CLASS_MAX).contains(class));
        classes |= 1_u64 << class.ok_or(Reply::CrawlerBadClass)?;
    }
    if classes == 0 { Err(Reply::CrawlerNotStarted) } else { Ok(classes) }
}

fn slabs(words: &Counted<'_>) -> Reply {
    let subcommand = words.at(1);
    if words.count() == 4 && abbreviates(subcommand, b"reassign") {
        let (Some(from), Some(to)) = (read_i32(words.at(2)), read_i32(words.at(3))) else {
            return Reply::BadLine;
        };
        return reassigned(from, to);
    }
    if words.count() >= 3 && abbreviates(subcommand, b"automove") {
        return automove(words);
    }
    Reply::Error
}

/// The reply to `slabs reassign`. No page ever moves, and the reply says so, because a script that
/// moves pages until it is done would continue forever after `OK`.
fn reassigned(from: i32, to: i32) -> Reply {
    let is_class = |class| u32::try_from(class).is_ok_and(|class| class <= CLASS_MAX);
    if from == to {
        Reply::SlabsSame
    } else if is_class(to) && (from == -1 || is_class(from)) {
        Reply::SlabsNoSpare
    } else {
        Reply::SlabsBadClass
    }
}

fn automove(words: &Counted<'_>) -> Reply {
    let setting = words.at(2);
    if abbreviates(setting, b"ratio") || abbreviates(setting, b"freeratio") {
        return fraction(words, 3).map_or(Reply::Error, |_| Reply::Ok);
    }
    if abbreviates(setting, b"window") {
        return match number(words, 3) {
            None => Reply::BadLine,
            Some(3..=1800) => Reply::Ok,
            Some(_) => Reply::AutomoveWindow,
        };
    }
    match number(words, 2) {
        None => Reply::BadLine,
        Some(0..=2) => Reply::Ok,
        Some(_) => Reply::Error,
    }
}

fn lru(words: &Counted<'_>) -> Reply {
    let subcommand = words.at(1);
    if words.count() >= 6 && abbreviates(subcommand, b"tune") {
        return lru_tuned(words).unwrap_or(Reply::Error);
    }
    if words.count() < 3 {
        return Reply::Error;
    }
    let argument = words.at(2);
    let is_mode = || abbreviates(argument, b"flat") || abbreviates(argument, b"segmented");
    let accepted = if abbreviates(subcommand, b"mode") {
        is_mode()
    } else {
        abbreviates(subcommand, b"temp_ttl") && read_i32(argument).is_some()
    };
    if accepted { Reply::Ok } else { Reply::Error }
}

fn lru_tuned(words: &Counted<'_>) -> Option<Reply> {
    let hot_percent = number(words, 2)?;
    let warm_percent = number(words, 3)?;
    let hot_factor = fraction(words, 4)?;
    let warm_factor = fraction(words, 5)?;
    // The sum wraps around in 1.6.45.
    Some(if hot_percent.wrapping_add(warm_percent) > 80 {
        Reply::LruPercents
    } else if hot_factor <= 0.0 || warm_factor <= 0.0 {
        Reply::LruFactors
    } else {
        Reply::Ok
    })
}

/// The number at `place`, if there is one.
fn number(words: &Counted<'_>, place: usize) -> Option<u32> {
    (words.count() > place).then(|| read_u32(words.at(place)))?
}

/// The fraction at `place`, if there is one. Text after white space in its word is ignored.
/// Hexadecimal fractions, which C accepts, are not accepted.
fn fraction(words: &Counted<'_>, place: usize) -> Option<f64> {
    let word = words.at(place);
    if word.len() > FRACTION_BYTES_MAX {
        return None;
    }
    str::from_utf8(word).ok()?.split_ascii_whitespace().next()?.parse().ok()
}
