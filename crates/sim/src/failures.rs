//! What the failed operations of a run's disk excuse: closed connections, errors, and requests
//! without a reply that were not executed. Nothing else is excused.
//!
//! Upstream:   `server`, which notes after each tick what has failed.
//! Downstream: `client`, which asks whether a connection may be closed; `run` and `record`, which
//!             ask about errors and about requests without a reply.
//!
//! Invariants:
//! - I1  An engine has failed only after a write or a sync of its own has, and tries none after
//!   that. So in the end as many writes and syncs have failed as engines, or more where an engine
//!   has several in flight. A call that has failed may have been a write.
//! - I2  A read that has failed excuses one reply. Over flash it excuses each request for its key
//!   that waits for it, and these are not counted.

use std::collections::VecDeque;
use std::sync::Arc;

use kachel_engine::{DurableWord, KeyHasher};
use kachel_io::memory::disk::DiskCounts;

use crate::answer::Asked;
use crate::ask::Expect;
use crate::options::{EngineChoice, Options};

/// The failures of a run's disk.
#[derive(Debug)]
pub(crate) struct Failures {
    hasher: KeyHasher,
    /// Whether engines refuse what the disk prevents. Delaying engines have their items in memory.
    refuses: bool,
    /// Whether an engine has several writes in flight, and several requests wait for one read.
    has_several: bool,
    /// Whether items in memory are copies of those on the disk.
    has_copies: bool,
    /// Whether the disk does not say if what has failed would have read or written.
    is_opaque: bool,
    /// By the number of the engine.
    durable: Vec<Arc<DurableWord>>,
    /// When each engine was seen to have failed.
    failed_ns: Vec<Option<u64>>,
    /// Reads that have failed, and how many of them have excused a reply (I2).
    reads: u64,
    excused: u64,
    /// Writes and syncs that have failed (I1).
    writes: u64,
}

/// Why a connection may be closed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Excuse {
    /// A failed disk has lost the next reply.
    Lost,
    /// There may be no memory for an item of the next reply.
    Unread,
}

impl Failures {
    /// Those of a server with these engines. None has failed.
    pub(crate) fn new(
        hasher: KeyHasher,
        durable: Vec<Arc<DurableWord>>,
        options: &Options,
    ) -> Self {
        let failed_ns = vec![None; durable.len()];
        let is_opaque = options.engine == EngineChoice::Rocks;
        Self {
            hasher,
            refuses: options.has_cold_values(),
            has_copies: options.engine == EngineChoice::Flash,
            has_several: is_opaque || options.engine == EngineChoice::Flash,
            is_opaque,
            durable,
            failed_ns,
            reads: 0,
            excused: 0,
            writes: 0,
        }
    }

    /// Notes what has failed by now.
    ///
    /// Errors: an engine has failed although its disk has not (I1).
    pub(crate) fn note(&mut self, now_ns: u64, counts: &DiskCounts) -> Result<(), String> {
        let calls = counts.failed_calls;
        (self.reads, self.writes) = (counts.failed_reads + calls, counts.failed_syncs + calls);
        if self.writes == 0 && !self.durable.iter().any(|word| word.has_failed()) {
            return Ok(());
        }
        for (failed_ns, word) in self.failed_ns.iter_mut().zip(&self.durable) {
            if word.has_failed() {
                failed_ns.get_or_insert(now_ns);
            }
        }
        let (engines, writes) = (self.engines(), self.writes);
        if engines > writes {
            return Err(format!("{engines} engines have failed, after {writes} failed writes"));
        }
        Ok(())
    }

    /// The number of engines that have failed.
    pub(crate) fn engines(&self) -> u64 {
        self.failed_ns.iter().flatten().count() as u64
    }

    /// Checks the end of a run. Errors: an engine has tried to write after it had failed (I1).
    pub(crate) fn check(&self) -> Result<(), String> {
        let (engines, writes) = (self.engines(), self.writes);
        let has_few = self.is_opaque || self.has_several && engines > 0;
        if engines != writes && !(has_few && engines < writes) {
            return Err(format!("{writes} writes have failed, of {engines} engines"));
        }
        Ok(())
    }

    /// When the engine of a key was seen to have failed, if it has.
    fn failed_ns(&self, key: &[u8]) -> Option<u64> {
        let owner = self.hasher.owner(self.hasher.key(key).hashes());
        self.failed_ns[usize::from(owner.0)]
    }

    /// Whether a request may not have changed this key although its reply does not say so.
    /// `needs_value`: it needs the value of the old item.
    pub(crate) fn may_have_refused(&self, key: &[u8], needs_value: bool) -> bool {
        let is_unread = self.reads > 0 && needs_value;
        self.refuses && (is_unread || self.failed_ns(key).is_some())
    }

    /// Checks that each error of the disk in the replies to a request has a cause.
    ///
    /// Errors: the disk has not failed, or each failed read has excused a reply (I2). Or a flush is
    /// refused although no engine has failed.
    pub(crate) fn excuse_errors(&mut self, asked: &Asked) -> Result<(), String> {
        if asked.is_failed_flush() && (self.engines() == 0 || !self.refuses) {
            return Err("a flush is refused without a cause".to_owned());
        }
        if !self.has_copies && asked.unread().next().is_some() {
            return Err("an item that is in memory could not be read for lack of it".to_owned());
        }
        if asked.is_failed_listing && !self.excuse_read() {
            return Err("a listing has failed without a cause".to_owned());
        }
        for key in asked.disk_errors() {
            if self.failed_ns(key).is_none() && !self.excuse_read() || !self.refuses {
                return Err(format!("a disk error for {} without a cause", key.escape_ascii()));
            }
        }
        Ok(())
    }

    /// Whether a read has failed. Otherwise every durable value can be read.
    pub(crate) const fn has_failed_read(&self) -> bool {
        self.reads > 0
    }

    /// Why a connection with these requests may be closed. `None`: it may not.
    pub(crate) fn excuse_close(&mut self, asked: &VecDeque<Asked>) -> Option<Excuse> {
        if self.is_next_lost(asked) {
            return Some(Excuse::Lost);
        }
        self.may_next_be_unread(asked).then_some(Excuse::Unread)
    }

    /// Whether the next reply is lost: the first request that wants a reply, or a quiet one before
    /// it, has arrived before its engine failed. Or it reads several keys, of which one cannot be
    /// read, so that there is no place for an error.
    fn is_next_lost(&mut self, asked: &VecDeque<Asked>) -> bool {
        for asked in asked {
            if self.is_lost(asked) {
                return true;
            }
            if asked.wants_reply() {
                return is_retrieval_of_several(asked) && self.excuse_read();
            }
        }
        false
    }

    /// Whether there may be no memory for an item of the next reply: the request reads several
    /// keys, so that there is no place for an error. `main` judges how often that is.
    fn may_next_be_unread(&self, asked: &VecDeque<Asked>) -> bool {
        let next = asked.iter().find(|asked| asked.wants_reply());
        self.has_copies && next.is_some_and(is_retrieval_of_several)
    }

    /// Whether the reply to a request may be lost with its engine.
    fn is_lost(&self, asked: &Asked) -> bool {
        let Some(arrived) = asked.arrived else { return false };
        let of_several = self.refuses && is_retrieval_of_several(asked);
        let is_late = |failed_ns| of_several || arrived.ns <= failed_ns;
        asked.keys().any(|key| self.failed_ns(key).is_some_and(is_late))
    }

    fn excuse_read(&mut self) -> bool {
        let is_shared = self.has_several && self.reads > 0;
        let is_left = self.refuses && (is_shared || self.excused < self.reads);
        self.excused += u64::from(is_left);
        is_left
    }
}

fn is_retrieval_of_several(asked: &Asked) -> bool {
    matches!(&asked.ask.expect, Expect::Values(keys) if keys.len() > 1)
}
