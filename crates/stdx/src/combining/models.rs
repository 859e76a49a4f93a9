//! loom models of the lock: take against park against release, and work that is left.
//!
//! Upstream:   `tests/models/run`.
//! Downstream: `combining`, with the holder's loop as `shard` has it.

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::Sleeper;
use crate::model::explore;
use crate::sync::{AtomicBool, AtomicU64};

/// A number that only the holder may touch. loom reports a race on it.
struct Sum(Cell<u64>);

/// A piece of work that adds a number. loom reports a race on it, too.
struct Add(Cell<u64>);

type Lock = CombiningLock<Sum, Add>;

fn add(sum: &Sum, work: &Add) {
    sum.0.set(sum.0.get() + work.0.get());
    work.0.set(0); // It is done once.
}

fn work(number: u64) -> Work<Add> {
    Work::new(Add(Cell::new(number)))
}

fn shared() -> Arc<(Lock, Returned<Add>)> {
    Arc::new((CombiningLock::new(Sum(Cell::new(0))), Returned::new()))
}

/// Does what is parked, in at most `rounds` rounds, and releases the lock. Returns whether work was
/// left.
fn finish(mut guard: Guard<'_, Sum, Add>, returned: &Returned<Add>, rounds: usize) -> bool {
    for _ in 0..rounds {
        match guard.release() {
            Ok(()) => return false,
            Err(still) => guard = still,
        }
        let mut parked = guard.take_parked();
        while let Some(work) = parked.pop() {
            add(&guard, &work);
            returned.push(work);
        }
    }
    guard.release_leaving();
    true
}

fn change((lock, returned): &(Lock, Returned<Add>), number: u64) {
    if let Offered::Taken(guard, work) = lock.take_or_park(work(number)) {
        add(&guard, &work);
        returned.push(work);
        finish(guard, returned, usize::MAX);
    }
}

fn sum_at_rest((lock, returned): &(Lock, Returned<Add>), pieces: usize) -> u64 {
    assert!(!lock.is_left(), "C3: nothing is forgotten");
    let mut back = returned.take();
    let count = std::iter::from_fn(|| back.pop()).count();
    assert_eq!(count, pieces, "each comes back once");
    let guard = lock.take().expect("nobody holds it");
    let sum = guard.0.get();
    assert!(guard.release().is_ok());
    sum
}

#[test]
fn what_three_threads_change_is_done_once_each() {
    explore("combining", Some(3), || {
        let shared = shared();
        let others: Vec<_> = [2, 4]
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || change(&shared, number))
            })
            .into_iter()
            .collect();
        change(&shared, 1);
        others.into_iter().for_each(|other| other.join().expect("joins"));
        assert_eq!(sum_at_rest(&shared, 3), 7);
    });
}

#[test]
fn what_a_holder_leaves_is_found_by_the_thread_that_it_wakes() {
    // Two threads change the value, and leave what is parked meanwhile. The home thread
    // falls asleep meanwhile. If the end finds work that is left, home must have been told.
    explore("combining_left", Some(3), || {
        let shared = shared();
        let sleeper = Arc::new(Sleeper::new());
        let told = Arc::new(AtomicBool::new(false));
        let others: Vec<_> = [2, 4]
            .map(|number| {
                let (shared, sleeper) = (Arc::clone(&shared), Arc::clone(&sleeper));
                let told = Arc::clone(&told);
                thread::spawn(move || {
                    let (lock, returned) = &*shared;
                    if let Offered::Taken(guard, work) = lock.take_or_park(work(number)) {
                        add(&guard, &work);
                        returned.push(work);
                        if finish(guard, returned, 0) && sleeper.must_wake() {
                            told.store(true, Ordering::Relaxed);
                        }
                    }
                })
            })
            .into_iter()
            .collect();
        let (lock, returned) = &*shared;
        sleeper.prepare_sleep();
        if lock.is_left() {
            sleeper.cancel();
            if let Some(guard) = lock.take() {
                finish(guard, returned, usize::MAX);
            }
            told.store(true, Ordering::Relaxed); // It is awake, and looks again.
        }
        others.into_iter().for_each(|other| other.join().expect("joins"));
        if lock.is_left() {
            assert!(told.load(Ordering::Relaxed), "home is told");
            let guard = lock.take().expect("nobody holds it");
            finish(guard, returned, usize::MAX);
        }
        assert_eq!(sum_at_rest(&shared, 2), 6);
    });
}

#[test]
fn what_is_parked_with_a_free_lock_wakes_the_thread_that_takes_it() {
    explore("combining_parked", Some(3), || {
        let shared = shared();
        let sleeper = Arc::new(Sleeper::new());
        let told = Arc::new(AtomicU64::new(0));
        let others: Vec<_> = [1, 2]
            .map(|number| {
                let (shared, sleeper) = (Arc::clone(&shared), Arc::clone(&sleeper));
                let told = Arc::clone(&told);
                thread::spawn(move || {
                    if shared.0.park(work(number)) && sleeper.must_wake() {
                        told.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .into_iter()
            .collect();
        // The home thread: it does what is there, then sleeps unless more has come.
        let home = |shared: &(Lock, Returned<Add>)| {
            let guard = shared.0.take().expect("only this thread takes it");
            finish(guard, &shared.1, usize::MAX)
        };
        home(&shared);
        sleeper.prepare_sleep();
        let sleeps = !shared.0.is_left();
        if !sleeps {
            sleeper.cancel();
            home(&shared);
        }
        others.into_iter().for_each(|other| other.join().expect("joins"));
        if shared.0.is_left() {
            let told = told.load(Ordering::Relaxed);
            assert!(!sleeps || told == 1, "a sleeping home is woken for what came");
            home(&shared);
        }
        assert_eq!(sum_at_rest(&shared, 2), 3);
    });
}
