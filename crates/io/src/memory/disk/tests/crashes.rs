//! Content that survives a power cut.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

#[test]
fn what_is_synced_survives_and_other_sectors_have_every_fate() {
    let mut program = Program::new(1);
    let file = program.create("a");
    let (old, new, durable) = (sectors(1, 16), sectors(2, 8), sectors(3, 2));
    program.write(&file, 0, &old, false).unwrap();
    program.sync(&file).unwrap();
    program.sync_folder().unwrap();
    program.write(&file, 4 * 512, &new, false).unwrap();
    program.write(&file, 8 * 512, &durable, true).unwrap();
    let mut fates = BTreeMap::new();
    let mut mixed = 0;
    for seed in 0..300 {
        let content = program.crash(seed).content("a").expect("its name is durable");
        assert_eq!(content.len(), old.len());
        let mut here = BTreeSet::new();
        for index in 0..16 {
            let seen = sector(&content, index);
            match index {
                8..10 => assert_eq!(seen, sector(&durable, index - 8), "a durable write, {seed}"),
                4..12 => {
                    let fate = fate(seen, sector(&old, index), sector(&new, index - 4));
                    here.insert(fate);
                    *fates.entry(fate).or_insert(0) += 1;
                }
                _ => assert_eq!(seen, sector(&old, index), "synced, {seed}"),
            }
        }
        mixed += usize::from(here.len() > 2);
    }
    assert_eq!(fates.len(), 4, "{fates:?}");
    assert!(fates.values().all(|&count| count > 20) && mixed > 20, "{fates:?}, {mixed} mixed");
}

#[test]
fn an_older_version_may_survive_alone() {
    let mut program = Program::new(1);
    let file = program.create("a");
    program.write(&file, 0, &sectors(1, 1), false).unwrap();
    program.sync(&file).unwrap();
    program.sync_folder().unwrap();
    program.write(&file, 0, &sectors(2, 1), false).unwrap();
    program.write(&file, 0, &sectors(3, 1), false).unwrap();
    let seen: BTreeSet<Vec<u8>> =
        (0..100).filter_map(|seed| program.crash(seed).content("a")).collect();
    assert!((1..=3).all(|version| seen.contains(&sectors(version, 1))));
}

#[test]
fn a_length_is_lost_or_kept_apart_from_the_content() {
    let mut program = Program::new(1);
    let file = program.create("a");
    program.write(&file, 0, &sectors(1, 1), true).unwrap();
    program.sync_folder().unwrap();
    program.write(&file, 512, &sectors(2, 8), false).unwrap();
    let (mut short, mut between, mut zeros, mut whole) = (0, 0, 0, 0);
    for seed in 0..300 {
        let content = program.crash(seed).content("a").unwrap();
        assert_eq!(sector(&content, 0), sectors(1, 1), "what is durable, {seed}");
        match content.len() {
            512 => short += 1,
            length if length < 9 * 512 => between += 1,
            _ if content[512..].iter().all(|&byte| byte == 0) => zeros += 1,
            _ if content[512..] == sectors(2, 8) => whole += 1,
            _ => {}
        }
    }
    assert!([short, between, zeros, whole].iter().all(|&count| count > 5));
}

#[test]
fn a_name_is_durable_after_the_sync_of_its_folder_only() {
    let mut program = Program::new(1);
    let manifest = program.create("manifest");
    program.write(&manifest, 0, &sectors(1, 1), true).unwrap();
    let lost = (0..100).filter(|&seed| program.crash(seed).content("manifest").is_none()).count();
    assert!((1..100).contains(&lost), "a sync of the file is none of its name");
    program.sync_folder().unwrap();
    let new = program.create("new");
    program.write(&new, 0, &sectors(2, 1), true).unwrap();
    program.rename("new", "manifest").unwrap();
    let seen: BTreeSet<_> = (0..100).map(|seed| program.crash(seed).content("manifest")).collect();
    assert!(seen.contains(&Some(sectors(1, 1))) && seen.contains(&Some(sectors(2, 1))));
    assert_eq!(seen.len(), 2, "the old or the new one, never neither");
}

#[test]
fn a_removed_name_comes_back_until_the_sync_of_its_folder() {
    let mut program = Program::new(1);
    let file = program.create("a");
    program.write(&file, 0, &sectors(1, 1), true).unwrap();
    program.sync_folder().unwrap();
    drop(file);
    program.unlink("a").unwrap();
    assert_eq!(program.content("a"), None);
    let seen: BTreeSet<_> = (0..100).map(|seed| program.crash(seed).content("a")).collect();
    assert_eq!(seen, BTreeSet::from([None, Some(sectors(1, 1))]), "whole, or not there");
    program.sync_folder().unwrap();
    (0..100).for_each(|seed| assert_eq!(program.crash(seed).content("a"), None));
    assert_eq!(program.disk.used_blocks(), 0);
}

#[test]
fn a_new_file_shows_zeros_or_what_it_got_or_after_a_crash_what_another_file_had_there() {
    let mut program = Program::new(1);
    let old = program.create("old");
    program.write(&old, 0, &sectors(1, 8), true).unwrap();
    program.sync_folder().unwrap();
    program.unlink("old").unwrap();
    program.sync_folder().unwrap();
    drop(old);
    let new = program.create("new");
    let (folder, file) = (program.folder.clone(), new.clone());
    program.run(FileWork::Allocate { file, offset: 0, bytes: 4096 }).1.unwrap();
    assert_eq!(program.read(&new, 0, 4096).unwrap(), [0; 4096], "unwritten");
    program.sync(&new).unwrap();
    program.run(FileWork::SyncFolder { folder }).1.unwrap();
    for seed in 0..50 {
        assert_eq!(program.crash(seed).content("new").unwrap(), [0; 4096], "allocated only");
    }
    program.write(&new, 0, &sectors(2, 8), false).unwrap();
    let seen: BTreeSet<_> =
        (0..200).filter_map(|seed| program.crash(seed).content("new")).collect();
    for wanted in [sectors(1, 8), sectors(2, 8), vec![0; 4096]] {
        assert!(seen.contains(&wanted), "the old content, the new one, and none");
    }
    assert!(program.crash(0).disk.counts().crashes == 1 && program.disk.counts().crashes == 0);
}

#[test]
fn the_same_seeds_give_the_same_image() {
    let image = |seed: u64, crash: u64| {
        let mut program = Program::new(seed);
        let chance = |fault, permille| ChanceFault { kind: None, permille, fault };
        program.disk.set_plan(FaultPlan {
            chances: vec![
                chance(Fault::Error(FileError::IO), 100),
                chance(Fault::MisdirectedWrite, 100),
                chance(Fault::Short, 100),
            ],
            ..FaultPlan::default()
        });
        let files: Vec<_> = ["a", "b", "c"]
            .iter()
            .filter_map(|name| program.open_with(name, OpenMode::CreateNew, false).ok())
            .collect();
        for (number, file) in files.iter().cycle().take(60).enumerate() {
            let version = number as u8;
            let _ = program.write(
                file,
                512 * (number as u64 % 9),
                &sectors(version, 5),
                number % 4 == 0,
            );
            if number % 7 == 0 {
                let _ = program.sync(file);
            }
            if number % 20 == 0 {
                let _ = program.sync_folder();
            }
        }
        let disk = program.disk.crash(crash);
        (disk.image(), disk.counts())
    };
    let mut images = BTreeSet::new();
    for seed in 0..20 {
        let first = image(seed, seed + 1);
        assert_eq!(first, image(seed, seed + 1), "seed {seed}");
        assert_ne!(first, image(seed, seed + 2), "seed {seed}");
        images.insert(first.0);
    }
    assert!(images.len() > 15);
}

#[test]
fn a_write_in_flight_at_a_crash_is_done_in_part_or_whole_or_not() {
    let mut program = Program::new(1);
    let file = program.create("a");
    program.write(&file, 0, &sectors(1, 8), true).unwrap();
    program.sync_folder().unwrap();
    let transfer = transfer(&file, 0, 8 * 512, &sectors(2, 8));
    program.submit(7, FileWork::Write { transfer, durable: true });
    let contents: Vec<_> = (0..200).map(|seed| program.crash(seed).content("a").unwrap()).collect();
    let count = |wanted: &dyn Fn(&Vec<u8>) -> bool| contents.iter().filter(|c| wanted(c)).count();
    let (none, whole) = (count(&|c| *c == sectors(1, 8)), count(&|c| *c == sectors(2, 8)));
    assert!(none > 20 && whole > 20 && none + whole < 180, "{none} {whole}");
    assert_eq!(program.disk.in_flight(), 1, "a crash leaves the disk as it is");
    assert_eq!(program.poll().len(), 1);
}

#[test]
fn a_killed_process_loses_only_what_is_in_flight() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let mut program = Program::new(seed);
        let file = program.create("a");
        program.write(&file, 0, &sectors(1, 1), false).unwrap();
        let transfer = transfer(&file, 512, 512, &sectors(2, 1));
        program.submit(7, FileWork::Write { transfer, durable: false });
        let Program { disk, clock, memory, .. } = program;
        drop(memory);
        assert_eq!(disk.in_flight(), 0);
        let content = Program::start(disk, clock).content("a").expect("the name is in the cache");
        assert_eq!(sector(&content, 0), sectors(1, 1), "so is the content");
        seen.insert(content.len());
    }
    assert_eq!(seen.len(), 2, "the write in flight was done or not");
}

#[test]
fn a_handle_from_before_a_crash_finds_nothing() {
    let mut program = Program::new(1);
    let file = program.create("a");
    program.sync_folder().unwrap();
    let mut after = program.crash(1);
    assert_eq!(after.read(&file, 0, 512), Err(FileError::BAD_FILE));
    let folder = program.folder.clone();
    assert_eq!(after.run(FileWork::SyncFolder { folder }).1, Err(FileError::BAD_FILE));
    let transfer = transfer(&file, 0, 512, &sectors(1, 1));
    after.submit(1, FileWork::Write { transfer, durable: false });
    assert_eq!(after.crash(2).content("a"), Some(Vec::new()));
}
