//! loom models of the lock: take against park against release, and work that is left.
//!
//! Upstream:   `tests/models/run`.
//! Downstream: `combining`, with the holder's loop as `shard` has it.

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::AtomicU64 as Count;

use super::*;
use crate::Sleeper;
use crate::model::explore;
use crate::sync::AtomicU64;

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

fn fresh() -> (Lock, Returned<Add>) {
    (CombiningLock::new(Sum(Cell::new(0))), Returned::new())
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

/// Starts two threads, which call `body` with what they share and a number each. The caller runs
/// beside them, and joins them by calling the result.
fn beside<T: Send + Sync + 'static>(
    shared: &Arc<T>,
    numbers: [u64; 2],
    body: fn(&T, u64),
) -> impl FnOnce() + use<T> {
    let others = numbers.map(|number| {
        let shared = Arc::clone(shared);
        thread::spawn(move || body(&shared, number))
    });
    move || others.into_iter().for_each(|other| other.join().expect("joins"))
}

/// The lock and a home thread that sleeps.
struct Asleep {
    shared: (Lock, Returned<Add>),
    sleeper: Sleeper,
    /// How often the home thread was woken.
    told: AtomicU64,
}

impl Asleep {
    fn new() -> Arc<Self> {
        let (sleeper, told) = (Sleeper::new(), AtomicU64::new(0));
        Arc::new(Self { shared: fresh(), sleeper, told })
    }

    fn tell(&self) {
        if self.sleeper.must_wake() {
            self.told.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn what_three_threads_change_is_done_once_each() {
    explore("combining", Some(3), || {
        let shared = Arc::new(fresh());
        let join = beside(&shared, [2, 4], change);
        change(&shared, 1);
        join();
        assert_eq!(sum_at_rest(&shared, 3), 7);
    });
}

#[test]
fn what_a_holder_leaves_is_found_by_the_thread_that_it_wakes() {
    // Two threads change the value, and leave the work that is parked meanwhile. The home thread
    // falls asleep meanwhile. If work is left at the end, the home thread must have been told.
    explore("combining_left", Some(3), || {
        let asleep = Asleep::new();
        let join = beside(&asleep, [2, 4], |asleep, number| {
            let (lock, returned) = &asleep.shared;
            if let Offered::Taken(guard, work) = lock.take_or_park(work(number)) {
                add(&guard, &work);
                returned.push(work);
                finish(guard, returned, 0);
                asleep.tell();
            }
        });
        let Asleep { shared, sleeper, told } = &*asleep;
        let (lock, returned) = shared;
        sleeper.prepare_sleep();
        let sleeps = !lock.is_left();
        if !sleeps {
            sleeper.cancel(); // It is awake, and looks again at the end.
            if let Some(guard) = lock.take() {
                finish(guard, returned, usize::MAX);
            }
        }
        join();
        if lock.is_left() {
            assert!(!sleeps || told.load(Ordering::Relaxed) == 1, "the home thread is told");
            finish(lock.take().expect("nobody holds it"), returned, usize::MAX);
        }
        assert_eq!(sum_at_rest(shared, 2), 6);
    });
}

#[test]
fn what_is_parked_with_a_free_lock_wakes_the_thread_that_takes_it() {
    explore("combining_parked", Some(3), || {
        let asleep = Asleep::new();
        let join = beside(&asleep, [1, 2], |asleep, number| {
            if asleep.shared.0.park(work(number)) {
                asleep.tell();
            }
        });
        let Asleep { shared, sleeper, told } = &*asleep;
        // The home thread does what is there, then sleeps unless more has come.
        let home = || {
            let guard = shared.0.take().expect("only this thread takes it");
            finish(guard, &shared.1, usize::MAX)
        };
        home();
        sleeper.prepare_sleep();
        let sleeps = !shared.0.is_left();
        if !sleeps {
            sleeper.cancel();
            home();
        }
        join();
        if shared.0.is_left() {
            assert!(!sleeps || told.load(Ordering::Relaxed) == 1, "a sleeping home is woken");
            home();
        }
        assert_eq!(sum_at_rest(shared, 2), 3);
    });
}

#[test]
fn a_home_thread_that_wants_a_held_lock_does_not_sleep_on_it_for_ever() {
    let seen = std::sync::Arc::new([Count::new(0), Count::new(0)]);
    let counts = std::sync::Arc::clone(&seen);
    explore("combining, wanted", None, move || {
        let asleep = Asleep::new();
        let guard = asleep.shared.0.take().expect("it is free");
        let home = {
            let asleep = Arc::clone(&asleep);
            thread::spawn(move || {
                asleep.sleeper.prepare_sleep();
                asleep.shared.0.want()
            })
        };
        if let Err(mut still) = guard.release() {
            assert!(still.take_wanted(), "nothing was parked");
            assert!(still.release().is_ok(), "nobody wants it twice");
            asleep.tell();
        }
        let sleeps = home.join().expect("joins");
        assert_eq!(asleep.told.load(Ordering::Relaxed), u64::from(sleeps), "C4");
        counts[usize::from(sleeps)].fetch_add(1, Ordering::Relaxed);
    });
    assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) > 0), "both happen");
}
