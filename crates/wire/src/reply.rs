//! All replies with constant text: the table of the text and meta protocols, and that of the binary
//! protocol.
//!
//! Upstream:   the parsers name a reply in a refusal; `shard` and `net` name one as an answer.
//! Downstream: [`Reply::bytes`] is sent to the socket unchanged.
//!
//! Invariants:
//! - I1  Every reply except `Nothing` is one line that ends in CR LF and contains no other CR or
//!   LF.
//! - I2  No two replies have the same bytes.
//!
//! The text of a binary reply is its body. It has no line end.
//!
//! Source: what memcached 1.6.45 sends, except for those that say otherwise.

macro_rules! replies {
    ($($name:ident = $text:literal,)*) => {
        /// A constant reply. A variant's text is the line that is sent, without its CR LF.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reply {
            /// No bytes: the client asked for no reply.
            Nothing,
            $(#[doc = concat!("`", $text, "`")] $name,)*
        }

        impl Reply {
            /// All replies, in the order of the table.
            pub const ALL: &[Self] = &[Self::Nothing, $(Self::$name,)*];

            /// The bytes sent, CR LF included; empty for [`Reply::Nothing`].
            #[inline]
            pub const fn bytes(self) -> &'static [u8] {
                match self {
                    Self::Nothing => b"",
                    $(Self::$name => concat!($text, "\r\n").as_bytes(),)*
                }
            }
        }
    };
}

replies! {
    // Outcomes of the classic verbs.
    Stored = "STORED",
    NotStored = "NOT_STORED",
    StaleStored = "STALE_STORED",
    Exists = "EXISTS",
    NotFound = "NOT_FOUND",
    NotFoundHot = "NOT_FOUND_HOT",
    Deleted = "DELETED",
    Touched = "TOUCHED",
    Ok = "OK",
    End = "END",
    Reset = "RESET",

    // Outcomes of the meta verbs when no flag is returned.
    Hd = "HD",
    En = "EN",
    Ns = "NS",
    Ex = "EX",
    Nf = "NF",
    Mn = "MN",

    // The line or its data block is wrong.
    Error = "ERROR",
    BadLine = "CLIENT_ERROR bad command line format",
    BadDataChunk = "CLIENT_ERROR bad data chunk",
    InvalidExptime = "CLIENT_ERROR invalid exptime argument",
    InvalidDelta = "CLIENT_ERROR invalid numeric delta argument",
    NonNumeric = "CLIENT_ERROR cannot increment or decrement non-numeric value",

    // A meta flag is wrong.
    FlagsTooLong = "CLIENT_ERROR options flags are too long",
    DuplicateFlag = "CLIENT_ERROR duplicate flag",
    InvalidFlag = "CLIENT_ERROR invalid flag",
    InvalidOrDuplicateFlag = "CLIENT_ERROR invalid or duplicate flag",
    BadToken = "CLIENT_ERROR bad token in command line format",
    BadKeyEncoding = "CLIENT_ERROR error decoding key",
    OpaqueTooLong = "CLIENT_ERROR opaque token too long",
    InvalidInitialFlag = "CLIENT_ERROR invalid numeric initial value",
    InvalidDeltaFlag = "CLIENT_ERROR invalid numeric delta value",
    BadSetMode = "CLIENT_ERROR invalid mode for ms M token",
    BadArithmeticMode = "CLIENT_ERROR invalid mode for ma M token",

    // There is not enough room.
    TooLarge = "SERVER_ERROR object too large for cache",
    OutOfMemoryStoring = "SERVER_ERROR out of memory storing object",
    OutOfMemory = "SERVER_ERROR out of memory",
    OutOfMemoryNewItem = "SERVER_ERROR Out of memory allocating new item",
    OutOfMemoryReading = "SERVER_ERROR out of memory reading request",
    OutOfMemoryDuringRead = "SERVER_ERROR Out of memory during read",
    OutOfMemoryGet = "SERVER_ERROR out of memory writing get response",
    OutOfMemoryStats = "SERVER_ERROR out of memory writing stats",
    OutputLineTooLong = "SERVER_ERROR output line too long",
    UnhandledStorage = "SERVER_ERROR Unhandled storage type.",
    RefcountOverflow = "SERVER_ERROR refcount overflow during fetch",
    TooManyConnections = "ERROR Too many open connections",

    // The disk of an engine has failed. 1.6.45 has no such reply.
    DiskError = "SERVER_ERROR disk error",

    // The request is not allowed, or not in this form.
    FlushNotAllowed = "CLIENT_ERROR flush_all not allowed",
    // `flush_prefix`. 1.6.45 has none of these.
    FlushPrefixUsage = "CLIENT_ERROR usage: flush_prefix PREFIX [bytes] [noreply]",
    PrefixTooLong = "CLIENT_ERROR prefix too long",
    FlushPrefixNotAllowed = "CLIENT_ERROR flush_prefix not allowed",
    FlushPrefixLocalOnly = "CLIENT_ERROR flush_prefix allowed only from this host",
    TooManyPrefixes = "SERVER_ERROR too many prefixes are being flushed",
    PrefixesUnsupported = "SERVER_ERROR this engine flushes no prefix",
    // `mscan`. 1.6.45 has none of these.
    ScanNotAllowed = "CLIENT_ERROR mscan not allowed",
    ScanUnordered = "SERVER_ERROR this engine has no order",
    // 1.6.45 has no `observe`.
    ObserveUsage = "CLIENT_ERROR usage: observe hotkeys|curve|prefixes|all on|off [noreply], \
        or observe hash KEY",
    ShutdownNotEnabled = "SERVER_ERROR: shutdown not enabled",
    // The parser does not know whether shutdown is enabled; the server answers `ShutdownNotEnabled`
    // instead of this if it is not, as 1.6.45 does.
    InvalidShutdownMode = "CLIENT_ERROR invalid shutdown mode",
    MemlimitTooSmall = "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
    MemlimitNotMegabytes = "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
    MemlimitFailed = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",

    TlsNotEnabled = "Error TLS not enabled",

    // The pipe. 1.6.45 has none of these.
    PipeNotEnabled = "SERVER_ERROR pipe not enabled",
    PipeDetached = "SERVER_ERROR pipe detached from its interface",
    PipeStillAnswers = "SERVER_ERROR pipe still answers; try again",

    // Statistics.
    StatsBadLine = "CLIENT_ERROR bad command line",
    StatsDetailNotAllowed = "CLIENT_ERROR stats detail not allowed",
    StatsDetailUsage = "CLIENT_ERROR usage: stats detail on|off|dump",
    CachedumpNotAllowed = "CLIENT_ERROR stats cachedump not allowed",
    IllegalSlabId = "CLIENT_ERROR Illegal slab id",

    // Tuning of memcached's internals.
    SlabsBusy = "BUSY currently processing reassign request",
    SlabsBadClass = "BADCLASS invalid src or dst class id",
    SlabsNoSpare = "NOSPARE source class has no spare pages",
    SlabsSame = "SAME src and dst class are identical",
    SlabsDisabled = "CLIENT_ERROR slab reassignment disabled",
    AutomoveWindow = "CLIENT_ERROR automove window too low or too high",
    LruPercents = "ERROR hot and warm pcts must not exceed 80",
    LruFactors = "ERROR hot/warm age factors must be greater than 0",
    CrawlerStartFailed = "ERROR failed to start lru crawler thread",
    CrawlerStopFailed = "ERROR failed to stop lru crawler thread",
    CrawlerSleep = "CLIENT_ERROR sleep must be one second or less",
    CrawlerBusy = "BUSY currently processing crawler request",
    CrawlerBadClass = "BADCLASS invalid class id",
    CrawlerNotStarted = "NOTSTARTED no items to crawl",
    CrawlerError = "ERROR an unknown error happened",
    CrawlerDisabled = "CLIENT_ERROR lru crawler disabled",

    // Dumps and watchers.
    MetadumpNotAllowed = "ERROR metadump not allowed",
    MetadumpPipelined = "ERROR cannot pipeline other commands before metadump",
    MgdumpNotAllowed = "ERROR key dump not allowed",
    MgdumpPipelined = "ERROR cannot pipeline other commands before mgdump",
    DumpLocked = "ERROR locked try again later",
    WatchNotAllowed = "CLIENT_ERROR watch commands not allowed",
    WatchPipelined = "ERROR cannot pipeline other commands before watch",
    WatcherTooMany = "WATCHER_TOO_MANY log watcher limit reached",
    WatcherFailed = "WATCHER_FAILED failed to add log watcher",

    // UDP. 1.6.45 has none of these.
    TooLongForUdp = "SERVER_ERROR reply too long for UDP; use TCP",
    IncompleteInDatagram = "SERVER_ERROR request not whole in its datagram; use TCP",
    NotOverUdp = "SERVER_ERROR not answered over UDP; use TCP",

    // Authentication.
    Unauthenticated = "CLIENT_ERROR unauthenticated",
    AuthFailure = "CLIENT_ERROR authentication failure",
    AuthTokenTooLong = "CLIENT_ERROR auth token too long",
    AuthBadTermination = "CLIENT_ERROR bad command line termination",
    AuthBadFormat = "CLIENT_ERROR bad authentication token format",
}

impl Reply {
    /// This reply, or nothing if the client asked for no reply.
    #[inline]
    #[must_use]
    pub const fn unless(self, noreply: bool) -> Self {
        if noreply { Self::Nothing } else { self }
    }
}

/// The status of a reply. A failure has a text as its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryStatus {
    /// Done.
    Success,
    /// No item is there.
    NotFound,
    /// An item is there, or has another CAS token.
    Exists,
    /// The item would be too large.
    TooLarge,
    /// The lengths in the header are wrong.
    InvalidArguments,
    /// There is no item to append to, or the result would be too large.
    NotStored,
    /// The value is not a number.
    NonNumeric,
    /// The request is not allowed, or a login has failed.
    NotAllowed,
    /// A login goes on. The body is the message of the server.
    LoginContinues,
    /// The reply does not fit the datagrams of a reply over UDP.
    TooLongForUdp,
    /// The request is longer than its datagram.
    IncompleteInDatagram,
    /// The request is not answered over UDP. 1.6.45 has no such status.
    NotOverUdp,
    /// The opcode is unknown.
    UnknownCommand,
    /// There is no memory for the item.
    OutOfMemory,
    /// The disk of an engine has failed. 1.6.45 has no such status.
    DiskError,
}

impl BinaryStatus {
    /// The number in the header.
    pub const fn code(self) -> u16 {
        match self {
            Self::Success => 0x00,
            Self::NotFound => 0x01,
            Self::Exists => 0x02,
            Self::TooLarge | Self::TooLongForUdp => 0x03,
            Self::InvalidArguments | Self::IncompleteInDatagram => 0x04,
            Self::NotStored => 0x05,
            Self::NonNumeric => 0x06,
            Self::NotAllowed => 0x20,
            Self::LoginContinues => 0x21,
            // "Not supported" in the wiki of memcached.
            Self::NotOverUdp => 0x83,
            Self::UnknownCommand => 0x81,
            Self::OutOfMemory => 0x82,
            // "Internal error" in the wiki of memcached.
            Self::DiskError => 0x84,
        }
    }

    /// The body of a failure; empty for other replies.
    pub const fn text(self) -> &'static [u8] {
        match self {
            Self::Success | Self::LoginContinues => b"",
            Self::NotFound => b"Not found",
            Self::Exists => b"Data exists for key.",
            Self::TooLarge => b"Too large.",
            Self::InvalidArguments => b"Invalid arguments",
            Self::NotStored => b"Not stored.",
            Self::NonNumeric => b"Non-numeric server-side value for incr or decr",
            Self::NotAllowed => b"Auth failure.",
            Self::TooLongForUdp => b"Reply too long for UDP; use TCP.",
            Self::IncompleteInDatagram => b"Request not whole in its datagram; use TCP.",
            Self::NotOverUdp => b"Not answered over UDP; use TCP.",
            Self::UnknownCommand => b"Unknown command",
            Self::OutOfMemory => b"Out of memory",
            Self::DiskError => b"Disk error.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reply;
    use std::collections::HashSet;

    #[test]
    fn every_reply_is_one_line_and_no_two_are_alike() {
        let mut seen = HashSet::new();
        for reply in Reply::ALL {
            assert!(seen.insert(reply.bytes()), "I2: {reply:?}");
            let Some(text) = reply.bytes().strip_suffix(b"\r\n") else {
                assert_eq!(*reply, Reply::Nothing, "I1");
                continue;
            };
            assert!(!text.is_empty() && !text.contains(&b'\r') && !text.contains(&b'\n'), "I1");
        }
        assert!(Reply::ALL.len() > 60);
    }

    #[test]
    fn a_reply_that_is_withheld_has_no_bytes() {
        assert_eq!(Reply::Stored.unless(true).bytes(), b"");
        assert_eq!(Reply::Stored.unless(false).bytes(), b"STORED\r\n");
    }
}
