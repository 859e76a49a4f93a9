//! Tests of the decisions about leases.

use super::*;

const GET: GetTerms = GetTerms { leases: true, ..GetTerms::VALUE };

/// The answer to `lease-get`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Got {
    /// A fresh value.
    Hit(Vec<u8>),
    /// A token, and the stale value.
    Token(u64, Vec<u8>),
    /// Another client has the lease; the stale value.
    Hot(Vec<u8>),
}

impl Bench {
    fn lease_get(&mut self) -> Got {
        let (verdict, value) = self.apply(Verb::Get(GET), b"");
        let value = value.expect("a lease shows a value, if only an empty one");
        match verdict {
            Verdict::Hit(_) => Got::Hit(value),
            Verdict::Leased { token: Some(token), .. } => Got::Token(token, value),
            Verdict::Leased { token: None, .. } => Got::Hot(value),
            other => panic!("{other:?}"),
        }
    }

    fn token(&mut self) -> u64 {
        let got = self.lease_get();
        let Got::Token(token, _) = got else { panic!("{got:?}") };
        token
    }

    fn lease_set(&mut self, token: u64, value: &[u8]) -> Verdict {
        let compare_cas = Some(token);
        let terms = StoreTerms { compare_cas, ..store(StoreMode::Lease, value) };
        self.apply(Verb::Store(terms), value).0
    }

    fn delete(&mut self) -> Verdict {
        self.apply(Verb::Delete(DeleteTerms::default()), b"").0
    }

    fn pass(&mut self, seconds: u32) {
        self.now.second += seconds;
    }

    /// Checks that every verb but those of leases finds nothing.
    fn misses(&mut self) {
        let cas = StoreTerms { compare_cas: Some(5), ..store(StoreMode::Set, b"x") };
        for verb in [
            Verb::Get(GetTerms::VALUE),
            Verb::Get(meta_get(LifeTerms::NONE)),
            Verb::Get(GetTerms { life: LifeTerms::touch(Some(Ttl(9))), ..GetTerms::VALUE }),
            Verb::Touch(Ttl(60)),
            Verb::Inspect,
            arithmetic(Direction::Up, 1, LifeTerms::NONE),
            Verb::Store(cas),
        ] {
            assert_eq!(self.apply(verb, b"x"), (Verdict::Miss, None), "{verb:?}");
        }
        for mode in [StoreMode::Replace, StoreMode::Append, StoreMode::Prepend] {
            let verdict = self.apply(Verb::Store(store(mode, b"x")), b"x").0;
            assert_eq!(verdict, Verdict::NotStored, "{mode:?}");
        }
    }
}

#[test]
fn a_miss_gives_one_client_the_right_to_fill() {
    let mut bench = Bench::new();
    let token = bench.token();
    assert!(token > NO_TOKEN_MAX);
    assert_eq!(bench.lease_get(), Got::Hot(Vec::new()));
    bench.misses();
    assert_eq!(bench.lease_set(token + 1, b"wrong"), Verdict::StaleStored);
    assert_eq!(bench.lease_get(), Got::Hot(b"wrong".to_vec()));
    bench.misses();
    assert!(matches!(bench.lease_set(token, b"abc"), Verdict::Stored { value_bytes: 3, .. }));
    assert_eq!(bench.value().as_deref(), Some(&b"abc"[..]));
    assert_eq!(bench.lease_get(), Got::Hit(b"abc".to_vec()));
    assert_eq!(bench.lease_set(token, b"again"), Verdict::NotStored, "a token is used once");
    assert_eq!(bench.lease_set(bench.entry().cas, b"again"), Verdict::NotStored, "no lease");
}

#[test]
fn a_token_is_good_for_some_seconds() {
    let mut bench = Bench::new();
    let first = bench.token();
    bench.pass(9);
    assert_eq!(bench.lease_get(), Got::Hot(Vec::new()));
    bench.pass(1);
    assert_eq!(bench.lease_set(first, b"late"), Verdict::NotStored);
    let second = bench.token();
    assert_ne!(first, second);
    assert_eq!(bench.lease_set(first, b"late"), Verdict::StaleStored);
    assert!(matches!(bench.lease_set(second, b"abc"), Verdict::Stored { .. }));
}

#[test]
fn a_delete_leaves_its_value_for_leases_and_makes_tokens_invalid() {
    let mut bench = Bench::new();
    bench.set(b"first");
    assert_eq!(bench.delete(), Verdict::Deleted);
    assert!(bench.shelf.entries.is_empty(), "no client has asked for a lease yet");
    bench.token();
    bench.set(b"old");
    assert_eq!(bench.delete(), Verdict::Deleted);
    bench.misses();
    assert_eq!(bench.delete(), Verdict::Miss);
    let Got::Token(token, stale) = bench.lease_get() else { panic!("a token") };
    assert_eq!(stale, b"old");
    assert_eq!(bench.delete(), Verdict::Miss);
    assert_eq!(bench.lease_set(token, b"read before"), Verdict::StaleStored);
    assert_eq!(bench.lease_get(), Got::Hot(b"read before".to_vec()), "one token in ten seconds");
    bench.misses();
    bench.pass(10);
    let token = bench.token();
    assert!(matches!(bench.lease_set(token, b"new"), Verdict::Stored { .. }));
    assert_eq!(bench.value().as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_deleted_value_is_kept_for_a_minute_or_for_its_own_life() {
    for (ttl, kept_s) in [(0, 60), (5, 5), (500, 60)] {
        let mut bench = Bench::new();
        bench.token();
        let terms = StoreTerms { ttl: Ttl(ttl), ..store(StoreMode::Set, b"old") };
        bench.apply(Verb::Store(terms), b"old");
        bench.delete();
        bench.pass(kept_s - 1);
        let changes = bench.shelf.changes;
        assert_eq!(bench.value(), None);
        assert_eq!(bench.shelf.changes, changes, "TTL {ttl}");
        assert_eq!(bench.entry().value, b"old", "TTL {ttl}");
        bench.pass(1);
        assert!(matches!(bench.lease_get(), Got::Token(_, value) if value.is_empty()));
    }
}

#[test]
fn every_store_replaces_what_is_kept_for_leases() {
    for (mode, is_stored) in [(StoreMode::Set, true), (StoreMode::Add, true)] {
        let mut bench = Bench::new();
        let token = bench.token();
        let verdict = bench.apply(Verb::Store(store(mode, b"set")), b"set").0;
        assert_eq!(matches!(verdict, Verdict::Stored { .. }), is_stored, "{mode:?}");
        assert_eq!(bench.lease_set(token, b"older"), Verdict::NotStored, "{mode:?}");
        assert_eq!(bench.value().as_deref(), Some(&b"set"[..]));
    }
    let mut bench = Bench::new();
    bench.token();
    let create = meta_get(life(&[LifeStep::Vivify(Ttl(20))]));
    let Verdict::Hit(facts) = bench.apply(Verb::Get(create), b"").0 else { panic!("created") };
    assert!(facts.created && facts.won && !facts.stale);
    assert_eq!(bench.lease_get(), Got::Hit(Vec::new()), "memcached shows an item of `N`, too");
}

#[test]
fn leases_and_meta_flags_share_one_state() {
    let mut bench = Bench::new();
    bench.set(b"abc");
    let stale = DeleteTerms { marks_stale: true, ..DeleteTerms::default() };
    bench.apply(Verb::Delete(stale), b"");
    let Got::Token(token, value) = bench.lease_get() else { panic!("a token") };
    assert_eq!(value, b"abc");
    let Verdict::Hit(facts) = bench.apply(Verb::Get(meta_get(LifeTerms::NONE)), b"").0 else {
        panic!("a stale item is a hit for `mg`")
    };
    assert!(facts.stale && facts.win_sent && !facts.won, "the lease is the win");
    assert_eq!(bench.lease_set(token + 1, b"x"), Verdict::NotStored, "others see this item");
    assert!(matches!(bench.lease_set(token, b"new"), Verdict::Stored { .. }));
    // The other way round.
    bench.apply(Verb::Delete(stale), b"");
    let Verdict::Hit(facts) = bench.apply(Verb::Get(meta_get(LifeTerms::NONE)), b"").0 else {
        panic!("a hit")
    };
    assert!(facts.won);
    assert_eq!(bench.lease_get(), Got::Hot(b"new".to_vec()));
    assert!(matches!(bench.lease_set(facts.cas, b"won"), Verdict::Stored { .. }));
    // A token that a client chose may be no token of a lease.
    let chosen = DeleteTerms { new_cas: Some(1), ..stale };
    bench.apply(Verb::Delete(chosen), b"");
    assert_eq!(bench.lease_get(), Got::Hot(b"won".to_vec()));
}

#[test]
fn without_memory_nothing_is_kept_and_no_request_fails_for_it() {
    let mut bench = Bench::new();
    bench.token();
    bench.set(b"abc");
    bench.shelf.puts_left = 0;
    assert_eq!(bench.delete(), Verdict::Deleted);
    assert!(bench.shelf.entries.is_empty());
    assert_eq!(bench.apply(Verb::Get(GET), b""), (Verdict::NoMemory { found: false }, None));
    bench.shelf.puts_left = 1;
    let token = bench.token();
    assert_eq!(bench.lease_set(token + 1, b"stale"), Verdict::NotStored);
    assert!(matches!(bench.lease_set(token, b"new"), Verdict::NoMemory { .. }));
    assert_eq!(bench.delete(), Verdict::Miss);
    assert!(bench.shelf.entries.is_empty(), "a token that is invalid must not stay good");
    assert_eq!(bench.lease_set(token, b"new"), Verdict::NotStored);
}
