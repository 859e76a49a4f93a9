//! Small streams whose counts are known, and streams that try to break the bounds.

use super::sample::{CHAIN_MAX, KEYS_MAX};
use super::*;

/// The memory of an item of the tests: a key of 8 bytes and a value of 100.
const ITEM_BYTES: u64 = (memory_bytes_of(8, 100) + SLOT_BYTES) as u64;
/// What a request of the sample weighs at the start.
const WEIGHT: f64 = START_DIVISOR as f64;

/// The hash of a key that is in the sample at the start, with any low bits.
fn hash(key: u64) -> u64 {
    let mixed = (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed >> START_DIVISOR.ilog2()
}

fn request(key: u64, event: SampledEvent) -> SampledRequest {
    let expiry = (event == SampledEvent::Stored).then_some(0);
    SampledRequest { secret_hash: hash(key), event, key_bytes: 8, value_bytes: 100, expiry }
}

/// Miniatures of an engine that holds `items` items and evicts.
fn miniatures(items: u64) -> Miniatures {
    let mut miniatures = Miniatures::new();
    // The engine holds as much more than its sample as the sample's rate says.
    let live_bytes = items * u64::from(START_DIVISOR) * ITEM_BYTES;
    for evictions in [0, 1] {
        let share_bytes = 4 * live_bytes.max(16 << 20);
        miniatures.set_memory(ModelMemory { items: 0, live_bytes, share_bytes, evictions });
    }
    miniatures
}

/// A read that misses in the server, and the store that follows.
fn refill(miniatures: &mut Miniatures, key: u64) {
    miniatures.note_served(1, 1);
    miniatures.note(&request(key, SampledEvent::Miss), 1);
    miniatures.note(&request(key, SampledEvent::Stored), 1);
}

/// Checks the lists and the sums of all miniatures.
fn audit(miniatures: &Miniatures) {
    let mut used = vec![false; KEYS_MAX];
    for model in &miniatures.models {
        model.audit(&miniatures.sample, &mut used);
    }
    let used = used.into_iter().filter(|&is_used| is_used).count();
    assert_eq!(used, miniatures.sample.len(), "K3");
}

#[test]
fn a_loop_misses_where_it_does_not_fit() {
    let mut miniatures = miniatures(100);
    for _ in 0..20 {
        (0..150).for_each(|key| refill(&mut miniatures, key));
    }
    audit(&miniatures);
    let sums = miniatures.sums();
    let [quarter, half, actual, twice, most] = sums.modeled;
    assert_eq!([twice, most], [150.0 * WEIGHT; 2], "the first round misses");
    let all = 20.0 * 150.0 * WEIGHT;
    assert!(quarter > all * 0.95 && half > all * 0.95, "{quarter} {half}: hardly any item stays");
    assert!(actual > all / 2.0, "{actual}");
    assert_eq!((sums.samples, sums.keys), (3000, 150));
    assert_eq!(sums.hopeless, 150.0 * WEIGHT, "no key was stored before its first read");
    assert_eq!(sums.sampled_misses, 3000.0 * WEIGHT);
    let estimates = sums.estimates();
    assert_eq!(estimates[MODEL_ACTUAL], 1.0, "as the server says");
    assert!(estimates[3] < estimates[2], "{estimates:?}");
}

#[test]
fn a_store_after_a_miss_changes_nothing_where_the_item_is() {
    let mut miniatures = miniatures(100);
    (0..10).for_each(|key| refill(&mut miniatures, key));
    for _ in 0..2 {
        miniatures.note(&request(0, SampledEvent::Hit), 1);
    }
    // The server has lost the item, and no miniature has.
    refill(&mut miniatures, 0);
    let id = miniatures.sample.find(hash(0) as u32).expect("it is there");
    let state = miniatures.sample.state(id, MODEL_ACTUAL);
    assert_eq!((state.place, state.reads), (Place::Probation, 3), "two hits, and the miss");
    // Another store replaces the item.
    miniatures.note(&request(0, SampledEvent::Stored), 1);
    let state = miniatures.sample.state(id, MODEL_ACTUAL);
    assert_eq!((state.place, state.reads), (Place::Main, 0), "an active item goes to main");
    audit(&miniatures);
}

#[test]
fn items_that_are_read_stay_while_others_pass() {
    let mut miniatures = miniatures(100);
    (0..50).for_each(|key| refill(&mut miniatures, key));
    for round in 0..200 {
        for key in 0..50 {
            miniatures.note(&request(key, SampledEvent::Hit), 1);
            miniatures.note_served(1, 0);
        }
        (0..50).for_each(|other| refill(&mut miniatures, 1000 + round * 50 + other));
    }
    audit(&miniatures);
    let sums = miniatures.sums();
    let scanned = 200.0 * 50.0 + 50.0;
    for (at, modeled) in sums.modeled.iter().enumerate().skip(MODEL_ACTUAL) {
        let missed = modeled / WEIGHT - scanned;
        assert!((0.0..500.0).contains(&missed), "{at}: {missed} of 10,000 reads miss");
    }
    assert!(sums.modeled[0] / WEIGHT - scanned > 4000.0, "they do not all fit a quarter");
}

#[test]
fn expired_and_removed_items_miss_whatever_the_memory() {
    let mut miniatures = miniatures(100);
    for key in 0..4 {
        let expiry = Some(if key == 0 { 10 } else { 0 });
        miniatures.note(&SampledRequest { expiry, ..request(key, SampledEvent::Stored) }, 1);
    }
    miniatures.note(&request(1, SampledEvent::Removed), 2);
    miniatures.note(&request(9, SampledEvent::Removed), 2);
    let touched = SampledRequest { expiry: Some(20), ..request(2, SampledEvent::Touched) };
    miniatures.note(&touched, 2);
    miniatures.note(&request(0, SampledEvent::Hit), 9);
    assert_eq!(miniatures.sums().modeled, [0.0; MODEL_SIZES]);
    for (key, second) in [(0, 10), (1, 10), (2, 20)] {
        miniatures.note(&request(key, SampledEvent::Miss), second);
    }
    let sums = miniatures.sums();
    assert_eq!(sums.modeled, [3.0 * WEIGHT; MODEL_SIZES]);
    assert_eq!((sums.hopeless, sums.keys), (3.0 * WEIGHT, 1));
    miniatures.flush();
    assert_eq!(miniatures.sums().keys, 0);
    audit(&miniatures);
}

#[test]
fn expired_items_make_room_without_a_read() {
    let mut miniatures = miniatures(100);
    for key in 0..50 {
        let store = request(key, SampledEvent::Stored);
        miniatures.note(&SampledRequest { expiry: Some(10), ..store }, 1);
    }
    for turn in 0..KEYS_MAX.div_ceil(SWEPT_KEYS) as u64 {
        miniatures.note(&request(1000 + turn % 7, SampledEvent::Miss), 10);
    }
    assert_eq!(miniatures.sums().keys, 0, "S2: each key was examined once");
}

#[test]
fn what_the_server_held_before_is_learned_first() {
    let mut miniatures = miniatures(5000);
    for round in 0..4 {
        for key in 0..u64::from(LEARNING_READS) / 2 {
            miniatures.note_served(1, 0);
            miniatures.note(&request(key, SampledEvent::Hit), 1);
        }
        let is_learning = miniatures.sums().is_learning;
        assert_eq!(is_learning, (1..3).contains(&round), "{round}: two rounds are judged at once");
    }
    let sums = miniatures.sums();
    let counted = f64::from(LEARNING_READS);
    assert_eq!(sums.reads, counted, "of the last two rounds");
    assert_eq!(sums.modeled[MODEL_ACTUAL], 0.0, "the server's hits are hits");
}

#[test]
fn counts_lose_half_of_their_weight_each_hour() {
    let mut miniatures = miniatures(100);
    (0..100).for_each(|key| refill(&mut miniatures, key));
    let before = miniatures.sums();
    miniatures.note(&request(0, SampledEvent::Touched), 2 * HALF_LIFE_S);
    let after = miniatures.sums();
    assert_eq!([after.reads, after.misses], [before.reads / 4.0, before.misses / 4.0]);
    assert_eq!(after.modeled, before.modeled.map(|sum| sum / 4.0));
    assert_eq!(after.estimates(), before.estimates());
}

/// The bounds hold for a million keys, and for hashes that an attacker would choose.
#[test]
fn memory_is_bounded_whatever_the_hashes() {
    let all_alike = |_| 5;
    let one_chain = |key: u64| key << 15 & 0xffff_ffff;
    let one_level = |key: u64| 0x1fff_0000_0000_0000 | key;
    let random = |key: u64| hash(key);
    let forms: [(&dyn Fn(u64) -> u64, u64); 4] =
        [(&all_alike, 1000), (&one_chain, 100_000), (&one_level, 100_000), (&random, 1_000_000)];
    for (form, (hash_of, keys)) in forms.into_iter().enumerate() {
        let mut miniatures = miniatures(10_000_000);
        for key in 0..keys {
            let secret_hash = hash_of(key);
            let event = if key % 3 == 0 { SampledEvent::Hit } else { SampledEvent::Stored };
            miniatures.note(&SampledRequest { secret_hash, ..request(0, event) }, 1);
        }
        audit(&miniatures);
        let kept = miniatures.sample.len();
        match form {
            0 => assert_eq!(kept, 1),
            1 => assert_eq!(kept, CHAIN_MAX, "K2"),
            2 => assert!(kept <= KEYS_MAX, "K1"),
            _ => {
                assert!((KEYS_MAX * 3 / 4..=KEYS_MAX).contains(&kept), "{kept}");
                let rate = miniatures.sums().rate * f64::from(START_DIVISOR);
                let expected = kept as f64 / keys as f64;
                assert!((rate / expected - 1.0).abs() < 0.05, "{rate} {expected}");
            }
        }
    }
}

#[test]
fn levels_and_limits_of_hashes_agree() {
    for level in 0..=LEVEL_MAX {
        let limit = threshold_of(level);
        for high in [limit.saturating_sub(1), limit, limit.saturating_add(1)] {
            if level == 0 || high == u32::MAX {
                continue; // Level 0 has all hashes.
            }
            let is_in = level_of(u64::from(high) << 32) >= level;
            assert_eq!(is_in, high < limit, "level {level}, {high:#x}");
        }
    }
    let rates: Vec<f64> = (0..LEVEL_MAX).map(rate_of).collect();
    assert!(rates.windows(2).all(|pair| pair[1] < pair[0]));
    assert!((rates[8] / rates[16] - 2.0).abs() < 1e-6);
}
