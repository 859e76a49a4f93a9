//! Power cuts at every operation, during recovery as well.

use std::collections::BTreeMap;

use kachel_io::memory::disk::Disk;
use kachel_log::SyncMode;
use kachel_testkit::count;

use crate::rig::{Collected, Model, Owner, Rig, delays, disk_with_log, open};

const MODES: [SyncMode; 3] = [SyncMode::Always, SyncMode::Interval(0), SyncMode::Os];

/// How often the power was cut at each operation, in which phase.
#[derive(Default)]
struct Census {
    points: BTreeMap<(&'static str, &'static str), u64>,
    images: u64,
    /// Segments that were collected, in each mode.
    collected: [u64; 3],
}

/// Recovers from a power cut, and checks what is there.
fn recover(
    image: &Disk,
    mode: SyncMode,
    model: &Model,
) -> (Rig, kachel_log::DurableLog, Collected) {
    let mut rig = Rig::new(image.clone());
    let opened = rig.run(open(image, mode), |_| false).expect("it is not cut off");
    let (log, found) = opened.unwrap_or_else(|refusal| panic!("{refusal}"));
    let checked = model.clone().check(&found, log.next_sequence());
    checked.unwrap_or_else(|fault| panic!("{fault}"));
    (rig, log, found)
}

/// Cuts the power, recovers, cuts it again at once, and recovers the same.
fn cut(disk: &Disk, mode: SyncMode, model: &Model, seed: u64, census: &mut Census) -> Collected {
    let image = disk.crash(seed);
    let (rig, log, found) = recover(&image, mode, model);
    let next = log.next_sequence();
    drop(log);
    let again = rig.disk.crash(seed + 1);
    let (_, log, second) = recover(&again, mode, model);
    assert_eq!((second.digest(), log.next_sequence()), (found.digest(), next), "seed {seed}");
    census.images += 2;
    found
}

/// Cuts the power at each operation of a recovery as well.
fn cut_in_recovery(disk: &Disk, mode: SyncMode, model: &Model, seed: u64, census: &mut Census) {
    let image = disk.crash(seed);
    let expected = cut(&image, mode, model, seed, census).digest();
    let mut rig = Rig::new(image.clone());
    let task = open(&image, mode);
    let mut images = Vec::new();
    let done = rig.run(task, |rig| {
        *census.points.entry(("recovery", rig.last)).or_default() += 1;
        if rig.last != "read" {
            images.push(rig.disk.crash(seed + images.len() as u64));
        }
        false
    });
    drop(done);
    for image in images {
        let (_, _, found) = recover(&image, mode, model);
        assert_eq!(found.digest(), expected, "seed {seed}");
        census.images += 1;
    }
}

#[test]
fn no_power_cut_loses_or_invents_a_record() {
    let mut census = Census::default();
    for seed in 0..count(3, 300) {
        for (at, mode) in MODES.into_iter().enumerate() {
            let disk = disk_with_log(seed);
            disk.set_plan(delays());
            let mut owner = Owner::new(disk, mode, Model::default(), seed);
            let mut number = seed << 32;
            let mut seen = |rig: &Rig, model: &Model| {
                number += 10;
                *census.points.entry(("serving", rig.last)).or_default() += 1;
                cut(&rig.disk, mode, model, number, &mut census);
                if number % 170 == 0 {
                    cut_in_recovery(&rig.disk, mode, model, number + 5, &mut census);
                }
            };
            for _ in 0..100 {
                owner.act(&mut seen);
                owner.pump(&mut seen);
            }
            census.collected[at] += owner.collected;
        }
    }
    let Census { images, collected, points } = &census;
    println!("{images} images, {collected:?} segments collected, {points:?}");
    assert!(collected.iter().all(|&count| count > 2), "{collected:?}");
    let points = [
        ("serving", ["commit", "slot 0", "slot 1", "allocate", "sync"].as_slice()),
        ("recovery", &["read", "commit", "slot 0", "slot 1", "allocate", "sync"]),
    ];
    for (phase, names) in points {
        for name in names {
            assert!(census.points.contains_key(&(phase, name)), "no cut at {phase}: {name}");
        }
    }
}

/// A store that is killed, or loses power, again and again, also while it starts.
#[test]
fn a_store_lives_through_one_crash_after_the_other() {
    for seed in 0..count(6, 600) {
        let mut disk = disk_with_log(seed);
        let mut model = Model::default();
        let (mut freed, mut most, mut has_power) = (0, 0, false);
        for cycle in 0..40 {
            let number = seed << 32 | cycle << 16 | cycle;
            let mode = MODES[(number % 3) as usize];
            let mut plan = delays();
            if seed % 2 == 1 {
                // Such disks do no part of a block.
                disk.set_alignment(4096);
                plan.chances.clear();
            }
            disk.set_plan(plan);
            let mut rig = Rig::new(disk.clone());
            let last = number % 11 * 3;
            if rig.run(open(&disk, mode), |rig| rig.submitted == last).is_none() {
                drop(rig);
                if number % 2 == 0 {
                    (disk, has_power) = (disk.crash(number), false);
                }
            }
            if has_power {
                // Only the process ended, so what is written is there.
                model.acknowledged = model.acknowledged.max(model.written);
            }
            let mut owner = Owner::new(disk.clone(), mode, model.clone(), number);
            for _ in 0..owner.below(30) {
                owner.act(&mut |_, _| {});
                owner.pump(|_, _| {});
            }
            if cycle % 5 == 0 {
                owner.settle();
            }
            freed += owner.log.closed().count();
            most = most.max(owner.log.next_sequence());
            model = owner.model.clone();
            drop(owner);
            has_power = cycle % 2 == 1;
            if !has_power {
                disk = disk.crash(number + 1);
            }
        }
        assert!(most > 300 && freed > 0, "{most} records");
    }
}
