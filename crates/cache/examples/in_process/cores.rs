//! The engines of some shards, and cores that use them as a shard's core does: requests are hashed,
//! prefetched and executed in batches. A store that finds its engine held is left with the holder.
//!
//! Upstream:   `main`.
//! Downstream: `testkit`'s filled caches, through `engine`'s contract.

use kachel_cache::{Cache, CacheReader};
use kachel_engine::{
    ArithmeticTerms, BATCH_MAX, Block, Common as _, DeadFound, Direction, Engine as _,
    Extensions as _, GetTerms, Key, KeyHasher, LifeTerms, Lookup, Now, Operation, ReadAnswer,
    ReadBeside as _, ReadGuesses, Ttl, Verb, apply, get,
};
use kachel_stdx::{CachePadded, CombiningLock, Guard, Offered, Reader, Work};
use kachel_table::Guess;
use kachel_testkit::{Filled, copy_out};

use crate::probes::Probe;

/// An engine behind its lock, with which other cores leave keys to be stored.
type Lock<const K: usize, const V: usize> = CombiningLock<Filled<K, V>, [u8; K]>;
/// The right to change an engine.
type Held<'l, const K: usize, const V: usize> = Guard<'l, Filled<K, V>, [u8; K]>;

/// The engines of all shards, each behind its lock, and their readers.
pub(crate) struct Shards<const KEY_BYTES: usize, const VALUE_BYTES: usize> {
    engines: Vec<CachePadded<Lock<KEY_BYTES, VALUE_BYTES>>>,
    readers: Vec<CacheReader>,
    hasher: KeyHasher,
    now: Now,
}

/// A core with a shard of its own, or with none: then it reads all items beside their owners.
#[derive(Debug)]
pub(crate) struct Core {
    own: Option<u16>,
    registration: Reader,
}

/// A change of one key that all cores make at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Increment,
    Store,
}

impl<const KEY_BYTES: usize, const VALUE_BYTES: usize> Shards<KEY_BYTES, VALUE_BYTES> {
    pub(crate) fn new(shards: u16, items: u64, huge: bool) -> Self {
        let filled = Filled::shards(shards, items, huge);
        let (hasher, now) = (filled[0].hasher, filled[0].now);
        let readers = filled.iter().map(|filled| filled.cache.reader()).collect();
        let lock = |filled| CachePadded::new(Lock::new(filled));
        Self { engines: filled.into_iter().map(lock).collect(), readers, hasher, now }
    }

    /// Bytes of all indexes.
    pub(crate) fn index_bytes(&self) -> u64 {
        let bytes = |shard: u16| self.inspect(shard, |cache| cache.stats().index_bytes);
        (0..self.engines.len() as u16).map(bytes).sum()
    }

    pub(crate) fn core(&self, own: Option<u16>) -> Core {
        let registration = self.inspect(0, |cache| cache.common().register_core());
        Core { own, registration: registration.expect("few cores") }
    }

    /// Looks at an engine, as soon as no core holds it.
    fn inspect<R>(&self, shard: u16, look: impl FnOnce(&mut Cache) -> R) -> R {
        let mut held = self.hold(shard);
        let result = look(&mut held.cache);
        release(held);
        result
    }

    /// Takes the engine of a shard, as soon as no other core holds it.
    fn hold(&self, shard: u16) -> Held<'_, KEY_BYTES, VALUE_BYTES> {
        loop {
            match self.engines[usize::from(shard)].take() {
                Some(held) => return held,
                None => std::hint::spin_loop(),
            }
        }
    }

    /// Stores a key of a shard whose engine this core does not hold, or leaves it with the holder.
    fn store_or_park(&self, shard: u16, key: &[u8; KEY_BYTES], core: &Core) {
        let lock = &self.engines[usize::from(shard)];
        if let Offered::Taken(mut held, work) = lock.take_or_park(Work::new(*key)) {
            held.cache.enter(core.registration.place(), &self.now);
            store(&mut held, &work);
            release(held);
        }
    }

    /// Executes at most [`BATCH_MAX`] probes on a core.
    #[inline]
    pub(crate) fn run(&self, core: &mut Core, probes: &[Probe<KEY_BYTES>]) {
        let mut hashed = [None; BATCH_MAX];
        for (place, probe) in hashed.iter_mut().zip(probes) {
            let key = self.hasher.key(&probe.key);
            *place = Some((key, self.hasher.owner(key.hashes()).0, probe.stores));
        }
        let requests = || hashed[..probes.len()].iter().flatten();
        let lookup = |key: &Key<'_>| Lookup { secret_hash: key.secret_hash(), value: true };
        // A core whose engine another one holds reads beside it.
        let mut own = core.own.and_then(|own| self.engines[usize::from(own)].take());
        if let Some(own) = &mut own {
            own.cache.enter(core.registration.place(), &self.now);
        }
        let own_shard = core.own.filter(|_| own.is_some());
        let is_own = |owner: u16| own_shard == Some(owner);
        let beside = requests().any(|&(_, owner, _)| !is_own(owner));
        if beside && !core.registration.is_awake() {
            core.registration.wake();
        }
        if let Some(own) = &own {
            let lookups = requests().filter(|&&(_, owner, _)| is_own(owner));
            own.cache.prefetch(lookups.map(|(key, _, _)| lookup(key)));
        }
        let guesses = match beside {
            true => ReadGuesses::of(requests().map(|(key, owner, _)| {
                (!is_own(*owner)).then(|| (&self.readers[usize::from(*owner)], lookup(key)))
            })),
            false => ReadGuesses::NONE,
        };
        let mut stores_beside = 0_u32;
        for (index, (key, owner, stores)) in requests().enumerate() {
            match &mut own {
                Some(own) if is_own(*owner) && *stores => store(own, &probes[index].key),
                Some(own) if is_own(*owner) => read::<VALUE_BYTES>(&mut own.cache, key, &self.now),
                _ if *stores => stores_beside |= 1 << index,
                _ => self.read_beside(core, *owner, key, guesses.at(index)),
            }
        }
        if beside {
            core.registration.sleep(); // No owner waits for this core while it does other work.
        }
        if let Some(own) = own {
            release(own);
        }
        for index in (0..probes.len()).filter(|index| stores_beside >> index & 1 == 1) {
            let key = self.hasher.key(&probes[index].key);
            self.store_or_park(self.hasher.owner(key.hashes()).0, &probes[index].key, core);
        }
    }

    #[inline]
    fn read_beside(&self, core: &Core, owner: u16, key: &Key<'_>, guess: Option<Guess>) {
        let (reader, round) = (&self.readers[usize::from(owner)], &core.registration);
        let mut dead_found = DeadFound::default();
        match reader.read(key, guess, &GetTerms::VALUE, round, &self.now, &mut dead_found) {
            ReadAnswer::Done(outcome, _) => copy_out::<VALUE_BYTES, _>(outcome.value),
            ReadAnswer::AskOwner => panic!("no item is large, and none moves for long"),
        }
    }

    /// Gives the key of `probe` a number as its value.
    pub(crate) fn make_number(&self, probe: &Probe<KEY_BYTES>) {
        let key = self.hasher.key(&probe.key);
        let mut held = self.hold(self.hasher.owner(key.hashes()).0);
        let operation = Operation::set(key, 1, Ttl(0));
        let done = apply(&mut held.cache, &operation, &mut Block::Bytes(b"0"), &self.now);
        done.expect("there is room for a number");
        release(held);
    }

    /// Executes [`BATCH_MAX`] changes of the key of `probe` under one lock.
    pub(crate) fn change(&self, probe: &Probe<KEY_BYTES>, change: Change) {
        let key = self.hasher.key(&probe.key);
        let mut held = self.hold(self.hasher.owner(key.hashes()).0);
        let up = ArithmeticTerms {
            direction: Direction::Up,
            delta: 1,
            initial: 0,
            compare_cas: None,
            new_cas: None,
            life: LifeTerms::NONE,
        };
        for _ in 0..BATCH_MAX {
            match change {
                Change::Store => store(&mut held, &probe.key),
                Change::Increment => {
                    let operation = Operation { key, verb: Verb::Arithmetic(up) };
                    let done = apply(&mut held.cache, &operation, &mut Block::None, &self.now);
                    done.expect("there is room for a number");
                }
            }
        }
        release(held);
    }
}

/// Stores what was left with the holder meanwhile, and releases the engine.
fn release<const K: usize, const V: usize>(mut held: Held<'_, K, V>) {
    while let Err(again) = held.release() {
        held = again;
        let mut parked = held.take_parked();
        while let Some(key) = parked.pop() {
            store(&mut held, &key);
        }
    }
}

/// Stores a key, as soon as no reader is in the memory that was freed for it.
fn store<const K: usize, const V: usize>(held: &mut Filled<K, V>, key: &[u8; K]) {
    while !held.try_store(key) {
        std::hint::spin_loop();
    }
}

#[inline]
fn read<const BYTES: usize>(cache: &mut Cache, key: &Key<'_>, now: &Now) {
    let outcome = get(cache, key, &GetTerms::VALUE, now).expect("a plain read stores nothing");
    copy_out::<BYTES, _>(outcome.value);
}
