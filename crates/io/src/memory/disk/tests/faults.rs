//! Each fault happens as often as planned, and has its documented effect.

use super::*;

#[test]
fn the_chosen_operation_fails_once_or_it_and_all_later_ones_fail() {
    for number in 1..6 {
        for forever in [false, true] {
            let mut program = Program::new(number);
            let file = program.create("a");
            program.plan(FileWorkKind::Write, number, forever, Fault::Error(FileError::IO));
            for each in 1..8 {
                let written = program.write(&file, 0, &sectors(1, 1), false);
                let fails = each == number || forever && each > number;
                assert_eq!(written.is_err(), fails, "write {each} of {number}, {forever}");
                assert!(program.read(&file, 0, 512).is_ok(), "reads are of another kind");
            }
            let errors = program.disk.counts().errors;
            assert_eq!(errors, if forever { 8 - number } else { 1 });
        }
    }
}

#[test]
fn any_operation_can_fail_and_gives_its_memory_back() {
    for number in 1..9 {
        let mut program = Program::new(number);
        program.disk.set_plan(FaultPlan {
            planned: vec![PlannedFault {
                kind: None,
                number,
                forever: true,
                fault: Fault::Error(FileError::IO),
            }],
            ..FaultPlan::default()
        });
        let mut results = Vec::new();
        let file = program.open_with("a", OpenMode::CreateNew, false);
        results.push(file.as_ref().map(|_| 0).map_err(|error| *error));
        if let Ok(file) = file {
            results.push(program.write(&file, 0, &sectors(1, 2), false));
            results.push(program.read(&file, 0, 512).map(|_| 0));
            results.push(program.sync(&file));
            let part = FileWork::Allocate { file: file.clone(), offset: 0, bytes: 9 };
            results.push(program.run(part).1);
            results.push(program.rename("a", "b"));
            results.push(program.sync_folder());
            results.push(program.unlink("b"));
        }
        for (result, at) in results.iter().zip(1..) {
            let wanted = if at < number { result.is_ok() } else { *result == Err(FileError::IO) };
            assert!(wanted, "operation {at} of {number}: {result:?}");
        }
    }
}

/// The fault: the disk panicked if nothing of the write had been done.
#[test]
fn a_durable_write_behind_the_end_can_fail_before_its_first_sector() {
    for seed in 0..20 {
        let mut program = Program::new(seed);
        let file = program.create("a");
        program.plan(FileWorkKind::Write, 1, false, Fault::Error(FileError::IO));
        assert_eq!(program.write(&file, 8 * 512, &sectors(1, 1), true), Err(FileError::IO));
        assert_eq!(program.disk.counts().failed_syncs, 1);
    }
}

#[test]
fn a_sync_that_fails_marks_its_sectors_clean() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..40 {
        let mut program = Program::new(seed);
        let file = program.create("a");
        program.sync_folder().unwrap();
        program.write(&file, 0, &sectors(1, 4), false).unwrap();
        program.plan(FileWorkKind::Sync, 1, false, Fault::Error(FileError::IO));
        assert_eq!(program.sync(&file), Err(FileError::IO));
        assert_eq!(program.sync(&file), Ok(0), "the second sync lies");
        assert_eq!(program.read(&file, 0, 4 * 512).unwrap(), sectors(1, 4), "the cache has it");
        let direct = program.open_with("a", OpenMode::Read, true).unwrap();
        let on_media = program.read(&direct, 0, 4 * 512).unwrap();
        let content = program.crash(seed).content("a").unwrap();
        assert_eq!(content, on_media[..content.len()], "a direct read is not deceived");
        for index in 0..4 {
            let is_lost = sector(&on_media, index) != sector(&sectors(1, 4), index);
            *(if is_lost { &mut lost } else { &mut kept }) += 1;
        }
        assert_eq!(program.disk.counts().failed_syncs, 1);
    }
    assert!(lost > 20 && kept > 20, "{lost} {kept}");
}

#[test]
fn a_sector_written_again_after_a_failed_sync_becomes_durable() {
    let mut program = Program::new(3);
    let file = program.create("a");
    program.sync_folder().unwrap();
    program.write(&file, 0, &sectors(1, 8), false).unwrap();
    program.plan(FileWorkKind::Sync, 1, false, Fault::Error(FileError::IO));
    program.sync(&file).unwrap_err();
    program.write(&file, 0, &sectors(2, 8), false).unwrap();
    program.sync(&file).unwrap();
    (0..20).for_each(|seed| assert_eq!(program.crash(seed).content("a"), Some(sectors(2, 8))));
}

#[test]
fn a_sync_may_lie() {
    let mut program = Program::new(1);
    let file = program.create("a");
    program.sync_folder().unwrap();
    program.write(&file, 0, &sectors(1, 1), false).unwrap();
    program.plan(FileWorkKind::Sync, 1, false, Fault::FalseSync);
    program.sync(&file).unwrap();
    let wanted = Some(sectors(1, 1));
    let lost = (0..50).filter(|&seed| program.crash(seed).content("a") != wanted).count();
    assert!(lost > 10 && program.disk.counts().false_syncs == 1);
    program.sync(&file).unwrap();
    (0..50).for_each(|seed| assert_eq!(program.crash(seed).content("a"), wanted));
}

#[test]
fn a_full_disk_takes_writes_again_when_a_file_is_gone() {
    let mut program = Program::new(1);
    program.disk.set_blocks_max(4);
    let first = program.create("first");
    assert_eq!(program.write(&first, 0, &[1; 3 * BLOCK_BYTES], false), Ok(3 * BLOCK_BYTES));
    let second = program.create("second");
    let wanted = [2; 2 * BLOCK_BYTES];
    assert_eq!(program.write(&second, 0, &wanted, false), Ok(BLOCK_BYTES), "what fits");
    assert_eq!(program.write(&second, 4096, &wanted, true), Err(FileError::NO_SPACE));
    let part = || FileWork::Allocate { file: second.clone(), offset: 0, bytes: 2 * 4096 };
    assert_eq!(program.run(part()).1, Err(FileError::NO_SPACE));
    assert_eq!(program.write(&first, 0, &wanted, false), Ok(wanted.len()), "it has the space");
    program.unlink("first").unwrap();
    assert_eq!(program.run(part()).1, Err(FileError::NO_SPACE), "the file is still open");
    let mut file = Some(first);
    program.run(FileWork::Close { file: file.take() }).1.unwrap();
    assert_eq!(program.run(part()).1, Ok(0));
    assert_eq!(program.write(&second, 4096, &wanted, true), Ok(wanted.len()));
    assert_eq!((program.disk.used_blocks(), program.disk.counts().full), (3, 4));
}

#[test]
fn short_reads_and_writes_do_whole_sectors() {
    for seed in 0..20 {
        let mut program = Program::new(seed);
        let file = program.create("a");
        program.plan(FileWorkKind::Write, 1, false, Fault::Short);
        let bytes = program.write(&file, 0, &sectors(1, 8), false).unwrap();
        assert!((512..8 * 512).contains(&bytes) && bytes.is_multiple_of(512), "{bytes}");
        assert_eq!(program.content("a").unwrap(), sectors(1, 8)[..bytes]);
        program.write(&file, 0, &sectors(1, 8), false).unwrap();
        program.plan(FileWorkKind::Read, 1, false, Fault::Short);
        let read = program.read(&file, 0, 8 * 512).unwrap();
        assert!(read.len() < 8 * 512 && read == sectors(1, 8)[..read.len()]);
        assert_eq!(program.disk.counts().short, 2);
    }
}

#[test]
fn operations_are_slow_and_complete_in_another_order() {
    let mut program = Program::new(5);
    let file = program.create("a");
    program.plan(FileWorkKind::Sync, 1, false, Fault::Slow(5_000_000_000));
    program.submit(1, FileWork::Sync { file: file.clone() });
    program.submit(2, FileWork::Sync { file: file.clone() });
    assert!(program.memory.stir(), "the second one is due");
    assert_eq!(program.poll()[0].token, 2);
    assert!(!program.memory.stir() && program.poll().is_empty());
    assert_eq!(program.disk.next_due_later_ns(), Some(5_000_000_000));
    program.clock.advance_ns(4_999_999_999);
    assert!(!program.memory.stir() && program.poll().is_empty());
    program.clock.advance_ns(1);
    assert!(program.memory.stir());
    assert_eq!((program.poll()[0].token, program.disk.counts().slow), (1, 1));

    let latency_ns = Some(1_000..=1_000_000);
    program.disk.set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    (0..20).for_each(|token| program.submit(token, FileWork::Sync { file: file.clone() }));
    assert!(program.poll().is_empty());
    let mut order = Vec::new();
    while program.disk.advance_to_next_due() {
        order.extend(program.poll().iter().map(|operation| operation.token));
    }
    assert!(order.len() == 20 && !order.is_sorted(), "{order:?}");
}

#[test]
fn a_cancelled_operation_was_done_or_not() {
    let (mut created, mut written) = (0, 0);
    for seed in 0..40 {
        let mut program = Program::new(seed);
        program.plan(FileWorkKind::Open, 1, false, Fault::Cancelled);
        let opened = program.open_with("a", OpenMode::CreateNew, false);
        assert_eq!(opened.unwrap_err(), FileError::CANCELLED);
        created += usize::from(program.content("a").is_some());
        let file = program.create("b");
        program.plan(FileWorkKind::Write, 1, false, Fault::Cancelled);
        let result = program.write(&file, 0, &sectors(1, 1), false);
        assert_eq!(result, Err(FileError::CANCELLED));
        written += usize::from(program.content("b").unwrap() == sectors(1, 1));
        assert_eq!(program.disk.counts().cancelled, 2);
    }
    assert!((5..35).contains(&created) && (5..35).contains(&written), "{created} {written}");
}

#[test]
fn bits_rot_once_or_for_good() {
    for (fault, lasts) in [(Fault::RotOnce, false), (Fault::RotLasting, true)] {
        let mut program = Program::new(9);
        let file = program.create("a");
        program.write(&file, 0, &sectors(1, 8), true).unwrap();
        program.plan(FileWorkKind::Read, 1, false, fault);
        let seen = program.read(&file, 0, 8 * 512).unwrap();
        let flips = |seen: &[u8]| -> u32 {
            seen.iter().zip(&sectors(1, 8)).map(|(a, b)| (a ^ b).count_ones()).sum()
        };
        assert_eq!(flips(&seen), 1);
        let again = program.read(&file, 0, 8 * 512).unwrap();
        assert_eq!(flips(&again), u32::from(lasts));
        let counts = program.disk.counts();
        assert_eq!((counts.rots_once, counts.rots_lasting), (u64::from(!lasts), u64::from(lasts)));
    }
}

#[test]
fn reads_and_writes_go_elsewhere() {
    for seed in 0..20 {
        let mut program = Program::new(seed);
        let file = program.create("a");
        program.write(&file, 0, &sectors(1, 64), true).unwrap();
        program.plan(FileWorkKind::Read, 1, false, Fault::MisdirectedRead);
        assert_ne!(program.read(&file, 512, 512).unwrap(), sector(&sectors(1, 64), 1));
        assert_eq!(program.read(&file, 512, 512).unwrap(), sector(&sectors(1, 64), 1));
        program.plan(FileWorkKind::Write, 1, false, Fault::MisdirectedWrite);
        assert_eq!(program.write(&file, 512, &[9; 512], true), Ok(512));
        let content = program.content("a").unwrap();
        assert_eq!(sector(&content, 1), sector(&sectors(1, 64), 1), "not where it belongs");
        let hits = (0..64).filter(|&index| sector(&content, index) == [9; 512]).count();
        assert_eq!((hits, content.len()), (1, 64 * 512));
        let counts = program.disk.counts();
        assert_eq!((counts.misdirected_reads, counts.misdirected_writes), (1, 1));
    }
}

#[test]
fn direct_io_is_refused_at_the_open_or_at_the_first_read_and_noted_once() {
    for kind in [FileWorkKind::Open, FileWorkKind::Read, FileWorkKind::Write] {
        let mut program = Program::new(1);
        program.plan(kind, 1, false, Fault::DirectRefused);
        let file = program.open_with("a", OpenMode::CreateNew, true).unwrap();
        assert_eq!(file.is_direct(), kind != FileWorkKind::Open);
        program.write(&file, 0, &sectors(1, 1), true).unwrap();
        assert_eq!(program.read(&file, 0, 512).unwrap(), sectors(1, 1));
        assert!(!file.is_direct());
        assert_eq!(program.read(&file, 3, 7).unwrap(), sectors(1, 1)[3..10], "it need not align");
        let other = program.open_with("b", OpenMode::CreateNew, true).unwrap();
        assert!(!other.is_direct(), "the folder is known to refuse");
        assert_eq!((program.refusals, program.disk.counts().direct_refused), (1, 1));
    }
}

#[test]
fn the_disk_says_what_direct_transfers_are_aligned_to() {
    let mut program = Program::new(1);
    assert_eq!(program.create("a").alignment(), SECTOR_BYTES);
    program.disk.set_alignment(4096);
    let file = program.open_with("a", OpenMode::ReadWrite, true).unwrap();
    assert_eq!(file.alignment(), 4096);
    assert_eq!(program.write(&file, 4096, &[1; 8192], true), Ok(8192));
    program.sync_folder().unwrap();
    let mut after = program.crash(1);
    let file = after.open_with("a", OpenMode::Read, true).unwrap();
    assert_eq!(file.alignment(), 4096, "a crash changes no disk");
}
