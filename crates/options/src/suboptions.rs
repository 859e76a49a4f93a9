//! The table of the options of `-o`: one row for each.
//!
//! Upstream:   nothing; it is data.
//! Downstream: as for `table.rs`.

use crate::OptionsError;
use crate::partial::{Given, PartialOptions, set};
use crate::row::Takes::{Integer, Nothing, OptionalInteger, Real, Text, Word};
use crate::row::{Class, Effect, SuboptionRow, Takes, nothing};
use crate::tls_rows;

const U32_MAX: i64 = u32::MAX as i64;
/// Largest number of kilobytes or megabytes in a size.
const SIZE_MAX: i64 = u32::MAX as i64;

/// Bytes of memcached's slab pages.
const SLAB_PAGE_BYTES: u32 = 1 << 20;

const NO_SLABS: &str = "no slabs";
const NO_LRU: &str = "no LRU lists; memory is reclaimed by segments";
const NO_PROXY: &str = "Kachel is not a proxy";
const NO_KERNEL_TLS: &str = "records are not encrypted by the kernel yet; the server does it";
const NO_FLASH: &str = "no second tier on disk";

const fn works(
    name: &'static str,
    takes: Takes,
    default: &'static str,
    help: &'static str,
    effect: Effect,
) -> SuboptionRow {
    SuboptionRow { name, takes, default, class: Class::Works, help, effect }
}

const fn no_meaning(
    name: &'static str,
    takes: Takes,
    default: &'static str,
    why: &'static str,
    effect: Effect,
) -> SuboptionRow {
    SuboptionRow { name, takes, default, class: Class::NoMeaning(why), help: "", effect }
}

const fn refused(name: &'static str, takes: Takes, why: &'static str) -> SuboptionRow {
    SuboptionRow { name, takes, default: "", class: Class::Refused(why), help: "", effect: nothing }
}

/// Every option of `-o`.
pub(crate) fn suboptions() -> impl Iterator<Item = &'static SuboptionRow> {
    SUBOPTIONS.iter().chain(&tls_rows::SUBOPTIONS)
}

const SUBOPTIONS: &[SuboptionRow] = &[
    works(
        "maxconns_fast",
        Nothing,
        "on",
        "close connections above -c with an error at once",
        |partial, _| set(&mut partial.serve.maxconns_fast, true),
    ),
    no_meaning(
        "no_maxconns_fast",
        Nothing,
        "off",
        "connections above -c always get an error and are closed",
        |partial, _| set(&mut partial.serve.maxconns_fast, false),
    ),
    works(
        "idle_timeout",
        Integer("seconds", 0, U32_MAX),
        "0, never",
        "close connections that are idle for this time",
        |partial, given| set(&mut partial.serve.idle_timeout_s, given.integer()),
    ),
    works(
        "track_sizes",
        Nothing,
        "off",
        "\"stats sizes\" counts the sizes of items when a client asks",
        |partial, _| set(&mut partial.serve.track_sizes, true),
    ),
    works("modern", Nothing, "on", "the default", nothing),
    works(
        "relaxed_privileges",
        Nothing,
        "off",
        "accepted for memcached's tests; does nothing",
        nothing,
    ),
    works("no_drop_privileges", Nothing, "on", "no system call filter", nothing),
    refused(
        "drop_privileges",
        Nothing,
        "the system call filter is not built yet; the server would run without it",
    ),
    // The hash table.
    no_meaning(
        "hashpower",
        Integer("num", 12, 32),
        "0",
        "the table grows and shrinks automatically",
        |partial, given| set(&mut partial.serve.echo.hashpower, given.integer()),
    ),
    no_meaning(
        "no_hashexpand",
        Nothing,
        "off",
        "the table grows and shrinks automatically",
        nothing,
    ),
    no_meaning(
        "hash_algorithm",
        Word(&["jenkins", "murmur3", "xxh3"]),
        "murmur3",
        "keys are hashed with a secret",
        hash_algorithm,
    ),
    // Slabs.
    no_meaning("slab_reassign", Nothing, "on", NO_SLABS, |partial, _| {
        set(&mut partial.serve.echo.slab_reassign, true)
    }),
    no_meaning("no_slab_reassign", Nothing, "off", NO_SLABS, |partial, _| {
        set(&mut partial.serve.echo.slab_reassign, false)
    }),
    no_meaning(
        "slab_automove",
        OptionalInteger("num", 0, 2, 1),
        "1",
        NO_SLABS,
        |partial, given| set(&mut partial.serve.echo.slab_automove, given.integer()),
    ),
    no_meaning("no_slab_automove", Nothing, "off", NO_SLABS, |partial, _| {
        set(&mut partial.serve.echo.slab_automove, 0)
    }),
    no_meaning("slab_automove_ratio", Real("num", 0.0, 1.0), "0.8", NO_SLABS, |partial, given| {
        set(&mut partial.serve.echo.slab_automove_ratio, given.real())
    }),
    no_meaning(
        "slab_automove_window",
        Integer("num", 3, 1800),
        "10",
        NO_SLABS,
        |partial, given| set(&mut partial.serve.echo.slab_automove_window, given.integer()),
    ),
    no_meaning("slab_automove_freeratio", Real("num", 0.0, 1.0), "0.01", NO_SLABS, nothing),
    no_meaning("slab_sizes", Text("list"), "", NO_SLABS, nothing),
    works(
        "slab_chunk_max",
        Integer("kilobytes", 1, 1024),
        "512",
        "longest size class of \"stats items\" and \"stats slabs\"",
        |partial, given| {
            partial.has_slab_chunk_max = true;
            set(&mut partial.serve.echo.slab_chunk_bytes_max, given.integer::<u32>() << 10)
        },
    ),
    no_meaning("no_chunked_items", Nothing, "off", NO_SLABS, |partial, _| {
        set(&mut partial.serve.echo.slab_chunk_bytes_max, SLAB_PAGE_BYTES)
    }),
    no_meaning(
        "tail_repair_time",
        Integer("seconds", 10, U32_MAX),
        "0",
        NO_LRU,
        |partial, given| set(&mut partial.serve.echo.tail_repair_time, given.integer()),
    ),
    // LRU.
    works("lru_crawler", Nothing, "on", "answer \"lru_crawler\" with crawls and dumps", {
        |partial, _| set(&mut partial.serve.echo.lru_crawler, true)
    }),
    works(
        "no_lru_crawler",
        Nothing,
        "off",
        "refuse crawls and dumps until \"lru_crawler enable\"",
        |partial, _| set(&mut partial.serve.echo.lru_crawler, false),
    ),
    no_meaning(
        "lru_crawler_sleep",
        Integer("microseconds", 0, 1_000_000),
        "100",
        NO_LRU,
        |partial, given| set(&mut partial.serve.echo.lru_crawler_sleep, given.integer()),
    ),
    no_meaning("lru_crawler_tocrawl", Integer("num", 0, U32_MAX), "0", NO_LRU, |partial, given| {
        set(&mut partial.serve.echo.lru_crawler_tocrawl, given.integer())
    }),
    no_meaning("lru_maintainer", Nothing, "on", NO_LRU, |partial, _| {
        set(&mut partial.serve.echo.lru_maintainer, true)
    }),
    no_meaning("no_lru_maintainer", Nothing, "off", NO_LRU, |partial, _| {
        set(&mut partial.serve.echo.lru_maintainer, false)
    }),
    no_meaning("hot_lru_pct", Integer("num", 1, 79), "20", NO_LRU, |partial, given| {
        set(&mut partial.serve.echo.hot_lru_pct, given.integer())
    }),
    no_meaning("warm_lru_pct", Integer("num", 1, 79), "40", NO_LRU, |partial, given| {
        set(&mut partial.serve.echo.warm_lru_pct, given.integer())
    }),
    no_meaning("hot_max_factor", Real("num", 0.0, f64::MAX), "0.2", NO_LRU, |partial, given| {
        set(&mut partial.serve.echo.hot_max_factor, given.real())
    }),
    no_meaning("warm_max_factor", Real("num", 0.0, f64::MAX), "2", NO_LRU, |partial, given| {
        set(&mut partial.serve.echo.warm_max_factor, given.real())
    }),
    no_meaning(
        "temporary_ttl",
        Integer("seconds", 0, U32_MAX),
        "61, off",
        "items with a short TTL always have their own segments",
        |partial, given| set(&mut partial.serve.echo.temporary_ttl, Some(given.integer())),
    ),
    no_meaning("no_modern", Nothing, "off", "no slabs, no LRU lists", no_modern),
    // Buffers.
    works(
        "watcher_logbuf_size",
        Integer("kilobytes", 0, SIZE_MAX),
        "256",
        "lines that may wait for each client of \"watch\", counted as memory of -m",
        |partial, given| {
            set(&mut partial.serve.echo.watcher_logbuf_bytes, given.integer::<u64>() << 10)
        },
    ),
    works(
        "worker_logbuf_size",
        Integer("kilobytes", 0, SIZE_MAX),
        "64",
        "lines of \"watch\" that each thread may keep until it hands them on",
        |partial, given| {
            set(&mut partial.serve.echo.worker_logbuf_bytes, given.integer::<u64>() << 10)
        },
    ),
    no_meaning(
        "read_buf_mem_limit",
        Integer("megabytes", 0, SIZE_MAX),
        "0",
        "each connection has 32 KiB for requests and 32 KiB for replies; more counts against -m",
        |partial, given| {
            set(&mut partial.serve.echo.read_buf_bytes_max, given.integer::<u64>() << 20)
        },
    ),
    no_meaning(
        "resp_obj_mem_limit",
        Text("megabytes"),
        "",
        "each connection has 32 KiB for requests and 32 KiB for replies; more counts against -m",
        nothing,
    ),
    no_meaning("inline_ascii_resp", Nothing, "", "no effect in memcached, too", nothing),
    no_meaning("no_inline_ascii_resp", Nothing, "", "no effect in memcached, too", nothing),
    no_meaning("sock_cookie_id", Text("num"), "", "sockets are not marked", nothing),
    // The second tier.
    refused(
        "ext_path",
        Text("file:size"),
        "a second tier on disk is not built yet; its space would be missing",
    ),
    no_meaning("ext_page_size", Text("num"), "64", NO_FLASH, nothing),
    no_meaning("ext_wbuf_size", Text("num"), "4", NO_FLASH, nothing),
    no_meaning("ext_threads", Text("num"), "1", NO_FLASH, nothing),
    no_meaning("ext_io_depth", Text("num"), "1", NO_FLASH, nothing),
    no_meaning("ext_item_size", Text("num"), "512", NO_FLASH, nothing),
    no_meaning("ext_item_age", Text("num"), "", NO_FLASH, nothing),
    no_meaning("ext_low_ttl", Text("num"), "0", NO_FLASH, nothing),
    no_meaning("ext_recache_rate", Text("num"), "2000", NO_FLASH, nothing),
    no_meaning("ext_compact_under", Text("num"), "", NO_FLASH, nothing),
    no_meaning("ext_drop_under", Text("num"), "", NO_FLASH, nothing),
    no_meaning("ext_max_sleep", Text("num"), "1000000", NO_FLASH, nothing),
    no_meaning("ext_max_frag", Text("num"), "0.8", NO_FLASH, nothing),
    no_meaning("ext_drop_unread", Nothing, "off", NO_FLASH, nothing),
    // TLS (`tls_rows.rs` has the others) and the proxy.
    refused("ssl_kernel_tls", Nothing, NO_KERNEL_TLS),
    refused("proxy_config", Text("file"), NO_PROXY),
    refused("proxy_arg", Text("text"), NO_PROXY),
    refused("proxy_uring", Nothing, NO_PROXY),
    refused("proxy_memprofile", Nothing, NO_PROXY),
];

fn hash_algorithm(partial: &mut PartialOptions, given: Given<'_>) -> Result<(), OptionsError> {
    set(
        &mut partial.serve.echo.hash_algorithm,
        match given.text() {
            "jenkins" => "jenkins",
            "xxh3" => "xxh3",
            _ => "murmur3",
        },
    )
}

/// The defaults of memcached 1.4, as far as `stats settings` reports them.
fn no_modern(partial: &mut PartialOptions, _: Given<'_>) -> Result<(), OptionsError> {
    let echo = &mut partial.serve.echo;
    if !partial.has_slab_chunk_max {
        echo.slab_chunk_bytes_max = SLAB_PAGE_BYTES;
    }
    echo.slab_reassign = false;
    echo.slab_automove = 0;
    echo.lru_crawler = false;
    echo.lru_maintainer = false;
    echo.hash_algorithm = "jenkins";
    set(&mut partial.serve.maxconns_fast, false)
}
