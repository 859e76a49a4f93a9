//! Scans as a client makes them (`docs/scan.md`), and a judge of what they return.
//!
//! Upstream:   tests of servers in memory and over the wire, which send the requests.
//! Downstream: nothing of ours: it reads replies without the code of the server.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// An item of a reply to `mscan`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanItem {
    /// The key. Empty if the reply does not have it.
    pub key: Vec<u8>,
    /// The value, if the reply has it.
    pub value: Option<Vec<u8>>,
    /// The flags of its line.
    pub flags: String,
}

/// A reply to `mscan`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanReply {
    /// The items.
    pub items: Vec<ScanItem>,
    /// The key after which the scan goes on. `None` if it is over.
    pub more: Option<Vec<u8>>,
    /// Bytes of the reply.
    pub bytes: usize,
}

/// The key among the flags of a line.
fn key_of(flags: &str) -> Vec<u8> {
    let words: Vec<&str> = flags.split(' ').collect();
    let Some(place) = words.iter().position(|word| word.starts_with('k')) else {
        return Vec::new();
    };
    let text = &words[place][1..];
    match words.get(place + 1) {
        Some(&"b") => STANDARD.decode(text).expect("base64"),
        _ => text.as_bytes().to_vec(),
    }
}

impl ScanReply {
    /// Reads a reply from the front of `input`. `None` if it is not there to its end.
    ///
    /// # Panics
    /// If the bytes are no reply to `mscan`.
    #[must_use]
    pub fn read(input: &[u8]) -> Option<Self> {
        let mut reply = Self::default();
        loop {
            let rest = &input[reply.bytes..];
            let end = rest.iter().position(|&byte| byte == b'\n')?;
            let line = rest[..end].strip_suffix(b"\r").expect("a line ends in CR LF");
            let line = String::from_utf8(line.to_vec()).expect("text");
            let (code, flags) = line.split_once(' ').unwrap_or((&line, ""));
            reply.bytes += end + 1;
            match code {
                "HD" => {
                    let (key, flags) = (key_of(flags), flags.to_owned());
                    reply.items.push(ScanItem { key, value: None, flags });
                }
                "VA" => {
                    let (bytes, flags) = flags.split_once(' ').unwrap_or((flags, ""));
                    let bytes: usize = bytes.parse().expect("a length");
                    let value = rest.get(end + 1..end + 1 + bytes)?.to_vec();
                    let end = rest.get(end + 1 + bytes..end + 3 + bytes)?;
                    assert_eq!(end, b"\r\n", "a value ends in CR LF");
                    reply.bytes += bytes + 2;
                    let (key, flags) = (key_of(flags), flags.to_owned());
                    reply.items.push(ScanItem { key, value: Some(value), flags });
                }
                "EN" => return Some(reply),
                "MO" => {
                    reply.more = Some(key_of(flags));
                    return Some(reply);
                }
                _ => panic!("{line}"),
            }
        }
    }
}

/// The request for the items behind a key, with their keys and values.
#[must_use]
pub fn scan_request(behind: &[u8], count: usize) -> String {
    match behind {
        b"" => format!("mscan AA== {count} b k v\r\n"),
        behind => format!("mscan {} {count} b k v a\r\n", STANDARD.encode(behind)),
    }
}

/// Judges the scans of one client: no key comes twice, keys are in order, none is lost that lived
/// throughout, and nothing is returned that was gone before the request was sent.
#[derive(Debug, Default)]
pub struct ScanJudge {
    items: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The values that items had since the last request was sent.
    past: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    /// The items that have lived since the scan began and were not returned yet.
    awaited: BTreeSet<Vec<u8>>,
    last: Vec<u8>,
    returned: usize,
}

impl ScanJudge {
    /// An item has this value now, or is gone.
    pub fn change(&mut self, key: &[u8], value: Option<&[u8]>) {
        let before = match value {
            Some(value) => self.items.insert(key.to_vec(), value.to_vec()),
            None => self.items.remove(key),
        };
        if value.is_none() {
            self.awaited.remove(key);
        }
        if let Some(before) = before {
            self.past.entry(key.to_vec()).or_default().push(before);
        }
    }

    /// The items that are there now.
    #[must_use]
    pub const fn items(&self) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.items
    }

    /// A scan begins.
    pub fn begin(&mut self) {
        self.awaited = self.items.keys().cloned().collect();
        (self.last, self.returned) = (Vec::new(), 0);
    }

    /// The next request of the scan, which is sent now.
    pub fn request(&mut self, count: usize) -> String {
        self.past.clear();
        scan_request(&self.last, count)
    }

    /// Judges a reply to a request for at most `count` items. Returns whether the scan is over.
    ///
    /// # Panics
    /// If the reply is wrong.
    pub fn judge(&mut self, reply: &ScanReply, count: usize) -> bool {
        assert!(reply.items.len() <= count, "{} items of {count}", reply.items.len());
        for ScanItem { key, value, .. } in &reply.items {
            let name = key.escape_ascii();
            assert!(*key > self.last, "{name} is not behind {}", self.last.escape_ascii());
            let now = self.items.get(key).into_iter();
            let mut values = now.chain(self.past.get(key).into_iter().flatten());
            let value = value.as_ref().expect("a short value");
            assert!(values.any(|known| known == value), "{name} has another value, or is gone");
            self.pass(key);
            self.returned += 1;
        }
        if let Some(more) = &reply.more {
            assert!(*more >= self.last && !more.is_empty(), "the scan goes on where it is");
            self.pass(more);
            return false;
        }
        let lost = self.awaited.first().map(|key| key.escape_ascii().to_string());
        assert_eq!(lost, None, "it has lived throughout");
        true
    }

    /// The scan has passed all keys up to this one.
    fn pass(&mut self, key: &[u8]) {
        self.awaited.remove(key);
        if let Some(lost) = self.awaited.first().filter(|first| first.as_slice() < key) {
            panic!("{} was passed over, before {}", lost.escape_ascii(), key.escape_ascii());
        }
        self.last = key.to_vec();
    }

    /// The items that this scan has returned.
    #[must_use]
    pub const fn returned(&self) -> usize {
        self.returned
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    fn judge() -> ScanJudge {
        let mut judge = ScanJudge::default();
        [b"a", b"c", b"e"].iter().for_each(|key| judge.change(*key, Some(b"1")));
        judge.begin();
        judge
    }

    /// Judges replies, after these changes since the first request.
    fn is_accepted(changes: &[(&str, Option<&str>)], replies: &[&str]) -> bool {
        catch_unwind(|| {
            let mut judge = judge();
            assert_eq!(judge.request(9), "mscan AA== 9 b k v\r\n");
            for (key, value) in changes {
                judge.change(key.as_bytes(), value.map(str::as_bytes));
            }
            let mut is_over = false;
            for reply in replies {
                assert!(!is_over);
                let reply = ScanReply::read(reply.as_bytes()).expect("a whole reply");
                is_over = judge.judge(&reply, 9);
                let _next = judge.request(9);
            }
            assert!(is_over);
        })
        .is_ok()
    }

    #[test]
    fn what_a_scan_may_return_is_accepted_and_the_rest_is_not() {
        let one = |key: &str, value: &str| format!("VA 1 k{key}\r\n{value}\r\n");
        let [a, c, e] = ["a", "c", "e"].map(|key| one(key, "1"));
        let whole = format!("{a}{c}{e}EN\r\n");
        assert!(is_accepted(&[], &[&whole]));
        assert!(is_accepted(&[], &[&format!("{a}MO ka\r\n"), &format!("{c}{e}EN\r\n")]));
        assert!(is_accepted(&[], &[&format!("{a}MO kYg== b\r\n"), &format!("{c}{e}EN\r\n")]));
        assert!(is_accepted(&[("c", Some("2"))], &[&format!("{a}{}{e}EN\r\n", one("c", "2"))]));
        for changes in [&[("c", Some("2"))][..], &[("c", None)], &[("b", Some("1"))]] {
            assert!(is_accepted(changes, &[&whole]), "{changes:?}");
        }
        assert!(is_accepted(&[("c", None)], &[&format!("{a}{e}EN\r\n")]));
        let wrong = [
            format!("{a}{a}{c}{e}EN\r\n"),
            format!("{c}{a}{e}EN\r\n"),
            format!("{a}{e}EN\r\n"),
            format!("{a}{c}EN\r\n"),
            format!("{a}{}{c}{e}EN\r\n", one("b", "1")),
            format!("{a}{}{e}EN\r\n", one("c", "2")),
        ];
        assert!(wrong.iter().all(|reply| !is_accepted(&[], &[reply])));
        // An old value, and a deleted item, count only in the reply that was under way.
        let late = [&format!("{a}MO ka\r\n"), &format!("{c}{e}EN\r\n")[..]];
        assert!(!is_accepted(&[("c", Some("2"))], &late));
        assert!(!is_accepted(&[("c", None)], &late));
        assert!(!is_accepted(&[], &[&format!("{a}MO kZA== b\r\n"), &format!("{e}EN\r\n")]));
    }

    #[test]
    fn a_reply_is_read_whole_or_not_at_all() {
        let text = b"VA 2 kYQo= b s2\r\n\r\n\r\nHD kb\r\nMO kb O7\r\nrest";
        let reply = ScanReply::read(text).expect("whole");
        assert_eq!(reply.bytes, text.len() - 4);
        assert_eq!((reply.items[0].key.as_slice(), reply.items.len()), (&b"a\n"[..], 2));
        assert_eq!(reply.items[0].value.as_deref(), Some(&b"\r\n"[..]));
        assert_eq!(reply.more.as_deref(), Some(&b"b"[..]));
        assert!((0..reply.bytes).all(|cut| ScanReply::read(&text[..cut]).is_none()));
    }
}
