//! Checks replies against their requests: framing, order, number, and the content of every value.
//!
//! Upstream:   `client`, which passes the bytes that the server sent.
//! Downstream: `record`, which receives each settled request.
//!
//! Invariants:
//! - I1  Replies come in the order of the requests: each belongs to the first request that wants
//!   one.
//! - I2  A quiet request without a reply is settled as silent by the next reply that cannot belong
//!   to it.

use std::collections::VecDeque;

use kachel_wire::client::{ClientReply, ReplyParsed, parse_reply};
use kachel_wire::request::KEY_BYTES_MAX;

use crate::ask::{Ask, Expect, Verb};
use crate::value::verify;

/// The reply of a server that has no memory for a line. The server closes the connection after it.
const READS_NO_MORE: &[u8] = b"SERVER_ERROR out of memory reading request";
/// The reply to a client that connects while as many clients are connected as may be.
const TOO_MANY: &[u8] = b"ERROR Too many open connections";
/// The reply to a request that stores, if there is no memory for its value.
const OUT_OF_MEMORY_STORING: &[u8] = b"SERVER_ERROR out of memory storing object";

/// The reply to a request that the disk prevents. Its last line, if it has several.
const DISK_ERROR: &[u8] = b"SERVER_ERROR disk error";

/// The beginning of every refusal for lack of memory.
const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory";

/// The moment at which a request's last byte arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) ns: u64,
    /// Its place among the requests of its client that arrived in the same nanosecond.
    pub(crate) part: u16,
    /// The second of the server's clock.
    pub(crate) second: u32,
}

/// A request that is sent and not settled yet.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) ask: Ask,
    /// The offset in the bytes of its connection where it ends, before the bytes that are skipped.
    pub(crate) end: u64,
    /// When its last byte arrived.
    pub(crate) arrived: Option<Arrival>,
    /// The index of the first key that the next value may have.
    next_key: usize,
    /// The bytes of each of its replies, with the index of the key of the reply.
    pub(crate) replies: Vec<(usize, Vec<u8>)>,
    /// The indexes of the keys whose values it was answered with.
    pub(crate) found: Vec<usize>,
    /// The tokens of leases in its replies so far, each with its key.
    leases: Vec<(Vec<u8>, u64)>,
    /// Whether it is a listing that ended with an error of the disk.
    pub(crate) is_failed_listing: bool,
    /// Whether a refusal came that may belong to it or to another quiet request.
    pub(crate) murky: bool,
}

impl Asked {
    /// A request that ends at byte `end` of its connection.
    pub(crate) fn new(ask: Ask, end: u64) -> Self {
        let (replies, found, leases) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            ask,
            end,
            arrived: None,
            next_key: 0,
            replies,
            found,
            leases,
            is_failed_listing: false,
            murky: false,
        }
    }

    /// Whether the client waits for a reply to it.
    pub(crate) fn wants_reply(&self) -> bool {
        !matches!(self.ask.expect, Expect::Nothing | Expect::Meta { quiet: true, .. })
    }

    /// Whether it has arrived, and the server may hold a large value for its reply.
    pub(crate) fn may_bring_large(&self) -> bool {
        let may_show = || match &self.ask.expect {
            // Numbers are never large.
            Expect::Values(keys) | Expect::Leases(keys) => keys.iter().any(|key| key[0] != b'n'),
            Expect::Meta { .. } => self.ask.text.starts_with(b"mg "),
            _ => false,
        };
        self.arrived.is_some() && may_show()
    }

    /// Whether the server refused it for lack of memory.
    pub(crate) fn is_refused(&self) -> bool {
        self.replies.iter().any(|(_, reply)| reply.starts_with(OUT_OF_MEMORY))
    }

    /// Its keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let (several, line): (&[Vec<u8>], &[u8]) = match &self.ask.expect {
            Expect::Values(keys) | Expect::Leases(keys) => (keys, b""),
            Expect::Noop | Expect::Version | Expect::Stats | Expect::Reset | Expect::Dump => {
                (&[], b"")
            }
            Expect::Line(Verb::Flush) => (&[], b""),
            _ => (&[], &self.ask.text),
        };
        let one = line.split(|byte| matches!(byte, b' ' | b'\r')).nth(1);
        // A key that is too long is refused.
        let one = one.filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()));
        several.iter().map(Vec::as_slice).chain(one)
    }

    /// The keys for which it was answered with an error of the disk.
    pub(crate) fn disk_errors(&self) -> impl Iterator<Item = &[u8]> {
        let of_keys = self.replies.iter().filter(|_| !self.is_flush());
        let failed = of_keys.filter(|(_, reply)| is_disk_error(reply));
        failed.map(|(place, _)| self.keys().nth(*place).expect("an error is that of a key"))
    }

    /// Whether it is a flush that was answered with an error of the disk.
    pub(crate) fn is_failed_flush(&self) -> bool {
        self.is_flush() && self.replies.iter().any(|(_, reply)| is_disk_error(reply))
    }

    /// Whether a reply says that there is no memory for an item that is on the disk.
    pub(crate) fn is_unread(&self, reply: &[u8]) -> bool {
        let reads = match self.ask.expect {
            Expect::Values(_) | Expect::Line(Verb::Delete | Verb::Touch) => true,
            // With N, there may be no memory for the item that a miss makes.
            Expect::Meta { .. } => {
                let line = self.ask.text.split(|byte| *byte == b'\r').next().unwrap_or_default();
                let mut flags = line.split(|byte| *byte == b' ').skip(2);
                self.ask.text.starts_with(b"mg ") && !flags.any(|flag| flag.starts_with(b"N"))
            }
            _ => false,
        };
        reads && reply.strip_suffix(b"\r\n") == Some(OUT_OF_MEMORY)
    }

    /// The keys for whose items there was no memory.
    pub(crate) fn unread(&self) -> impl Iterator<Item = &[u8]> {
        let unread = self.replies.iter().filter(|(_, reply)| self.is_unread(reply));
        unread.filter_map(|(place, _)| self.keys().nth(*place))
    }

    fn is_flush(&self) -> bool {
        matches!(self.ask.expect, Expect::Line(Verb::Flush))
    }

    /// The value that it has stored, if the server has said so.
    pub(crate) fn acknowledged_value(&self) -> Option<&[u8]> {
        let (_, reply) = self.replies.first()?;
        let is_stored = reply.starts_with(b"STORED") || reply.starts_with(b"HD");
        let line_bytes = self.ask.text.iter().position(|byte| *byte == b'\n')?;
        Some(&self.ask.text[line_bytes + 1..]).filter(|_| self.ask.stores() && is_stored)
    }

    /// Whether it needs the value that an item has, to change it.
    pub(crate) fn needs_value(&self) -> bool {
        const VERBS: [&[u8]; 4] = [b"append ", b"prepend ", b"incr ", b"decr "];
        VERBS.iter().any(|verb| self.ask.text.starts_with(verb))
    }

    /// Whether it has stored a value of more than half a MiB.
    pub(crate) fn has_stored_large(&self) -> bool {
        self.ask.text.len() > 1 << 19
            && self.replies.iter().any(|(_, reply)| reply.starts_with(b"STORED"))
    }

    /// Whether it is a `lease-set` that got this reply.
    pub(crate) fn is_lease(&self, wanted: &[u8]) -> bool {
        self.ask.text.starts_with(b"lease-set ")
            && self.replies.iter().any(|(_, reply)| reply == wanted)
    }

    /// Whether a part of its reply has come, but not all of it.
    pub(crate) fn is_begun(&self) -> bool {
        self.next_key > 0 || !self.replies.is_empty()
    }

    fn is_quiet(&self) -> bool {
        matches!(self.ask.expect, Expect::Meta { quiet: true, .. })
    }

    /// Whether this refusal may belong to it. Of the meta requests only `ms` is refused with
    /// `OUT_OF_MEMORY_STORING`.
    fn may_say(&self, line: &[u8]) -> bool {
        line != OUT_OF_MEMORY_STORING || self.ask.text.starts_with(b"ms ")
    }
}

/// Whether a reply is an error of the disk.
pub(crate) fn is_disk_error(reply: &[u8]) -> bool {
    reply.strip_suffix(b"\r\n") == Some(DISK_ERROR)
}

/// The result of reading replies.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Requests that are settled, in order.
    pub(crate) answered: Vec<Asked>,
    /// The CAS tokens seen, each with its key.
    pub(crate) tokens: Vec<(Vec<u8>, u64)>,
    /// The tokens of leases that were given, each with its key.
    pub(crate) leases: Vec<(Vec<u8>, u64)>,
    /// The length of the replies in bytes.
    pub(crate) bytes: usize,
    /// Whether the server has refused to read more.
    pub(crate) is_last: bool,
    /// Whether the server has rejected the connection. It then executes nothing.
    pub(crate) is_rejected: bool,
}

/// Reads all whole replies at the beginning of `input`, and settles their requests in `asked`.
/// `writes`: the number of values written so far.
///
/// Errors: a reply is malformed or wrong.
pub(crate) fn read(
    input: &[u8],
    asked: &mut VecDeque<Asked>,
    writes: u64,
) -> Result<Settled, String> {
    let mut settled = Settled::default();
    loop {
        let rest = &input[settled.bytes..];
        if let Some(first) = asked.front_mut().filter(|first| first.ask.expect == Expect::Dump)
            && !rest.starts_with(READS_NO_MORE)
        {
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                return Ok(settled);
            };
            settled.bytes += end + 1;
            if listed(&rest[..end], first)? {
                settled.answered.extend(asked.pop_front());
            }
            continue;
        }
        match parse_reply(rest) {
            ReplyParsed::NeedMore { .. } => return Ok(settled),
            ReplyParsed::Garbage => return Err(format!("garbage: {}", shown(rest))),
            ReplyParsed::Reply { reply, reply_bytes } => {
                let text = &rest[..reply_bytes];
                if let ClientReply::Error(line @ (READS_NO_MORE | TOO_MANY)) = reply {
                    (settled.is_last, settled.is_rejected) = (true, line == TOO_MANY);
                    settled.bytes = input.len();
                    return Ok(settled);
                }
                take(&reply, text, asked, writes, &mut settled)
                    .map_err(|what| format!("{what}; the reply: {}", shown(text)))?;
                settled.bytes += reply_bytes;
            }
        }
    }
}

/// Adds a line of a listing to `first`. Returns whether it was the last one.
fn listed(line: &[u8], first: &mut Asked) -> Result<bool, String> {
    let in_short = first.ask.text.starts_with(b"lru_crawler mg");
    let [head, last] = if in_short { [&b"mg "[..], b"EN"] } else { [&b"key="[..], b"END"] };
    let line = line.trim_ascii_end();
    if std::mem::replace(&mut first.next_key, 1) == 0 && line == b"OK" {
        return Ok(false);
    }
    first.is_failed_listing = line == DISK_ERROR;
    if line == last || first.is_failed_listing {
        return Ok(true);
    }
    let key = line.strip_prefix(head).and_then(|rest| rest.split(|byte| *byte == b' ').next());
    let is_ours = |key: &&[u8]| matches!(key, [b'h' | b'n' | b'f', b'0'..=b'9', ..]);
    let key = key.filter(is_ours).ok_or_else(|| format!("no item of ours: {}", shown(line)))?;
    first.replies.push((0, key.to_vec()));
    Ok(false)
}

fn take(
    reply: &ClientReply<'_>,
    text: &[u8],
    asked: &mut VecDeque<Asked>,
    writes: u64,
    settled: &mut Settled,
) -> Result<(), String> {
    let next = asked.iter().find(|asked| asked.wants_reply());
    let refuses_next = matches!((next.map(|next| &next.ask.expect), reply),
        (Some(Expect::Refusal(wanted)), ClientReply::Error(line)) if wanted == line);
    loop {
        let Some(first) = asked.front_mut() else {
            return Err("a reply without a request".to_owned());
        };
        let silent = match first.ask.expect {
            Expect::Nothing => true,
            Expect::Meta { opaque, quiet: true } => match reply {
                ClientReply::Meta { flags, .. } => opaque_of(flags) != Some(opaque),
                ClientReply::Error(_) if refuses_next => true,
                ClientReply::Error(line) => {
                    // It may belong to any quiet request before the next that wants a reply.
                    let run = asked.iter_mut().take_while(|asked| !asked.wants_reply());
                    let mut anyones = false;
                    for asked in run.filter(|asked| asked.is_quiet() && asked.may_say(line)) {
                        (asked.murky, anyones) = (true, true);
                    }
                    if anyones {
                        return Ok(());
                    }
                    true
                }
                _ => true,
            },
            _ => false,
        };
        if !silent {
            break;
        }
        settled.answered.extend(asked.pop_front()); // I2
    }
    let Some(first) = asked.front_mut() else { return Ok(()) };
    if first.arrived.is_none() {
        return Err(format!("a reply before its request arrived: {}", shown(&first.ask.text)));
    }
    let done = match_one(reply, text, first, writes, settled)?;
    if done {
        settled.answered.extend(asked.pop_front());
    }
    Ok(())
}

/// Adds a reply to `first`. Returns whether it was the last one.
fn match_one(
    reply: &ClientReply<'_>,
    text: &[u8],
    first: &mut Asked,
    writes: u64,
    settled: &mut Settled,
) -> Result<bool, String> {
    let wrong = || format!("not a reply to {}", shown(&first.ask.text));
    match (&first.ask.expect, reply) {
        (Expect::Values(keys), ClientReply::Value { key, value, cas, .. }) => {
            let ahead = keys[first.next_key..].iter().position(|asked| asked == key);
            let Some(ahead) = ahead else {
                return Err(format!("not a key of {}, or out of order", shown(&first.ask.text)));
            };
            genuine(key, &text[value.clone()], writes)?;
            if let Some(token) = cas {
                settled.tokens.push((key.to_vec(), *token));
            }
            let place = first.next_key + ahead;
            first.next_key = place + 1;
            first.found.push(place);
            if first.ask.judged && key[0] != b'f' {
                first.replies.push((place, [text, b"END\r\n"].concat()));
            }
            return Ok(false);
        }
        (Expect::Values(keys), ClientReply::Error(DISK_ERROR | OUT_OF_MEMORY))
            if first.next_key < keys.len() =>
        {
            first.replies.push((keys.len() - 1, text.to_vec()));
        }
        (Expect::Leases(_), reply) => return match_lease(reply, text, first, writes, settled),
        (Expect::Values(_), ClientReply::End) | (Expect::Stats, ClientReply::End) => {}
        (Expect::Stats, ClientReply::Stat(_)) => return Ok(false),
        (Expect::Version, ClientReply::Version(_)) => {}
        (Expect::Reset, ClientReply::Ok) if text == b"RESET\r\n" => {}
        (Expect::Noop, ClientReply::Meta { code: [b'M', b'N'], .. }) => {}
        (Expect::Line(verb), reply) if answers(*verb, reply) => {
            first.replies.push((0, text.to_vec()));
        }
        (Expect::Meta { opaque, .. }, ClientReply::Meta { flags, value, code }) => {
            if opaque_of(flags) != Some(*opaque) || code == b"MN" {
                return Err(wrong());
            }
            if let Some(value) = value {
                let mut words = first.ask.text.split(|byte| *byte == b' ');
                let key = words.nth(1).unwrap_or_default();
                genuine(key, &text[value.clone()], writes)?;
            }
            first.replies.push((0, text.to_vec()));
        }
        (Expect::Refusal(wanted), ClientReply::Error(line)) if wanted == line => {
            first.replies.push((0, text.to_vec()));
        }
        (Expect::Meta { .. }, ClientReply::Error(_)) => first.replies.push((0, text.to_vec())),
        _ => return Err(wrong()),
    }
    Ok(true)
}

/// Adds a reply to `first`, which is a `lease-get`. Returns whether it was the last one. The client
/// uses no token before that, because without the last reply the outcome is unknown.
fn match_lease(
    reply: &ClientReply<'_>,
    text: &[u8],
    first: &mut Asked,
    writes: u64,
    settled: &mut Settled,
) -> Result<bool, String> {
    let wrong = || format!("not a reply to a lease-get: {}", shown(text));
    let Asked { ask, next_key, replies, leases, .. } = first;
    let Expect::Leases(keys) = &ask.expect else { return Err(wrong()) };
    let Some(key) = keys.get(*next_key) else {
        settled.leases.append(leases);
        return if *reply == ClientReply::End { Ok(true) } else { Err(wrong()) };
    };
    let is_value = match reply {
        ClientReply::Value { key: shown, value, .. } if shown == key => {
            genuine(key, &text[value.clone()], writes)?;
            true
        }
        ClientReply::Leased { key: shown, value, token, .. } if shown == key => {
            if !value.is_empty() {
                genuine(key, &text[value.clone()], writes)?;
            }
            if *token > 1 {
                leases.push((key.clone(), *token));
            }
            true
        }
        ClientReply::NotFoundHot => false,
        ClientReply::Error(DISK_ERROR) => false,
        ClientReply::Error(line) if line.starts_with(OUT_OF_MEMORY) => false,
        _ => return Err(wrong()),
    };
    let end: &[u8] = if is_value { b"END\r\n" } else { b"" };
    replies.push((*next_key, [text, end].concat()));
    *next_key += 1;
    Ok(keys.len() == 1 && !is_value)
}

fn answers(verb: Verb, reply: &ClientReply<'_>) -> bool {
    use ClientReply::{
        Deleted, Error, Exists, NotFound, NotStored, Number, Ok, StaleStored, Stored, Touched,
    };
    match verb {
        _ if [Error(DISK_ERROR), Error(OUT_OF_MEMORY)].contains(reply) => true,
        Verb::Flush => matches!(reply, Ok),
        Verb::Store => {
            matches!(reply, Stored | StaleStored | NotStored | Exists | NotFound)
                || matches!(reply, Error(line) if line.starts_with(OUT_OF_MEMORY))
        }
        Verb::Delete => matches!(reply, Deleted | NotFound),
        Verb::Touch => matches!(reply, Touched | NotFound),
        Verb::Arithmetic => {
            matches!(reply, Number(_) | NotFound)
                || matches!(reply, Error(line) if line.starts_with(OUT_OF_MEMORY))
        }
    }
}

fn genuine(key: &[u8], value: &[u8], writes: u64) -> Result<(), String> {
    if key.first() != Some(&b'n') {
        return verify(key, value, writes);
    }
    let digits = value.trim_ascii_end();
    let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
    // `mg` with the flag `N` makes an empty item.
    if number.is_some() || value.is_empty() {
        return Ok(());
    }
    Err(format!("{} is not a number: {}", key.escape_ascii(), shown(value)))
}

fn opaque_of(flags: &[u8]) -> Option<u64> {
    let mut words = flags.split(|byte| *byte == b' ');
    let word = words.find_map(|word| word.strip_prefix(b"O"))?;
    str::from_utf8(word).ok()?.parse().ok()
}

/// The beginning of some bytes, escaped for an error message.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let short = &bytes[..bytes.len().min(120)];
    let more = if short.len() < bytes.len() { "..." } else { "" };
    format!("{}{more} ({} bytes)", short.escape_ascii(), bytes.len())
}
