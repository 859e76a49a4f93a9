//! An item as the engine found or made it.
//!
//! Upstream:   `engine` finds items in its database and makes new ones.
//! Downstream: `engine::verb` decides by it; `pending` and `fetches` keep some.

use kachel_engine::{
    HeapCommon, HeapValue, INLINE_VALUE_BYTES_MAX, ItemView, KeptSeconds, Mark, Now, Put, Sequence,
};

use crate::record::{ForeignRecord, HEADER_BYTES, Header};

/// An item.
#[derive(Clone, Debug)]
pub struct RocksItem {
    /// What its record says, with Unix times.
    header: Header,
    value: HeapValue,
    /// The second in which it expires; 0 for never.
    expiry: u32,
    is_fetched: bool,
    last_access: u32,
}

impl RocksItem {
    /// The item that a put makes.
    pub(crate) fn new(
        put: &Put,
        (cas, epoch): (u64, u32),
        value: HeapValue,
        now: &Now,
        seconds: KeptSeconds,
    ) -> Self {
        let header = Header {
            client_flags: put.client_flags,
            cas,
            expiry_unix_s: seconds.to_unix(put.expiry),
            stored_unix_s: seconds.to_unix(now.second),
            epoch,
            stale: put.stale,
            win_sent: put.win_sent,
            remnant: put.remnant,
            protocol_mark: put.protocol_mark,
        };
        let (expiry, last_access) = (put.expiry, now.second);
        Self { header, value, expiry, is_fetched: false, last_access }
    }

    /// The item of a record.
    ///
    /// Errors: the record is damaged, or another version has written it.
    pub(crate) fn of_record(
        record: &[u8],
        common: &HeapCommon,
        seconds: KeptSeconds,
    ) -> Result<Self, ForeignRecord> {
        let (header, value) = Header::of_record(record)?;
        Ok(Self {
            header,
            value: common.value(value.into()),
            expiry: seconds.of_unix(header.expiry_unix_s),
            is_fetched: false,
            last_access: seconds.of_unix(header.stored_unix_s),
        })
    }

    pub(crate) const fn value(&self) -> &HeapValue {
        &self.value
    }

    pub(crate) fn header_bytes(&self) -> [u8; HEADER_BYTES] {
        self.header.to_bytes()
    }

    /// The flush epoch in which it was stored.
    pub(crate) const fn epoch(&self) -> u32 {
        self.header.epoch
    }

    pub(crate) const fn has_expired(&self, now: &Now) -> bool {
        self.expiry != 0 && self.expiry <= now.second
    }

    /// Notes when it was read last, or that it was not read since it was stored.
    pub(crate) fn set_access(&mut self, access: Option<u32>) {
        self.is_fetched = access.is_some();
        self.last_access = access.unwrap_or(self.last_access);
    }

    /// Takes over when another item, in whose place it is stored, was accessed.
    pub(crate) fn keep_access(&mut self, old: &Self) {
        self.header.stored_unix_s = old.header.stored_unix_s;
        (self.is_fetched, self.last_access) = (old.is_fetched, old.last_access);
    }

    pub(crate) fn mark(&mut self, mark: Mark, seconds: KeptSeconds) {
        if let Some(expiry) = mark.expiry {
            (self.expiry, self.header.expiry_unix_s) = (expiry, seconds.to_unix(expiry));
        }
        self.header.win_sent |= mark.win_sent;
    }
}

/// What the engine knows about a key: its item, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The sequence of the change that has made it so; 0 for what was read.
    pub(crate) sequence: Sequence,
    pub(crate) item: Option<RocksItem>,
}

impl<'e> ItemView<'e> for &'e RocksItem {
    fn expiry(&self) -> u32 {
        self.expiry
    }

    fn client_flags(&self) -> u32 {
        self.header.client_flags
    }

    fn cas(&self) -> u64 {
        self.header.cas
    }

    fn value_bytes(&self) -> usize {
        self.value.bytes().len()
    }

    fn small_value(&self) -> Option<&'e [u8]> {
        Some(self.value.bytes()).filter(|value| value.len() <= INLINE_VALUE_BYTES_MAX)
    }

    fn is_stale(&self) -> bool {
        self.header.stale
    }

    fn is_win_sent(&self) -> bool {
        self.header.win_sent
    }

    fn is_remnant(&self) -> bool {
        self.header.remnant
    }

    fn protocol_mark(&self) -> bool {
        self.header.protocol_mark
    }

    fn is_fetched(&self) -> bool {
        self.is_fetched
    }

    fn last_access(&self) -> u32 {
        self.last_access
    }

    fn memory_bytes(&self) -> usize {
        HEADER_BYTES + self.value.bytes().len()
    }
}
