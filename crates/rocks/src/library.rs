//! RocksDB's library: loads it while the process runs, and has its functions by name.
//!
//! Upstream:   `opener`, when the engine is asked for.
//! Downstream: `database`, which calls the functions. They are those of `rocksdb/c.h`.
//!
//! Nothing of RocksDB is needed when Kachel is built, and nothing is loaded before the engine is
//! asked for. The C interface of RocksDB only grows, so one table of functions fits all accepted
//! versions.
//!
//! Invariants:
//! - L1  A library that was loaded stays loaded until the process ends: it has threads of its own.
//! - L2  Each function has the type that `rocksdb/c.h` declares. A function whose type here is not
//!   unsafe may be called with any object of the kind that it takes.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char, c_double, c_int, c_uchar, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The names under which the library is looked for, the ones of the versions that were tried
/// first.
pub const LIBRARY_NAMES: [&str; 3] =
    ["librocksdb.so.7.8", "librocksdb.so.8.9", "librocksdb.so.9.10"];

/// An object of the library. Only the library knows what is in it.
#[repr(C)]
pub(crate) struct Object {
    inside: [UnsafeCell<u8>; 0],
}

/// A new object.
type Created = Option<NonNull<Object>>;
/// Where a function puts the text of an error, which [`Library::free`] frees.
type ErrorAt = *mut *mut c_char;
/// How a function ends an object, which nothing uses any more.
type End = unsafe extern "C" fn(NonNull<Object>);
/// How a compaction asks whether a record is dropped: the state, the level, the key and its bytes,
/// the record and its bytes, and three places for a changed record.
pub(crate) type Drops = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const c_char,
    usize,
    *const c_char,
    usize,
    *mut *mut c_char,
    *mut usize,
    *mut c_uchar,
) -> c_uchar;

/// Why the library cannot be used, in a sentence.
#[derive(Debug)]
pub(crate) struct LibraryRefused(String);

impl fmt::Display for LibraryRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! functions {
    ($($(#[$about:meta])* $name:ident = $symbol:literal: $function:ty,)*) => {
        /// The functions of the library that are used.
        pub(crate) struct Library {
            $($(#[$about])* pub(crate) $name: $function,)*
        }

        impl Library {
            /// Finds each function in a library that was loaded.
            fn find(loaded: &Loaded) -> Result<Self, LibraryRefused> {
                Ok(Self {$(
                    $name: {
                        let symbol = loaded.symbol($symbol)?;
                        // SAFETY:
                        // - a symbol of this name is this function, and it has this type (L2).
                        unsafe { std::mem::transmute::<NonNull<c_void>, $function>(symbol) }
                    },
                )*})
            }
        }
    };
}

functions! {
    /// Frees what the library has allocated.
    free = c"rocksdb_free": unsafe extern "C" fn(NonNull<c_void>),
    options_create = c"rocksdb_options_create": extern "C" fn() -> Created,
    options_destroy = c"rocksdb_options_destroy": End,
    /// Reads options from text: the options before, the text, the options after.
    options_read = c"rocksdb_get_options_from_string":
        unsafe extern "C" fn(&Object, *const c_char, &Object, ErrorAt),
    set_create = c"rocksdb_options_set_create_if_missing": extern "C" fn(&Object, c_uchar),
    set_write_buffer = c"rocksdb_options_set_write_buffer_size": extern "C" fn(&Object, usize),
    set_open_files = c"rocksdb_options_set_max_open_files": extern "C" fn(&Object, c_int),
    set_log_files = c"rocksdb_options_set_keep_log_file_num": extern "C" fn(&Object, usize),
    set_table = c"rocksdb_options_set_block_based_table_factory": extern "C" fn(&Object, &Object),
    /// The filter belongs to the caller, and must outlive the database.
    set_filter = c"rocksdb_options_set_compaction_filter": unsafe extern "C" fn(&Object, &Object),
    table_create = c"rocksdb_block_based_options_create": extern "C" fn() -> Created,
    table_destroy = c"rocksdb_block_based_options_destroy": End,
    set_block_cache = c"rocksdb_block_based_options_set_block_cache": extern "C" fn(&Object, &Object),
    /// Takes the policy over.
    set_bloom = c"rocksdb_block_based_options_set_filter_policy":
        unsafe extern "C" fn(&Object, NonNull<Object>),
    bloom_create = c"rocksdb_filterpolicy_create_bloom": extern "C" fn(c_double) -> Created,
    cache_create = c"rocksdb_cache_create_lru": extern "C" fn(usize) -> Created,
    cache_destroy = c"rocksdb_cache_destroy": End,
    /// The state, what ends it, what asks, and what names the filter.
    filter_create = c"rocksdb_compactionfilter_create": unsafe extern "C" fn(
        *mut c_void,
        unsafe extern "C" fn(*mut c_void),
        Drops,
        unsafe extern "C" fn(*mut c_void) -> *const c_char,
    ) -> Created,
    filter_destroy = c"rocksdb_compactionfilter_destroy": End,
    open = c"rocksdb_open": unsafe extern "C" fn(&Object, *const c_char, ErrorAt) -> Created,
    close = c"rocksdb_close": End,
    read_create = c"rocksdb_readoptions_create": extern "C" fn() -> Created,
    read_destroy = c"rocksdb_readoptions_destroy": End,
    set_read_tier = c"rocksdb_readoptions_set_read_tier": extern "C" fn(&Object, c_int),
    set_fill_cache = c"rocksdb_readoptions_set_fill_cache": extern "C" fn(&Object, c_uchar),
    write_create = c"rocksdb_writeoptions_create": extern "C" fn() -> Created,
    write_destroy = c"rocksdb_writeoptions_destroy": End,
    set_sync = c"rocksdb_writeoptions_set_sync": extern "C" fn(&Object, c_uchar),
    batch_create = c"rocksdb_writebatch_create": extern "C" fn() -> Created,
    batch_destroy = c"rocksdb_writebatch_destroy": End,
    /// The batch, the pieces of the key and their bytes, the pieces of the record and their bytes.
    batch_put = c"rocksdb_writebatch_putv": unsafe extern "C" fn(
        &Object,
        c_int,
        *const *const c_char,
        *const usize,
        c_int,
        *const *const c_char,
        *const usize,
    ),
    batch_delete = c"rocksdb_writebatch_delete":
        unsafe extern "C" fn(&Object, *const c_char, usize),
    batch_delete_range = c"rocksdb_writebatch_delete_range":
        unsafe extern "C" fn(&Object, *const c_char, usize, *const c_char, usize),
    /// The database, the options and the batch.
    write = c"rocksdb_write": unsafe extern "C" fn(&Object, &Object, &Object, ErrorAt),
    sync = c"rocksdb_flush_wal": unsafe extern "C" fn(&Object, c_uchar, ErrorAt),
    get = c"rocksdb_get_pinned":
        unsafe extern "C" fn(&Object, &Object, *const c_char, usize, ErrorAt) -> Created,
    pinned_bytes = c"rocksdb_pinnableslice_value":
        unsafe extern "C" fn(&Object, *mut usize) -> *const c_char,
    pinned_destroy = c"rocksdb_pinnableslice_destroy": End,
    /// The database, the options, the number of keys, the keys and their bytes; places for the
    /// records, their bytes and the errors.
    get_many = c"rocksdb_multi_get": unsafe extern "C" fn(
        &Object,
        &Object,
        usize,
        *const *const c_char,
        *const usize,
        *mut *mut c_char,
        *mut usize,
        *mut *mut c_char,
    ),
    iterator_create = c"rocksdb_create_iterator": extern "C" fn(&Object, &Object) -> Created,
    iterator_destroy = c"rocksdb_iter_destroy": End,
    iterator_is_valid = c"rocksdb_iter_valid": extern "C" fn(&Object) -> c_uchar,
    iterator_seek = c"rocksdb_iter_seek": unsafe extern "C" fn(&Object, *const c_char, usize),
    iterator_next = c"rocksdb_iter_next": unsafe extern "C" fn(&Object),
    iterator_key = c"rocksdb_iter_key":
        unsafe extern "C" fn(&Object, *mut usize) -> *const c_char,
    iterator_record = c"rocksdb_iter_value":
        unsafe extern "C" fn(&Object, *mut usize) -> *const c_char,
    iterator_error = c"rocksdb_iter_get_error": unsafe extern "C" fn(&Object, ErrorAt),
    /// The database, the name of a property, and a place for the number. Not 0: there is none.
    property = c"rocksdb_property_int":
        unsafe extern "C" fn(&Object, *const c_char, *mut u64) -> c_int,
    /// The database and the name of a property. Returns its text, which [`Library::free`] frees, or
    /// null.
    property_text = c"rocksdb_property_value":
        unsafe extern "C" fn(&Object, *const c_char) -> *mut c_char,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

impl Library {
    /// Loads the library: `at` is its file, or `None` for the first of [`LIBRARY_NAMES`] that is
    /// there.
    ///
    /// Errors: there is none, or it lacks a function.
    pub(crate) fn load(at: Option<&Path>) -> Result<Self, LibraryRefused> {
        if let Some(path) = at {
            let loaded = Loaded::open(path).map_err(LibraryRefused)?;
            return Self::find(&loaded);
        }
        let mut refusals = Vec::new();
        for name in LIBRARY_NAMES {
            match Loaded::open(Path::new(name)) {
                Ok(loaded) => return Self::find(&loaded),
                Err(refusal) => refusals.push(refusal),
            }
        }
        let refusals = refusals.join("; ");
        Err(LibraryRefused(format!("RocksDB's library is not installed ({refusals})")))
    }
}

/// A library that was loaded (L1).
struct Loaded {
    handle: NonNull<c_void>,
    path: PathBuf,
}

impl Loaded {
    fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| format!("{}: a path has no zero byte", path.display()))?;
        // SAFETY:
        // - `name` ends with a zero byte and lives through the call.
        // - what a library does when it is loaded is the library's to answer for: it is one that
        //   the operator has installed under a name of RocksDB's, or has named.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Self { handle, path: path.to_owned() }),
            None => Err(last_refusal().unwrap_or_else(|| format!("{}: refused", path.display()))),
        }
    }

    fn symbol(&self, name: &CStr) -> Result<NonNull<c_void>, LibraryRefused> {
        // SAFETY:
        // - the handle is that of a library that stays loaded (L1).
        // - `name` ends with a zero byte and lives through the call.
        let symbol = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        NonNull::new(symbol).ok_or_else(|| {
            let name = name.to_string_lossy();
            let path = self.path.display();
            LibraryRefused(format!("{path} has no function {name}: the version does not fit"))
        })
    }
}

/// The text of the last refusal of the loader in this thread.
fn last_refusal() -> Option<String> {
    // SAFETY:
    // - the call has no conditions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return None;
    }
    // SAFETY:
    // - it is a text that ends with a zero byte, and stays until this thread's next call of the
    //   loader.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let refused = Library::load(Some(Path::new("librocksdb.so.no"))).expect_err("no file");
        assert!(refused.to_string().contains("librocksdb.so.no"), "{refused}");
    }

    #[test]
    fn a_library_without_a_function_is_named_with_it() {
        let refused = Library::load(Some(Path::new("libc.so.6"))).expect_err("another library");
        let wanted = "libc.so.6 has no function rocksdb_free: the version does not fit";
        assert_eq!(refused.to_string(), wanted);
    }
}
