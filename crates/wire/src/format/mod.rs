//! Formats replies with data: the response formatter.
//!
//! Upstream:   an engine has applied a request's operation; `answer` has its outcome.
//! Downstream: a [`Sink`], which `net` makes of a connection's outbox.
//!
//! Invariants:
//! - I1  Return flags of a meta reply have the order of the request's flags; `Z`, `X` and `W` come
//!   last, in that order. A key in base64 is followed by ` b`.
//! - I2  Every head ends in CR LF. Another CR LF follows a value; the caller writes it.
//! - I3  This module does not decide whether a reply is sent: the caller asks [`quiet_hides`].
//!
//! Source: memcached's protocol.txt, and 1.6.45's replies where that text is incomplete.

mod answer;
pub mod log;
mod scan;
mod shown_key;

use kachel_engine::{Facts, Inspection};

pub use self::answer::{KeyReply, answer_key, answer_lease};
pub(crate) use self::answer::{answer_classic, answer_meta};
pub use self::scan::{SCAN_HEAD_BYTES_MAX, scan_end, scan_item};
pub use self::shown_key::ShownKey;
use crate::base64;
use crate::parse_key;
use crate::request::{KEY_BYTES_MAX, Letters, Meta, MetaKey};
use crate::words::Words;

/// The target of formatted replies.
pub trait Sink {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);

    /// Appends several pieces, in order.
    #[inline]
    fn put_all<const PIECES: usize>(&mut self, pieces: [&[u8]; PIECES]) {
        for piece in pieces {
            self.put(piece);
        }
    }
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

const CRLF: &[u8] = b"\r\n";
/// The slab class in the reply to `me`, which does not look it up.
const CLASS: u64 = 1;
/// Digits of the longest `u64`.
const DIGITS_MAX: usize = 20;
/// Numbers below this one have at most four digits.
const FEW_DIGITS_LIMIT: u32 = 10_000;

/// The decimal digits of a number below 10,000, the first one in the lowest byte, and how many.
#[inline]
const fn few_digits(value: u32) -> (u32, u32) {
    debug_assert!(value < FEW_DIGITS_LIMIT, "four digits");
    // Two pairs of digits, each in 16 bits. 103 / 1024 is near enough to a tenth below 100.
    let pairs = (value / 100) | ((value % 100) << 16);
    let tens = ((pairs * 103) >> 10) & 0x000f_000f;
    let digits = tens | ((pairs - tens * 10) << 8);
    let zeros = (digits | (1 << 24)).trailing_zeros() / 8;
    ((digits | 0x3030_3030) >> (8 * zeros), 4 - zeros)
}

/// Formats a number in decimal.
#[inline]
pub fn put_u64(sink: &mut impl Sink, value: u64) {
    sink.put(itoa::Buffer::new().format(value).as_bytes());
}

/// Formats a signed number in decimal.
#[inline]
pub fn put_i64(sink: &mut impl Sink, value: i64) {
    if value < 0 {
        sink.put(b"-");
    }
    put_u64(sink, value.unsigned_abs());
}

/// The tail of a line while it is formatted on the stack, so that a sink gets it as one piece.
struct Tail {
    bytes: [u8; Self::BYTES],
    used: usize,
}

impl Tail {
    /// ` flags bytes cas` and CR LF at their longest.
    const BYTES: usize = 3 * (1 + DIGITS_MAX) + CRLF.len();

    #[inline]
    const fn new() -> Self {
        Self { bytes: [0; Self::BYTES], used: 0 }
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        self.bytes[self.used..end].copy_from_slice(bytes);
        self.used = end;
    }

    /// A space and a number.
    #[inline]
    fn push_number(&mut self, value: u64) {
        self.push(b" ");
        if value < 10 {
            self.push(&[b'0' + value.to_le_bytes()[0]]);
        } else {
            self.push(itoa::Buffer::new().format(value).as_bytes());
        }
    }

    /// Formats the rest of the line before a value, after the key. This is done in place. A tail
    /// that is returned would be copied in wider pieces than it was written in, and the processor
    /// would wait for each of them.
    #[inline(always)]
    fn of_value(&mut self, client_flags: u32, value_bytes: usize, cas: Option<u64>) -> &[u8] {
        if client_flags < 10 && value_bytes < FEW_DIGITS_LIMIT as usize && cas.is_none() {
            self.push_usual(client_flags, value_bytes as u32);
        } else {
            self.push_unusual(client_flags, value_bytes, cas);
        }
        self.text()
    }

    /// The line of nearly every value, which has at most nine bytes, in one word. The ninth byte is
    /// stored in any case; it is the last one if there are four digits.
    #[inline(always)]
    fn push_usual(&mut self, client_flags: u32, value_bytes: u32) {
        let (digits, count) = few_digits(value_bytes);
        let flags = u64::from_le_bytes([b' ', b'0', b' ', 0, 0, 0, 0, 0]);
        let head = flags + (u64::from(client_flags) << 8);
        let end = u64::from(u16::from_le_bytes([b'\r', b'\n'])) << (8 * (3 + count));
        let word = head | (u64::from(digits) << 24) | end;
        self.bytes[..8].copy_from_slice(&word.to_le_bytes());
        self.bytes[8] = b'\n';
        self.used = 5 + count as usize;
    }

    /// Any line. A function of its own, because it is rare and long.
    #[inline(never)]
    fn push_unusual(&mut self, client_flags: u32, value_bytes: usize, cas: Option<u64>) {
        self.push_number(u64::from(client_flags));
        self.push_number(value_bytes as u64);
        if let Some(cas) = cas {
            self.push_number(cas);
        }
        self.push(CRLF);
    }

    #[inline]
    fn text(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

/// Formats the line before a value of the classic protocol: `VALUE key flags bytes[ cas]`.
///
/// `value_bytes` does not count the CR LF that follows the value. `cas` is for `gets` and `gats`.
///
/// ```
/// let mut reply = Vec::new();
/// kachel_wire::format::value_head(&mut reply, b"k", 7, 3, Some(42));
/// assert_eq!(reply, b"VALUE k 7 3 42\r\n");
/// ```
#[inline]
pub fn value_head(
    sink: &mut impl Sink,
    key: &[u8],
    client_flags: u32,
    value_bytes: usize,
    cas: Option<u64>,
) {
    let mut tail = Tail::new();
    sink.put_all([b"VALUE ", key, tail.of_value(client_flags, value_bytes, cas)]);
}

/// Formats a value of the classic protocol, with the line before it and `end` after it, as one
/// piece. `end` begins with CR LF.
///
/// ```
/// let mut reply = Vec::new();
/// kachel_wire::format::value(&mut reply, b"k", 7, b"abc", None, b"\r\n");
/// assert_eq!(reply, b"VALUE k 7 3\r\nabc\r\n");
/// ```
#[inline]
pub fn value(
    sink: &mut impl Sink,
    key: &[u8],
    client_flags: u32,
    value: &[u8],
    cas: Option<u64>,
    end: &'static [u8],
) {
    debug_assert!(end.starts_with(CRLF), "I2");
    let mut tail = Tail::new();
    let tail = tail.of_value(client_flags, value.len(), cas);
    sink.put_all([b"VALUE ", key, tail, value, end]);
}

/// Formats the line before the value of a key that is leased: `LVALUE key token flags bytes`.
///
/// ```
/// let mut reply = Vec::new();
/// kachel_wire::format::leased_head(&mut reply, b"k", 42, 7, 3);
/// assert_eq!(reply, b"LVALUE k 42 7 3\r\n");
/// ```
pub fn leased_head(
    sink: &mut impl Sink,
    key: &[u8],
    token: u64,
    client_flags: u32,
    value_bytes: usize,
) {
    let mut tail = Tail::new();
    for number in [token, u64::from(client_flags), value_bytes as u64] {
        tail.push_number(number);
    }
    tail.push(CRLF);
    sink.put_all([b"LVALUE ", key, tail.text()]);
}

/// Formats a line with a number: the reply to `incr` and `decr`.
///
/// ```
/// let mut reply = Vec::new();
/// kachel_wire::format::number(&mut reply, 10);
/// assert_eq!(reply, b"10\r\n");
/// ```
#[inline]
pub fn number(sink: &mut impl Sink, value: u64) {
    put_u64(sink, value);
    sink.put(CRLF);
}

/// Formats one statistic: `STAT name value`.
///
/// ```
/// let mut reply = Vec::new();
/// kachel_wire::format::stat(&mut reply, b"threads", b"4");
/// assert_eq!(reply, b"STAT threads 4\r\n");
/// ```
pub fn stat(sink: &mut impl Sink, name: &[u8], value: &[u8]) {
    for piece in [b"STAT ", name, b" ", value, CRLF] {
        sink.put(piece);
    }
}

/// The verb of the reply. Verbs return different flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVerb {
    /// `mg` returns `s t c f l h O k`.
    Get,
    /// `ms` returns `c s O k`, for every result.
    Set,
    /// `md` returns `O k`.
    Delete,
    /// `ma` returns `c t O k`.
    Arithmetic,
}

impl MetaVerb {
    /// The flags that this verb returns for an item.
    const fn returned(self) -> Letters {
        let both = Letters(0).with(b'O').with(b'k');
        match self {
            Self::Get => both.with(b's').with(b't').with(b'c').with(b'f').with(b'l').with(b'h'),
            Self::Set => both.with(b'c').with(b's'),
            Self::Delete => both,
            Self::Arithmetic => both.with(b'c').with(b't'),
        }
    }
}

/// The code that begins a meta reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaCode {
    /// Done; no value follows.
    Hd,
    /// A value follows the head: its length is [`Facts::value_bytes`].
    Va,
    /// `mg` and `me`: a miss.
    En,
    /// Not stored.
    Ns,
    /// Another CAS token.
    Ex,
    /// Not found.
    Nf,
}

impl MetaCode {
    /// The code's two letters.
    #[inline]
    pub const fn letters(self) -> &'static [u8; 2] {
        match self {
            Self::Hd => b"HD",
            Self::Va => b"VA",
            Self::En => b"EN",
            Self::Ns => b"NS",
            Self::Ex => b"EX",
            Self::Nf => b"NF",
        }
    }
}

/// Whether `q` suppresses a reply: a miss of `mg`, a success of the other verbs. Refusals are
/// always sent.
///
/// ```
/// use kachel_wire::format::{MetaCode, MetaVerb, quiet_hides};
/// assert!(quiet_hides(MetaVerb::Get, MetaCode::En) && !quiet_hides(MetaVerb::Get, MetaCode::Hd));
/// assert!(quiet_hides(MetaVerb::Delete, MetaCode::Hd) && !quiet_hides(MetaVerb::Delete,
/// MetaCode::Nf)); ```
#[inline]
pub const fn quiet_hides(verb: MetaVerb, code: MetaCode) -> bool {
    match verb {
        MetaVerb::Get => matches!(code, MetaCode::En),
        MetaVerb::Set | MetaVerb::Delete => matches!(code, MetaCode::Hd),
        MetaVerb::Arithmetic => matches!(code, MetaCode::Hd | MetaCode::Va),
    }
}

/// Formats the first line of a meta reply about an item: of `mg` and `ma` that found or created
/// one, and of every `ms`. For [`MetaCode::Va`] the value and CR LF follow.
///
/// ```
/// use kachel_engine::Facts;
/// use kachel_wire::format::{MetaCode, MetaVerb, meta_head};
/// use kachel_wire::{Parsed, parse, request::Request};
/// let line = b"mg k t v Oab k\r\n";
/// let Parsed::Request { request: Request::MetaGet(meta), .. } = parse(line, 0) else { panic!() };
/// let facts = Facts { value_bytes: 3, stale: true, won: true, ..Facts::default() };
/// let mut reply = Vec::new();
/// meta_head(&mut reply, MetaVerb::Get, MetaCode::Va, &meta, &facts);
/// assert_eq!(reply, b"VA 3 t-1 Oab kk X W\r\n");
/// ```
#[inline]
pub fn meta_head(
    sink: &mut impl Sink,
    verb: MetaVerb,
    code: MetaCode,
    meta: &Meta<'_>,
    facts: &Facts,
) {
    sink.put(code.letters());
    if code == MetaCode::Va {
        sink.put(b" ");
        put_u64(sink, facts.value_bytes as u64);
    }
    if meta.letters.0 & verb.returned().0 != 0 {
        return_flags(sink, verb, meta, facts);
    }
    if verb == MetaVerb::Get {
        for (mark, is_set) in [(b" Z", facts.win_sent), (b" X", facts.stale), (b" W", facts.won)] {
            if is_set {
                sink.put(mark);
            }
        }
    }
    sink.put(CRLF);
}

/// Formats the return flags, in the request's order (I1).
fn return_flags(sink: &mut impl Sink, verb: MetaVerb, meta: &Meta<'_>, facts: &Facts) {
    let returned = verb.returned();
    let mut ttl = facts.ttl_before;
    for flag in Words::new(meta.flags) {
        let letter = flag[0];
        if letter == b'T' {
            ttl = facts.ttl;
        } else if letter == b'N' && facts.created {
            ttl = facts.ttl_made;
        }
        // The parser accepts only letters here. A request that was not parsed may contain any byte.
        if !letter.is_ascii_alphabetic() || !returned.has(letter) {
            continue;
        }
        sink.put(b" ");
        match letter {
            b'O' => sink.put(flag),
            b'k' => {
                sink.put(b"k");
                if put_key(sink, meta.key, facts.protocol_mark) {
                    sink.put(b" b");
                }
            }
            b't' => {
                sink.put(b"t");
                match ttl {
                    // As in memcached, an item that expires because of this request shows its
                    // negative rest of life modulo 2^32, because -1 means that an item never
                    // expires.
                    Some(seconds) => put_u64(sink, u64::from(seconds as u32)),
                    None => sink.put(b"-1"),
                }
            }
            _ => {
                sink.put(&flag[..1]);
                put_u64(
                    sink,
                    match letter {
                        b's' => facts.value_bytes as u64,
                        b'c' => facts.cas,
                        b'f' => u64::from(facts.client_flags),
                        b'l' => u64::from(facts.since_access_s),
                        _ => u64::from(facts.hit_before),
                    },
                );
            }
        }
    }
}

/// Formats a key: in base64 if `wanted`, and always if the key cannot be text in a line (memcached
/// breaks its line there). Without `wanted`, the form is that of the request. Returns whether it is
/// base64. The base64 is canonical, also if that of the request was not.
#[inline]
fn put_key(sink: &mut impl Sink, key: MetaKey<'_>, wanted: Option<bool>) -> bool {
    let base64 = wanted.unwrap_or(key.base64);
    if !base64 && !key.base64 {
        sink.put(key.text);
        return false;
    }
    let mut space = [0; KEY_BYTES_MAX];
    let raw = parse_key(key, &mut space);
    let base64 = base64 || !key_fits_a_line(raw);
    if base64 {
        put_base64(sink, raw)
    } else {
        sink.put(raw)
    }
    base64
}

/// Formats a whole meta reply without an item: of every `md`, and of misses and mismatches of `mg`
/// and `ma`. `O` and `k` are returned.
///
/// ```
/// use kachel_wire::format::{MetaCode, meta_plain};
/// use kachel_wire::{Parsed, parse, request::Request};
/// let line = b"md a2V5 q b k O9\r\n";
/// let Parsed::Request { request: Request::MetaDelete(meta), .. } = parse(line, 0) else {
///     panic!()
/// };
/// let mut reply = Vec::new();
/// meta_plain(&mut reply, MetaCode::Nf, &meta);
/// assert_eq!(reply, b"NF ka2V5 b O9\r\n");
/// ```
#[inline]
pub fn meta_plain(sink: &mut impl Sink, code: MetaCode, meta: &Meta<'_>) {
    meta_head(sink, MetaVerb::Delete, code, meta, &Facts::default());
}

/// Formats the reply to `me` on a hit.
///
/// ```
/// use kachel_engine::Inspection;
/// use kachel_wire::format::meta_debug;
/// use kachel_wire::request::MetaKey;
/// let facts = Inspection { cas: 2, item_bytes: 63, ..Inspection::default() };
/// let mut reply = Vec::new();
/// meta_debug(&mut reply, MetaKey { text: b"k", base64: false }, &facts);
/// assert_eq!(reply, b"ME k exp=-1 la=0 cas=2 fetch=no cls=1 size=63\r\n");
/// ```
pub fn meta_debug(sink: &mut impl Sink, key: MetaKey<'_>, facts: &Inspection) {
    sink.put(b"ME ");
    put_key(sink, key, Some(facts.protocol_mark));
    sink.put(b" exp=");
    put_i64(sink, facts.ttl.unwrap_or(-1));
    sink.put(b" la=");
    put_u64(sink, u64::from(facts.since_access_s));
    sink.put(b" cas=");
    put_u64(sink, facts.cas);
    sink.put(if facts.fetched { b" fetch=yes" } else { b" fetch=no" });
    sink.put(b" cls=");
    put_u64(sink, CLASS);
    sink.put(b" size=");
    put_u64(sink, facts.item_bytes as u64);
    sink.put(CRLF);
}

/// The data of an item in a line of `lru_crawler metadump`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpFacts {
    /// Unix time of the expiry, in seconds. `None` if the item never expires, which is formatted as
    /// `-1`.
    pub expiry_unix_s: Option<u64>,
    /// Unix time of the last access, in seconds.
    pub access_unix_s: u64,
    /// The CAS token.
    pub cas: u64,
    /// Whether the item was ever fetched.
    pub fetched: bool,
    /// The size class of the item.
    pub class: u8,
    /// Total size of the item in bytes.
    pub item_bytes: usize,
    /// The client flags.
    pub client_flags: u32,
}

/// Formats one line of `lru_crawler metadump`, its key percent-encoded. The line ends in a space
/// and a bare LF, as 1.6.45's does; [`crate::Reply::Ok`] comes before the first and
/// [`crate::Reply::End`] after the last.
///
/// ```
/// let mut line = Vec::new();
/// use kachel_wire::format::{DumpFacts, ShownKey, metadump_line};
/// let facts = DumpFacts { access_unix_s: 5, class: 1, ..Default::default() };
/// metadump_line(&mut line, ShownKey::of(b"a/b"), &facts);
/// assert_eq!(line, b"key=a%2Fb exp=-1 la=5 cas=0 fetch=no cls=1 size=0 flags=0 \n");
/// ```
pub fn metadump_line(sink: &mut impl Sink, key: ShownKey<'_>, facts: &DumpFacts) {
    sink.put(b"key=");
    key.put_encoded(sink);
    sink.put(b" exp=");
    match facts.expiry_unix_s {
        Some(expiry) => put_u64(sink, expiry),
        None => sink.put(b"-1"),
    }
    sink.put(b" la=");
    put_u64(sink, facts.access_unix_s);
    sink.put(b" cas=");
    put_u64(sink, facts.cas);
    sink.put(if facts.fetched { b" fetch=yes" } else { b" fetch=no" });
    sink.put(b" cls=");
    put_u64(sink, u64::from(facts.class));
    sink.put(b" size=");
    put_u64(sink, facts.item_bytes as u64);
    sink.put(b" flags=");
    put_u64(sink, u64::from(facts.client_flags));
    sink.put(b" \n");
}

/// Formats one line of `stats cachedump`. The expiry is 0 for an item that never expires.
/// [`crate::Reply::End`] comes after the last line.
///
/// ```
/// let mut lines = Vec::new();
/// use kachel_wire::format::{ShownKey, cachedump_line};
/// cachedump_line(&mut lines, ShownKey::of(b"key"), 5, 0);
/// assert_eq!(lines, b"ITEM key [5 b; 0 s]\r\n");
/// ```
pub fn cachedump_line(
    sink: &mut impl Sink,
    key: ShownKey<'_>,
    value_bytes: usize,
    expiry_unix_s: u64,
) {
    sink.put(b"ITEM ");
    key.put_text(sink);
    sink.put(b" [");
    put_u64(sink, value_bytes as u64);
    sink.put(b" b; ");
    put_u64(sink, expiry_unix_s);
    sink.put(b" s]\r\n");
}

/// Formats one line of `lru_crawler mgdump`: a request that fetches the item. The key is in base64
/// if `in_base64` is set, or if it cannot be text in a line. [`crate::Reply::Ok`] comes
/// before the first line and [`crate::Reply::En`] after the last.
///
/// ```
/// let mut lines = Vec::new();
/// use kachel_wire::format::{ShownKey, mgdump_line};
/// mgdump_line(&mut lines, ShownKey::of(b"key"), false);
/// mgdump_line(&mut lines, ShownKey::of(b"key"), true);
/// mgdump_line(&mut lines, ShownKey::of(b"a b"), false);
/// assert_eq!(lines, b"mg key\r\nmg a2V5 b\r\nmg YSBi b\r\n");
/// ```
pub fn mgdump_line(sink: &mut impl Sink, key: ShownKey<'_>, in_base64: bool) {
    sink.put(b"mg ");
    if key.put_for_request(sink, in_base64) {
        sink.put(b" b");
    }
    sink.put(CRLF);
}

/// Whether a key can be text in a line: it has no space and no line end.
#[inline]
pub fn key_fits_a_line(key: &[u8]) -> bool {
    !key.iter().any(|byte| matches!(byte, b' ' | b'\r' | b'\n'))
}

/// Formats bytes in base64.
pub fn put_base64(sink: &mut impl Sink, raw: &[u8]) {
    for group in raw.chunks(3) {
        sink.put(&base64::encode_group(group));
    }
}

#[cfg(test)]
mod tests;
