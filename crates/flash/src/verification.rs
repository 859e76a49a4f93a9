//! Verifies a store that nobody serves from, and changes nothing in it.
//!
//! Upstream:   `kachel verify`.
//! Downstream: `directory` for the files of the store, `log` for each log, `record` for what is in
//!             the records.
//!
//! A verification finds what a start would refuse, with one exception: it keeps no index, so it
//! does not know whether a value in parts has all of them. Every part was written before its item,
//! and each record has a checksum.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use kachel_engine::{FLUSH_FILE, engine_folder};
use kachel_host::HeldFolder;
use kachel_log::{FoundRecord, Geometry, Inspector, LogIdentity, Refusal, verify_log};

use crate::directory::{StoreRefused, backend, open_folder, read_flush, root_in};
use crate::record::{self, Record};

/// Is told how far a verification is, and each fault.
pub trait WatchVerification: Debug + Send + Sync {
    /// A sentence with the file and the place of a fault.
    fn fault(&self, fault: &str);

    /// This number of bytes of the log of an engine is verified, of `of_bytes`.
    fn progress(&self, engine: u16, done_bytes: u64, of_bytes: u64);
}

/// What a verification has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The engines.
    pub engines: u16,
    /// The records that are as they were written.
    pub records: u64,
    /// Those of items. A key may have several, of which the last one counts.
    pub items: u64,
    /// Those that say that an item was removed.
    pub graves: u64,
    /// The faults.
    pub faults: u64,
}

/// Judges the records of one engine.
#[derive(Debug)]
struct Judge {
    engine: u16,
    verified: Verified,
    watch: Arc<dyn WatchVerification>,
}

impl Judge {
    fn note(&mut self, fault: &str) {
        self.verified.faults += 1;
        self.watch.fault(fault);
    }
}

impl Inspector for Judge {
    fn fault(&mut self, fault: Refusal) {
        self.note(&fault.to_string());
    }

    fn record(&mut self, found: FoundRecord<'_>) -> Result<(), String> {
        match record::read(found.kind, found.payload).map_err(|error| error.to_string())? {
            Record::Item { .. } | Record::LargeItem { .. } => self.verified.items += 1,
            Record::Grave { .. } => self.verified.graves += 1,
            Record::Life { .. }
            | Record::Part { .. }
            | Record::PrefixFlush { .. }
            | Record::Tokens(_) => {}
        }
        Ok(())
    }

    fn progress(&mut self, done_bytes: u64, of_bytes: u64) {
        self.watch.progress(self.engine, done_bytes, of_bytes);
    }
}

/// Verifies all files of a store. Nobody can serve from it meanwhile.
///
/// Cost: it reads every log once. It takes 1 MiB, and 100 bytes for each segment.
///
/// Errors: there is no store of this engine, or somebody serves from it.
pub fn verify_store(
    path: &Path,
    watch: &Arc<dyn WatchVerification>,
) -> Result<Verified, StoreRefused> {
    let root = root_in(path)?.ok_or(StoreRefused::Missing)?;
    let _held = HeldFolder::of(path).map_err(StoreRefused::of_lock)?;
    let mut io = backend().map_err(StoreRefused::of_kernel)?;
    let mut sums = Verified { engines: root.engines, ..Verified::default() };
    let mut note = |fault: &str| {
        sums.faults += 1;
        watch.fault(fault);
    };
    if let Err(why) = read_flush(path) {
        note(&format!("{}: {why}", path.join(FLUSH_FILE).display()));
    }
    let mut judged = Vec::new();
    for engine in 0..root.engines {
        let folder = path.join(engine_folder(engine));
        let judge = Judge { engine, verified: Verified::default(), watch: Arc::clone(watch) };
        let identity = LogIdentity { store: root.store, engine: engine.into() };
        let geometry = Geometry::new(root.segment_bytes, 0);
        match open_folder(&folder) {
            Err(error) => note(&format!("{}: {error}", folder.display())),
            Ok(folder) => {
                let task = verify_log(folder, identity, geometry, judge);
                match task.run(&mut io).map_err(StoreRefused::of_kernel)? {
                    Ok((records, judge)) => judged.push((records, judge.verified)),
                    Err(refusal) => note(&refusal.to_string()),
                }
            }
        }
    }
    for (records, Verified { items, graves, faults, .. }) in judged {
        sums.records += records;
        sums.items += items;
        sums.graves += graves;
        sums.faults += faults;
    }
    Ok(sums)
}
