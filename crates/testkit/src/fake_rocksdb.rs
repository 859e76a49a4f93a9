//! A library that stands in for RocksDB: where RocksDB is not installed, and where a test needs a
//! failure at a certain place.
//!
//! Upstream:   tests of the engine `rocks`.
//! Downstream: the C compiler of the machine, and `fake_rocksdb.c`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const SOURCE: &str = include_str!("fake_rocksdb.c");

/// The number of libraries that this process has built.
static BUILT: AtomicU32 = AtomicU32::new(0);

/// The library, which is removed when this is dropped. A process that has loaded it keeps it.
#[derive(Debug)]
pub struct FakeRocksdb {
    path: PathBuf,
}

impl FakeRocksdb {
    /// Builds the library. `without` is the name of a function that it is to lack, if any.
    ///
    /// # Panics
    /// If there is no C compiler, or no temporary folder.
    #[must_use]
    pub fn build(without: Option<&str>) -> Self {
        let name = format!(
            "kachel-fake-rocksdb-{}-{}",
            std::process::id(),
            BUILT.fetch_add(1, Ordering::Relaxed)
        );
        let source = std::env::temp_dir().join(&name).with_extension("c");
        let path = source.with_extension("so");
        // A function under another name is missing under its own.
        let text = without.map_or_else(
            || SOURCE.to_owned(),
            |name| {
                assert!(SOURCE.contains(name), "the library has {name}");
                SOURCE.replace(name, "a_function_of_another_name")
            },
        );
        std::fs::write(&source, text).expect("a temporary folder");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-pthread"]);
        let built = compiler.arg("-o").arg(&path).arg(&source).output().expect("a C compiler");
        std::fs::remove_file(&source).expect("it was written");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self { path }
    }

    /// The file of the library.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FakeRocksdb {
    fn drop(&mut self) {
        // Whatever cannot be removed stays in the temporary folder.
        let _stays = std::fs::remove_file(&self.path);
    }
}

/// The library for a test that needs RocksDB. `None` stands for the installed one. Where that is
/// not to be had, as in a bare system, `KACHEL_FAKE_ROCKSDB` says so.
///
/// # Panics
/// As [`FakeRocksdb::build`].
#[must_use]
pub fn rocksdb_library() -> Option<FakeRocksdb> {
    std::env::var_os("KACHEL_FAKE_ROCKSDB").map(|_| FakeRocksdb::build(None))
}
