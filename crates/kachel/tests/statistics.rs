//! `stats` and its topics, as the tools that read them need them.
//!
//! The names are those of memcached 1.6.45, in its order. The rules of `is_readable` are those of
//! the Prometheus exporter for memcached: it reports a server that breaks one of them as down.

use std::collections::HashSet;
use std::path::Path;

use kachel_testkit::{Client, Launch, Server, wait_until};

/// The numbers that memcached tells with every build, in its order.
const GENERAL: &str = "pid uptime time pointer_size max_connections curr_connections \
    total_connections rejected_connections connection_structures response_obj_oom \
    response_obj_count response_obj_bytes read_buf_count read_buf_bytes read_buf_bytes_free \
    read_buf_oom reserved_fds cmd_get cmd_set cmd_flush cmd_touch cmd_meta get_hits get_misses \
    get_expired get_flushed delete_misses delete_hits incr_misses incr_hits decr_misses decr_hits \
    cas_misses cas_hits cas_badval touch_hits touch_misses store_too_large store_no_memory \
    auth_cmds auth_errors idle_kicks bytes_read bytes_written limit_maxbytes accepting_conns \
    listen_disabled_num time_in_listen_disabled_us threads conn_yields hash_power_level \
    hash_bytes hash_is_expanding slab_reassign_rescues slab_reassign_chunk_rescues \
    slab_reassign_inline_reclaim slab_reassign_busy_items slab_reassign_busy_deletes \
    slab_reassign_busy_nomem slab_reassign_running slabs_moved lru_crawler_running \
    lru_crawler_starts lru_maintainer_juggles malloc_fails log_worker_dropped log_worker_written \
    log_watcher_skipped log_watcher_sent log_watchers unexpected_napi_ids round_robin_fallback \
    bytes curr_items total_items slab_global_page_pool expired_unfetched evicted_unfetched \
    evicted_active evictions reclaimed crawler_reclaimed crawler_items_checked lrutail_reflocked \
    moves_to_cold moves_to_warm moves_within_lru direct_reclaims lru_bumps_dropped";
/// What `stats items` tells of each class.
const ITEMS: &str = "number number_hot number_warm number_cold age_hot age_warm age \
    mem_requested evicted evicted_nonzero evicted_time outofmemory tailrepairs reclaimed \
    expired_unfetched evicted_unfetched evicted_active crawler_reclaimed crawler_items_checked \
    lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims hits_to_hot \
    hits_to_warm hits_to_cold hits_to_temp";
/// What `stats slabs` tells of each class.
const SLABS: &str = "chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks \
    free_chunks_end get_hits cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval \
    touch_hits";

fn server_program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

/// A request of the binary protocol, without key and value.
fn binary(opcode: u8) -> Vec<u8> {
    let mut request = vec![0; 24];
    (request[0], request[1]) = (0x80, opcode);
    request
}

fn start(options: &[&str]) -> Server {
    Launch::memcached(server_program(), options).start()
}

/// The names and values of a topic.
fn stats(client: &mut Client, topic: &str) -> Vec<(String, String)> {
    let told = client.ask(format!("stats{topic}\r\n"), "END\r\n");
    let lines = told.strip_suffix("END\r\n").expect("it ends").lines();
    let pair = |line: &str| {
        let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
        (!value.is_empty()).then(|| (name.to_string(), value.to_string()))
    };
    lines.map(|line| pair(line).unwrap_or_else(|| panic!("{topic}: {line}"))).collect()
}

fn value<'s>(stats: &'s [(String, String)], name: &str) -> &'s str {
    let found = stats.iter().find(|(there, _)| there == name);
    &found.unwrap_or_else(|| panic!("{name} is not there")).1
}

fn number(stats: &[(String, String)], name: &str) -> u64 {
    value(stats, name).parse().unwrap_or_else(|_| panic!("{name} is no number"))
}

/// The classes that a topic names.
fn classes(stats: &[(String, String)], prefix: &str) -> Vec<String> {
    let names = stats.iter().filter_map(|(name, _)| name.strip_prefix(prefix));
    let mut classes: Vec<String> =
        names.filter_map(|name| Some(name.split_once(':')?.0.to_string())).collect();
    classes.dedup();
    classes
}

/// Checks the rules without which the exporter calls a server down.
fn is_readable(client: &mut Client) {
    let general = stats(client, "");
    for name in ["cmd_set", "cas_hits", "cas_misses", "cas_badval"] {
        number(&general, name);
    }
    for (topic, prefix) in [(" slabs", ""), (" items", "items:")] {
        let told = stats(client, topic);
        for class in classes(&told, prefix) {
            assert!(class.parse::<u8>().is_ok_and(|class| (1..64).contains(&class)), "{class}");
        }
        for (name, value) in &told {
            assert!(value.parse::<u64>().is_ok(), "{name}: {value}");
        }
    }
    let slabs = stats(client, " slabs");
    for class in classes(&slabs, "") {
        for name in ["cmd_set", "cas_hits", "cas_badval"] {
            number(&slabs, &format!("{class}:{name}"));
        }
    }
    number(&slabs, "total_malloced");
    for (name, value) in stats(client, " settings") {
        assert!(!value.contains(' '), "{name}: {value}");
    }
}

#[test]
fn all_names_of_memcached_are_there_in_its_order_and_are_numbers() {
    let server = start(&["-t", "2"]);
    let mut client = server.connect();
    let general = stats(&mut client, "");
    let names: HashSet<&str> = GENERAL.split_whitespace().collect();
    let told = general.iter().map(|(name, _)| name.as_str()).filter(|name| names.contains(name));
    assert_eq!(told.collect::<Vec<_>>().join(" "), GENERAL.replace("  ", ""));
    for name in names {
        number(&general, name);
    }
    let distinct: HashSet<&String> = general.iter().map(|(name, _)| name).collect();
    assert_eq!(distinct.len(), general.len(), "no name stands twice");
    assert_eq!(value(&general, "version"), "1.6.45");
    for name in ["rusage_user", "rusage_system"] {
        let (seconds, us) = value(&general, name).split_once('.').expect("a fraction");
        assert!(us.len() == 6 && seconds.parse::<u64>().is_ok(), "{name}");
    }
    client.set("key", b"value");
    for (topic, prefix, names) in [(" items", "items:1:", ITEMS), (" slabs", "1:", SLABS)] {
        let told = stats(&mut client, topic);
        let told = told.iter().filter_map(|(name, _)| name.strip_prefix(prefix));
        assert_eq!(told.collect::<Vec<_>>().join(" "), names, "{topic}");
    }
}

/// Some programs read 4,096 bytes of `stats`, so it has one name that memcached does not have, at
/// its end. `stats kachel` has the others.
#[test]
fn stats_has_the_names_of_memcached_and_fits_into_4096_bytes() {
    /// Digits of a number: a counter that rises by a million a second has 15 after 30 years.
    const DIGITS: usize = 15;
    let server = start(&["-t", "2", "-U", "0"]);
    let mut client = server.connect();
    let mut general = stats(&mut client, "");
    assert_eq!(general.pop().expect("a last one").0, "kachel_version");
    let texts =
        ["version", "libevent", "rusage_user", "rusage_system", "slab_reassign_last_busy_status"];
    let mut expected: Vec<&str> = GENERAL.split_whitespace().chain(texts).collect();
    let mut told: Vec<&str> = general.iter().map(|(name, _)| name.as_str()).collect();
    expected.sort_unstable();
    told.sort_unstable();
    told.retain(|name| !name.starts_with("ssl_") && *name != "time_since_server_cert_refresh");
    assert_eq!(told, expected);
    let bytes: usize = general
        .iter()
        .map(|(name, value)| format!("STAT {name} \r\n").len() + value.len().max(DIGITS))
        .sum();
    assert!(bytes + "STAT kachel_version 0.0.0\r\nEND\r\n".len() <= 4_096, "{bytes} bytes");
    let own = stats(&mut client, " kachel");
    assert!(own.len() > 30 && own.iter().all(|(name, _)| name.starts_with("kachel_")), "{own:?}");
    let distinct: HashSet<&String> = own.iter().map(|(name, _)| name).collect();
    assert_eq!(distinct.len(), own.len(), "no name stands twice");
    assert_eq!(client.ask("stats kache\r\n", "\r\n"), "ERROR\r\n");
}

#[test]
fn an_exporter_reads_an_empty_server_and_a_full_one() {
    for options in [&["-t", "1"][..], &["-t", "3"], &["-t", "3", "--reads=erew"]] {
        let options = [options, &["-m", "16"]].concat();
        let server = start(&options);
        let mut client = server.connect();
        is_readable(&mut client);
        for key in 0..4_000 {
            client.set(&format!("key{key}"), &vec![b'v'; key % 9_000]);
        }
        is_readable(&mut client);
        client.ask("stats reset\r\n", "RESET\r\n");
        is_readable(&mut client);
    }
}

#[test]
fn items_are_where_they_were_stored() {
    for reads in ["--reads=crew", "--reads=erew"] {
        let server = start(&["-t", "3", reads, "-f", "2", "-n", "48"]);
        let mut client = server.connect();
        for key in 0..1_000 {
            client.set(&format!("{key:06}"), &vec![b'v'; if key < 600 { 20 } else { 1_000 }]);
        }
        // 96, 192, 384, 768, 1536: what `-f 2` makes of the classes.
        let items = stats(&mut client, " items");
        assert_eq!(classes(&items, "items:"), ["1", "5"]);
        assert_eq!(number(&items, "items:1:number"), 600, "{reads}");
        assert_eq!(number(&items, "items:5:number"), 400, "{reads}");
        let bytes = number(&stats(&mut client, ""), "bytes");
        let of = |class: u32| number(&items, &format!("items:{class}:mem_requested"));
        assert_eq!(of(1) + of(5), bytes, "{reads}");
        assert!((600 * 26..600 * 96).contains(&of(1)), "{}", of(1));
        assert!((400 * 1_006..400 * 1_536).contains(&of(5)), "{}", of(5));
        let slabs = stats(&mut client, " slabs");
        for (name, count) in [
            ("1:chunk_size", 96),
            ("1:used_chunks", 600),
            ("1:chunks_per_page", 10_922),
            ("1:free_chunks", 10_322),
            ("5:chunk_size", 1_536),
            ("5:used_chunks", 400),
            ("1:cmd_set", 600),
            ("5:cmd_set", 400),
            ("active_slabs", 2),
        ] {
            assert_eq!(number(&slabs, name), count, "{name}, {reads}");
        }
    }
}

#[test]
fn the_settings_follow_what_commands_change() {
    let server = start(&["-m", "64"]);
    let mut client = server.connect();
    assert_eq!(number(&stats(&mut client, " settings"), "maxbytes"), 64 << 20);
    assert_eq!(client.ask("cache_memlimit 32\r\n", "\n"), "OK\r\n");
    assert_eq!(number(&stats(&mut client, " settings"), "maxbytes"), 32 << 20);
    assert_eq!(number(&stats(&mut client, ""), "limit_maxbytes"), 32 << 20);
    for (switch, told) in [("on", "yes"), ("off", "no")] {
        assert_eq!(
            value(&stats(&mut client, " settings"), "detail_enabled") == "yes",
            told == "no"
        );
        assert_eq!(client.ask(format!("stats detail {switch}\r\n"), "\n"), "OK\r\n");
        assert_eq!(value(&stats(&mut client, " settings"), "detail_enabled"), told);
    }
    let server = start(&["-o", "no_lru_crawler"]);
    let mut client = server.connect();
    assert_eq!(value(&stats(&mut client, " settings"), "lru_crawler"), "no");
    let refused = client.ask("lru_crawler metadump all\r\n", "\n");
    assert_eq!(refused, "CLIENT_ERROR lru crawler disabled\r\n");
    assert_eq!(client.ask("lru_crawler enable\r\n", "\n"), "OK\r\n");
    assert_eq!(value(&stats(&mut client, " settings"), "lru_crawler"), "yes");
}

#[test]
fn prefixes_are_counted_from_the_start_with_a_delimiter_of_ones_own() {
    let server = start(&["-t", "2", "-D", "/"]);
    let mut client = server.connect();
    client.set("a/b", b"value");
    client.set("a:b", b"value");
    let told = client.ask("stats detail dump\r\n", "END\r\n");
    assert_eq!(told, "PREFIX a get 0 hit 0 set 1 del 0\r\nEND\r\n");
}

#[test]
fn connections_are_told_with_their_addresses() {
    let server = start(&["-t", "3"]);
    let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.ask("version\r\n", "\n");
    }
    let told = stats(&mut clients[0], " conns");
    let addresses = told.iter().filter(|(name, _)| name.ends_with(":addr"));
    let listener = format!("tcp:127.0.0.1:{}", server.port());
    let addresses = addresses.filter(|(_, value)| *value != listener);
    let states = told.iter().filter(|(name, _)| name.ends_with(":state"));
    assert_eq!(states.filter(|(_, state)| state == "conn_listening").count(), 1, "{told:?}");
    assert_eq!(addresses.clone().count(), 6, "{told:?}");
    for (name, value) in addresses {
        assert!(name.split_once(':').is_some_and(|(fd, _)| fd.parse::<u32>().is_ok()), "{name}");
        assert!(value.starts_with("tcp:127.0.0.1:"), "{value}");
    }
    let listeners = told.iter().filter(|(name, _)| name.ends_with(":listen_addr"));
    assert_eq!(listeners.filter(|(_, value)| *value == listener).count(), 6, "{told:?}");
    let launch = Launch { unix: true, ..Launch::memcached(server_program(), &[]) };
    let server = launch.start();
    let told = stats(&mut server.connect(), " conns");
    let addresses = told.iter().filter(|(name, _)| name.ends_with(":addr"));
    assert!(addresses.clone().all(|(_, value)| value.starts_with("unix:/")), "{told:?}");
    assert!(addresses.count() >= 1, "{told:?}");
}

/// memcached 1.6.45 counts a refused `flush_all` in the text protocol only.
#[test]
fn a_refused_flush_counts_in_the_text_protocol() {
    let server = start(&["-F"]);
    let mut client = server.connect();
    let refused = client.ask("flush_all\r\n", "\r\n");
    assert_eq!(refused, "CLIENT_ERROR flush_all not allowed\r\n");
    let mut other = server.connect();
    other.send(binary(0x08));
    other.send(binary(0x0a)); // A no-op, whose reply comes last.
    let mut last = vec![0x81, 0x0a];
    last.resize(24, 0);
    let replies = other.read_until(&last);
    assert_eq!((replies[0], replies[1], replies[7]), (0x81, 0x08, 0x20), "{replies:?}");
    assert_eq!(number(&stats(&mut client, ""), "cmd_flush"), 1);
}

/// A health check that resets its connection at once is a connection, as in memcached.
#[test]
fn connections_that_are_reset_at_once_are_counted() {
    const CHECKS: u64 = 50;
    let server = start(&["-t", "2"]);
    let mut client = server.connect();
    let before = number(&stats(&mut client, ""), "total_connections");
    (0..CHECKS).for_each(|_| server.connect().reset());
    let mut counted = || number(&stats(&mut client, ""), "total_connections") - before;
    wait_until("all of them to be counted", || counted() >= CHECKS);
    assert_eq!(counted(), CHECKS, "each once");
}
