//! Requests that the server must refuse: too large values, malformed data blocks, malformed lines.
//!
//! Upstream:   `ask`, for a small part of the requests.
//! Downstream: the client, which sends them like other requests; `answer`, which compares the
//!             text of the refusal.
//!
//! The bytes that the server must skip look like commands. If the server skips too few bytes or too
//! many, it executes a part of them: it sends a reply too many, or flushes everything.
//!
//! Invariants:
//! - I1  `q` does not suppress a refusal of this module, and no other kind of request gets the same
//!   refusal. So the request of each refusal is known.

use kachel_testkit::Random;
use kachel_wire::client::{self, StoreRequest};
use kachel_wire::request::{KEY_BYTES_MAX, StoreMode};

use crate::ask::{Ask, Asker, Expect};

/// A value that is too large exceeds the limit by at most this.
const EXCESS_BYTES: u64 = 12_000;
/// The data block of a malformed request is shorter than this, unless it is a large one.
const BLOCK_BYTES: u64 = 600;

const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache";
const BAD_DATA_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk";
const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format";

impl Asker {
    /// A request that the server refuses, whatever items the server holds.
    pub(crate) fn amiss(&self, dice: &mut Random, cas: Option<&(Vec<u8>, u64)>) -> Ask {
        match dice.below(10) {
            0..3 => self.too_large(dice, cas),
            3..6 => self.bad_data_chunk(dice),
            6..8 => self.bad_line_with_block(dice),
            _ => self.bad_line(dice),
        }
    }

    /// A value over the limit. The server refuses it once its line has arrived. A refused `set`
    /// removes the old item, so the request is judged by the model.
    fn too_large(&self, dice: &mut Random, cas: Option<&(Vec<u8>, u64)>) -> Ask {
        let value = commands(self.item_bytes_max + dice.below(EXCESS_BYTES));
        let key = self.hot_text(dice);
        let mut text = Vec::new();
        let mut expect = Expect::Refusal(TOO_LARGE);
        if dice.chance(300) {
            let flags: &[u8] = [&b"q"[..], b"ME", b"MA q", b"T9"][dice.index(4)];
            client::meta_set(&mut text, &key, flags, &value);
        } else {
            let modes = [StoreMode::Set, StoreMode::Add, StoreMode::Replace, StoreMode::Append];
            let mode = if dice.chance(500) { StoreMode::Set } else { modes[dice.index(4)] };
            let token = cas.map(|(_, token)| *token);
            let compare_cas = token.filter(|_| mode == StoreMode::Set && dice.chance(200));
            let noreply = dice.chance(150);
            let set = StoreRequest::set(&key);
            let request = StoreRequest { mode, compare_cas, noreply, ..set };
            client::store(&mut text, &request, &value);
            if noreply {
                expect = Expect::Nothing;
            }
        }
        Ask { swallowed: value.len() + 2, ..Ask::new(text, expect, true) }
    }

    /// A data block that does not end where it should. The request stores and removes nothing.
    fn bad_data_chunk(&self, dice: &mut Random) -> Ask {
        // A large data block uses memory while it is received.
        let large = self.pressing && dice.chance(200);
        let bytes = if large { dice.between(16_000, 60_000) } else { dice.below(BLOCK_BYTES) };
        let value = commands(bytes);
        let key = self.hot_text(dice);
        let noreply = dice.chance(150);
        let mut text = Vec::new();
        if dice.chance(400) && !noreply {
            client::meta_set(&mut text, &key, [&b"q"[..], b"T9"][dice.index(2)], &value);
        } else {
            let request = StoreRequest { noreply, ..StoreRequest::set(&key) };
            client::store(&mut text, &request, &value);
        }
        let end = text.len();
        text[end - 2..].copy_from_slice([b"\n\r", b"xx", b"\rx", b"x\n"][dice.index(4)]);
        let expect = if noreply { Expect::Nothing } else { Expect::Refusal(BAD_DATA_CHUNK) };
        Ask::new(text, expect, false)
    }

    /// A malformed line with a valid length of its data block. The server skips the data block.
    fn bad_line_with_block(&self, dice: &mut Random) -> Ask {
        let value = commands(dice.below(BLOCK_BYTES));
        let (key, long_key) = (self.hot_text(dice), "k".repeat(KEY_BYTES_MAX + 1));
        let (key, bytes) = (String::from_utf8_lossy(&key), value.len());
        let (line, refusal): (String, &'static [u8]) = match dice.below(4) {
            0 => (format!("set {key} x 0 {bytes}"), BAD_LINE),
            1 => (format!("set {long_key} 0 0 {bytes}"), BAD_LINE),
            2 => (format!("cas {key} 0 0 {bytes} x"), BAD_LINE),
            _ => (format!("ms {key} {bytes} q MX"), b"CLIENT_ERROR invalid mode for ms M token"),
        };
        let text = [line.as_bytes(), b"\r\n", &value, b"\r\n"].concat();
        Ask { swallowed: bytes + 2, ..Ask::new(text, Expect::Refusal(refusal), false) }
    }

    /// A malformed line without a data block.
    fn bad_line(&self, dice: &mut Random) -> Ask {
        let key = self.hot_text(dice);
        let key = String::from_utf8_lossy(&key);
        let long_key = "k".repeat(dice.between(KEY_BYTES_MAX as u64 + 1, 1_500) as usize);
        let (line, refusal): (String, &'static [u8]) = match dice.below(5) {
            0 => ("bogus".to_owned(), b"ERROR"),
            1 => (format!("get {key} {long_key}"), BAD_LINE),
            2 => (format!("incr {key} x"), b"CLIENT_ERROR invalid numeric delta argument"),
            3 => (format!("touch {key} x"), b"CLIENT_ERROR invalid exptime argument"),
            _ => (format!("mg {key} q T1x"), b"CLIENT_ERROR bad token in command line format"),
        };
        let text = [line.as_bytes(), b"\r\n"].concat();
        Ask::new(text, Expect::Refusal(refusal), false)
    }
}

/// Returns `bytes` bytes that do harm if the server executes them as requests.
fn commands(bytes: u64) -> Vec<u8> {
    b"\nflush_all\r\nmn\r\n".iter().copied().cycle().take(bytes as usize).collect()
}
