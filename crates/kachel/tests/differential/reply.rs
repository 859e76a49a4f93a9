//! Cuts a stream of replies into commands' shares and lines, and tells apart what may differ.
//!
//! Upstream:   `run` hands over the bytes that a server sent for a batch.
//! Downstream: `compare` walks two lists of lines side by side.
//!
//! After every command the runner sends a *mark*: a meta delete of a key that never exists, with an
//! opaque that names the command. Its answer ends the command's share of the stream, whatever was
//! answered before it, so that quiet, refused and half-swallowed commands need no special case.

/// The key of marks. No other command names it.
const MARK_KEY: &str = "~";

/// The text of the mark after command `index` of a run.
pub(crate) fn mark_request(index: usize) -> Vec<u8> {
    format!("md {MARK_KEY} O~{index}~\r\n").into_bytes()
}

/// What a server answers to it.
pub(crate) fn mark_reply(index: usize) -> Vec<u8> {
    format!("NF O~{index}~\r\n").into_bytes()
}

/// Where `wanted` first stands in `bytes`.
pub(crate) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// A reply line, with the data block that follows it if it announces one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// The line without its end.
    pub(crate) head: &'a [u8],
    /// The data block of `VALUE` and `VA`, CR LF included.
    pub(crate) data: Option<&'a [u8]>,
}

impl<'a> Line<'a> {
    /// The words of the line.
    pub(crate) fn words(&self) -> Vec<&'a [u8]> {
        self.head.split(|byte| *byte == b' ').collect()
    }
}

/// The number that a word spells; `None` if it spells none.
pub(crate) fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// The data bytes that a line announces, its CR LF included.
fn announced_bytes(head: &[u8]) -> Option<usize> {
    let mut words = head.split(|byte| *byte == b' ');
    let length = match words.next()? {
        b"VALUE" => words.nth(2)?,
        b"VA" => words.next()?,
        _ => return None,
    };
    number::<usize>(length).map(|bytes| bytes + 2)
}

/// The lines of one share of the stream. What is cut short becomes a short line or block.
pub(crate) fn lines(mut bytes: &[u8]) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    while !bytes.is_empty() {
        let end = find(bytes, b"\r\n").unwrap_or(bytes.len());
        let head = &bytes[..end];
        bytes = &bytes[(end + 2).min(bytes.len())..];
        let data = announced_bytes(head).map(|length| {
            let (data, rest) = bytes.split_at(length.min(bytes.len()));
            bytes = rest;
            data
        });
        lines.push(Line { head, data });
    }
    lines
}

/// The lines as bytes again.
pub(crate) fn joined(lines: &[Line<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in lines {
        bytes.extend_from_slice(line.head);
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(line.data.unwrap_or_default());
    }
    bytes
}

/// What a word of a reply line is, as far as comparing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word<'a> {
    /// To be the same byte for byte.
    Exact(&'a [u8]),
    /// A CAS token: to be the same up to renaming.
    Token(u64),
    /// Seconds: to be the same within one, since two servers' seconds do not begin together.
    /// The first field names them: `t`, `exp`, `l` or `la`.
    Seconds(&'static str, i64),
}

/// Tells what word `index` of `words` is.
pub(crate) fn classify<'a>(words: &[&'a [u8]], index: usize) -> Word<'a> {
    let word = words[index];
    let exact = Word::Exact(word);
    let seconds = |name, digits: &[u8]| number(digits).map_or(exact, |n| Word::Seconds(name, n));
    let token = |digits: &[u8]| number(digits).map_or(exact, Word::Token);
    match (words[0], word) {
        (b"VALUE", _) if index == 4 => token(word),
        (b"VA" | b"HD" | b"EX" | b"NF" | b"NS" | b"EN", _) if index >= 1 => match word {
            [b'c', digits @ ..] => token(digits),
            [b't', digits @ ..] => seconds("t", digits),
            [b'l', digits @ ..] => seconds("l", digits),
            _ => exact,
        },
        (b"ME", _) if index >= 2 => match word.iter().position(|byte| *byte == b'=') {
            Some(3) if word.starts_with(b"exp=") => seconds("exp", &word[4..]),
            Some(2) if word.starts_with(b"la=") => seconds("la", &word[3..]),
            Some(3) if word.starts_with(b"cas=") => token(&word[4..]),
            _ => exact,
        },
        _ => exact,
    }
}
