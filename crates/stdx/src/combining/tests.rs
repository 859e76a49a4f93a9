//! The lock and the stack on one thread and on real ones.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn taken(lock: &CombiningLock<u64, u64>) -> Guard<'_, u64, u64> {
    lock.take().expect("it is free")
}

#[test]
fn what_is_parked_is_done_before_the_release() {
    let lock = CombiningLock::new(0);
    let mut guard = taken(&lock);
    assert!(lock.take().is_none() && !lock.is_left());
    for number in 1..=3 {
        assert!(matches!(lock.take_or_park(Work::new(number)), Offered::Parked));
    }
    let mut guard = match guard.release() {
        Ok(()) => panic!("C3: work is parked"),
        Err(still) => {
            guard = still;
            guard
        }
    };
    let mut parked = guard.take_parked();
    let order: Vec<u64> = std::iter::from_fn(|| parked.pop().map(|work| *work)).collect();
    assert_eq!(order, [1, 2, 3]);
    *guard += order.iter().sum::<u64>();
    assert!(guard.release().is_ok() && !lock.is_left());
    assert_eq!(*taken(&lock), 6);
}

#[test]
fn what_is_left_is_seen_until_somebody_takes_the_lock() {
    let lock = CombiningLock::new(0);
    let guard = taken(&lock);
    assert!(matches!(lock.take_or_park(Work::new(7)), Offered::Parked));
    guard.release_leaving();
    assert!(lock.is_left() && lock.is_left_parked());
    let mut guard = taken(&lock);
    assert!(!lock.is_left());
    assert_eq!(guard.take_parked().pop().as_deref(), Some(&7));
    guard.release_leaving();
    assert!(lock.is_left() && !lock.is_left_parked(), "work is left in the value");
    assert!(taken(&lock).release().is_ok());
    assert!(!lock.is_left());
}

#[test]
fn work_for_a_free_lock_comes_with_the_lock_or_is_left_for_another() {
    let lock = CombiningLock::new(0);
    let Offered::Taken(guard, work) = lock.take_or_park(Work::new(5)) else {
        panic!("it was free");
    };
    assert_eq!(*work, 5);
    assert!(guard.release().is_ok());
    assert!(lock.park(Work::new(1)), "the first is told to tell");
    assert!(!lock.park(Work::new(2)));
    assert!(lock.is_left());
    assert_eq!(taken(&lock).take_parked().iter().copied().collect::<Vec<_>>(), [1, 2]);
    assert!(lock.park(Work::new(3))); // Freed with the lock, as the sanitizers check.
}

#[test]
fn what_is_handed_back_comes_in_order() {
    let returned = Returned::new();
    assert!(returned.take().is_empty());
    assert!(returned.push(Work::new(1)) && !returned.push(Work::new(2)));
    assert_eq!(returned.take().iter().copied().collect::<Vec<_>>(), [1, 2]);
    assert!(returned.push(Work::new(3)) && !returned.is_empty());
}

#[test]
fn every_piece_of_work_is_done_once_on_real_threads() {
    const THREADS: u64 = 4;
    const EACH: u64 = 2_000;
    let lock = CombiningLock::new(0_u64);
    let returned = Returned::new();
    let (left, back) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for number in 1..=EACH {
                    let Offered::Taken(mut guard, work) = lock.take_or_park(Work::new(number))
                    else {
                        continue;
                    };
                    *guard += *work;
                    returned.push(work);
                    loop {
                        let mut parked = guard.take_parked();
                        while let Some(work) = parked.pop() {
                            *guard += *work;
                            returned.push(work);
                        }
                        match guard.release() {
                            Ok(()) => break,
                            Err(still) => guard = still,
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            while back.load(Ordering::Relaxed) < THREADS * EACH {
                let mut taken = returned.take();
                while let Some(work) = taken.pop() {
                    left.fetch_add(*work, Ordering::Relaxed);
                    back.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::yield_now();
            }
        });
    });
    let sum = THREADS * EACH * (EACH + 1) / 2;
    assert_eq!((*taken(&lock), left.into_inner()), (sum, sum));
}

#[test]
fn a_thread_that_wants_a_held_lock_is_seen_by_the_holder() {
    let lock = CombiningLock::<u64, u64>::new(0);
    assert!(!lock.want(), "a free lock can be taken");
    let guard = taken(&lock);
    assert!(lock.want() && lock.want(), "however often");
    assert!(matches!(lock.take_or_park(Work::new(3)), Offered::Parked));
    let Err(mut guard) = guard.release() else { panic!("C3, C4") };
    assert_eq!(guard.take_parked().pop().as_deref(), Some(&3));
    let Err(mut guard) = guard.release() else { panic!("C4: the mark stays") };
    assert!(guard.take_wanted() && !guard.take_wanted());
    assert!(guard.release().is_ok() && lock.is_idle());
    let guard = taken(&lock);
    assert!(lock.want());
    guard.release_leaving();
    assert!(lock.is_left() && !lock.want());
    assert!(taken(&lock).release().is_ok(), "the mark goes with the release");
}
