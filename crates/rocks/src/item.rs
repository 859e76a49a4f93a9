//! An item as the engine found or made it, and how its seconds become Unix times.
//!
//! Upstream:   `engine` finds items in its database and makes new ones.
//! Downstream: `engine::verb` decides by it; `pending` and `fetches` keep some.

use kachel_engine::{
    HeapCommon, HeapValue, INLINE_VALUE_BYTES_MAX, ItemView, Mark, Now, Put, Sequence,
};

use crate::record::{ForeignRecord, HEADER_BYTES, Header};

/// The Unix time from which the process counts its seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seconds {
    origin_unix_s: i64,
}

impl Seconds {
    pub(crate) fn of(now: &Now) -> Self {
        Self { origin_unix_s: now.unix(0) }
    }

    /// The Unix time of a second; 0 stays 0. What is too early or too late to be a number becomes
    /// the first or the last one.
    pub(crate) fn to_unix(self, second: u32) -> u32 {
        if second == 0 {
            return 0;
        }
        let unix_s = self.origin_unix_s.saturating_add(second.into()).max(1);
        u32::try_from(unix_s).unwrap_or(u32::MAX)
    }

    /// The second of a Unix time; 0 stays 0. What was before the process is its second 1.
    pub(crate) fn of_unix(self, unix_s: u32) -> u32 {
        if unix_s == 0 {
            return 0;
        }
        let second = i64::from(unix_s).saturating_sub(self.origin_unix_s).max(1);
        u32::try_from(second).unwrap_or(u32::MAX)
    }
}

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
        seconds: Seconds,
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
        seconds: Seconds,
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

    pub(crate) fn mark(&mut self, mark: Mark, seconds: Seconds) {
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

#[cfg(test)]
mod tests {
    use kachel_engine::ClockOrigin;

    use super::*;

    #[test]
    fn a_second_keeps_its_meaning_over_a_restart() {
        let seconds = |unix_s| Seconds::of(&ClockOrigin::new(0, unix_s).start());
        let (before, after) = (seconds(1_800_000_000), seconds(1_800_000_100));
        assert_eq!((before.to_unix(2), before.to_unix(0)), (1_800_000_000, 0));
        assert_eq!(after.of_unix(before.to_unix(152)), 52);
        assert_eq!((after.of_unix(before.to_unix(50)), after.of_unix(0)), (1, 0), "it was before");
        assert_eq!(after.of_unix(before.to_unix(1)), 1, "what expires at once has expired");
        let last = before.to_unix(u32::MAX);
        assert_eq!((last, after.of_unix(last)), (u32::MAX, u32::MAX - 1_800_000_098));
    }
}
