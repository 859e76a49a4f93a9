//! Requests, read from their bytes by a parser of this crate's own.
//!
//! Upstream:   `operation` has the bytes.
//! Downstream: `model` executes requests; `judge` asks which of them only read.
//!
//! Invariants:
//! - I1  Nothing is shared with `wire`: a word that the server misreads is read correctly here.
//! - I2  A line is a request only if 1.6.45 executes it. Some lines that 1.6.45 executes are not
//!   read, because no client of a history sends them: `+` before numbers, a zero byte or a tab
//!   behind them, and base64 with bits behind its last byte.

use std::borrow::Cow;
use std::str::FromStr;

/// The longest key, decoded.
const KEY_BYTES_MAX: usize = 250;
/// The most flags of a meta request.
const META_FLAGS_MAX: usize = 20;
/// Ends the parts of a key.
const DELIMITER: u8 = b':';
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A request. The line of a store is followed by its data block.
#[derive(Clone, Copy)]
pub(crate) enum Request<'b> {
    Retrieve(Retrieve<'b>),
    Store(Store<'b>),
    Delete(&'b [u8]),
    Touch { key: &'b [u8], ttl: i32 },
    Arithmetic { key: &'b [u8], by: (Direction, u64) },
    MetaGet(Meta<'b>),
    MetaSet { meta: Meta<'b>, mode: StoreMode, value_bytes: usize },
    MetaDelete(Meta<'b>),
    MetaArithmetic { meta: Meta<'b>, direction: Direction },
    MetaDebug(MetaKey<'b>),
    FlushAll { delay: i32 },
    FlushPrefix(Prefix<'b>),
}

/// The keys that `flush_prefix` removes.
#[derive(Clone, Copy)]
pub(crate) struct Prefix<'b> {
    prefix: &'b [u8],
    /// Whether any byte may follow the prefix.
    bytes: bool,
}

impl Prefix<'_> {
    /// Whether `key` begins so. A prefix without `bytes` ends where a delimiter is.
    pub(crate) fn takes(self, key: &[u8]) -> bool {
        let ends = |rest: &[u8]| matches!(rest.first(), None | Some(&DELIMITER));
        let is_open = self.bytes || self.prefix.last() == Some(&DELIMITER);
        key.strip_prefix(self.prefix).is_some_and(|rest| is_open || ends(rest))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Retrieve<'b> {
    pub(crate) ttl: Option<i32>,
    pub(crate) keys: Words<'b>,
    /// `gets` and `gats`.
    pub(crate) with_cas: bool,
    pub(crate) is_lease: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Store<'b> {
    pub(crate) mode: StoreMode,
    pub(crate) key: &'b [u8],
    pub(crate) client_flags: u32,
    pub(crate) ttl: i32,
    pub(crate) value_bytes: usize,
    pub(crate) compare_cas: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreMode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Lease,
}

#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// A key as a meta request has it, perhaps in base64.
#[derive(Clone, Copy)]
pub(crate) struct MetaKey<'b> {
    text: &'b [u8],
    pub(crate) base64: bool,
}

impl<'b> MetaKey<'b> {
    /// The key itself; empty if the text is not base64.
    pub(crate) fn raw(self) -> Cow<'b, [u8]> {
        if self.base64 {
            Cow::Owned(decode(self.text).unwrap_or_default())
        } else {
            Cow::Borrowed(self.text)
        }
    }
}

/// Key and flags of a meta request.
#[derive(Clone, Copy)]
pub(crate) struct Meta<'b> {
    verb: &'b [u8],
    pub(crate) key: MetaKey<'b>,
    /// The flags, in the order of the request.
    pub(crate) flags: Words<'b>,
}

impl<'b> Meta<'b> {
    /// The text after the letter of this flag.
    fn flag(&self, letter: u8) -> Option<&'b [u8]> {
        let mut flags = self.flags;
        flags.find(|flag| flag[0] == letter).map(|flag| &flag[1..])
    }

    pub(crate) fn has(&self, letter: u8) -> bool {
        self.flag(letter).is_some()
    }

    /// The number after the letter of this flag.
    pub(crate) fn number<N: FromStr>(&self, letter: u8) -> Option<N> {
        self.flag(letter).and_then(number)
    }

    /// Whether `q` withholds a reply with this code.
    pub(crate) fn withholds(&self, code: &[u8; 2]) -> bool {
        self.has(b'q')
            && match self.verb {
                b"mg" => code == b"EN",
                b"ma" => code == b"HD" || code == b"VA",
                _ => code == b"HD",
            }
    }

    /// Whether each flag is one that 1.6.45 knows, with the number that it needs, and there once.
    fn is_good(&self) -> bool {
        let mut flags = self.flags;
        self.flags.count() <= META_FLAGS_MAX
            && flags.all(|flag| {
                let is_single = self.flags.filter(|other| other[0] == flag[0]).count() == 1;
                let token = &flag[1..];
                is_single
                    && match flag[0] {
                        b'C' | b'E' | b'D' | b'J' => number::<u64>(token).is_some(),
                        b'F' => number::<u32>(token).is_some(),
                        b'N' | b'R' | b'T' => number::<i32>(token).is_some(),
                        b'O' => token.len() < 32,
                        letter => b"bcfhklqstuvxILMP".contains(&letter),
                    }
            })
    }
}

/// The words of a line from some word on.
#[derive(Clone, Copy)]
pub(crate) struct Words<'b>(&'b [u8]);

impl<'b> Words<'b> {
    /// The text from the next word on.
    pub(crate) fn rest(self) -> &'b [u8] {
        self.0.strip_prefix(b" ").unwrap_or(self.0)
    }
}

impl<'b> Iterator for Words<'b> {
    type Item = &'b [u8];

    fn next(&mut self) -> Option<&'b [u8]> {
        let start = self.0.iter().position(|byte| *byte != b' ')?;
        let text = &self.0[start..];
        let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
        self.0 = &text[end..];
        Some(&text[..end])
    }
}

/// A number in decimal digits, with `-` before it if it is negative. A lone `-` is 0 where a number
/// may be negative, as in 1.6.45.
pub(crate) fn number<N: FromStr>(word: &[u8]) -> Option<N> {
    let text = std::str::from_utf8(word).ok().filter(|text| !text.starts_with('+'))?;
    let text = if text == "-" { "-0" } else { text };
    text.parse().ok()
}

/// The first line of `input` without its end, and its length with it.
pub(crate) fn line(input: &[u8]) -> Option<(&[u8], usize)> {
    let end = input.iter().position(|byte| *byte == b'\n')?;
    let line = &input[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1))
}

/// The words of a line.
pub(crate) const fn words(line: &[u8]) -> Words<'_> {
    Words(line)
}

/// The request at the front of `input`, and the length of its line. `None`: there is none (I2).
pub(crate) fn parse(input: &[u8]) -> Option<(Request<'_>, usize)> {
    let (line, line_bytes) = line(input)?;
    let request = read(line).filter(Request::is_good)?;
    assert!(line.len() < line_bytes && line_bytes <= input.len(), "the line's end is part of it");
    Some((request, line_bytes))
}

/// The request of a line without its end. It is one only if it is good, too (`Request::is_good`).
pub(crate) fn read(line: &[u8]) -> Option<Request<'_>> {
    let mut words = words(line);
    let verb = words.next()?;
    Some(match verb {
        b"get" | b"gets" | b"lease-get" | b"gat" | b"gats" => {
            let ttl = if verb.starts_with(b"gat") { Some(number(words.next()?)?) } else { None };
            let (with_cas, is_lease) = (verb.ends_with(b"s"), verb == b"lease-get");
            Request::Retrieve(Retrieve { ttl, keys: words, with_cas, is_lease })
        }
        b"delete" => Request::Delete(words.next()?),
        b"touch" => Request::Touch { key: words.next()?, ttl: number(words.next()?)? },
        b"incr" | b"decr" => {
            let direction = if verb == b"incr" { Direction::Up } else { Direction::Down };
            Request::Arithmetic { key: words.next()?, by: (direction, number(words.next()?)?) }
        }
        b"flush_all" => {
            let delay = words.next().filter(|word| *word != b"noreply").map_or(Some(0), number)?;
            Request::FlushAll { delay }
        }
        b"flush_prefix" => {
            let prefix = words.next()?;
            let next = words.next();
            let bytes = match next {
                Some(b"bytes") => true,
                None | Some(b"noreply") => false,
                Some(_) => return None,
            };
            if words.next().is_some_and(|word| !bytes || word != b"noreply") {
                return None;
            }
            Request::FlushPrefix(Prefix { prefix, bytes })
        }
        b"me" => {
            let text = words.next()?;
            // `b` counts only if a word follows it, as in 1.6.45.
            let base64 = words.next() == Some(b"b") && words.next().is_some();
            Request::MetaDebug(MetaKey { text, base64 })
        }
        b"mg" | b"ms" | b"md" | b"ma" => meta(verb, words)?,
        _ => Request::Store(store(verb, words)?),
    })
}

fn store<'b>(verb: &[u8], mut words: Words<'b>) -> Option<Store<'b>> {
    let mode = match verb {
        b"set" | b"cas" => StoreMode::Set,
        b"add" => StoreMode::Add,
        b"replace" => StoreMode::Replace,
        b"append" => StoreMode::Append,
        b"prepend" => StoreMode::Prepend,
        b"lease-set" => StoreMode::Lease,
        _ => return None,
    };
    let key = words.next()?;
    let lease = if mode == StoreMode::Lease { Some(number(words.next()?)?) } else { None };
    let client_flags = number(words.next()?)?;
    // 1.6.45 reads this TTL by another function, for which a lone `-` is no number.
    let ttl = number(words.next().filter(|word| *word != b"-")?)?;
    let value_bytes = number(words.next()?)?;
    let compare_cas = if verb == b"cas" { Some(number(words.next()?)?) } else { lease };
    Some(Store { mode, key, client_flags, ttl, value_bytes, compare_cas })
}

fn meta<'b>(verb: &'b [u8], mut words: Words<'b>) -> Option<Request<'b>> {
    let text = words.next()?;
    let value_bytes = if verb == b"ms" { number(words.next()?)? } else { 0 };
    let flags = words;
    let base64 = words.any(|flag| flag[0] == b'b');
    let meta = Meta { verb, key: MetaKey { text, base64 }, flags };
    let letter = meta.flag(b'M').map(|mode| mode.first().copied().unwrap_or_default());
    Some(match (verb, letter) {
        (b"mg", _) => Request::MetaGet(meta),
        (b"md", _) => Request::MetaDelete(meta),
        (b"ma", None | Some(b'I' | b'+')) => {
            Request::MetaArithmetic { meta, direction: Direction::Up }
        }
        (b"ma", Some(b'D' | b'-')) => Request::MetaArithmetic { meta, direction: Direction::Down },
        (b"ms", letter) => {
            let mode = match letter {
                None | Some(b'S') => StoreMode::Set,
                Some(b'E') => StoreMode::Add,
                Some(b'R') => StoreMode::Replace,
                Some(b'A') => StoreMode::Append,
                Some(b'P') => StoreMode::Prepend,
                Some(_) => return None,
            };
            Request::MetaSet { meta, mode, value_bytes }
        }
        _ => return None,
    })
}

impl<'b> Request<'b> {
    /// Whether keys have a length that a key can have, and flags are good.
    fn is_good(&self) -> bool {
        let is_key = |key: &[u8]| (1..=KEY_BYTES_MAX).contains(&key.len());
        match *self {
            Self::Retrieve(Retrieve { mut keys, .. }) => {
                { keys }.next().is_some() && keys.all(is_key)
            }
            Self::FlushAll { .. } => true,
            Self::FlushPrefix(Prefix { prefix, .. }) => is_key(prefix),
            _ => is_key(&self.key()) && self.meta().is_none_or(|meta| meta.is_good()),
        }
    }

    /// The key, decoded; empty for a flush and for a retrieval.
    pub(crate) fn key(&self) -> Cow<'b, [u8]> {
        match *self {
            Self::Retrieve(_) | Self::FlushAll { .. } | Self::FlushPrefix(_) => Cow::Borrowed(b""),
            Self::Store(Store { key, .. })
            | Self::Delete(key)
            | Self::Touch { key, .. }
            | Self::Arithmetic { key, .. } => Cow::Borrowed(key),
            Self::MetaGet(meta)
            | Self::MetaSet { meta, .. }
            | Self::MetaDelete(meta)
            | Self::MetaArithmetic { meta, .. } => meta.key.raw(),
            Self::MetaDebug(key) => key.raw(),
        }
    }

    /// Key and flags of a meta request.
    pub(crate) fn meta(&self) -> Option<Meta<'b>> {
        match *self {
            Self::MetaGet(meta)
            | Self::MetaSet { meta, .. }
            | Self::MetaDelete(meta)
            | Self::MetaArithmetic { meta, .. } => Some(meta),
            _ => None,
        }
    }

    /// The length of the data block that follows the line, without its end.
    pub(crate) fn value_bytes(&self) -> Option<usize> {
        match *self {
            Self::Store(Store { value_bytes, .. }) | Self::MetaSet { value_bytes, .. } => {
                Some(value_bytes)
            }
            _ => None,
        }
    }
}

/// Bytes in base64.
pub(crate) fn encode(raw: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for group in raw.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let digit = BASE64[(bits >> (18 - 6 * index) & 63) as usize];
            text.push(if index <= group.len() { digit } else { b'=' });
        }
    }
    text
}

/// The bytes of a base64 text. As in 1.6.45, other bytes in it do not count. `None`: the rest is
/// not what [`encode`] makes.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let is_base64 = |byte: &u8| *byte == b'=' || BASE64.contains(byte);
    let text: Vec<u8> = text.iter().copied().filter(is_base64).collect();
    let (mut raw, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for digit in text.iter().take_while(|byte| **byte != b'=') {
        let value = BASE64.iter().position(|byte| byte == digit)?;
        (bits, held) = (bits << 6 | value as u32, held + 6);
        if held >= 8 {
            held -= 8;
            raw.push((bits >> held) as u8);
        }
    }
    (encode(&raw) == text).then_some(raw)
}

#[cfg(test)]
mod tests {
    use super::{Request, decode, encode, parse};

    #[test]
    fn base64_is_read_as_it_is_made() {
        for (raw, text) in [("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(encode(raw.as_bytes()), text.as_bytes());
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(raw.as_bytes()));
        }
        assert_eq!(decode(b"#Z!m9v#").as_deref(), Some(&b"foo"[..]));
        for wrong in ["Zg=", "Zh==", "Z", "Zm9v="] {
            assert_eq!(decode(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn every_flag_is_read_where_it_stands() {
        let line = b"ms a2V5 3 T-1 b Oq C5 E18446744073709551615 F7 MR q N60\r\n";
        let (request, line_bytes) = parse(line).expect("a request");
        let meta = request.meta().expect("a meta request");
        assert_eq!((line_bytes, request.value_bytes()), (line.len(), Some(3)));
        assert_eq!((meta.number(b'T'), meta.number(b'N')), (Some(-1), Some(60)));
        assert_eq!((meta.number(b'C'), meta.number(b'E')), (Some(5), Some(u64::MAX)));
        assert_eq!((meta.number(b'F'), meta.number::<u32>(b'R')), (Some(7), None));
        assert_eq!(&request.key()[..], b"key");
        assert!(meta.withholds(b"HD") && !meta.withholds(b"NS") && !meta.has(b'c'));
        assert!(matches!(request, Request::MetaSet { mode: super::StoreMode::Replace, .. }));
    }

    #[test]
    fn a_lone_minus_is_0_where_1_6_45_reads_it_so() {
        let read = |line: &'static str| parse(line.as_bytes()).expect(line).0;
        assert!(matches!(read("gat - k\r\n"), Request::Retrieve(one) if one.ttl == Some(0)));
        assert!(matches!(read("touch k -\r\n"), Request::Touch { ttl: 0, .. }));
        assert!(matches!(read("flush_all -\r\n"), Request::FlushAll { delay: 0 }));
        assert_eq!(read("mg k T-\r\n").meta().and_then(|meta| meta.number(b'T')), Some(0));
    }

    #[test]
    fn a_line_that_1_6_45_refuses_is_no_request() {
        for wrong in [
            "get",
            "get a",
            "set k 0 0\r\n",
            "set k x 0 1\r\n",
            "set k 0 0 -1\r\n",
            "set k 0 - 1\r\n",
            "incr k -\r\n",
            "cas k 0 0 1\r\n",
            "touch k\r\n",
            "incr k -1\r\n",
            "mg\r\n",
            "mg k z\r\n",
            "mg k v v\r\n",
            "mg k Cx\r\n",
            "mg a b\r\n",
            "ms k 1 MX\r\n",
            "ms k v\r\n",
            "ma k MX\r\n",
            "me\r\n",
            "mn\r\n",
            "lease-set k 0 0 1\r\n",
        ] {
            assert!(parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
        let long = [b"get a ", &[b'k'; 251][..], b"\r\n"].concat();
        assert!(parse(&long).is_none(), "the key is too long");
    }
}
