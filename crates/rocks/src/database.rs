//! One database of RocksDB: opens it, reads, writes, and asks for its numbers.
//!
//! Upstream:   `opener` opens one for each engine; the engine reads what is in memory, and `calls`
//!             do what waits for the disk.
//! Downstream: the functions of `library`; `filter` for the records that a compaction drops.
//!
//! Invariants:
//! - D1  An object lives until nothing uses it any more. The fields of [`Database`] are dropped in
//!   their order, and the database is the first of them.
//! - D2  Every thread may use a database at any time. Its options are not changed once it is open.
//! - D3  The text of an error, and each record that is read, is freed once.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use kachel_engine::FileReport;

use crate::change::Change;
use crate::filter::RecordFilter;
use crate::library::{Library, Object};
use crate::record::NOTE_KEY;

/// Bits of a filter for each key, by which a lookup passes files that do not have the key: the
/// number that RocksDB recommends. About one of 100 lookups looks in vain.
const BLOOM_BITS: f64 = 10.0;
/// The most files with records that a database has open.
const OPEN_FILES_MAX: c_int = 256;
/// The most files that a database has open: those, and its logs, its lock, and the files that
/// threads of RocksDB write.
pub(crate) const DATABASE_FILES_MAX: u64 = OPEN_FILES_MAX as u64 + 64;
/// The most files of RocksDB's own log that are kept.
const LOG_FILES_MAX: usize = 4;
/// RocksDB's number for reads that use what is in memory only.
const READ_TIER_MEMORY: c_int = 1;
/// How the error of such a read begins if the disk must be asked.
const INCOMPLETE: &str = "Result incomplete";
/// The key behind all keys: longer, and with greater bytes.
const BEHIND_ALL: [u8; 256] = [0xff; 256];

/// What RocksDB says about a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseError(String);

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The answer of memory to a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InMemory<R> {
    /// The record is there.
    Found(R),
    /// There is no record.
    Missing,
    /// Only the disk knows.
    Unknown,
}

/// The most records of a page.
pub(crate) const PAGE_RECORDS_MAX: usize = 64;

/// Records in the order of their keys.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// The keys and their records.
    pub(crate) records: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether there is no record behind these.
    pub(crate) is_last: bool,
}

/// How a database is opened.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseOptions {
    /// Whether a database that is not there is made.
    pub(crate) creates: bool,
    /// Bytes of each buffer for writes. There are two.
    pub(crate) write_buffer_bytes: usize,
    /// The operator's options, as RocksDB writes them: `name=value;name=value`.
    pub(crate) text: String,
}

/// An object that belongs to us (D1).
struct Owned {
    object: NonNull<Object>,
    end: unsafe extern "C" fn(NonNull<Object>),
}

impl Owned {
    /// Takes over a new object that `end` ends.
    ///
    /// Panics: if there is none. The library ends the process when it is out of memory.
    fn new(created: Option<NonNull<Object>>, end: unsafe extern "C" fn(NonNull<Object>)) -> Self {
        Self { object: created.expect("the library makes objects, or ends the process"), end }
    }

    fn get(&self) -> &Object {
        // SAFETY:
        // - the object lives until this is dropped (D1), and the library alone looks into it.
        unsafe { self.object.as_ref() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY:
        // - `end` is for objects of this kind: they came together in `new`.
        // - nothing uses the object any more (D1).
        unsafe { (self.end)(self.object) }
    }
}

/// Memory for blocks that were read, which the databases of a process share.
pub(crate) struct BlockCache(Owned);

impl BlockCache {
    pub(crate) fn new(library: &Library, bytes: usize) -> Self {
        Self(Owned::new((library.cache_create)(bytes), library.cache_destroy))
    }
}

/// An open database.
pub(crate) struct Database {
    /// First, so that it is closed first (D1).
    open: Owned,
    _filter: Owned,
    from_memory: Owned,
    from_disk: Owned,
    past_cache: Owned,
    to_system: Owned,
    to_disk: Owned,
    library: Arc<Library>,
}

// SAFETY:
// - each call of the library on a database may be made by any thread, at any time; the options of
//   reads and writes are only read (D2).
unsafe impl Send for Database {}
// SAFETY:
// - as above (D2).
unsafe impl Sync for Database {}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

impl Database {
    /// Opens the database in a folder.
    ///
    /// Errors: RocksDB's sentence.
    pub(crate) fn open(
        library: &Arc<Library>,
        folder: &Path,
        (options, cache): (&DatabaseOptions, &BlockCache),
        filter: Arc<RecordFilter>,
    ) -> Result<Self, DatabaseError> {
        let l = &**library;
        let filter = filter_of(l, filter);
        let opened_with = options_of(l, options, cache)?;
        // SAFETY:
        // - the filter outlives the database: the fields are dropped in their order (D1).
        unsafe { (l.set_filter)(opened_with.get(), filter.get()) };
        let path = CString::new(folder.as_os_str().as_bytes())
            .map_err(|_| DatabaseError("a path has no zero byte".to_owned()))?;
        let open = checked(l, |error| {
            // SAFETY:
            // - the path ends with a zero byte and lives through the call; so do the options.
            unsafe { (l.open)(opened_with.get(), path.as_ptr(), error) }
        })?;
        let reading = || Owned::new((l.read_create)(), l.read_destroy);
        let writing = || Owned::new((l.write_create)(), l.write_destroy);
        let database = Self {
            open: Owned::new(open, l.close),
            _filter: filter,
            from_memory: reading(),
            from_disk: reading(),
            past_cache: reading(),
            to_system: writing(),
            to_disk: writing(),
            library: Arc::clone(library),
        };
        (l.set_read_tier)(database.from_memory.get(), READ_TIER_MEMORY);
        (l.set_fill_cache)(database.past_cache.get(), 0);
        (l.set_sync)(database.to_disk.get(), 1);
        Ok(database)
    }

    /// Reads a record if that needs no disk, and passes it to `with`.
    pub(crate) fn in_memory<R>(
        &self,
        key: &[u8],
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<InMemory<R>, DatabaseError> {
        match self.get(key, &self.from_memory, with) {
            Ok(Some(found)) => Ok(InMemory::Found(found)),
            Ok(None) => Ok(InMemory::Missing),
            Err(DatabaseError(text)) if text.starts_with(INCOMPLETE) => Ok(InMemory::Unknown),
            Err(error) => Err(error),
        }
    }

    /// Reads a record, and passes it to `with`. Waits for the disk.
    pub(crate) fn on_disk<R>(
        &self,
        key: &[u8],
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, DatabaseError> {
        self.get(key, &self.from_disk, with)
    }

    fn get<R>(
        &self,
        key: &[u8],
        options: &Owned,
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, DatabaseError> {
        let l = &*self.library;
        let pinned = checked(l, |error| {
            // SAFETY:
            // - the key lives through the call; database and options live (D1).
            unsafe { (l.get)(self.open.get(), options.get(), at(key), key.len(), error) }
        })?;
        let Some(pinned) = pinned else { return Ok(None) };
        let pinned = Owned::new(Some(pinned), l.pinned_destroy);
        let mut bytes = 0;
        // SAFETY:
        // - the slice lives, and so does the place for its length.
        let record = unsafe { (l.pinned_bytes)(pinned.get(), &raw mut bytes) };
        // SAFETY:
        // - the library says that these bytes are the record's. They stay until `pinned` is
        //   dropped, which is after `with`.
        Ok(Some(with(unsafe { bytes_at(record, bytes) })))
    }

    /// Reads many records at once. Waits for the disk.
    pub(crate) fn get_many(
        &self,
        keys: &[Arc<[u8]>],
    ) -> Vec<Result<Option<Vec<u8>>, DatabaseError>> {
        let (l, count) = (&*self.library, keys.len());
        let places: Vec<*const c_char> = keys.iter().map(|key| at(key)).collect();
        let lengths: Vec<usize> = keys.iter().map(|key| key.len()).collect();
        let mut records = vec![null_mut(); count];
        let mut bytes = vec![0; count];
        let mut errors = vec![null_mut(); count];
        // SAFETY:
        // - each list has `count` elements and lives through the call; so do the keys.
        unsafe {
            (l.get_many)(
                self.open.get(),
                self.from_disk.get(),
                count,
                places.as_ptr(),
                lengths.as_ptr(),
                records.as_mut_ptr(),
                bytes.as_mut_ptr(),
                errors.as_mut_ptr(),
            );
        }
        let found = records.into_iter().zip(bytes).zip(errors);
        found
            .map(|((record, bytes), error)| {
                if let Some(error) = take_error(l, error) {
                    return Err(error);
                }
                // SAFETY:
                // - without an error, these bytes are a record that is ours, or there is none.
                Ok(unsafe { take_bytes(l, record, bytes) })
            })
            .collect()
    }

    /// Writes changes in their order, all or none. With `syncs` they are durable then.
    pub(crate) fn write(&self, changes: &[Change], syncs: bool) -> Result<(), DatabaseError> {
        let l = &*self.library;
        let batch = Owned::new((l.batch_create)(), l.batch_destroy);
        changes.iter().for_each(|change| add(l, &batch, change));
        let options = if syncs { &self.to_disk } else { &self.to_system };
        checked(l, |error| {
            // SAFETY:
            // - database, options and batch live (D1).
            unsafe { (l.write)(self.open.get(), options.get(), batch.get(), error) }
        })
    }

    /// Makes all that was written durable.
    pub(crate) fn sync(&self) -> Result<(), DatabaseError> {
        let l = &*self.library;
        checked(l, |error| {
            // SAFETY:
            // - the database lives (D1).
            unsafe { (l.sync)(self.open.get(), 1, error) }
        })
    }

    /// The records behind a key, at most `records_max`, and fewer once they have `bytes_max` bytes.
    /// Waits for the disk. What is read does not displace other blocks.
    pub(crate) fn page(
        &self,
        behind: &[u8],
        records_max: usize,
        bytes_max: usize,
    ) -> Result<Page, DatabaseError> {
        let l = &*self.library;
        let created = (l.iterator_create)(self.open.get(), self.past_cache.get());
        let iterator = Owned::new(created, l.iterator_destroy);
        // SAFETY:
        // - the key lives through the call; so does the iterator, and its database (D1).
        unsafe { (l.iterator_seek)(iterator.get(), at(behind), behind.len()) };
        let (mut page, mut bytes) = (Page::default(), 0);
        while (l.iterator_is_valid)(iterator.get()) != 0 {
            let key = current(&iterator, l.iterator_key);
            if key != behind {
                if page.records.len() == records_max || bytes > bytes_max {
                    return Ok(page);
                }
                let record = current(&iterator, l.iterator_record);
                bytes += key.len() + record.len();
                page.records.push((key, record));
            }
            // SAFETY:
            // - the iterator is at a record.
            unsafe { (l.iterator_next)(iterator.get()) };
        }
        checked(l, |error| {
            // SAFETY:
            // - the iterator lives.
            unsafe { (l.iterator_error)(iterator.get(), error) }
        })?;
        page.is_last = true;
        Ok(page)
    }

    /// About how many items there are, dead ones included, as RocksDB estimates it.
    pub(crate) fn items(&self) -> u64 {
        self.property(c"rocksdb.estimate-num-keys").unwrap_or(0)
    }

    /// The numbers of the database, as RocksDB tells them. The cache is the one that all databases
    /// share. Cost: some locks of RocksDB's; it reads no file.
    pub(crate) fn measure(&self) -> FileReport {
        let number = |name| self.property(name).unwrap_or(0);
        // A database has this number of levels, unless the operator wants another one.
        const LEVELS: u32 = 7;
        let files = (0..LEVELS).filter_map(|level| self.files_at(level)).sum();
        FileReport {
            disk_bytes: number(c"rocksdb.total-sst-files-size"),
            live_bytes: number(c"rocksdb.estimate-live-data-size"),
            files,
            write_buffer_bytes: number(c"rocksdb.size-all-mem-tables"),
            cache_bytes: number(c"rocksdb.block-cache-usage"),
            debt_bytes: number(c"rocksdb.estimate-pending-compaction-bytes"),
            stopped: u64::from(number(c"rocksdb.is-write-stopped") != 0),
            ..FileReport::default()
        }
    }

    /// The files with records at a level.
    fn files_at(&self, level: u32) -> Option<u64> {
        let name = CString::new(format!("rocksdb.num-files-at-level{level}")).ok()?;
        // SAFETY:
        // - the name ends with a zero byte and lives through the call.
        let text = unsafe { (self.library.property_text)(self.open.get(), name.as_ptr()) };
        take_text(&self.library, text)?.trim().parse().ok()
    }

    /// A number of RocksDB's own; `None` if this version does not have it.
    fn property(&self, name: &CStr) -> Option<u64> {
        let mut number = 0;
        // SAFETY:
        // - the name ends with a zero byte; it and the place for the number live through the call.
        let refused =
            unsafe { (self.library.property)(self.open.get(), name.as_ptr(), &raw mut number) };
        (refused == 0).then_some(number)
    }
}

impl Drop for Database {
    /// What was written is durable before the database is closed. A failure was reported when it
    /// was seen first, or is not seen by anybody: every write that a client waits for has ended.
    fn drop(&mut self) {
        let _nobody_waits = self.sync();
    }
}

/// The options with which a database is opened: ours, then the operator's.
fn options_of(
    l: &Library,
    options: &DatabaseOptions,
    cache: &BlockCache,
) -> Result<Owned, DatabaseError> {
    let new = || Owned::new((l.options_create)(), l.options_destroy);
    let (ours, all) = (new(), new());
    (l.set_write_buffer)(ours.get(), options.write_buffer_bytes);
    (l.set_open_files)(ours.get(), OPEN_FILES_MAX);
    (l.set_log_files)(ours.get(), LOG_FILES_MAX);
    let table = Owned::new((l.table_create)(), l.table_destroy);
    (l.set_block_cache)(table.get(), cache.0.get());
    let bloom = (l.bloom_create)(BLOOM_BITS).expect("the library makes objects");
    // SAFETY:
    // - the policy is new, and the table's options take it over.
    unsafe { (l.set_bloom)(table.get(), bloom) };
    (l.set_table)(ours.get(), table.get());
    let text = CString::new(options.text.as_str())
        .map_err(|_| DatabaseError("an option has no zero byte".to_owned()))?;
    checked(l, |error| {
        // SAFETY:
        // - the text ends with a zero byte and lives through the call; so do the options.
        unsafe { (l.options_read)(ours.get(), text.as_ptr(), all.get(), error) }
    })?;
    (l.set_create)(all.get(), options.creates.into());
    Ok(all)
}

/// Adds a change to a batch, which copies it.
fn add(l: &Library, batch: &Owned, change: &Change) {
    match change {
        Change::Put { key, header, value } => put(l, batch, key, [&header[..], value.bytes()]),
        Change::Note(note) => put(l, batch, NOTE_KEY, [&note.to_bytes()[..], &[]]),
        Change::Delete { key } => {
            // SAFETY:
            // - batch and key live through the call.
            unsafe { (l.batch_delete)(batch.get(), at(key), key.len()) };
        }
        Change::DeleteRange { from, to } => {
            let to = to.as_deref().unwrap_or(&BEHIND_ALL);
            // SAFETY:
            // - batch and keys live through the call.
            unsafe {
                (l.batch_delete_range)(batch.get(), at(from), from.len(), at(to), to.len());
            }
        }
    }
}

/// Adds a record of two pieces to a batch.
fn put(l: &Library, batch: &Owned, key: &[u8], pieces: [&[u8]; 2]) {
    let (keys, key_bytes) = ([at(key)], [key.len()]);
    let (records, record_bytes) = (pieces.map(at), pieces.map(<[u8]>::len));
    // SAFETY:
    // - the lists have as many elements as is said. They, the pieces and the batch live through the
    //   call.
    unsafe {
        (l.batch_put)(
            batch.get(),
            keys.len() as c_int,
            keys.as_ptr(),
            key_bytes.as_ptr(),
            records.len() as c_int,
            records.as_ptr(),
            record_bytes.as_ptr(),
        );
    }
}

/// The key or the record at which an iterator is.
fn current(
    iterator: &Owned,
    function: unsafe extern "C" fn(&Object, *mut usize) -> *const c_char,
) -> Vec<u8> {
    let mut bytes = 0;
    // SAFETY:
    // - the iterator is at a record; it and the place for the length live through the call.
    let memory = unsafe { function(iterator.get(), &raw mut bytes) };
    // SAFETY:
    // - the library says that these bytes are the record's. They stay until the iterator moves.
    unsafe { bytes_at(memory, bytes) }.to_vec()
}

/// Where bytes are, for the library.
fn at(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

/// The bytes at a place; none, if there are none.
///
/// # Safety
/// - If there are bytes, they are there, and nothing changes or frees them while the result is
///   used.
unsafe fn bytes_at<'a>(memory: *const c_char, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY:
    // - the caller says so.
    unsafe { std::slice::from_raw_parts(memory.cast(), bytes) }
}

/// Takes bytes that the library has allocated, and frees them (D3). `None` if there is nothing.
///
/// # Safety
/// - The bytes are there, or `memory` is null. They belong to the caller.
unsafe fn take_bytes(l: &Library, memory: *mut c_char, bytes: usize) -> Option<Vec<u8>> {
    let allocated = NonNull::new(memory)?;
    // SAFETY:
    // - the caller says so; the bytes are freed below.
    let copy = unsafe { bytes_at(memory, bytes) }.to_vec();
    // SAFETY:
    // - the library has allocated it, and nobody else frees it (D3).
    unsafe { (l.free)(allocated.cast()) };
    Some(copy)
}

/// Takes the text of an error, if there is one (D3).
fn take_error(l: &Library, text: *mut c_char) -> Option<DatabaseError> {
    take_text(l, text).map(DatabaseError)
}

/// Takes a text that the library has allocated, if there is one (D3).
fn take_text(l: &Library, text: *mut c_char) -> Option<String> {
    let allocated = NonNull::new(text)?;
    // SAFETY:
    // - a text of the library ends with a zero byte.
    let copy = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY:
    // - the library has allocated it for us, and nobody else frees it (D3).
    unsafe { (l.free)(allocated.cast()) };
    Some(copy)
}

/// Calls a function that may report an error.
fn checked<R>(l: &Library, call: impl FnOnce(*mut *mut c_char) -> R) -> Result<R, DatabaseError> {
    let mut text = null_mut();
    let result = call(&raw mut text);
    match take_error(l, text) {
        Some(error) => Err(error),
        None => Ok(result),
    }
}

/// The library's object for a filter. It holds the filter until it is ended.
fn filter_of(l: &Library, filter: Arc<RecordFilter>) -> Owned {
    let state = Arc::into_raw(filter).cast_mut().cast();
    // SAFETY:
    // - the state is that of the three functions, and `end_filter` ends it once.
    let created = unsafe { (l.filter_create)(state, end_filter, drops, name_of_filter) };
    Owned::new(created, l.filter_destroy)
}

/// Whether a compaction drops a record. It runs on threads of the library.
unsafe extern "C" fn drops(
    state: *mut c_void,
    _level: c_int,
    key: *const c_char,
    key_bytes: usize,
    record: *const c_char,
    record_bytes: usize,
    _changed: *mut *mut c_char,
    _changed_bytes: *mut usize,
    _is_changed: *mut c_uchar,
) -> c_uchar {
    // SAFETY:
    // - it is the state of `filter_of`, which lives while the database is open (D1), and is shared
    //   by threads only for reading.
    let filter = unsafe { &*state.cast::<RecordFilter>() };
    // SAFETY:
    // - the library lends both through this call.
    let key = unsafe { bytes_at(key, key_bytes) };
    // SAFETY:
    // - as above.
    let record = unsafe { bytes_at(record, record_bytes) };
    filter.drops(key, record).into()
}

unsafe extern "C" fn end_filter(state: *mut c_void) {
    // SAFETY:
    // - it is the state of `filter_of`, which the library ends once.
    drop(unsafe { Arc::from_raw(state.cast::<RecordFilter>().cast_const()) });
}

unsafe extern "C" fn name_of_filter(_state: *mut c_void) -> *const c_char {
    c"kachel".as_ptr()
}
