//! `mscan`: merges pieces of all engines to items in the order of their keys.
//!
//! Upstream:   `control` begins a scan; `listing` steps it as a listing, a piece at a time.
//! Downstream: an engine, which walks its items in the order of their keys; `wire` formats them.
//!
//! ```text
//! a round:   engine 0:  a d g |            each piece goes from the end of the last round to `|`
//!            engine 1:  b c    f i |       the window has the items of all of them
//!            engine 2:  e h k z            this engine has no more
//!                       ----------|------
//!                       sent      bound: the least `|`; what is behind it is dropped
//! ```
//!
//! Keys are placed by a hash, so each engine has a part of every range of keys. A round takes one
//! piece of each engine. No piece is kept for the next round, so the state of a scan is one key.
//!
//! A piece of an engine is text, a record for each item:
//! `key bytes:8 | key | text bytes:16 | text`. An empty text says that the piece ends after this
//! key, and that the engine may have more behind it.
//!
//! Invariants:
//! - S1  A window has all items of the pieces that it was given with keys in the range of the round
//!   and up to its bound. Each engine has given all of its items there once the round is over.
//! - S2  A window has at most `WINDOW_BYTES_MAX` bytes, or one item. At most `WINDOWS_MAX` scans of
//!   a core have one.
//! - S3  A round ends behind the key where it began.

use std::cell::Cell;
use std::rc::Rc;

use arrayvec::ArrayVec;
use kachel_engine::{
    Cursor, Engine, Facts, INLINE_VALUE_BYTES_MAX, KEY_BYTES_MAX, ScanCursor, WalkNext,
};
use kachel_net::OWED_BYTES_MAX;
use kachel_wire::format::{self, SCAN_HEAD_BYTES_MAX};
use kachel_wire::parse_key;
use kachel_wire::request::{MetaKey, OPAQUE_BYTES_MAX, Scan, ScanFields};

use crate::context::Context;
use crate::request::form::{Ended, Form, LISTED_ITEMS_PER_TICK_MAX};
use crate::waiting::parked::ANSWER_BYTES_MAX;

/// The most items of a reply.
const REPLY_ITEMS_MAX: u32 = 1024;
/// A reply that has this number of bytes ends with the round.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// The most bytes of the items of a round (S2).
const WINDOW_BYTES_MAX: usize = 32 << 10;
/// The most scans of a core that are in a round at a time (S2).
const WINDOWS_MAX: usize = 8;
/// The most bytes of a piece, beside the last record.
const PIECE_BYTES_MAX: usize = 16 << 10;
/// Bytes of the longest record that only has a key.
const MARK_BYTES_MAX: usize = 1 + KEY_BYTES_MAX + 2;
/// The most memory of all windows of a core (S2): what they keep, a piece more, and their lists, as
/// vectors grow.
pub(super) const WINDOWS_MEMORY_MAX: usize =
    WINDOWS_MAX * 4 * (WINDOW_BYTES_MAX + ANSWER_BYTES_MAX);

const _: () = {
    let longest = MARK_BYTES_MAX + SCAN_HEAD_BYTES_MAX + INLINE_VALUE_BYTES_MAX;
    assert!(longest + MARK_BYTES_MAX <= ANSWER_BYTES_MAX, "an item fits a piece");
    assert!(PIECE_BYTES_MAX + MARK_BYTES_MAX <= ANSWER_BYTES_MAX);
    assert!(longest <= WINDOW_BYTES_MAX && 2 * WINDOW_BYTES_MAX <= OWED_BYTES_MAX);
};

/// The windows of a core that are in use.
#[derive(Debug, Default)]
pub(crate) struct Windows(Rc<Cell<usize>>);

impl Windows {
    /// Whether another scan may begin a round (S2).
    pub(crate) fn is_any_free(&self) -> bool {
        self.0.get() < WINDOWS_MAX
    }

    /// The most bytes that those in use take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.0.get() * WINDOWS_MEMORY_MAX / WINDOWS_MAX
    }
}

/// One of the windows of a core is in use.
#[derive(Debug)]
struct InUse(Rc<Cell<usize>>);

impl InUse {
    fn of(windows: &Windows) -> Self {
        assert!(windows.is_any_free(), "S2");
        windows.0.set(windows.0.get() + 1);
        Self(Rc::clone(&windows.0))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A scan that a client waits for.
#[derive(Debug)]
pub(crate) struct Scanning {
    /// All items up to here were sent.
    behind: ScanCursor,
    /// The last key that is wanted.
    last: ScanCursor,
    /// The items that are left to send.
    left: u32,
    sent_bytes: usize,
    fields: ScanFields,
    base64: bool,
    opaque: ArrayVec<u8, OPAQUE_BYTES_MAX>,
    window: Option<Window>,
}

impl Scanning {
    /// The scan that a request asks for.
    pub(crate) fn new(scan: &Scan<'_>) -> Self {
        let mut space = [0; KEY_BYTES_MAX];
        let mut key = |text, of: fn(&[u8]) -> ScanCursor| {
            of(parse_key(MetaKey { text, ..scan.from }, &mut space))
        };
        let from = if scan.is_after { ScanCursor::after } else { ScanCursor::before };
        let mut behind = key(scan.from.text, from);
        let mut last = ScanCursor::END;
        if let Some(until) = scan.until {
            last = key(until, ScanCursor::before);
        }
        if let Some(prefix) = scan.prefix {
            let before = key(prefix, ScanCursor::before);
            behind = if before.key() > behind.key() { before } else { behind };
            let end = key(prefix, ScanCursor::after_prefix);
            last = if end.key() < last.key() { end } else { last };
        }
        Self {
            behind,
            last,
            left: scan.count.min(REPLY_ITEMS_MAX),
            sent_bytes: 0,
            fields: scan.fields,
            base64: scan.from.base64,
            opaque: scan.opaque.iter().copied().collect(),
            window: None,
        }
    }

    /// Whether the scan is in a round.
    pub(crate) const fn is_in_round(&self) -> bool {
        self.window.is_some()
    }

    /// Begins a round. Returns the form of its pieces.
    pub(crate) fn begin_round(&mut self, windows: &Windows, engines: u16) -> Form {
        self.window = Some(Window::new(self.behind, self.left, InUse::of(windows)));
        // Each engine has about the same number of keys of a range, some have more.
        let share = u64::from(self.left).div_ceil(u64::from(engines));
        let items_max = (share + share / 2 + 4).min(LISTED_ITEMS_PER_TICK_MAX as u64) as u8;
        Form::Scan { fields: self.fields, items_max }
    }

    /// The range of the next piece, as text for the core that lists it.
    pub(crate) fn range(&self) -> Vec<u8> {
        let window = self.window.as_ref().expect("a piece is of a round");
        let last = window.bound.as_ref().map_or(self.last.key(), ScanCursor::key);
        let mut range = Vec::with_capacity(2 * MARK_BYTES_MAX);
        put_key(&mut range, window.resumed.key());
        put_key(&mut range, last);
        range
    }

    /// Adds a piece of an engine to the round.
    pub(crate) fn add(&mut self, piece: &[u8], next: WalkNext) {
        let window = self.window.as_mut().expect("a piece is of a round");
        window.add(piece, next == WalkNext::Later);
        if next != WalkNext::Later {
            window.resumed = self.behind; // The next engine begins where the round does.
        }
    }

    /// Ends the round, for which all engines have given a piece. Passes the items that are certain
    /// to be the next ones to `send`. Returns the last line, if the reply is complete.
    pub(crate) fn end_round(&mut self, mut send: impl FnMut(&[u8])) -> Option<Vec<u8>> {
        let mut window = self.window.take().expect("a round ends once");
        window.sort();
        for entry in &window.entries {
            let text = window.text(entry);
            debug_assert!(window.key(entry) > self.behind.key(), "S3");
            self.sent_bytes += text.len();
            send(text);
        }
        self.left -= window.entries.len() as u32;
        let mut is_over = true;
        if let Some(bound) = window.bound.filter(|bound| bound.key() < self.last.key()) {
            debug_assert!(bound.key() > self.behind.key(), "S3");
            (self.behind, is_over) = (bound, false);
        }
        if !is_over && self.left > 0 && self.sent_bytes < REPLY_BYTES_MAX {
            return None;
        }
        let mut end = Vec::new();
        let more = (!is_over).then(|| self.behind.key());
        format::scan_end(&mut end, more, self.base64, &self.opaque);
        Some(end)
    }

    /// Leaves the round, because an engine cannot read its files.
    pub(crate) fn fail(&mut self) {
        self.window = None;
    }
}

/// The items of a round.
#[derive(Debug)]
struct Window {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// The most items that are wanted.
    items_max: usize,
    /// The key up to which the round is complete once it is over. `None`: all keys.
    bound: Option<ScanCursor>,
    /// Where the next piece begins.
    resumed: ScanCursor,
    _in_use: InUse,
}

/// Where a record is in the bytes of a window.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    text_bytes: u16,
    key_bytes: u8,
}

impl Entry {
    const fn bytes(&self) -> usize {
        self.key_bytes as usize + self.text_bytes as usize
    }
}

impl Window {
    fn new(behind: ScanCursor, left: u32, in_use: InUse) -> Self {
        let (bytes, entries) = (Vec::new(), Vec::new());
        let items_max = left as usize;
        Self { bytes, entries, items_max, bound: None, resumed: behind, _in_use: in_use }
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.start as usize..][..usize::from(entry.key_bytes)]
    }

    fn text(&self, entry: &Entry) -> &[u8] {
        let start = entry.start as usize + usize::from(entry.key_bytes);
        &self.bytes[start..][..usize::from(entry.text_bytes)]
    }

    /// Adds the items of a piece (S1). `is_begun` says that the same engine goes on.
    fn add(&mut self, mut piece: &[u8], is_begun: bool) {
        while let Some((key, text, rest)) = take_record(piece) {
            piece = rest;
            if !text.is_empty() {
                self.keep(key, text);
            } else if is_begun {
                self.resumed.pass(key);
            } else {
                self.bound_by(key);
            }
        }
        if self.bytes.len() > WINDOW_BYTES_MAX || self.entries.len() > self.items_max {
            self.shrink();
        }
    }

    fn keep(&mut self, key: &[u8], text: &[u8]) {
        let start = u32::try_from(self.bytes.len()).expect("S2");
        let (key_bytes, text_bytes) = (key.len() as u8, text.len() as u16);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(text);
        self.entries.push(Entry { start, text_bytes, key_bytes });
    }

    fn bound_by(&mut self, key: &[u8]) {
        if self.bound.as_ref().is_none_or(|bound| key < bound.key()) {
            self.bound = Some(ScanCursor::after(key));
        }
    }

    /// Sorts the items, and drops those behind the bound.
    fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_unstable_by(|one, other| self.key(one).cmp(self.key(other)));
        if let Some(bound) = &self.bound {
            entries.truncate(entries.partition_point(|entry| self.key(entry) <= bound.key()));
        }
        self.entries = entries;
    }

    /// Drops the last items, of which there are too many, and those behind the bound (S2).
    fn shrink(&mut self) {
        self.sort();
        let mut bytes = 0;
        let fits = self.entries.iter().take(self.items_max).take_while(|entry| {
            bytes += entry.bytes();
            bytes <= WINDOW_BYTES_MAX
        });
        let count = fits.count();
        if count < self.entries.len() {
            self.entries.truncate(count);
            let last = self.entries.last().expect("an item fits");
            let key = self.key(last).to_vec();
            self.bound_by(&key);
        }
        let (all, entries) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.entries));
        for Entry { start, text_bytes, key_bytes } in entries {
            let record = &all[start as usize..];
            let (key, text) = record.split_at(usize::from(key_bytes));
            self.keep(key, &text[..usize::from(text_bytes)]);
        }
        assert!(self.bytes.len() <= WINDOW_BYTES_MAX, "S2");
    }
}

/// Writes the items of an engine in a range ([`Scanning::range`]), at most `items_max` of them.
pub(crate) fn piece<E: Engine>(
    context: &Context,
    engine: &mut E,
    (fields, items_max): (ScanFields, u8),
    (range, reads): (&[u8], Cursor),
    lines: &mut Vec<u8>,
) -> Ended {
    let (behind, rest) = take_key(range).expect("a range has two keys");
    let (last, _) = take_key(rest).expect("a range has two keys");
    let now = &context.now();
    let bytes_max = 2 * WINDOW_BYTES_MAX / usize::from(context.engines());
    let bytes_max = bytes_max.min(PIECE_BYTES_MAX);
    let mut cursor = ScanCursor::after(behind);
    cursor.reads = reads;
    // How the piece has ended before the engine has: it is complete, or it is full.
    let (mut is_whole, mut is_full, mut taken) = (false, false, cursor);
    let step = engine.scan(&mut cursor, now, usize::from(items_max), |key, item| {
        if key > last {
            is_whole = true;
            return false;
        }
        let value = item.small_value().filter(|_| fields.with_value);
        let bytes = MARK_BYTES_MAX + SCAN_HEAD_BYTES_MAX + value.map_or(0, <[u8]>::len);
        if !lines.is_empty() && lines.len() + bytes > bytes_max {
            is_full = true;
            return false;
        }
        let facts = Facts {
            value_bytes: item.value_bytes(),
            client_flags: item.client_flags(),
            cas: item.cas(),
            ttl_before: now.ttl_left(item.expiry()),
            stale: item.is_stale(),
            win_sent: item.is_win_sent(),
            protocol_mark: Some(item.protocol_mark()),
            ..Facts::default()
        };
        put_key(lines, key);
        let start = lines.len();
        lines.extend_from_slice(&[0, 0]);
        format::scan_item(lines, key, &facts, fields, value);
        let text_bytes = u16::try_from(lines.len() - start - 2).expect("an item fits a piece");
        lines[start..start + 2].copy_from_slice(&text_bytes.to_le_bytes());
        taken.pass(key);
        true
    });
    context.counters.listed_items.add(step.items as u64);
    let ended = if is_full { &taken } else { &cursor };
    is_whole |= step.next == WalkNext::End || ended.key() >= last;
    let next = match step.next {
        WalkNext::Failed => WalkNext::Failed,
        WalkNext::Later if !is_whole => WalkNext::Later,
        _ => WalkNext::End,
    };
    assert!(is_whole || next != WalkNext::End || ended.key() > behind, "a step goes on");
    if !is_whole && ended.key() > behind {
        put_key(lines, ended.key());
        lines.extend_from_slice(&[0, 0]);
    }
    let examined = step.items as u32;
    Ended { next, cursor: cursor.reads, examined, completed: 0 }
}

fn put_key(text: &mut Vec<u8>, key: &[u8]) {
    text.push(u8::try_from(key.len()).expect("key, I1"));
    text.extend_from_slice(key);
}

fn take_key(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&bytes, rest) = text.split_first()?;
    rest.split_at_checked(usize::from(bytes))
}

/// The key and the text of the first record of a piece, and the other records.
fn take_record(piece: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (key, rest) = take_key(piece)?;
    let (&bytes, rest) = rest.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(bytes)))?;
    Some((key, text, rest))
}
