//! The differences between the protocols: which parser reads a request, what a server must know
//! about it, and which formatter answers it. A new protocol adds a file, a kind of [`Request`], and
//! its cases here.
//!
//! Upstream:   `shard`, with the input of a connection, and once a request's key was hashed.
//! Downstream: `line` and `binary` parse, `format` and `binary` format; the engine executes the
//!             operation.
//!
//! Invariants:
//! - I1  Every request with a key makes exactly one operation. A retrieval makes one for each key.

use kachel_engine::{
    ArithmeticTerms, DeleteTerms, GetTerms, Key, LifeStep, LifeTerms, Operation, StoreMode,
    StoreTerms, Ttl, Value, ValueWanted, Verb, Verdict, Wanted,
};

use crate::binary::{self, BINARY_REPLY_BYTES_MAX, REQUEST_MAGIC};
use crate::format::{Sink, answer_classic, answer_meta};
use crate::line::{self, Parsed};
use crate::meta::parse_key;
use crate::reply::Reply;
use crate::request::{KEY_BYTES_MAX, Meta, Request, Store};

/// The bytes that follow a value in the text and meta protocols.
pub(crate) const VALUE_END: &[u8] = b"\r\n";
/// Bytes of the longest reply line to a classic request that is not a retrieval.
const CLASSIC_REPLY_BYTES_MAX: u16 = 96;
/// Bytes of the longest line of a meta reply: a key in base64, an opaque token, every flag.
const META_REPLY_BYTES_MAX: u16 = 640;

/// Reads one request from the front of `input`. Its first byte selects the protocol: a request of
/// the text or meta protocol never begins with that of the binary protocol.
///
/// A connection keeps its protocol. Where only its input is at hand that was parsed before, this
/// function reads it again in the same way as [`parse_text`] or [`parse_binary`].
///
/// The first `scanned_bytes` are known to contain no newline: they are the length of the input when
/// this function last returned `NeedMore`. So a line that arrives in pieces is searched once. A
/// number above the length of the input is limited to it.
///
/// Cost: linear in the line; no allocation. Panics: never.
///
/// ```
/// use kachel_wire::request::Request;
/// use kachel_wire::{Parsed, parse};
/// assert_eq!(parse(b"delete k", 0), Parsed::NeedMore);
/// let request = Request::Delete { key: b"k", noreply: false };
/// assert_eq!(parse(b"delete k\r\nget", 8), Parsed::Request { request, line_bytes: 10 });
/// ```
#[inline]
pub fn parse(input: &[u8], scanned_bytes: usize) -> Parsed<'_> {
    if input.first() == Some(&REQUEST_MAGIC) {
        return parse_binary(input);
    }
    parse_text(input, scanned_bytes)
}

/// Reads one request of the text or meta protocol from the front of `input`, as [`parse`] does.
///
/// Cost: linear in the line; no allocation. Panics: never.
#[inline]
pub fn parse_text(input: &[u8], scanned_bytes: usize) -> Parsed<'_> {
    line::parse(input, scanned_bytes)
}

/// Reads one request of the binary protocol from the front of `input`. A byte that is not 0x80
/// where a request must begin is `Close`.
///
/// Cost: constant; no allocation. Panics: never.
///
/// ```
/// use kachel_wire::{Parsed, parse_binary};
/// assert_eq!(parse_binary(&[0x80, 0x0a]), Parsed::NeedMore);
/// assert_eq!(parse_binary(b"get k\r\n"), Parsed::Close);
/// ```
#[inline(never)]
pub fn parse_binary(input: &[u8]) -> Parsed<'_> {
    binary::parse(input)
}

/// Whether a connection that begins with this byte speaks the binary protocol.
#[inline]
pub const fn begins_binary(first: u8) -> bool {
    first == REQUEST_MAGIC
}

impl<'b> Request<'b> {
    /// The key that the request is about, decoded into `space` if it is base64. `None` for requests
    /// without a key, and for retrievals, which have several keys.
    #[inline]
    pub fn key<'k>(&self, space: &'k mut [u8; KEY_BYTES_MAX]) -> Option<&'k [u8]>
    where
        'b: 'k,
    {
        Some(match *self {
            Self::Store(store) => store.key,
            Self::Delete { key, .. } | Self::Touch { key, .. } | Self::Arithmetic { key, .. } => {
                key
            }
            Self::MetaGet(meta)
            | Self::MetaDelete(meta)
            | Self::MetaSet { meta, .. }
            | Self::MetaArithmetic { meta, .. } => parse_key(meta.key, space),
            Self::MetaDebug(key) => parse_key(key, space),
            Self::Binary(binary) => binary.key,
            Self::Retrieve(_) | Self::MetaNoop | Self::Admin(_) | Self::BinaryAdmin { .. } => {
                return None;
            }
        })
    }

    /// The key as in the request's line; `None` if it is base64, and for requests without a key.
    #[inline]
    pub const fn key_text(&self) -> Option<&'b [u8]> {
        match *self {
            Self::Store(store) => Some(store.key),
            Self::Delete { key, .. } | Self::Touch { key, .. } | Self::Arithmetic { key, .. } => {
                Some(key)
            }
            Self::MetaGet(Meta { key, .. })
            | Self::MetaDelete(Meta { key, .. })
            | Self::MetaSet { meta: Meta { key, .. }, .. }
            | Self::MetaArithmetic { meta: Meta { key, .. }, .. }
            | Self::MetaDebug(key) => {
                if key.base64 {
                    None
                } else {
                    Some(key.text)
                }
            }
            Self::Binary(binary) => Some(binary.key),
            Self::Retrieve(_) | Self::MetaNoop | Self::Admin(_) | Self::BinaryAdmin { .. } => None,
        }
    }

    /// Whether the client wants no reply in any case (classic `noreply`). A quiet meta request is
    /// still answered if it fails.
    #[inline]
    pub const fn is_noreply(&self) -> bool {
        match self {
            Self::Store(store) => store.noreply,
            Self::Delete { noreply, .. }
            | Self::Touch { noreply, .. }
            | Self::Arithmetic { noreply, .. } => *noreply,
            _ => false,
        }
    }

    /// Whether this is a meta request about a key.
    #[inline]
    pub const fn is_meta(&self) -> bool {
        matches!(
            self,
            Self::MetaGet(_)
                | Self::MetaSet { .. }
                | Self::MetaDelete(_)
                | Self::MetaArithmetic { .. }
                | Self::MetaDebug(_)
        )
    }

    /// Whether a request of one key may change nothing.
    #[inline]
    pub const fn is_read(&self) -> bool {
        match self {
            Self::MetaGet(_) => true,
            Self::Binary(binary) => binary.is_read(),
            _ => false,
        }
    }

    /// Whether the reply to a request of one key shows the item's value.
    #[inline]
    pub const fn shows_value(&self) -> bool {
        match self {
            Self::MetaGet(meta) => meta.letters.has(b'v'),
            Self::Binary(binary) => binary.shows_value(),
            _ => false,
        }
    }

    /// Bytes of the longest reply to a request of one key, without the value that it shows. 0 for a
    /// request that wants no reply.
    pub const fn reply_bytes_max(&self) -> u16 {
        if self.is_meta() {
            META_REPLY_BYTES_MAX
        } else if matches!(self, Self::Binary(_)) {
            BINARY_REPLY_BYTES_MAX
        } else if self.is_noreply() {
            0
        } else {
            CLASSIC_REPLY_BYTES_MAX
        }
    }

    /// Bytes of the value that a storage request announces, without [`Self::value_end`].
    #[inline]
    pub const fn announced_bytes(&self) -> Option<u32> {
        match self {
            Self::Store(store) => Some(store.value_bytes),
            Self::MetaSet { value_bytes, .. } => Some(*value_bytes),
            Self::Binary(binary) => binary.announced_bytes(),
            _ => None,
        }
    }

    /// The client flags of a storage request; 0 for others.
    pub const fn client_flags(&self) -> u32 {
        match self {
            Self::Store(store) => store.client_flags,
            Self::MetaSet { meta, .. } => meta.client_flags,
            Self::Binary(binary) => binary.client_flags(),
            _ => 0,
        }
    }

    /// The terms of a storage request; `None` for others.
    #[inline]
    pub fn store_terms(&self) -> Option<StoreTerms> {
        match self {
            Self::Store(store) => Some(store.terms()),
            Self::MetaSet { meta, mode, value_bytes } => {
                Some(meta.store_terms(*mode, *value_bytes as usize))
            }
            Self::Binary(binary) => binary.store_terms(),
            _ => None,
        }
    }

    /// The operation that the request asks for on its key. A value of at most `value_bytes_max`
    /// bytes is lent; a longer value is pinned.
    ///
    /// Panics: for a request without a key, and for a retrieval (I1).
    #[inline]
    pub fn operation<'o>(&self, key: Key<'o>, value_bytes_max: usize) -> Operation<'o> {
        let verb = match self {
            Self::Delete { .. } => Verb::Delete(DeleteTerms::default()),
            Self::Touch { ttl, .. } => Verb::Touch(*ttl),
            Self::Arithmetic { direction, delta, .. } => Verb::Arithmetic(ArithmeticTerms {
                direction: *direction,
                delta: *delta,
                initial: 0,
                compare_cas: None,
                new_cas: None,
                life: LifeTerms::NONE,
            }),
            Self::MetaGet(meta) => Verb::Get(meta.get_terms(value_bytes_max)),
            Self::Store(store) => Verb::Store(store.terms()),
            Self::MetaSet { meta, mode, value_bytes } => {
                Verb::Store(meta.store_terms(*mode, *value_bytes as usize))
            }
            Self::MetaDelete(meta) => Verb::Delete(meta.delete_terms()),
            Self::MetaArithmetic { meta, direction } => Verb::Arithmetic(ArithmeticTerms {
                direction: *direction,
                delta: meta.delta,
                initial: meta.initial,
                compare_cas: meta.compare_cas,
                new_cas: meta.new_cas,
                life: meta.life(),
            }),
            Self::MetaDebug(_) => Verb::Inspect,
            Self::Binary(binary) => binary.engine_verb(value_bytes_max),
            Self::Retrieve(_) | Self::MetaNoop | Self::Admin(_) | Self::BinaryAdmin { .. } => {
                unreachable!("I1: {self:?} is not about one key")
            }
        };
        Operation { key, verb }
    }

    /// The bytes that follow a value in the protocol of the request: the value that it brings, and
    /// the value that [`Self::answer`] returned.
    #[inline]
    pub const fn value_end(&self) -> &'static [u8] {
        if matches!(self, Self::Binary(_)) { b"" } else { VALUE_END }
    }

    /// Whether a storage request whose value is not stored removes the old value of its key, which
    /// is stale now. `is_too_large` says that the value is refused for its size.
    ///
    /// As in memcached: `set` and a binary `SET`, and `ms` in the mode `set` without a token to
    /// compare. If the value is too large, `ms` removes it in every mode.
    pub fn removes_when_refused(&self, is_too_large: bool) -> bool {
        let removes = self.store_terms().is_some_and(|terms| terms.removes_when_refused());
        match self {
            Self::Store(_) => removes,
            Self::MetaSet { .. } => removes || is_too_large,
            Self::Binary(binary) => binary.removes_when_refused(),
            _ => false,
        }
    }

    /// Formats the reply to a storage request whose value is refused. `reply` says why.
    pub fn answer_refusal(&self, sink: &mut impl Sink, reply: Reply) {
        match self {
            Self::Binary(binary) => binary.head.put_reply(sink, reply),
            _ => sink.put(reply.unless(self.is_noreply()).bytes()),
        }
    }

    /// Formats the reply to a request of one key. A returned value is too large for the sink. The
    /// reply has announced it, so the caller must send it next, followed by [`Self::value_end`].
    #[inline]
    pub fn answer<P>(
        &self,
        sink: &mut impl Sink,
        verdict: &Verdict,
        value: Value<'_, P>,
    ) -> Option<P> {
        if self.is_meta() {
            answer_meta(sink, self, verdict, value)
        } else if let Self::Binary(binary) = self {
            binary::answer(sink, binary, verdict, value)
        } else {
            answer_classic(sink, self, verdict);
            None
        }
    }
}

/// The terms on which each key of `get`, `gets`, `gat` or `gats` is read.
#[inline]
pub const fn retrieval_terms(with_cas: bool, ttl: Option<Ttl>, value_bytes_max: usize) -> GetTerms {
    let flags = Wanted::CLIENT_FLAGS;
    GetTerms {
        life: LifeTerms::touch(ttl),
        new_cas: None,
        value: ValueWanted::Yes,
        value_bytes_max,
        notes_access: true,
        may_win: false,
        leases: false,
        wanted: if with_cas { flags.with(Wanted::CAS) } else { flags },
    }
}

/// The terms on which each key of `lease-get` is read.
pub const fn lease_terms(value_bytes_max: usize) -> GetTerms {
    GetTerms { leases: true, ..retrieval_terms(false, None, value_bytes_max) }
}

impl Store<'_> {
    fn terms(&self) -> StoreTerms {
        StoreTerms {
            mode: self.mode,
            value_bytes: self.value_bytes as usize,
            client_flags: self.client_flags,
            ttl: self.ttl,
            compare_cas: self.compare_cas,
            new_cas: None,
            stores_stale: false,
            protocol_mark: false,
            vivify: None,
        }
    }
}

impl Meta<'_> {
    /// `T`, `N` and `R`, in their order in the line.
    #[inline]
    fn life(&self) -> LifeTerms {
        let mut life = LifeTerms::NONE;
        if self.ttl.is_none() && self.vivify.is_none() && self.recache.is_none() {
            return life;
        }
        for letter in self.letters_in_order() {
            match (letter, self.ttl, self.vivify, self.recache) {
                (b'T', Some(ttl), _, _) => life.push(LifeStep::Touch(ttl)),
                (b'N', _, Some(ttl), _) => life.push(LifeStep::Vivify(ttl)),
                (b'R', _, _, Some(seconds)) => life.push(LifeStep::Recache(Ttl(seconds))),
                _ => {}
            }
        }
        life
    }

    #[inline]
    fn get_terms(&self, value_bytes_max: usize) -> GetTerms {
        let letters = self.letters;
        // The server counts each read by the size of its item, so it always wants the lengths.
        let mut wanted = Wanted::MARKS.with(Wanted::VALUE_BYTES).with(Wanted::CLIENT_FLAGS);
        if letters.has(b'c') || self.compare_cas.is_some() {
            wanted = wanted.with(Wanted::CAS);
        }
        for (letter, fact) in [(b't', Wanted::TTL), (b'l', Wanted::ACCESS), (b'h', Wanted::ACCESS)]
        {
            if letters.has(letter) {
                wanted = wanted.with(fact);
            }
        }
        let value = match self.compare_cas {
            _ if !letters.has(b'v') => ValueWanted::No,
            Some(token) => ValueWanted::UnlessCas(token),
            None => ValueWanted::Yes,
        };
        GetTerms {
            life: self.life(),
            new_cas: self.new_cas,
            value,
            value_bytes_max,
            notes_access: !letters.has(b'u'),
            may_win: true,
            leases: false,
            wanted,
        }
    }

    fn store_terms(&self, mode: StoreMode, value_bytes: usize) -> StoreTerms {
        let joins = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        StoreTerms {
            mode,
            value_bytes,
            client_flags: self.client_flags,
            ttl: self.ttl.unwrap_or(Ttl(0)),
            compare_cas: self.compare_cas,
            new_cas: self.new_cas,
            stores_stale: self.letters.has(b'I'),
            protocol_mark: self.key.base64,
            vivify: self.vivify.filter(|_| joins),
        }
    }

    fn delete_terms(&self) -> DeleteTerms {
        DeleteTerms {
            compare_cas: self.compare_cas,
            empties: self.letters.has(b'x'),
            marks_stale: self.letters.has(b'I'),
            ttl: self.ttl,
            new_cas: self.new_cas,
            client_flags: self.client_flags,
        }
    }
}
