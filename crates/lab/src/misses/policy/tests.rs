//! Each policy against an independent implementation: a model of its paper's pseudo code, and the
//! figures of libCacheSim for the policies in which it follows the paper.
//!
//! A model has lists and searches them, takes every key as one place, and shares no code with the
//! policy. It returns whether the key was there.

use clap::ValueEnum as _;

use super::{Access, PolicyName};
use crate::misses::queues::Key;

/// A list of keys, the newest first.
type List = Vec<Key>;

fn has(list: &List, key: Key) -> bool {
    list.contains(&key)
}

fn take(list: &mut List, key: Key) -> bool {
    let place = list.iter().position(|other| *other == key);
    place.map(|place| list.remove(place)).is_some()
}

/// A policy, as a function of each request in turn: its place, and its key.
type Model = Box<dyn FnMut(usize, Key) -> bool>;

fn fifo(size: usize) -> Model {
    let mut queue = List::new();
    Box::new(move |_, key| {
        let is_hit = has(&queue, key);
        if !is_hit {
            queue.insert(0, key);
            queue.truncate(size);
        }
        is_hit
    })
}

fn lru(size: usize) -> Model {
    let mut queue = List::new();
    Box::new(move |_, key| {
        let is_hit = take(&mut queue, key);
        queue.insert(0, key);
        queue.truncate(size);
        is_hit
    })
}

/// A ring of pages with a bit each, and a hand.
fn clock(size: usize) -> Model {
    let (mut ring, mut hand) = (Vec::<(Key, bool)>::new(), 0);
    Box::new(move |_, key| {
        if let Some(page) = ring.iter_mut().find(|page| page.0 == key) {
            page.1 = true;
            return true;
        }
        if ring.len() < size {
            ring.push((key, false));
            return false;
        }
        while std::mem::take(&mut ring[hand].1) {
            hand = (hand + 1) % size;
        }
        ring[hand] = (key, false);
        hand = (hand + 1) % size;
        false
    })
}

/// Figure 3 of the paper. `hand` is a place in the queue, from its head.
fn sieve(size: usize) -> Model {
    let (mut queue, mut hand) = (Vec::<(Key, bool)>::new(), None);
    Box::new(move |_, key| {
        if let Some(object) = queue.iter_mut().find(|object| object.0 == key) {
            object.1 = true;
            return true;
        }
        if queue.len() == size {
            let mut at = hand.unwrap_or(size - 1);
            while std::mem::take(&mut queue[at].1) {
                at = at.checked_sub(1).unwrap_or(size - 1);
            }
            queue.remove(at);
            hand = at.checked_sub(1);
        }
        queue.insert(0, (key, false));
        hand = hand.map(|at| at + 1);
        false
    })
}

/// Probation and 80 % protected keys. Returns whether the key was there.
fn slru_hit(probation: &mut List, protected: &mut List, protected_max: usize, key: Key) -> bool {
    if !take(protected, key) && !take(probation, key) {
        return false;
    }
    protected.insert(0, key);
    if protected.len() > protected_max {
        probation.insert(0, protected.pop().expect("it is too long"));
    }
    true
}

fn slru(size: usize) -> Model {
    let (mut probation, mut protected) = (List::new(), List::new());
    Box::new(move |_, key| {
        if slru_hit(&mut probation, &mut protected, size * 80 / 100, key) {
            return true;
        }
        if probation.len() + protected.len() == size {
            let _ = probation.pop().or_else(|| protected.pop());
        }
        probation.insert(0, key);
        false
    })
}

/// The full version of the paper, with `Kin` of a quarter and `Kout` of a half.
fn two_queues(size: usize) -> Model {
    let (mut a1_in, mut a1_out, mut am) = (List::new(), List::new(), List::new());
    Box::new(move |_, key| {
        if take(&mut am, key) {
            am.insert(0, key);
            return true;
        }
        if has(&a1_in, key) {
            return true;
        }
        let came_back = take(&mut a1_out, key);
        // reclaimfor
        if a1_in.len() + am.len() == size {
            if a1_in.len() > size / 4 || am.is_empty() {
                a1_out.insert(0, a1_in.pop().expect("it is long"));
                a1_out.truncate(size / 2);
            } else {
                am.pop();
            }
        }
        let queue = if came_back { &mut am } else { &mut a1_in };
        queue.insert(0, key);
        false
    })
}

/// Figure 4 of the paper, case by case. `p` is a real number.
fn arc(size: usize) -> Model {
    let [mut t1, mut t2, mut b1, mut b2] = [const { List::new() }; 4];
    let (c, mut p) = (size as f64, 0.0_f64);
    let replace = |t1: &mut List, t2: &mut List, b1: &mut List, b2: &mut List, is_b2, p: f64| {
        let length = t1.len() as f64;
        if !t1.is_empty() && (length > p || is_b2 && (length - p).abs() == 0.0) {
            b1.insert(0, t1.pop().expect("not empty"));
        } else {
            b2.insert(0, t2.pop().expect("the cache is full"));
        }
    };
    Box::new(move |_, key| {
        if take(&mut t1, key) || take(&mut t2, key) {
            t2.insert(0, key); // Case I.
            return true;
        }
        let (length_1, length_2) = (b1.len() as f64, b2.len() as f64);
        if has(&b1, key) {
            p = (p + (length_2 / length_1).max(1.0)).min(c); // Case II.
            replace(&mut t1, &mut t2, &mut b1, &mut b2, false, p);
            take(&mut b1, key);
            t2.insert(0, key);
            return false;
        }
        if has(&b2, key) {
            p = (p - (length_1 / length_2).max(1.0)).max(0.0); // Case III.
            replace(&mut t1, &mut t2, &mut b1, &mut b2, true, p);
            take(&mut b2, key);
            t2.insert(0, key);
            return false;
        }
        let all = t1.len() + t2.len() + b1.len() + b2.len();
        if t1.len() + b1.len() == size {
            if t1.len() < size {
                b1.pop(); // Case IV A.
                replace(&mut t1, &mut t2, &mut b1, &mut b2, false, p);
            } else {
                t1.pop();
            }
        } else if all >= size {
            if all == 2 * size {
                b2.pop(); // Case IV B.
            }
            replace(&mut t1, &mut t2, &mut b1, &mut b2, false, p);
        }
        t1.insert(0, key);
        false
    })
}

/// A window of 1 %, and a main memory that a candidate enters only if it was read more often than
/// the victim. Counters end at 15, and are halved after ten times as many requests as places.
fn w_tiny_lfu(size: usize) -> Model {
    let (mut window, mut probation, mut protected) = (List::new(), List::new(), List::new());
    let (mut counts, mut noted) = (std::collections::HashMap::<Key, u32>::new(), 0);
    let (window_max, main_max) = (size / 100, size - size / 100);
    Box::new(move |_, key| {
        let count = counts.entry(key).or_default();
        *count = (*count + 1).min(15);
        noted += 1;
        if noted >= 10 * size {
            noted /= 2;
            counts.values_mut().for_each(|count| *count /= 2);
        }
        if take(&mut window, key) {
            window.insert(0, key);
            return true;
        }
        if slru_hit(&mut probation, &mut protected, main_max * 80 / 100, key) {
            return true;
        }
        window.insert(0, key);
        if window.len() > window_max {
            let candidate = window.pop().expect("it is too long");
            if probation.len() + protected.len() < main_max {
                probation.insert(0, candidate);
            } else {
                let queue = if probation.is_empty() { &mut protected } else { &mut probation };
                let victim = *queue.last().expect("the main memory is full");
                if counts[&candidate] > counts[&victim] {
                    queue.pop();
                    probation.insert(0, candidate);
                }
            }
        }
        false
    })
}

/// Algorithm 1 of the paper.
fn s3_fifo(size: usize) -> Model {
    let (mut small, mut main) = (Vec::<(Key, u32)>::new(), Vec::<(Key, u32)>::new());
    let (mut ghost, small_max) = (List::new(), size / 10);
    Box::new(move |_, key| {
        if let Some(object) = small.iter_mut().chain(&mut main).find(|object| object.0 == key) {
            object.1 = (object.1 + 1).min(3);
            return true;
        }
        let came_back = take(&mut ghost, key);
        while small.len() + main.len() >= size {
            if (small.len() >= small_max && !small.is_empty()) || main.is_empty() {
                // EVICTS: until one object goes.
                while let Some((tail, freq)) = small.pop() {
                    if freq > 1 {
                        main.insert(0, (tail, 0));
                        continue;
                    }
                    ghost.insert(0, tail);
                    ghost.truncate(size - small_max);
                    break;
                }
            } else {
                // EVICTM.
                while let Some((tail, freq)) = main.pop()
                    && freq > 0
                {
                    main.insert(0, (tail, freq - 1));
                }
            }
        }
        let queue = if came_back { &mut main } else { &mut small };
        queue.insert(0, (key, 0));
        false
    })
}

/// The key whose next request is farthest goes; it looks the trace through for that.
fn belady(size: usize, trace: Vec<Key>) -> Model {
    let mut held = List::new();
    Box::new(move |at, key| {
        if has(&held, key) {
            return true;
        }
        held.push(key);
        if held.len() > size {
            let next = |key: &Key| trace[at + 1..].iter().position(|other| other == key);
            let far = |key: &Key| next(key).unwrap_or(usize::MAX);
            let victim = *held.iter().max_by_key(|key| far(key)).expect("it is too long");
            take(&mut held, victim);
        }
        false
    })
}

fn model(policy: PolicyName, size: usize, trace: &[Key]) -> Model {
    match policy {
        PolicyName::Fifo => fifo(size),
        PolicyName::Clock => clock(size),
        PolicyName::Lru => lru(size),
        PolicyName::Slru => slru(size),
        PolicyName::TwoQueues => two_queues(size),
        PolicyName::Arc => arc(size),
        PolicyName::WTinyLfu => w_tiny_lfu(size),
        PolicyName::S3Fifo => s3_fifo(size),
        PolicyName::Sieve => sieve(size),
        PolicyName::Belady => belady(size, trace.to_vec()),
    }
}

/// Reads of 600 keys, of which small ones are frequent. Among them are loops over 90 keys and scans
/// over 1,400 keys.
fn trace(requests: usize) -> Vec<Key> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let key = |at: usize| match at / 300 % 4 {
        1 => 600 + at as u64 % 90,
        3 => 700 + at as u64 * 7 / 3 % 1_400,
        _ => {
            let (left, right) = (next() % 600, next() % 600);
            left * right / 600
        }
    };
    (0..requests).map(key).map(|key| key as Key).collect()
}

/// The misses of a policy with `size` places.
fn misses(policy: PolicyName, size: usize, trace: &[Key]) -> usize {
    let keys = trace.iter().max().map_or(0, |key| *key as usize + 1);
    let mut next_of = vec![u64::MAX; keys];
    let mut next: Vec<u64> = (0..trace.len())
        .rev()
        .map(|at| std::mem::replace(&mut next_of[trace[at] as usize], at as u64))
        .collect();
    next.reverse();
    let mut cache = policy.start(size as u64, keys);
    let is_miss = |(key, next): (&Key, u64)| {
        let access = Access { key: *key, bytes: 1, next };
        let is_miss = !cache.read(access);
        if is_miss {
            cache.insert(access);
        }
        is_miss
    };
    trace.iter().zip(next).map(is_miss).filter(|is_miss| *is_miss).count()
}

/// Request by request: a policy and its model have the same misses, for each number of requests.
#[test]
fn every_policy_misses_as_a_model_of_its_paper() {
    let trace = trace(4_000);
    for policy in PolicyName::value_variants() {
        for size in [10, 64, 155] {
            let mut model = model(*policy, size, &trace);
            let mut expected = 0;
            for (at, key) in trace.iter().enumerate() {
                expected += usize::from(!model(at, *key));
            }
            assert_eq!(misses(*policy, size, &trace), expected, "{policy:?} with {size} places");
        }
    }
}

/// The misses that libCacheSim 0.3.5 counts in the same trace, by objects, with memory for 40, 160
/// and 400. Its S3-FIFO, W-TinyLFU and Belady follow other rules than the papers (see their files,
/// and `experiments/e040-policies`).
#[test]
fn policies_miss_as_often_as_libcachesim_counts() {
    let trace = trace(30_000);
    for (policy, expected) in [
        (PolicyName::Fifo, [28_240, 19_905, 17_098]),
        (PolicyName::Clock, [28_193, 20_037, 16_781]),
        (PolicyName::Lru, [28_221, 19_764, 16_819]),
        (PolicyName::TwoQueues, [27_377, 19_267, 13_189]),
        (PolicyName::Arc, [27_442, 20_074, 16_956]),
        (PolicyName::Sieve, [27_149, 21_599, 10_571]),
    ] {
        let counted = [40, 160, 400].map(|size| misses(policy, size, &trace));
        assert_eq!(counted, expected, "{policy:?}");
    }
}
