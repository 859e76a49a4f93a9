//! The requests of clients, borrowed from their input.
//!
//! Upstream:   `parse` makes requests out of lines, and of the headers of the binary protocol.
//! Downstream: `shard` routes a request by its key and executes it.
//!
//! Invariants:
//! - I1  A request owns nothing: every slice points into the line it was parsed from.
//! - I2  Every key of a request, decoded, has 1 to `KEY_BYTES_MAX` bytes.
//! - I3  A storage request's data block follows its line and is not part of the request; `shard`
//!   collects it. It has `value_bytes` bytes and the protocol's end of a value: CR LF, or nothing.
//! - I4  The "line" of a binary request is its header, its extras and its key.
//!
//! The terms are defined in `docs/glossary.md`. Source: memcached's protocol.txt, and where it is
//! incomplete, 1.6.45's replies.

/// Terms of the contract that requests use.
pub use kachel_engine::{Direction, KEY_BYTES_MAX, StoreMode, Ttl};

use crate::words::{Words, find};

/// Bytes of the longest command line, its end included. Lines of `get gets gat gats` may be longer.
pub const LINE_BYTES_MAX: usize = 2048;
/// Bytes of the longest line of `get`, `gets`, `gat` or `gats`.
pub const RETRIEVE_LINE_BYTES_MAX: usize = 2 << 20;
/// The most meta flags in one request.
pub const META_FLAGS_MAX: usize = 20;
/// Bytes of the longest opaque token, its letter `O` included.
pub const OPAQUE_BYTES_MAX: usize = 32;

/// The request of one line (I4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'b> {
    /// `get`, `gets`, `gat`, `gats`, `lease-get`: one `VALUE` per key that is found, then `END`.
    Retrieve(Retrieve<'b>),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`, `lease-set`; a data block follows (I3).
    Store(Store<'b>),
    /// `delete`.
    Delete {
        /// The key.
        key: &'b [u8],
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: &'b [u8],
        /// The new TTL as the client sent it.
        ttl: Ttl,
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `incr` and `decr`.
    Arithmetic {
        /// The key.
        key: &'b [u8],
        /// Up (wraps at 2^64) or down (stops at 0).
        direction: Direction,
        /// The amount of the change.
        delta: u64,
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `mg`.
    MetaGet(Meta<'b>),
    /// `ms`; a data block of `value_bytes` follows (I3).
    MetaSet {
        /// Key and flags.
        meta: Meta<'b>,
        /// The store mode: flag `M`, or `Set` without it.
        mode: StoreMode,
        /// Bytes of the value in the data block.
        value_bytes: u32,
    },
    /// `md`.
    MetaDelete(Meta<'b>),
    /// `ma`.
    MetaArithmetic {
        /// Key and flags.
        meta: Meta<'b>,
        /// The direction: flag `M`, or `Up` without it.
        direction: Direction,
    },
    /// `me`.
    MetaDebug(MetaKey<'b>),
    /// `mn`.
    MetaNoop,
    /// A request that is not about one key.
    Admin(Admin<'b>),
    /// A request of the binary protocol about one key; its value may follow (I3).
    Binary(BinaryRequest<'b>),
    /// A request of the binary protocol that is not about one key.
    BinaryAdmin {
        /// What the reply repeats.
        head: BinaryHead,
        /// What is asked for. `NOOP` is settled with [`crate::Reply::Ok`].
        admin: Admin<'b>,
    },
}

/// A retrieval of one or more keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retrieve<'b> {
    /// The form of the reply.
    pub form: RetrieveForm,
    /// The new TTL, for `gat` and `gats`.
    pub ttl: Option<Ttl>,
    /// The keys, all of them checked (I2).
    pub keys: Keys<'b>,
    /// Whether there is one key and nothing else in `keys`.
    pub is_one: bool,
}

/// What the reply to a retrieval shows of each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetrieveForm {
    /// The value (`get`, `gat`).
    Value,
    /// The value and the CAS token (`gets`, `gats`).
    WithCas,
    /// The value or a lease; it is a `lease-get` of one key.
    LeaseOfOne,
    /// The value or a lease; it is a `lease-get` of several keys.
    LeaseOfMany,
}

impl RetrieveForm {
    /// Whether the reply shows CAS tokens.
    #[inline]
    pub const fn with_cas(self) -> bool {
        matches!(self, Self::WithCas)
    }

    /// Whether it is a `lease-get`.
    #[inline]
    pub const fn is_lease(self) -> bool {
        matches!(self, Self::LeaseOfOne | Self::LeaseOfMany)
    }
}

/// The keys of a retrieval in the client's order: at least one, separated by spaces.
///
/// Each step costs a scan for the next space. To continue later, keep [`Keys::rest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys<'b> {
    /// The text from the first key that was not returned yet, without the line's end.
    pub rest: &'b [u8],
}

impl<'b> Iterator for Keys<'b> {
    type Item = &'b [u8];

    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        let start = self.rest.iter().position(|&byte| byte != b' ')?;
        let rest = &self.rest[start..];
        let end = find::<b' '>(rest);
        let (key, rest) = rest.split_at(end);
        self.rest = rest;
        Some(key)
    }
}

/// A storage request of the classic protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'b> {
    /// The store mode.
    pub mode: StoreMode,
    /// The key.
    pub key: &'b [u8],
    /// The client flags, as 1.6.45 reads them.
    pub client_flags: u32,
    /// The TTL.
    pub ttl: Ttl,
    /// Bytes of the value in the data block.
    pub value_bytes: u32,
    /// `cas`: the token that must match. `lease-set`: the token of the lease.
    pub compare_cas: Option<u64>,
    /// Whether the reply is withheld.
    pub noreply: bool,
}

/// The key of a meta request: as text, or base64 (flag `b`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaKey<'b> {
    /// The key as in the line.
    pub text: &'b [u8],
    /// Whether `text` is the key in base64. If so, the parser has checked that it can be decoded
    /// (I2).
    pub base64: bool,
}

/// Key and flags of a meta request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'b> {
    /// The key.
    pub key: MetaKey<'b>,
    /// The text of the flags as sent, with one or more spaces between them and without a line end.
    /// Replies repeat `O` and `k` and contain the return flags in this order.
    pub flags: &'b [u8],
    /// The letters of `flags`.
    pub letters: Letters,
    /// `C`: the token that must match.
    pub compare_cas: Option<u64>,
    /// `E`: the token that the item gets.
    pub new_cas: Option<u64>,
    /// `F`: client flags; 0 when absent.
    pub client_flags: u32,
    /// `N`: the TTL of an item that is created on a miss.
    pub vivify: Option<Ttl>,
    /// `R`: one client wins if fewer than this many seconds of life are left.
    pub recache: Option<i32>,
    /// `T`: the TTL to set.
    pub ttl: Option<Ttl>,
    /// `J`: the first value of a created number; 0 if absent.
    pub initial: u64,
    /// `D`: the amount by which to change a number; 1 if absent.
    pub delta: u64,
}

impl Meta<'_> {
    /// The letters of the flags, in their order in the line.
    pub fn letters_in_order(&self) -> impl Iterator<Item = u8> {
        Words::new(self.flags).map(|flag| flag[0])
    }
}

/// The fields of a request's header that its reply repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinaryHead {
    /// The opcode.
    pub opcode: u8,
    /// Any bytes of the client.
    pub opaque: [u8; 4],
}

/// A request of the binary protocol about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinaryRequest<'b> {
    /// What the reply repeats.
    pub head: BinaryHead,
    /// The key: any bytes.
    pub key: &'b [u8],
    /// The CAS token that must match. `None` if the header has 0.
    pub compare_cas: Option<u64>,
    /// What is asked for.
    pub verb: BinaryVerb,
}

/// What a request of the binary protocol asks for on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryVerb {
    /// `GET`, `GETK`, `GAT`, `GATK`, `TOUCH`.
    Get {
        /// The new TTL, if the request sets one.
        ttl: Option<Ttl>,
        /// Whether the reply has the value; `TOUCH` returns only the client flags.
        with_value: bool,
        /// Whether the reply has the key.
        with_key: bool,
    },
    /// `SET`, `ADD`, `REPLACE`, `APPEND`, `PREPEND`; a value follows (I3).
    Store {
        /// The store mode. With a token to compare, `ADD` and `REPLACE` do what `SET` does.
        mode: StoreMode,
        /// The client flags.
        client_flags: u32,
        /// The TTL.
        ttl: Ttl,
        /// Bytes of the value.
        value_bytes: u32,
    },
    /// `DELETE`.
    Delete,
    /// `INCREMENT`, `DECREMENT`.
    Arithmetic {
        /// Up or down.
        direction: Direction,
        /// The amount of the change.
        delta: u64,
        /// The first value of a number that is created.
        initial: u64,
        /// The TTL of a number that is created. `None` if none is created.
        create: Option<Ttl>,
    },
}

/// A scan: which items it returns, and what of each (`docs/scan.md`). Its keys are as in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan<'b> {
    /// The key from which the scan begins. It says whether all keys are base64.
    pub from: MetaKey<'b>,
    /// Whether the item of that key is left out.
    pub is_after: bool,
    /// The key before which the scan ends.
    pub until: Option<&'b [u8]>,
    /// What all keys begin with.
    pub prefix: Option<&'b [u8]>,
    /// The most items; not 0.
    pub count: u32,
    /// What is returned of each item.
    pub fields: ScanFields,
    /// The opaque token with its letter; empty without one.
    pub opaque: &'b [u8],
}

/// What a scan returns of each item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanFields {
    /// Whether the value is returned.
    pub with_value: bool,
    count: u8,
    letters: [u8; Self::COUNT_MAX],
}

impl ScanFields {
    /// The number of return flags that there are: `f t s c k`.
    const COUNT_MAX: usize = 5;

    /// Adds a return flag.
    ///
    /// # Panics
    /// If there are more than there may be: one was added twice.
    pub fn push(&mut self, letter: u8) {
        debug_assert!(b"ftsck".contains(&letter) && !self.letters().contains(&letter));
        self.letters[usize::from(self.count)] = letter;
        self.count += 1;
    }

    /// The return flags, in the order of the request.
    pub fn letters(&self) -> &[u8] {
        &self.letters[..usize::from(self.count)]
    }
}

/// A set of ASCII letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Letters(pub u64);

impl Letters {
    const fn bit(letter: u8) -> u64 {
        assert!(letter.is_ascii_alphabetic());
        1 << (letter - b'A')
    }

    /// The set with `letter` added.
    #[must_use]
    pub const fn with(self, letter: u8) -> Self {
        Self(self.0 | Self::bit(letter))
    }

    /// Whether `letter` is in the set.
    #[inline]
    pub const fn has(self, letter: u8) -> bool {
        self.0 & Self::bit(letter) != 0
    }
}

/// Requests that are not about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin<'b> {
    /// `flush_all [delay] [noreply]`.
    FlushAll {
        /// Seconds (or an absolute time) until the flush takes effect; 0 if absent.
        delay: Ttl,
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `flush_prefix PREFIX [bytes] [noreply]`.
    FlushPrefix {
        /// The prefix; 1 to 250 bytes.
        prefix: &'b [u8],
        /// Whether the prefix may end inside a part of a key.
        bytes: bool,
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `version`.
    Version,
    /// `verbosity LEVEL`.
    Verbosity {
        /// The requested level.
        level: u32,
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `quit`.
    Quit,
    /// `shutdown`, `shutdown graceful`.
    Shutdown {
        /// Whether the server must save its memory first.
        graceful: bool,
    },
    /// `cache_memlimit MB`. The parser reads the number and does not check it.
    CacheMemlimit {
        /// Megabytes.
        megabytes: u32,
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `refresh_certs`. A server without TLS does not know this command.
    RefreshCertificates {
        /// Whether the refusal of a server without TLS is withheld. Other replies are not.
        noreply: bool,
    },
    /// `pipe on` or `pipe off`. 1.6.45 has no such command.
    SwitchPipe {
        /// Whether the pipe answers from now on.
        on: bool,
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `observe NAMES on` or `observe NAMES off`. 1.6.45 has no such command.
    Observe {
        /// The observers.
        observers: crate::ObserverSet,
        /// Whether they observe from now on.
        on: bool,
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `observe hash KEY`: the hash by which the key is shown. 1.6.45 has no such command.
    ShowHash {
        /// The key: 1 to 250 bytes.
        key: &'b [u8],
    },
    /// `lru_crawler metadump` (or `mgdump`) of `all` or `hash` or class ids.
    Dump {
        /// The format of each item.
        form: DumpForm,
        /// The size classes, one bit each, or the answer to a bad one.
        classes: Result<u64, crate::reply::Reply>,
        /// Whether a reply of one line is withheld.
        noreply: bool,
    },
    /// `mscan`. 1.6.45 has no such command.
    Scan(Scan<'b>),
    /// `stats`, with its topic (empty: the general statistics).
    Stats {
        /// The text after `stats `, trimmed.
        topic: &'b [u8],
    },
    /// `lru_crawler crawl`: space of items that have expired is reclaimed.
    Crawl {
        /// The size classes, one bit each, or the answer to a bad one.
        classes: Result<u64, crate::reply::Reply>,
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `lru_crawler enable` or `disable`.
    SwitchCrawler {
        /// Whether the crawler may run from now on.
        on: bool,
        /// Whether the reply is withheld.
        noreply: bool,
    },
    /// `debugtime`: the clock of the process is moved on, in tests.
    MoveTime {
        /// Seconds.
        seconds: u32,
    },
    /// `watch`: the client gets the lines of the log from now on.
    Watch {
        /// The streams. `None` if one of the names is not that of a stream.
        streams: Option<crate::Streams>,
    },
    /// A request whose answer does not depend on the server's state: the tuning commands of
    /// memcached (`lru`, `slabs`, `lru_crawler`), which have nothing to tune here.
    Settled {
        /// The answer.
        reply: crate::reply::Reply,
        /// Whether the reply is withheld.
        noreply: bool,
    },
}

/// The format of an item in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpForm {
    /// `key=... exp=... la=... cas=... fetch=... cls=... size=... flags=...`, ends with `END`.
    Metadump,
    /// `mg KEY`, ends with `EN`.
    Mgdump,
}
