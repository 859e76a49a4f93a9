//! Tests every verb with an engine that is a map. They check the decisions, not how items are
//! stored.
//!
//! Upstream:   `cargo test`.
//! Downstream: `apply`, over [`Shelf`].

mod leases;

use std::collections::HashMap;

use super::*;

/// An item of the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    value: Vec<u8>,
    put: Option<Put>,
    expiry: u32,
    cas: u64,
    win_sent: bool,
    fetched: bool,
    access: u32,
}

/// An engine that is a map with room for a number of further items.
#[derive(Debug)]
struct Shelf {
    options: EngineOptions,
    entries: HashMap<Vec<u8>, Entry>,
    puts_left: u32,
    cas: u64,
    has_leased: bool,
    /// Changes applied so far.
    changes: u32,
    /// How much of each item is in memory, as a [`Needed`]. `None` for all.
    fetched: Option<u8>,
}

/// An entry as a decision sees it.
struct Shown<'e>(&'e Entry);

impl<'e> ItemView<'e> for Shown<'e> {
    fn expiry(&self) -> u32 {
        self.0.expiry
    }
    fn client_flags(&self) -> u32 {
        self.0.put.map_or(0, |put| put.client_flags)
    }
    fn cas(&self) -> u64 {
        self.0.cas
    }
    fn value_bytes(&self) -> usize {
        self.0.value.len()
    }
    fn small_value(&self) -> Option<&'e [u8]> {
        Some(&self.0.value)
    }
    fn is_stale(&self) -> bool {
        self.0.put.is_some_and(|put| put.stale)
    }
    fn is_win_sent(&self) -> bool {
        self.0.win_sent
    }
    fn is_remnant(&self) -> bool {
        self.0.put.is_some_and(|put| put.remnant)
    }
    fn protocol_mark(&self) -> bool {
        self.0.put.is_some_and(|put| put.protocol_mark)
    }
    fn is_fetched(&self) -> bool {
        self.0.fetched
    }
    fn last_access(&self) -> u32 {
        self.0.access
    }
    fn memory_bytes(&self) -> usize {
        self.0.value.len() + 8
    }
}

impl Primitives for Shelf {
    /// The first byte of the key. Every key of these tests has one byte.
    type At = u8;
    type Item<'e> = Shown<'e>;
    type Upload = ();
    type Pinned = Vec<u8>;

    fn options(&self) -> &EngineOptions {
        &self.options
    }

    fn find(&mut self, key: &Key<'_>, needed: Needed, now: &Now) -> Result<Option<u8>, NotYet> {
        if self.fetched.is_some_and(|fetched| fetched < needed as u8) {
            return Err(NotYet);
        }
        let is_dead = |entry: &Entry| entry.expiry != 0 && entry.expiry <= now.second;
        if self.entries.get(key.bytes()).is_some_and(is_dead) {
            self.entries.remove(key.bytes());
        }
        Ok(self.entries.contains_key(key.bytes()).then_some(key.bytes()[0]))
    }

    fn item(&self, at: u8) -> Shown<'_> {
        Shown(&self.entries[&vec![at]])
    }

    fn remove(&mut self, key: &Key<'_>, _at: u8) {
        self.changes += 1;
        self.entries.remove(key.bytes()).expect("it was found");
    }

    fn mark(&mut self, _key: &Key<'_>, at: u8, mark: Mark) {
        self.changes += 1;
        let entry = self.entries.get_mut(&vec![at]).expect("it was found");
        entry.expiry = mark.expiry.unwrap_or(entry.expiry);
        entry.win_sent |= mark.win_sent;
    }

    fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<u8>,
        put: &Put,
        block: &mut Block<'_, ()>,
        now: &Now,
    ) -> Result<u8, Refused> {
        self.puts_left = self.puts_left.checked_sub(1).ok_or(Refused::NoRoom)?;
        self.changes += 1;
        self.has_leased |= put.remnant;
        self.cas += 1;
        let old = found.map(|at| self.entries[&vec![at]].clone()).unwrap_or_default();
        let block: &[u8] = match block {
            Block::Bytes(bytes) => bytes,
            Block::None | Block::Upload(()) => b"",
        };
        let value = match put.value {
            PutValue::Block => block.to_vec(),
            PutValue::Empty => Vec::new(),
            PutValue::Unchanged => old.value,
            PutValue::Joined(Side::After) => [&old.value, block].concat(),
            PutValue::Joined(Side::Before) => [block, &old.value].concat(),
            PutValue::Number { number, bytes } => format!("{number:<bytes$}").into_bytes(),
        };
        let entry = Entry {
            value,
            put: Some(*put),
            expiry: put.expiry,
            cas: put.cas.unwrap_or(self.cas),
            win_sent: put.win_sent,
            fetched: old.fetched && put.keeps_access,
            access: now.second,
        };
        self.entries.insert(key.bytes().to_vec(), entry);
        Ok(key.bytes()[0])
    }

    fn has_leased(&self) -> bool {
        self.has_leased
    }

    fn note_access(&self, _at: u8, _now: &Now) {}

    fn pin(&self, at: u8) -> Vec<u8> {
        self.entries[&vec![at]].value.clone()
    }
}

/// The engine, and the arguments that every operation needs.
struct Bench {
    shelf: Shelf,
    hasher: KeyHasher,
    now: Now,
}

impl Bench {
    fn new() -> Self {
        let options = EngineOptions {
            evict: true,
            cas: true,
            item_bytes_max: 200,
            leases: LeaseOptions::DEFAULT,
        };
        let shelf = Shelf {
            options,
            entries: HashMap::new(),
            puts_left: u32::MAX,
            cas: 100,
            has_leased: false,
            changes: 0,
            fetched: None,
        };
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 1);
        Self { shelf, hasher, now: ClockOrigin::new(0, 1_800_000_000).at(8_000_000_000) }
    }

    /// The answer of a core that must not change anything. `None` if it must ask the owner.
    fn unchanged(&self, terms: &GetTerms) -> Option<(Verdict, Option<Vec<u8>>)> {
        let is_live = |entry: &&Entry| entry.expiry == 0 || entry.expiry > self.now.second;
        let found = self.shelf.entries.get(&b"k"[..]).filter(is_live).map(Shown);
        let outcome = get_unchanged::<Vec<u8>>(terms, found.as_ref(), &self.now)?;
        let value = match outcome.value {
            Value::None => None,
            Value::Inline(value) => Some(value.to_vec()),
            Value::Pinned { .. } => panic!("a core that may change nothing pins nothing"),
        };
        Some((outcome.verdict, value))
    }

    /// Applies a verb to the key `k` and checks that it made at most one change, and that any core
    /// could have answered a read without a change.
    fn apply(&mut self, verb: Verb, block: &[u8]) -> (Verdict, Option<Vec<u8>>) {
        let operation = Operation { key: self.hasher.key(b"k"), verb };
        let before = self.shelf.changes;
        let read = if let Verb::Get(terms) = &verb { Some(self.unchanged(terms)) } else { None };
        let outcome = apply(&mut self.shelf, &operation, &mut Block::Bytes(block), &self.now)
            .expect("a shelf waits for nothing");
        let mut is_pinned = false;
        let value = match outcome.value {
            Value::None => None,
            Value::Inline(value) => Some(value.to_vec()),
            Value::Pinned { pinned, bytes } => {
                assert_eq!(pinned.len(), bytes, "a pinned value has the bytes it announces");
                is_pinned = true;
                Some(pinned)
            }
        };
        let answer = (outcome.verdict, value);
        let changes = self.shelf.changes - before;
        assert!(changes <= 1, "I1: {verb:?} made more than one change");
        if let Some(read) = read {
            let is_refused = matches!(answer.0, Verdict::NoMemory { .. });
            let is_same = changes == 0 && !is_pinned && !is_refused;
            let expected = is_same.then(|| answer.clone());
            assert_eq!(read, expected, "unchanged, I1: {verb:?}");
        }
        answer
    }

    fn set(&mut self, value: &[u8]) -> u64 {
        let (verdict, _) = self.apply(Verb::Store(store(StoreMode::Set, value)), value);
        let Verdict::Stored { cas, value_bytes } = verdict else { panic!("{verdict:?}") };
        assert_eq!(value_bytes, value.len());
        cas
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        self.apply(Verb::Get(GetTerms::VALUE), b"").1
    }

    fn entry(&self) -> &Entry {
        &self.shelf.entries[&b"k"[..]]
    }
}

fn store(mode: StoreMode, value: &[u8]) -> StoreTerms {
    StoreTerms {
        mode,
        value_bytes: value.len(),
        client_flags: 7,
        ttl: Ttl(0),
        compare_cas: None,
        new_cas: None,
        stores_stale: false,
        protocol_mark: false,
        vivify: None,
    }
}

fn meta_get(life: LifeTerms) -> GetTerms {
    let wanted = Wanted::CAS.with(Wanted::TTL).with(Wanted::MARKS).with(Wanted::VALUE_BYTES);
    GetTerms { life, may_win: true, wanted, ..GetTerms::VALUE }
}

fn arithmetic(direction: Direction, delta: u64, life: LifeTerms) -> Verb {
    let (initial, compare_cas, new_cas) = (40, None, None);
    Verb::Arithmetic(ArithmeticTerms { direction, delta, initial, compare_cas, new_cas, life })
}

fn life(steps: &[LifeStep]) -> LifeTerms {
    let mut life = LifeTerms::NONE;
    steps.iter().for_each(|step| life.push(*step));
    life
}

#[test]
fn a_get_tells_what_was_wanted_and_changes_nothing() {
    let mut bench = Bench::new();
    assert_eq!(bench.apply(Verb::Get(GetTerms::VALUE), b""), (Verdict::Miss, None));
    let cas = bench.set(b"abc");
    let changes = bench.shelf.changes;
    let (verdict, value) = bench.apply(Verb::Get(GetTerms::VALUE), b"");
    let told = Facts { client_flags: 7, ..Facts::default() };
    assert_eq!((verdict, value.as_deref()), (Verdict::Hit(told), Some(&b"abc"[..])));
    let unless = GetTerms { value: ValueWanted::UnlessCas(cas), ..meta_get(LifeTerms::NONE) };
    assert_eq!(bench.apply(Verb::Get(unless), b"").1, None, "the client has this version");
    let short = GetTerms { value_bytes_max: 2, ..GetTerms::VALUE };
    assert_eq!(bench.apply(Verb::Get(short), b"").1.as_deref(), Some(&b"abc"[..]), "pinned");
    assert_eq!(bench.shelf.changes, changes, "I2: a reader can answer all of these");
}

#[test]
fn a_get_touches_creates_and_invites_to_refill() {
    let mut bench = Bench::new();
    bench.set(b"abc");
    let touch = meta_get(life(&[LifeStep::Touch(Ttl(30))]));
    let Verdict::Hit(facts) = bench.apply(Verb::Get(touch), b"").0 else { panic!("a hit") };
    assert_eq!((facts.ttl_before, facts.ttl, bench.entry().expiry), (None, Some(30), 40));
    let recache = meta_get(life(&[LifeStep::Recache(Ttl(60))]));
    let wins: Vec<bool> = (0..2)
        .map(|_| match bench.apply(Verb::Get(recache), b"").0 {
            Verdict::Hit(facts) => facts.won,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(wins, [true, false], "one client is invited");
    bench.apply(Verb::Delete(DeleteTerms::default()), b"");
    let create = meta_get(life(&[LifeStep::Vivify(Ttl(20))]));
    let (verdict, value) = bench.apply(Verb::Get(create), b"");
    let Verdict::Hit(facts) = verdict else { panic!("{verdict:?}") };
    assert!(facts.created && facts.won && facts.ttl_made == Some(20));
    assert_eq!((value.as_deref(), facts.cas), (Some(&b""[..]), bench.entry().cas));
    assert!(bench.entry().win_sent, "the next reader is not invited");
}

#[test]
fn stores_keep_their_conditions() {
    let rows = [
        (StoreMode::Set, false, true),
        (StoreMode::Set, true, true),
        (StoreMode::Add, false, true),
        (StoreMode::Add, true, false),
        (StoreMode::Replace, false, false),
        (StoreMode::Replace, true, true),
        (StoreMode::Append, false, false),
        (StoreMode::Append, true, true),
        (StoreMode::Prepend, false, false),
        (StoreMode::Prepend, true, true),
    ];
    for (mode, is_there, is_stored) in rows {
        let mut bench = Bench::new();
        if is_there {
            bench.set(b"old");
        }
        let (verdict, _) = bench.apply(Verb::Store(store(mode, b"new")), b"new");
        let stored = matches!(verdict, Verdict::Stored { .. });
        assert_eq!(stored, is_stored, "{mode:?} where an item is there: {is_there}");
        let value: Option<&[u8]> = match (mode, is_stored) {
            (StoreMode::Append, true) => Some(b"oldnew"),
            (StoreMode::Prepend, true) => Some(b"newold"),
            (_, true) => Some(b"new"),
            (_, false) => is_there.then_some(b"old"),
        };
        assert_eq!(bench.value().as_deref(), value, "{mode:?}");
    }
}

#[test]
fn tokens_are_compared_and_an_older_one_stores_a_stale_value() {
    let mut bench = Bench::new();
    let with = |token| StoreTerms { compare_cas: Some(token), ..store(StoreMode::Set, b"new") };
    assert_eq!(bench.apply(Verb::Store(with(1)), b"new").0, Verdict::Miss);
    let cas = bench.set(b"old");
    assert_eq!(bench.apply(Verb::Store(with(cas + 1)), b"new").0, Verdict::Exists);
    assert_eq!(bench.apply(Verb::Store(with(cas - 1)), b"new").0, Verdict::Exists);
    let older = StoreTerms { stores_stale: true, ..with(cas - 1) };
    assert!(matches!(bench.apply(Verb::Store(older), b"new").0, Verdict::Stored { .. }));
    assert!(Shown(bench.entry()).is_stale());
    let matching = with(bench.entry().cas);
    assert!(matches!(bench.apply(Verb::Store(matching), b"new").0, Verdict::Stored { .. }));
    assert!(!Shown(bench.entry()).is_stale(), "a store ends staleness");
}

#[test]
fn what_finds_no_memory_changes_nothing_but_a_set_removes_the_old_value() {
    for mode in [StoreMode::Set, StoreMode::Replace, StoreMode::Append, StoreMode::Prepend] {
        let mut bench = Bench::new();
        bench.set(b"old");
        bench.shelf.puts_left = 0;
        let (verdict, _) = bench.apply(Verb::Store(store(mode, b"new")), b"new");
        let joins = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        let refused = if joins { Verdict::NotStored } else { Verdict::NoMemory { found: true } };
        assert_eq!(verdict, refused, "{mode:?}");
        assert_eq!(bench.value().is_some(), mode != StoreMode::Set, "{mode:?}");
    }
    let mut bench = Bench::new();
    bench.set(b"9");
    bench.shelf.puts_left = 0;
    let verdict = bench.apply(arithmetic(Direction::Up, 1, LifeTerms::NONE), b"").0;
    assert_eq!(verdict, Verdict::NoMemory { found: true });
    let stale = DeleteTerms { marks_stale: true, ..DeleteTerms::default() };
    assert_eq!(bench.apply(Verb::Delete(stale), b"").0, Verdict::NoMemory { found: true });
    assert_eq!(bench.value().as_deref(), Some(&b"9"[..]));
}

#[test]
fn appending_beyond_the_largest_item_stores_nothing() {
    let mut bench = Bench::new();
    bench.set(&[b'x'; 120]);
    let much = [b'y'; 60];
    let verdict = bench.apply(Verb::Store(store(StoreMode::Append, &much)), &much).0;
    assert_eq!(verdict, Verdict::NotStored);
    assert_eq!(bench.value().map(|value| value.len()), Some(120));
}

#[test]
fn deletes_remove_empty_or_mark_stale() {
    let mut bench = Bench::new();
    assert_eq!(bench.apply(Verb::Delete(DeleteTerms::default()), b"").0, Verdict::Miss);
    let cas = bench.set(b"abc");
    let other = DeleteTerms { compare_cas: Some(cas + 1), ..DeleteTerms::default() };
    assert_eq!(bench.apply(Verb::Delete(other), b"").0, Verdict::Exists);
    let stale = DeleteTerms { marks_stale: true, ttl: Some(Ttl(9)), ..DeleteTerms::default() };
    assert_eq!(bench.apply(Verb::Delete(stale), b"").0, Verdict::Invalidated);
    assert_eq!((bench.value().as_deref(), bench.entry().expiry), (Some(&b"abc"[..]), 19));
    assert!(bench.entry().cas > cas, "a stale value has a new token");
    let token = bench.entry().cas;
    let empty = DeleteTerms { empties: true, ..DeleteTerms::default() };
    assert_eq!(bench.apply(Verb::Delete(empty), b"").0, Verdict::Invalidated);
    assert_eq!((bench.value().as_deref(), bench.entry().cas), (Some(&b""[..]), token));
    assert_eq!(bench.apply(Verb::Delete(DeleteTerms::default()), b"").0, Verdict::Deleted);
    assert_eq!(bench.value(), None);
}

#[test]
fn numbers_go_up_and_down_keep_their_length_and_are_created() {
    let mut bench = Bench::new();
    let up = |delta| arithmetic(Direction::Up, delta, LifeTerms::NONE);
    let down = |delta| arithmetic(Direction::Down, delta, LifeTerms::NONE);
    assert_eq!(bench.apply(up(1), b"").0, Verdict::Miss);
    bench.set(b"99");
    let number = |verdict| match verdict {
        Verdict::Number { number, facts } => (number, facts.value_bytes),
        other => panic!("{other:?}"),
    };
    assert_eq!(number(bench.apply(up(1), b"").0), (100, 3));
    assert_eq!(number(bench.apply(down(60), b"").0), (40, 2));
    assert_eq!(bench.value().as_deref(), Some(&b"40 "[..]), "padded with a space");
    assert_eq!(number(bench.apply(down(60), b"").0), (0, 1));
    assert_eq!(number(bench.apply(up(u64::MAX), b"").0).0, u64::MAX);
    assert_eq!(number(bench.apply(up(2), b"").0).0, 1, "up wraps");
    bench.set(b"ten");
    assert_eq!(bench.apply(up(1), b"").0, Verdict::NonNumeric);
    bench.apply(Verb::Delete(DeleteTerms::default()), b"");
    let create = life(&[LifeStep::Vivify(Ttl(20)), LifeStep::Touch(Ttl(50))]);
    let verdict = bench.apply(arithmetic(Direction::Up, 1, create), b"").0;
    let Verdict::Number { number: 40, facts } = verdict else { panic!("{verdict:?}") };
    assert!(facts.created && facts.ttl_made == Some(20) && facts.ttl == Some(50));
    assert_eq!(bench.entry().expiry, 60, "the later step holds");
}

#[test]
fn touch_changes_the_expiry_and_an_expired_item_is_not_found() {
    let mut bench = Bench::new();
    assert_eq!(bench.apply(Verb::Touch(Ttl(5)), b"").0, Verdict::Miss);
    let cas = bench.set(b"abc");
    assert_eq!(bench.apply(Verb::Touch(Ttl(5)), b"").0, Verdict::Touched);
    assert_eq!((bench.entry().expiry, bench.entry().cas), (15, cas));
    let Verdict::Inspected(seen) = bench.apply(Verb::Inspect, b"").0 else { panic!("an item") };
    assert_eq!((seen.ttl, seen.cas, seen.item_bytes), (Some(5), cas, 11));
    bench.now.second = 15;
    assert_eq!(bench.apply(Verb::Inspect, b"").0, Verdict::Miss);
}

#[test]
fn a_core_that_only_reads_answers_what_changes_nothing_and_asks_the_owner_for_the_rest() {
    let recache = meta_get(life(&[LifeStep::Recache(Ttl(60))]));
    // Terms, and whether a core answers them: on a miss, and for an item that expires in 30
    // seconds, is stale, or is stale and one client has won the right to refill it.
    let rows = [
        (GetTerms::VALUE, [true, true, true, true]),
        (meta_get(LifeTerms::NONE), [true, true, false, true]),
        (meta_get(LifeTerms::touch(Some(Ttl(9)))), [true, false, false, false]),
        (meta_get(life(&[LifeStep::Vivify(Ttl(9))])), [false, true, false, true]),
        (recache, [true, false, false, true]),
        (GetTerms { value_bytes_max: 2, ..GetTerms::VALUE }, [true, false, false, false]),
        (GetTerms { value: ValueWanted::No, ..GetTerms::VALUE }, [true, true, true, true]),
    ];
    for (terms, answered) in rows {
        for (step, answered) in answered.into_iter().enumerate() {
            let mut bench = Bench::new();
            if step > 0 {
                bench.set(b"abc");
                bench.apply(Verb::Touch(Ttl(30)), b"");
            }
            if step > 1 {
                let stale = DeleteTerms { marks_stale: true, ..DeleteTerms::default() };
                bench.apply(Verb::Delete(stale), b"");
            }
            if step > 2 {
                bench.apply(Verb::Get(meta_get(LifeTerms::NONE)), b"");
            }
            assert_eq!(bench.unchanged(&terms).is_some(), answered, "{step}: {terms:?}");
            bench.apply(Verb::Get(terms), b"");
        }
    }
}

#[test]
fn an_operation_waits_only_for_what_it_needs_of_its_item() {
    let mut bench = Bench::new();
    let hasher = bench.hasher;
    let store = |mode, compare_cas| {
        let Verb::Store(terms) = Operation::set(hasher.key(b"k"), 1, Ttl(0)).verb else {
            unreachable!("it is a store")
        };
        Verb::Store(StoreTerms { mode, compare_cas, ..terms })
    };
    let exists = GetTerms { value: ValueWanted::No, ..GetTerms::VALUE };
    let rows = [
        (store(StoreMode::Set, None), Needed::Place),
        (store(StoreMode::Set, Some(7)), Needed::Facts),
        (store(StoreMode::Add, None), Needed::Facts),
        (store(StoreMode::Append, None), Needed::Value),
        (Verb::Get(exists), Needed::Facts),
        (Verb::Get(GetTerms::VALUE), Needed::Value),
        (Verb::Delete(DeleteTerms::default()), Needed::Facts),
        (Verb::Touch(Ttl(9)), Needed::Facts),
    ];
    for (verb, needed) in rows {
        for fetched in [Needed::Place, Needed::Facts, Needed::Value] {
            bench.shelf.fetched = None;
            bench.apply(store(StoreMode::Set, None), b"1");
            bench.shelf.fetched = Some(fetched as u8);
            let before = bench.shelf.changes;
            let operation = Operation { key: hasher.key(b"k"), verb };
            let mut block = Block::Bytes(b"2");
            let applied = apply(&mut bench.shelf, &operation, &mut block, &bench.now).is_ok();
            assert_eq!(applied, fetched as u8 >= needed as u8, "{verb:?} with {fetched:?}");
            assert!(applied || bench.shelf.changes == before, "nothing was changed");
        }
    }
}
