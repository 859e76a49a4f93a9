//! Every byte of a memory file is changed, and it is cut at every length: no wrong item is loaded.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use kachel_cache::{Cache, CacheOpener};
use kachel_engine::{
    EngineOptions, KeyHasher, LeaseOptions, Now, OpenEngines as _, Opening, Seeds,
};
use kachel_host::Budget;
use kachel_io::{Clock as _, SystemClock};
use kachel_shard::{Engines, Homes};

use super::*;

const MEMORY_BYTES: u64 = 8 << 20;

/// The shards of a server, without their threads.
struct Shards {
    caches: Vec<Cache>,
    hasher: KeyHasher,
    origin: ClockOrigin,
}

impl Shards {
    fn new(shards: u16, origin: ClockOrigin) -> Self {
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, shards);
        let options = EngineOptions {
            evict: true,
            cas: true,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        };
        let opening = Opening {
            engines: shards,
            cores: shards,
            hasher,
            options,
            budget: Arc::new(Budget::new(MEMORY_BYTES)),
            budget_bytes_max: MEMORY_BYTES,
            process_bytes: 0,
            start: origin.start(),
        };
        let caches = CacheOpener::default().open(&opening).expect("memory");
        Self { caches, hasher, origin }
    }

    fn load(mut self, found: Found) -> Self {
        let loaded = found.load(self.caches, self.hasher, self.origin, || false);
        self.caches = loaded.expect("nothing ends it");
        self
    }

    fn now(&self) -> Now {
        self.origin.at(SystemClock.now_ns())
    }

    /// The keys and values.
    fn items(&mut self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let (now, mut items) = (self.now(), BTreeMap::new());
        for cache in &mut self.caches {
            let saved = cache.save(&now, |item, value| {
                items.insert(item.key.to_vec(), value.parts().flatten().copied().collect());
                Ok::<(), ()>(())
            });
            assert_eq!(saved, Ok(()));
        }
        items
    }
}

#[test]
fn no_change_of_a_file_loads_a_wrong_item() {
    let folder = std::env::temp_dir().join(format!("kachel-restart-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("items");
    let origin = ClockOrigin::new(SystemClock.now_ns(), 1_800_000_000);

    let mut first = Shards::new(2, origin);
    for number in 0..10 {
        let text = format!("key {number}");
        let key = first.hasher.key(text.as_bytes());
        let item = kachel_cache::SavedItem {
            key: key.bytes(),
            client_flags: number,
            expiry: 0,
            cas: Some(u64::from(number)),
            access: 2 << 5,
            stale: false,
            win_sent: false,
            remnant: false,
            protocol_mark: false,
            is_main: false,
        };
        let now = first.now();
        let owner = first.hasher.owner(key.hashes()).number();
        let restored = first.caches[owner].restore(&key, &item, &[number as u8; 9], &now);
        assert_eq!(restored, kachel_cache::Restored::Stored);
    }
    let (items, now) = (first.items(), first.now());
    let homes = Homes::new(2, 3, 0);
    let engines = Engines::new(first.caches, homes, true);
    let claim = Claim::new(path.clone()).expect("free");
    claim.save(&engines, homes, now).expect("saved");
    let whole = fs::read(&path).expect("a file");

    let load = |bytes: &[u8], shards| {
        fs::write(&path, bytes).expect("written");
        let mut claim = Claim::new(path.clone()).expect("free");
        let found = claim.find().expect("readable");
        let loaded = found.map(|found| Shards::new(shards, origin).load(found).items());
        assert!(path.exists(), "R1: a start that fails now leaves it");
        claim.remove_old().expect("removed");
        loaded
    };
    for shards in [1, 2, 5] {
        assert_eq!(load(&whole, shards).as_ref(), Some(&items));
        assert!(!path.exists(), "R1: it is gone before a client is served");
    }
    // The hash of the head covers all of it, so a part of its zeros is enough.
    let places = (0..whole.len()).filter(|at| !(80..HEAD_BYTES - 8).contains(at) || at % 500 == 0);
    for at in places {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        for bytes in [&changed, &whole[..at]] {
            let loaded = load(bytes, 2).unwrap_or_default();
            assert!(loaded.iter().all(|(key, value)| items.get(key) == Some(value)), "{at}");
            assert!(loaded.len() < items.len(), "byte {at} is not checked");
            assert!(loaded.is_empty() || bytes.len() == whole.len(), "{at}: it was cut");
        }
    }
    fs::remove_dir_all(&folder).expect("removed");
}
