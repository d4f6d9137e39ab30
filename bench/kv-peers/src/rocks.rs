//! RocksDB by its C interface (rocksdb/c.h), of the library of the system.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;

use crate::Sizes;
use crate::run::Target;

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> *mut c_void;
    fn rocksdb_options_set_create_if_missing(options: *mut c_void, yes: c_uchar);
    fn rocksdb_options_set_compression(options: *mut c_void, kind: c_int);
    fn rocksdb_options_set_write_buffer_size(options: *mut c_void, bytes: usize);
    fn rocksdb_options_set_max_bytes_for_level_base(options: *mut c_void, bytes: u64);
    fn rocksdb_options_set_max_bytes_for_level_multiplier(options: *mut c_void, factor: f64);
    fn rocksdb_options_set_target_file_size_base(options: *mut c_void, bytes: u64);
    fn rocksdb_options_set_max_background_jobs(options: *mut c_void, jobs: c_int);
    fn rocksdb_options_set_enable_blob_files(options: *mut c_void, yes: c_uchar);
    fn rocksdb_options_set_min_blob_size(options: *mut c_void, bytes: u64);
    fn rocksdb_options_set_enable_blob_gc(options: *mut c_void, yes: c_uchar);
    fn rocksdb_options_set_block_based_table_factory(options: *mut c_void, table: *mut c_void);
    fn rocksdb_block_based_options_create() -> *mut c_void;
    fn rocksdb_block_based_options_set_filter_policy(table: *mut c_void, policy: *mut c_void);
    fn rocksdb_block_based_options_set_block_cache(table: *mut c_void, cache: *mut c_void);
    fn rocksdb_filterpolicy_create_bloom_full(bits: f64) -> *mut c_void;
    fn rocksdb_cache_create_lru(bytes: usize) -> *mut c_void;
    fn rocksdb_open(
        options: *const c_void,
        name: *const c_char,
        error: *mut *mut c_char,
    ) -> *mut c_void;
    fn rocksdb_writeoptions_create() -> *mut c_void;
    fn rocksdb_readoptions_create() -> *mut c_void;
    fn rocksdb_put(
        db: *mut c_void,
        options: *const c_void,
        key: *const u8,
        key_bytes: usize,
        value: *const u8,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_get(
        db: *mut c_void,
        options: *const c_void,
        key: *const u8,
        key_bytes: usize,
        value_bytes: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn rocksdb_free(pointer: *mut c_void);
    fn rocksdb_property_int(db: *mut c_void, name: *const c_char, out: *mut u64) -> c_int;
}

pub struct Rocks {
    db: *mut c_void,
    write: *mut c_void,
    read: *mut c_void,
}

// SAFETY: the library allows calls of several threads on one database and its options.
unsafe impl Sync for Rocks {}

fn check(error: *mut c_char) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the library gives a text with an end.
    Err(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned())
}

impl Rocks {
    pub fn open(dir: &Path, sizes: &Sizes, blobs: bool) -> Self {
        let name = CString::new(dir.to_str().expect("a name")).expect("no zero");
        let mut error = std::ptr::null_mut();
        // SAFETY: calls of the library as its header says; nothing is freed before the end.
        let (db, write, read) = unsafe {
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            rocksdb_options_set_compression(options, 0);
            rocksdb_options_set_write_buffer_size(options, sizes.level0 as usize);
            rocksdb_options_set_max_bytes_for_level_base(options, 4 * sizes.level0);
            rocksdb_options_set_max_bytes_for_level_multiplier(options, 4.0);
            rocksdb_options_set_target_file_size_base(options, 4 << 20);
            rocksdb_options_set_max_background_jobs(options, 2);
            if blobs {
                rocksdb_options_set_enable_blob_files(options, 1);
                rocksdb_options_set_min_blob_size(options, 64);
                rocksdb_options_set_enable_blob_gc(options, 1);
            }
            let table = rocksdb_block_based_options_create();
            let filter = rocksdb_filterpolicy_create_bloom_full(10.0);
            rocksdb_block_based_options_set_filter_policy(table, filter);
            let cache = rocksdb_cache_create_lru(sizes.cache as usize);
            rocksdb_block_based_options_set_block_cache(table, cache);
            rocksdb_options_set_block_based_table_factory(options, table);
            let db = rocksdb_open(options, name.as_ptr(), &raw mut error);
            (db, rocksdb_writeoptions_create(), rocksdb_readoptions_create())
        };
        check(error).expect("a database");
        Self { db, write, read }
    }

    fn number(&self, name: &CStr) -> u64 {
        let mut out = 0;
        // SAFETY: the database is open, and `out` is a place for the number.
        unsafe { rocksdb_property_int(self.db, name.as_ptr(), &raw mut out) };
        out
    }
}

impl Target for Rocks {
    fn get(&self, key: &[u8]) -> Result<Option<usize>, String> {
        let (mut bytes, mut error) = (0, std::ptr::null_mut());
        // SAFETY: the database is open; the slices live through the call.
        let value = unsafe {
            let (out, error) = (&raw mut bytes, &raw mut error);
            rocksdb_get(self.db, self.read, key.as_ptr(), key.len(), out, error)
        };
        check(error)?;
        if value.is_null() {
            return Ok(None);
        }
        // SAFETY: the library gave it to be freed.
        unsafe { rocksdb_free(value.cast()) };
        Ok(Some(bytes))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let mut error = std::ptr::null_mut();
        // SAFETY: the database is open; the slices live through the call.
        unsafe {
            rocksdb_put(
                self.db,
                self.write,
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
                &raw mut error,
            );
        }
        check(error)
    }

    fn settle(&self) -> Result<(), String> {
        let mut calm = 0;
        while calm < 5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let busy = self.number(c"rocksdb.num-running-compactions")
                + self.number(c"rocksdb.num-running-flushes")
                + self.number(c"rocksdb.compaction-pending")
                + self.number(c"rocksdb.mem-table-flush-pending");
            calm = if busy > 0 { 0 } else { calm + 1 };
        }
        Ok(())
    }
}
