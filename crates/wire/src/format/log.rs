//! Formats the lines of the log that clients watch.
//!
//! Upstream:   `shard` writes a line for each event of a stream that is watched.
//! Downstream: a [`Sink`]: the buffer of a core.
//!
//! Each line begins with `ts=` and `gid=`: the Unix time in seconds and microseconds, and the
//! number of the line in the process. Then come its type and its fields.
//!
//! Source: the fields, their order and their words are those of memcached 1.6.45. It does not fill
//! the microseconds up to six digits; here they are filled up, so that `ts` is a decimal fraction.

use std::net::IpAddr;

use super::{ShownKey, Sink, put_i64, put_u64};

/// Bytes of the longest line: a key of 250 bytes with each one as `%XX`, and the fields.
pub const LOG_LINE_BYTES_MAX: usize = 1024;

/// When a line was written, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    /// The Unix time in microseconds.
    pub unix_us: u64,
    /// The number of the line. Later lines have greater numbers.
    pub gid: u64,
}

impl LogPosition {
    fn put(self, sink: &mut impl Sink, kind: &str) {
        let us = self.unix_us % 1_000_000;
        sink.put(b"ts=");
        put_u64(sink, self.unix_us / 1_000_000);
        sink.put(b".");
        let mut digits = [b'0'; 6];
        for (place, digit) in digits.iter_mut().rev().enumerate() {
            let value = us / 10_u64.pow(u32::try_from(place).unwrap_or(0)) % 10;
            *digit = b'0' + u8::try_from(value).unwrap_or(0);
        }
        sink.put(&digits);
        sink.put(b" gid=");
        put_u64(sink, self.gid);
        sink.put(b" type=");
        sink.put(kind.as_bytes());
    }
}

fn put_key(sink: &mut impl Sink, key: ShownKey<'_>) {
    debug_assert!(key.byte_count() > 0, "a key has bytes");
    sink.put(b" key=");
    key.put_encoded(sink);
}

fn put_word(sink: &mut impl Sink, name: &str, word: &str) {
    sink.put(name.as_bytes());
    sink.put(word.as_bytes());
}

fn put_number(sink: &mut impl Sink, name: &str, number: u64) {
    sink.put(name.as_bytes());
    put_u64(sink, number);
}

fn put_signed(sink: &mut impl Sink, name: &str, number: i64) {
    sink.put(name.as_bytes());
    put_i64(sink, number);
}

/// The item of a line: its key, its size class, and the length of its value. Class and length are 0
/// if there is no item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogItem<'k> {
    /// The key.
    pub key: ShownKey<'k>,
    /// The size class.
    pub class: u8,
    /// Bytes of the value.
    pub value_bytes: usize,
}

/// Formats the lookup of an item.
///
/// ```
/// use kachel_wire::format::ShownKey;
/// use kachel_wire::format::log::{LogItem, LogPosition, item_get};
/// let mut line = Vec::new();
/// let at = LogPosition { unix_us: 5_000_042, gid: 7 };
/// let item = LogItem { key: ShownKey::of(b"a b"), class: 1, value_bytes: 3 };
/// item_get(&mut line, at, &item, "found", 9);
/// let expected = "ts=5.000042 gid=7 type=item_get key=a%20b status=found clsid=1 cfd=9 size=3\n";
/// assert_eq!(line, expected.as_bytes());
/// ```
pub fn item_get(
    sink: &mut impl Sink,
    at: LogPosition,
    item: &LogItem<'_>,
    status: &str,
    descriptor: i32,
) {
    at.put(sink, "item_get");
    put_key(sink, item.key);
    put_word(sink, " status=", status);
    put_number(sink, " clsid=", u64::from(item.class));
    put_signed(sink, " cfd=", i64::from(descriptor));
    put_number(sink, " size=", item.value_bytes as u64);
    sink.put(b"\n");
}

/// How a store ended, and its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFields {
    /// `stored`, `not_stored`, `exists`, `not_found`, `too_large` or `no_memory`.
    pub status: &'static str,
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas` or `lease`.
    pub command: &'static str,
    /// Seconds of life of the item; 0 if it never expires.
    pub ttl_s: u32,
}

/// Formats a store.
pub fn item_store(
    sink: &mut impl Sink,
    at: LogPosition,
    item: &LogItem<'_>,
    store: &StoreFields,
    descriptor: i32,
) {
    at.put(sink, "item_store");
    put_key(sink, item.key);
    put_word(sink, " status=", store.status);
    put_word(sink, " cmd=", store.command);
    put_number(sink, " ttl=", u64::from(store.ttl_s));
    put_number(sink, " clsid=", u64::from(item.class));
    put_signed(sink, " cfd=", i64::from(descriptor));
    put_number(sink, " size=", item.value_bytes as u64);
    sink.put(b"\n");
}

/// Formats a deletion by `command`: `delete` or `md`.
pub fn deleted(sink: &mut impl Sink, at: LogPosition, item: &LogItem<'_>, command: &str) {
    at.put(sink, "deleted");
    put_key(sink, item.key);
    put_word(sink, " cmd=", command);
    put_number(sink, " clsid=", u64::from(item.class));
    put_number(sink, " size=", item.value_bytes as u64);
    sink.put(b"\n");
}

/// Formats an eviction. `ttl_s` are the seconds of life that the item had left, `None` if it would
/// never have expired; `idle_s` are the seconds since its last access.
pub fn eviction(
    sink: &mut impl Sink,
    at: LogPosition,
    item: &LogItem<'_>,
    is_fetched: bool,
    ttl_s: Option<i64>,
    idle_s: u32,
) {
    at.put(sink, "eviction");
    put_key(sink, item.key);
    put_word(sink, " fetch=", if is_fetched { "yes" } else { "no" });
    put_signed(sink, " ttl=", ttl_s.unwrap_or(-1));
    put_number(sink, " la=", u64::from(idle_s));
    put_number(sink, " clsid=", u64::from(item.class));
    put_number(sink, " size=", item.value_bytes as u64);
    sink.put(b"\n");
}

/// Formats a connection that was opened, or that is closed for `reason`: `error`, `normal`,
/// `idle_timeout` or `shutdown`. `peer` is `None` for a client of a unix socket.
///
/// ```
/// use kachel_wire::format::log::{LogPosition, connection};
/// let mut line = Vec::new();
/// let at = LogPosition { unix_us: 1_500_000, gid: 2 };
/// connection(&mut line, at, Some(([10, 0, 0, 1].into(), 80)), 4, Some("normal"));
/// let expected = "type=conn_close rip=10.0.0.1 rport=80 transport=tcp reason=normal cfd=4\n";
/// assert_eq!(line, format!("ts=1.500000 gid=2 {expected}").as_bytes());
/// ```
pub fn connection(
    sink: &mut impl Sink,
    at: LogPosition,
    peer: Option<(IpAddr, u16)>,
    descriptor: i32,
    reason: Option<&str>,
) {
    at.put(sink, if reason.is_some() { "conn_close" } else { "conn_new" });
    match peer {
        Some((address, port)) => {
            put_word(sink, " rip=", &address.to_string());
            put_number(sink, " rport=", u64::from(port));
            put_word(sink, " transport=", "tcp");
        }
        None => put_word(sink, " rip=unix rport=0 transport=", "local"),
    }
    if let Some(reason) = reason {
        put_word(sink, " reason=", reason);
    }
    put_signed(sink, " cfd=", i64::from(descriptor));
    sink.put(b"\n");
}

/// Formats the end of a run of the crawler: how long it took, the items that it has examined, and
/// those whose space it has reclaimed. The fields that say when memcached's next run is are 0,
/// because only clients start this crawler.
pub fn crawled(
    sink: &mut impl Sink,
    at: LogPosition,
    elapsed_s: u32,
    examined: u64,
    reclaimed: u64,
) {
    at.put(sink, "lru_crawler crawler=0 lru=all low_mark=0 next_reclaims=0 since_run=0 next_run=0");
    put_number(sink, " elapsed=", u64::from(elapsed_s));
    put_number(sink, " examined=", examined);
    put_number(sink, " reclaimed=", reclaimed);
    sink.put(b"\n");
}

/// Formats the flush of a prefix, which ends at a boundary unless the client asked for `bytes`.
/// 1.6.45 has no such line.
pub fn prefix_flushed(sink: &mut impl Sink, at: LogPosition, prefix: ShownKey<'_>, bytes: bool) {
    at.put(sink, "flush_prefix prefix=");
    prefix.put_encoded(sink);
    put_word(sink, " bytes=", if bytes { "yes" } else { "no" });
    sink.put(b"\n");
}

/// Formats the line that tells a watcher how many lines it has missed since its last one.
pub fn skipped(sink: &mut impl Sink, lines: u64) {
    put_number(sink, "skipped=", lines);
    sink.put(b"\n");
}
