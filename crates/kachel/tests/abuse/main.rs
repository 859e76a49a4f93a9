//! Abuse: misbehaving clients and scarce resources, and their cost for the server.
//!
//! Each case starts servers of its own, with the I/O backends and transports that matter to it.
//! Without `KACHEL_FULL=1`, a case for every backend and transport meets each once, not each pair.
//! Cases that wait for a deadline run concurrently in the background. Cases that need the processor
//! run two at a time. With `KACHEL_FULL=1`, which judges times, they run one after another, and
//! the cases that mostly wait run together at the end. The first test runs all cases, and each test
//! then judges its own. Expected and observed behavior are printed and written to
//! `target/abuse.md`, for a release build to `target/abuse_release.md`.
//!
//! `cargo test -p kachel --test abuse x05` runs one case alone, against a debug build;
//! `tests/abuse/run x05` against a release build.
//!
//! - A1  Times, rates, ratios of times and shares of a processor are judged only with
//!   `KACHEL_FULL=1`, on an idle machine, and X24 only against a release build. Otherwise a
//!   deadline is judged only as a lower bound that the server's clock guarantees, and by hang
//!   limits of ten times the expected time.
//!
//! `ELSEWHERE` lists the cases of X01 to X25 that do not run here, with the reason.

mod crowds;
mod deadlines;
mod endings;
mod machine;
mod memory;
mod subject;
mod suite;
mod turns;
mod unread;
mod vanishing;

use suite::{Case, DOORS, EPOLL, EVERY_WAY, Kind, TCP};

/// Cases without a row of their own.
const ELSEWHERE: [(&str, &str); 6] = [
    (
        "X09",
        "by io_uring: crates/io/tests/shortage.rs; an armed accept keeps the limit of its arming",
    ),
    ("X11", "resets within TLS: `resets_leave_nothing_behind` of the suite `tls`"),
    (
        "X15",
        "pools: crates/shard/tests/server/clocks.rs refuses memory from any moment on; arenas: below",
    ),
    ("X16", "a disk that takes no memory file: `crates/kachel/tests/restart.rs`"),
    ("X17", "a memory file that does not fit: `crates/kachel/tests/restart.rs`"),
    (
        "X18",
        "clocks set to 1970, by an hour, ten years, past 2038 and 2106; sleeps: \
         crates/shard/tests/server/clocks.rs; the simulation's clock jumps, too",
    ),
];

/// Makes the table, and a test for each row of it.
macro_rules! cases {
    ($($id:literal $test:ident $kind:ident $doors:ident $run:path, $asked:literal;)*) => {
        const CASES: &[Case] = &[$(Case {
            id: $id,
            test: stringify!($test),
            kind: Kind::$kind,
            doors: $doors,
            run: $run,
            asked: $asked,
        }),*];
        $(#[test] fn $test() { suite::judge(CASES, &ELSEWHERE, stringify!($test)); })*
    };
}

cases! {
    "X01" x01_a_peer_that_vanished_is_noticed Waits TCP vanishing::peer_gone,
        "keepalive on accepted sockets; a vanished peer is gone within 60 s";
    "X02" x02_a_slow_line_ends_after_ten_seconds Waits EVERY_WAY deadlines::slow_lines,
        "a line has 10 s, a data block 10 s and its size at 64 KiB/s, not reset by single bytes";
    "X03" x03_single_bytes_are_put_together Works EVERY_WAY turns::single_bytes,
        "valid commands in one-byte writes: all answered";
    "X04" x04_who_stops_sending_is_still_answered Works EVERY_WAY turns::half_close,
        "half-close after pipelining: all answered, then the end";
    "X05" x05_a_flood_that_is_never_read_costs_64_kib Works EVERY_WAY unread::flood,
        "at most 64 KiB a client, beyond the reply under way; others' p99 at most twice that beside \
         floods of another server, once they stand";
    "X06" x06_who_does_not_read_is_dropped_after_a_minute Waits EVERY_WAY deadlines::slow_reader,
        "flood, read 1 byte a second: dropped after 60 s without progress";
    "X07" x07_a_huge_multiget_that_is_not_read_costs_little Works EVERY_WAY unread::multiget,
        "10,000 keys of 100 KB: at most 1 MiB more memory; storing goes on";
    "X08" x08_the_connection_limit_is_exact Works EVERY_WAY crowds::limit,
        "refused in words beyond -c and not before; the others are served; room is used again";
    "X09" x09_no_descriptors_left_is_no_busy_loop Works EPOLL machine::no_descriptors,
        "at most 5 % processor time while descriptors lack; accepts within 100 ms afterwards, in \
         the best of three rounds";
    "X10" x10_connecting_and_closing_leaves_nothing Works DOORS crowds::come_and_go,
        "10,000 times (50,000 with KACHEL_FULL=1): open files return, resident memory grows by at most \
         1 % or ten bytes a time";
    "X11" x11_a_reset_leaves_nothing_half_done Rests EVERY_WAY endings::resets,
        "reset in a request, an upload, a reply: nothing leaks, nothing is stored in part";
    "X12" x12_without_evictions_full_is_an_error Works DOORS memory::full,
        "-M: out of memory storing object; reads go on, deleting makes room";
    "X13" x13_memory_pinned_by_slow_readers_is_no_deadlock Works EVERY_WAY memory::pinned,
        "fails in words for seconds at most, then all sets are stored; who reads fairly goes on";
    "X14" x14_a_memory_group_is_not_exceeded Works DOORS machine::memory_group,
        "never killed in a group of -m + 25 % + 64 MiB";
    "X15" x15_address_space_that_lacks_is_an_error Works DOORS machine::no_address_space,
        "each limit on address space: it serves, or says why not";
    "X19" x19_a_stopped_process_catches_up Waits DOORS deadlines::stopped,
        "SIGSTOP, SIGCONT: what expired meanwhile is gone, no storm of timers";
    "X20" x20_killed_in_a_write_it_starts_again Works EVERY_WAY endings::killed,
        "killed in the middle of a write: clients see the end; it starts again at the same place";
    "X21" x21_sigterm_under_load_ends_in_time Rests EVERY_WAY endings::terminated,
        "refuses clients at once, so that another may listen in its place; drains for 5 s at most \
         (seen to be over within 7), status 0; a second signal forces the end";
    "X22" x22_storms_of_signals_change_nothing Works DOORS machine::signals,
        "SIGHUP and SIGPIPE, 10,000 of each: served on; SIGUSR1 ends it in order, as memcached";
    "X23" x23_no_client_of_a_hot_key_starves Works DOORS crowds::hot_key,
        "1,000 clients, one key: the slowest gets at least half of the median, in the middle round";
    "X24" x24_a_writer_of_large_values_lets_others_through Works DOORS turns::large_writer,
        "small reads' p99 at most three times that beside a writer to another server, interleaved";
    "X25" x25_memory_follows_the_sizes_of_values Works EPOLL memory::sizes_shift,
        "fill with 100 B, then 10 KB: at least 90 % of -m is values within 60 s; the promise holds";
    "idle" idle_connections_cost_at_most_one_kib Works EVERY_WAY crowds::idle,
        "10,000 idle connections: at most 1 KiB of resident memory each";
}
