//! Parses the flags of a meta line in one pass.
//!
//! Upstream:   `meta` has split the line.
//! Downstream: a `Meta`, and the mode, which only `ms` and `ma` use.
//!
//! Invariants:
//! - I1  Every flag in a `Meta`'s `letters` is known to 1.6.45 and appears once in its `flags`.
//! - I2  If there are several mistakes, `meta` defines which one is answered.

use super::Line;
use crate::base64;
use crate::number::{read_i32, read_u32, read_u64};
use crate::reply::Reply;
use crate::request::{
    KEY_BYTES_MAX, Letters, META_FLAGS_MAX, Meta, MetaKey, OPAQUE_BYTES_MAX, Ttl,
};
use crate::words::Words;

/// The values of the flags.
pub(super) struct Flags<'b> {
    meta: Meta<'b>,
    /// The byte after `M`; a space if there is none.
    pub(super) mode: Option<u8>,
    /// Bytes of the opaque token, its letter included; 0 without one.
    opaque_bytes: usize,
}

impl<'b> Flags<'b> {
    /// Returns the request's key and flags, unless the opaque token is too long. That mistake is
    /// checked last.
    #[inline]
    pub(super) fn opaque_checked(self) -> Result<Meta<'b>, Reply> {
        if self.opaque_bytes > OPAQUE_BYTES_MAX { Err(Reply::OpaqueTooLong) } else { Ok(self.meta) }
    }
}

impl<'b> Line<'b> {
    /// Reads the flags and checks the key.
    #[inline(always)]
    pub(super) fn read(self) -> Result<Flags<'b>, Reply> {
        let mut flags = Flags {
            meta: Meta {
                key: MetaKey { text: self.key, base64: false },
                flags: self.flags,
                letters: Letters::default(),
                compare_cas: None,
                new_cas: None,
                client_flags: 0,
                vivify: None,
                recache: None,
                ttl: None,
                initial: 0,
                delta: 1,
            },
            mode: None,
            opaque_bytes: 0,
        };
        // This is done in place, because a `Meta` is large and is copied at each return.
        match flags.fill(self.word_count) {
            None => Ok(flags),
            Some(mistake) => Err(mistake),
        }
    }
}

impl Flags<'_> {
    /// Takes all flags. Returns the mistake to be answered, if there is one.
    fn fill(&mut self, word_count: usize) -> Option<Reply> {
        if self.meta.key.text.len() > KEY_BYTES_MAX {
            return Some(Reply::BadLine);
        }
        if word_count > META_FLAGS_MAX {
            return Some(Reply::FlagsTooLong);
        }
        let mut mistake = None;
        for flag in Words::new(self.meta.flags) {
            let letter = flag[0];
            if !letter.is_ascii_alphabetic() {
                return Some(Reply::InvalidFlag);
            }
            if self.meta.letters.has(letter) {
                return Some(Reply::DuplicateFlag);
            }
            self.meta.letters = self.meta.letters.with(letter);
            if let Err(unknown) = self.take(letter, flag, &mut mistake) {
                return Some(unknown);
            }
        }
        mistake
    }

    /// Takes one flag. An unknown flag ends the search. Any other mistake is noted, and the last
    /// one counts.
    #[inline]
    fn take(&mut self, letter: u8, flag: &[u8], mistake: &mut Option<Reply>) -> Result<(), Reply> {
        let token = &flag[1..];
        let meta = &mut self.meta;
        match letter {
            b'v' | b'q' | b'k' | b'c' | b'f' | b's' | b't' | b'h' | b'l' | b'u' | b'x' | b'I'
            | b'P' | b'L' => {}
            b'O' => self.opaque_bytes = flag.len(),
            b'T' => meta.ttl = ttl(token, mistake),
            b'N' => meta.vivify = ttl(token, mistake),
            b'R' => meta.recache = ttl(token, mistake).map(|Ttl(seconds)| seconds),
            b'C' => meta.compare_cas = noted(number(token), Reply::BadToken, mistake),
            b'E' => meta.new_cas = noted(number(token), Reply::BadToken, mistake),
            b'F' => match read_u32(token).filter(|_| !token.is_empty()) {
                Some(client_flags) => meta.client_flags = client_flags,
                // This mistake has no reply of its own, so it must not hide the reply to another
                // one.
                None => *mistake = mistake.or(Some(Reply::BadLine)),
            },
            b'J' => {
                meta.initial =
                    noted(number(token), Reply::InvalidInitialFlag, mistake).unwrap_or_default();
            }
            b'D' => {
                meta.delta =
                    noted(number(token), Reply::InvalidDeltaFlag, mistake).unwrap_or_default();
            }
            b'M' => self.mode = Some(token.first().copied().unwrap_or(b' ')),
            b'b' => {
                meta.key.base64 = true;
                let decoded = base64::decode(meta.key.text, &mut [0; KEY_BYTES_MAX]).map(|_| ());
                noted(decoded, Reply::BadKeyEncoding, mistake);
            }
            _ => return Err(Reply::InvalidFlag),
        }
        Ok(())
    }
}

fn number(token: &[u8]) -> Option<u64> {
    read_u64(token).filter(|_| !token.is_empty())
}

fn ttl(token: &[u8], mistake: &mut Option<Reply>) -> Option<Ttl> {
    noted(read_i32(token).filter(|_| !token.is_empty()), Reply::BadToken, mistake).map(Ttl)
}

/// Returns the value, or notes the mistake if there is none.
#[inline]
fn noted<T>(value: Option<T>, reply: Reply, mistake: &mut Option<Reply>) -> Option<T> {
    if value.is_none() {
        *mistake = Some(reply);
    }
    value
}
