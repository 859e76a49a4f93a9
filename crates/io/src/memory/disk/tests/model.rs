//! Compares the disk with a model of its possible content, during random operations and crashes.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SECTORS_MAX: u64 = 24;

/// A file of the model: the contents that it may have after a crash, and those that it has now.
#[derive(Clone, Debug, Default)]
struct ModelFile {
    /// The durable bytes of each sector.
    durable: Vec<Vec<u8>>,
    /// Whether the sector was written since.
    is_pending: Vec<bool>,
    /// The bytes that a read returns.
    now: Vec<Vec<u8>>,
}

impl ModelFile {
    /// A file that is durable as it is.
    fn of(content: &[u8]) -> Self {
        assert!(content.len().is_multiple_of(SECTOR_BYTES));
        let durable: Vec<_> = content.chunks(SECTOR_BYTES).map(<[u8]>::to_vec).collect();
        Self { is_pending: vec![false; durable.len()], now: durable.clone(), durable }
    }

    fn write(&mut self, first: usize, bytes: &[u8]) {
        for (index, content) in (first..).zip(bytes.chunks(SECTOR_BYTES)) {
            while self.now.len() <= index {
                self.now.push(vec![0; SECTOR_BYTES]);
                self.is_pending.push(false);
            }
            (self.now[index], self.is_pending[index]) = (content.to_vec(), true);
        }
    }

    fn sync(&mut self, first: usize, count: usize) {
        let end = self.now.len().min(first + count);
        while self.durable.len() < end {
            self.durable.push(vec![0; SECTOR_BYTES]);
        }
        for index in first..end {
            if self.is_pending[index] {
                self.durable[index] = self.now[index].clone();
                self.is_pending[index] = false;
            }
        }
    }

    /// Whether a crash may leave this.
    fn allows(&self, content: &[u8]) -> bool {
        let count = content.len() / SECTOR_BYTES;
        let durable = |index: usize| self.durable.get(index).map_or(&[0; 512][..], Vec::as_slice);
        (self.durable.len()..=self.now.len()).contains(&count)
            && (0..count)
                .all(|index| self.is_pending[index] || sector(content, index) == durable(index))
    }
}

#[derive(Default)]
struct Model {
    files: Vec<ModelFile>,
    names: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    /// Files that had a name since the last sync of the folder, and the name.
    had: Vec<(String, usize)>,
    /// Names that were created, renamed, replaced or removed since.
    touched: BTreeSet<String>,
}

impl Model {
    fn name(&mut self, name: &str, file: usize) {
        self.names.insert(name.to_owned(), file);
        self.had.push((name.to_owned(), file));
        self.touched.insert(name.to_owned());
    }

    fn remove(&mut self, name: &str) {
        self.names.remove(name);
        self.touched.insert(name.to_owned());
    }

    fn sync_folder(&mut self) {
        self.durable = self.names.clone();
        self.had = self.names.clone().into_iter().collect();
        self.touched.clear();
    }

    /// Checks what a crash has left, and takes it as durable.
    fn crash(&mut self, image: &[(String, Vec<u8>)], seed: u64) {
        let found: BTreeMap<String, &Vec<u8>> = image
            .iter()
            .map(|(path, content)| (path.trim_start_matches("data/").to_owned(), content))
            .collect();
        for name in self.durable.keys() {
            let may_be_gone = self.touched.contains(name);
            assert!(may_be_gone || found.contains_key(name), "{name} is lost, seed {seed}");
        }
        for (name, content) in &found {
            let mut had = self.had.iter().filter(|(each, _)| each == name);
            let is_allowed = had.any(|(_, file)| self.files[*file].allows(content));
            assert!(is_allowed, "file {name}, seed {seed}");
        }
        self.files = found.values().map(|content| ModelFile::of(content)).collect();
        self.names = found.keys().cloned().zip(0..).collect();
        self.sync_folder();
    }
}

/// One random operation on the disk and on the model.
fn step(program: &mut Program, model: &mut Model, dice: &mut Dice) {
    let name = dice.one_of(&NAMES);
    let opened = program.open_with(name, OpenMode::ReadWrite, dice.chance(500));
    let number = model.names.get(name).copied();
    assert_eq!(opened.is_ok(), number.is_some(), "the disk has the names that the model has");
    let (Ok(file), Some(number)) = (opened, number) else {
        program.create(name);
        model.name(name, model.files.len());
        return model.files.push(ModelFile::default());
    };
    let first = dice.below(SECTORS_MAX);
    match dice.below(10) {
        0..5 => {
            let bytes = sectors(dice.bits() as u8, 1 + dice.below(12) as usize);
            let durable = dice.chance(300);
            program.write(&file, first * 512, &bytes, durable).unwrap();
            model.files[number].write(first as usize, &bytes);
            if durable {
                model.files[number].sync(first as usize, bytes.len() / SECTOR_BYTES);
            }
        }
        5 => {
            program.sync(&file).unwrap();
            model.files[number].sync(0, usize::MAX / 2);
        }
        6 => {
            program.sync_folder().unwrap();
            model.sync_folder();
        }
        7 => {
            let to = dice.one_of(&NAMES);
            program.rename(name, to).unwrap();
            if to != name {
                model.remove(name);
                model.name(to, number);
            }
        }
        8 => {
            program.unlink(name).unwrap();
            model.remove(name);
        }
        _ => {
            let read = program.read(&file, 0, SECTORS_MAX as usize * 1024).unwrap();
            assert_eq!(read, model.files[number].now.concat(), "what was written is read");
        }
    }
}

#[test]
fn no_crash_loses_what_is_durable_or_makes_up_a_name() {
    let mut counts = DiskCounts::default();
    for seed in 0..150 {
        let mut dice = Dice::new(seed);
        let mut program = Program::new(seed);
        let mut model = Model::default();
        for round in 0..4 {
            // Some rounds crash at once, as a recovery may.
            for _ in 0..dice.below(40) {
                step(&mut program, &mut model, &mut dice);
            }
            program = program.crash(seed * 10 + round);
            model.crash(&program.disk.image(), seed);
        }
        let seen = program.disk.counts();
        assert_eq!(seen.crashes, 4);
        counts.sectors_kept += seen.sectors_kept;
        counts.sectors_dropped += seen.sectors_dropped;
        counts.sectors_torn += seen.sectors_torn;
        counts.sectors_garbled += seen.sectors_garbled;
        counts.sectors_stale += seen.sectors_stale;
        counts.lengths_lost += seen.lengths_lost;
        counts.names_kept += seen.names_kept;
        counts.names_dropped += seen.names_dropped;
    }
    let sectors = [counts.sectors_kept, counts.sectors_dropped, counts.sectors_torn];
    let others = [counts.sectors_garbled, counts.sectors_stale, counts.lengths_lost];
    let names = [counts.names_kept, counts.names_dropped];
    assert!([&sectors[..], &others, &names].concat().iter().all(|&count| count > 20), "{counts:?}");
}
