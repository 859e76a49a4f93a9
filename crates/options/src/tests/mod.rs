//! The meaning of the command line, one test for each rule of memcached.

mod admin;
mod file;
mod udp;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::row::{Class, Takes};
use crate::suboptions::suboptions;
use crate::table::OPTIONS;
use crate::{
    Command, EngineMode, HAS_TLS, Host, IpListen, ListenTls, Listeners, OptionsError, Protocol,
    ServeOptions, TlsOptions, example_file, manual, parse,
};

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn parse_as(program: &str, args: &[&str]) -> Result<Command, OptionsError> {
    parse(words(args), OsStr::new(program))
}

/// Options of `memcached args`.
fn memcached(args: &[&str]) -> ServeOptions {
    match parse_as("/usr/bin/memcached", args) {
        Ok(Command::Serve(options)) => *options,
        other => panic!("{args:?} starts no server: {other:?}"),
    }
}

fn refusal(args: &[&str]) -> OptionsError {
    parse_as("memcached", args).expect_err("an error")
}

fn kachel(args: &[&str]) -> ServeOptions {
    let args: Vec<&str> = std::iter::once("serve").chain(args.iter().copied()).collect();
    match parse_as("kachel", &args) {
        Ok(Command::Serve(options)) => *options,
        other => panic!("{args:?} starts no server: {other:?}"),
    }
}

fn named(host: &str, port: u16) -> IpListen {
    let (host, protocol) = (Host::Named(host.into()), Protocol::Auto);
    IpListen { host, port, protocol, tls: ListenTls::Off }
}

#[test]
fn a_value_may_stand_apart_attached_or_after_blanks_in_one_word() {
    for args in [
        &["-m", "8192"][..],
        &["-m8192"],
        &["-m 8192"],
        &["-m", " 8192 "],
        &["--memory-limit=8192"],
        &["--memory-limit", "8192"],
        &["--memory-l=8192"],
        &["-m", "1", "-m", "8192"],
        &["-vm8192"],
    ] {
        assert_eq!(memcached(args).memory_bytes, 8192 << 20, "{args:?}");
    }
}

#[test]
fn a_beginning_that_is_unique_to_memcached_stays_so() {
    assert_eq!(memcached(&["--pi", "/r/p"]).pidfile, Some(PathBuf::from("/r/p")));
    let options = memcached(&["--memory-f", "/r/i"]);
    assert!(options.settings(1).contains(&("memory_file".into(), "/r/i".into())));
    assert_eq!(memcached(&["--pin", "7"]).pinned_percent, 7);
    assert!(refusal(&["--p", "7"]).message.contains("ambiguous"));
}

#[test]
fn flags_may_be_bundled_and_repeated() {
    let options = memcached(&["-dvvM", "-v"]);
    assert!(options.daemon && !options.evict);
    assert_eq!(options.verbosity, 3);
    assert_eq!(memcached(&["--verbose=3"]).verbosity, 1, "as memcached reads it");
}

#[test]
fn words_after_two_dashes_and_between_options_are_passed_over() {
    let options = memcached(&["one", "-t", "3", "--", "-t", "5"]);
    assert_eq!(options.threads, Some(3));
    assert_eq!(options.reports.len(), 3, "{:?}", options.reports);
}

#[test]
fn a_word_without_its_dash_is_an_error_at_kachel_serve() {
    let error = parse_as("kachel", &["serve", "port", "5"]).expect_err("no option");
    assert_eq!(error.exit_code, 64);
}

#[test]
fn numbers_are_read_as_far_as_they_are_digits_and_the_rest_is_reported() {
    let options = memcached(&["-m", "64MB"]);
    assert_eq!(options.memory_bytes, 64 << 20);
    assert_eq!(options.reports, ["-m 64MB: read as 64"]);
    assert_eq!(refusal(&["-m", "lots"]).exit_code, 1);
    assert_eq!(refusal(&["-t", "99999999999999999999"]).exit_code, 1);
}

#[test]
fn an_unknown_option_is_answered_as_memcached_does() {
    for (args, line) in [
        (&["-q"][..], "memcached: invalid option -- 'q'"),
        (&["-vq"], "memcached: invalid option -- 'q'"),
        (&["--bogus=3"], "memcached: unrecognized option '--bogus'"),
        (&["-p"], "memcached: option requires an argument -- 'p'"),
        (&["--port"], "memcached: option '--port' requires an argument"),
        (&["--daemon=3"], "memcached: option '--daemon' doesn't allow an argument"),
        (
            &["--mem", "5"],
            "memcached: option '--mem' is ambiguous; possibilities: '--memory-limit' '--memory-file'",
        ),
    ] {
        let error = refusal(args);
        assert_eq!(error.message.lines().next(), Some(line));
        assert_eq!(error.message.lines().nth(1), Some("Illegal argument \"?\""));
        assert_eq!(error.exit_code, 1);
    }
    assert_eq!(refusal(&["-o", "modern,nope=3"]).message, "Illegal suboption \"nope=3\"");
}

#[test]
fn an_unknown_option_of_kachel_serve_names_kachel() {
    for (args, said) in [
        (&["serve", "-q"][..], "kachel serve: invalid option -- 'q'; -h lists the options."),
        (&["serve", "--foo"], "kachel serve: unrecognized option '--foo'; -h lists the options."),
        (
            &["serve", "-p"],
            "kachel serve: option requires an argument -- 'p'; -h lists the options.",
        ),
    ] {
        let error = parse_as("kachel", args).expect_err("it is refused");
        assert_eq!((error.message.as_str(), error.exit_code), (said, 64));
    }
}

#[test]
fn a_refusal_names_the_option_as_it_was_given() {
    for (args, begins) in [
        (&["-m", "x"][..], "-m x: must be a number"),
        (&["--memory-limit=x"], "--memory-limit=x: must be a number"),
        (&["--memory-l", "x"], "--memory-limit=x: must be a number"),
        (&["--max-item-size=10"], "--max-item-size=10: the largest item"),
        (&["-I", "10"], "-I 10: the largest item"),
        (&["--unix-mask=9"], "--unix-mask=9: the mask must be octal"),
        // The option that was given is to blame, not the default of the other one.
        (&["-m", "1"], "-m 1 (memory-limit): too little for items of 1048576 bytes"),
        (&["-I", "33m"], "-I (max-item-size): the largest item (34603008 bytes) must not"),
    ] {
        let error = refusal(args);
        assert!(error.message.starts_with(begins), "{args:?}: {error}");
    }
    assert!(refusal(&["-m", "1"]).message.contains("use at least -m 2"));
}

#[test]
fn an_answer_comes_before_a_mistake_that_stands_after_it() {
    assert!(matches!(parse_as("memcached", &["-V", "--bogus"]), Ok(Command::Version(_))));
    assert!(parse_as("memcached", &["--bogus", "-V"]).is_err());
}

#[test]
fn values_out_of_range_are_refused() {
    for args in [
        &["-c", "0"][..],
        &["-c", "-1"],
        &["-t", "0"],
        &["-t", "1025"],
        &["-R", "0"],
        &["-p", "65536"],
        &["-p", "-2"],
        &["-f", "1.0"],
        &["-B", "http"],
        &["-a", "999"],
        &["-o", "hashpower=11"],
        &["-o", "hashpower"],
        &["-o", "slab_automove=3"],
        &["-o", "hash_algorithm=md5"],
        &["-o", "temporary_ttl=61,no_lru_maintainer"],
        &["-o", "hot_lru_pct=50,warm_lru_pct=50"],
        &["-I", "1000"],
        &["-I", "256m"],
        &["-I", "2g", "-m", "9000"],
        &["-N", "5", "-t", "4"],
        &["-D", " "],
        &["--line-timeout=-1"],
        &["--line-timeout="],
        &["--block-timeout=soon"],
        &["--block-timeout", "4294967296"],
        &["--reader-timeout"],
        &["--pinned-percent=101"],
        &["-m", "1"],
        &["-l", ""],
    ] {
        let _refusal: OptionsError = refusal(args);
    }
}

#[test]
fn bad_values_end_the_program_with_the_codes_of_memcached() {
    for (args, code) in [
        (["-p", "70000"], 64),
        (["-U", "99999"], 64),
        (["-B", "http"], 64),
        (["-I", "10"], 64),
        (["-t", "0"], 1),
        (["-c", "0"], 1),
        (["-R", "0"], 1),
        (["-f", "1"], 1),
        (["-o", "nosuch"], 1),
        (["-o", "hashpower=99"], 1),
        (["-l", "127.0.0.1:x"], 71),
    ] {
        assert_eq!(refusal(&args).exit_code, code, "{args:?}");
    }
}

#[test]
fn port_0_means_no_tcp() {
    let udp_only = memcached(&["-p", "0", "-U", "11222", "-l", "127.0.0.1:11311,::1"]);
    assert!(udp_only.listeners.tcp.is_empty() && udp_only.reports.is_empty());
    let ports: Vec<u16> = udp_only.listeners.udp.iter().map(|listen| listen.port).collect();
    assert_eq!(ports, [11311, 11222]);
    let nothing = memcached(&["-p", "0", "-l", "127.0.0.1:11311"]);
    assert!(nothing.listeners.is_empty() && nothing.reports.len() == 1);
    let kachel = parse_as("kachel", &["serve", "-p", "0"]);
    assert_eq!(kachel.expect_err("there is nothing to listen on").exit_code, 64);
}

#[test]
fn the_item_limit_takes_units() {
    for (text, bytes) in [
        ("1024", 1024),
        ("512k", 512 << 10),
        ("2097152", 2 << 20),
        ("32m", 32 << 20),
        ("1g", 1 << 30),
    ] {
        assert_eq!(memcached(&["-m", "4096", "-I", text]).item_bytes_max, bytes);
    }
}

#[test]
fn what_protects_and_is_not_built_is_refused_in_words() {
    for args in [
        &["-Y", "file", "-B", "binary"][..],
        &["-Y", "file", "-l", "proto[binary]:127.0.0.1"],
        &["-S", "-B", "ascii"],
        &["-S", "-B", "auto"],
        &["-S", "-l", "proto[negotiating]:127.0.0.1"],
        &["-S", "-l", "proto[ascii]:127.0.0.1"],
        &["-S", "-Y", "file"],
        &["-Z"],
        &["-Y", "file", "-U", "11211"],
        &["-S", "-U", "11211"],
        &["-o", "ssl_kernel_tls"],
        &["-o", "proxy_config=file"],
        &["-o", "drop_privileges"],
        &["-o", "ext_path=/data/file:1G"],
        &["--engine=tree"],
        &["--engine=rocksdb"],
        &["--engine=rocksdb", "--data=folder", "-e", "file"],
        &["--engine=rocksdb", "--data=folder", "--pipe=lo", "-U", "11211"],
        &["--data=folder"],
        &["--engine=store", "--sync=always"],
        &["--rocksdb-options=file"],
    ] {
        let error = refusal(args);
        assert_eq!(error.exit_code, 64, "{error}");
        assert!(error.message.ends_with('.') && error.message.len() > 20, "{error}");
    }
    assert!(memcached(&["-U", "0"]).reports.is_empty());
}

#[test]
fn what_has_no_meaning_is_accepted_and_reported() {
    let options = memcached(&["-N", "2", "-o", "slab_automove,lru_crawler_sleep=7,modern"]);
    assert_eq!(
        options.reports[0],
        "-N 2: accepted, has no meaning here: connections are assigned to threads in another way",
        "{:?}",
        options.reports
    );
    assert_eq!(options.reports.len(), 3, "modern is no news: {:?}", options.reports);
    assert_eq!(options.echo.napi_ids, 2);
    assert_eq!(options.echo.lru_crawler_sleep, 7);
}

#[test]
fn extended_lists_take_effect_in_order() {
    let options = memcached(&["--extended=modern,track_sizes, idle_timeout=30 ,no_maxconns_fast"]);
    assert!(options.track_sizes && !options.maxconns_fast);
    assert_eq!(options.idle_timeout_s, 30);
    assert!(memcached(&["-o", "no_modern,maxconns_fast"]).maxconns_fast);
    for (list, kilobytes) in [
        ("modern", 512),
        ("no_modern", 1024),
        ("slab_chunk_max=16,no_modern", 16),
        ("no_modern,slab_chunk_max=16", 16),
    ] {
        let bytes = memcached(&["-o", list]).echo.slab_chunk_bytes_max;
        assert_eq!(bytes, kilobytes << 10, "{list}");
    }
}

#[test]
fn limits_of_slow_clients_are_seconds_and_percent_and_memcached_has_the_same_defaults() {
    let limits = |options: &ServeOptions| {
        let (line, block) = (options.line_timeout_s, options.block_timeout_s);
        [line, block, options.reader_timeout_s, options.pinned_percent]
    };
    assert_eq!(limits(&kachel(&[])), [10, 10, 60, 25]);
    assert_eq!(limits(&memcached(&[])), [10, 10, 60, 25]);
    let given = ["--line-timeout=3", "--block-timeout", "4", "--reader-t=5", "--pinned-percent=6"];
    assert_eq!(limits(&kachel(&given)), [3, 4, 5, 6]);
    let off = ["--line-timeout=0", "--block-timeout=0", "--reader-timeout=0", "--pinned-percent=0"];
    assert_eq!(limits(&memcached(&off)), [0; 4]);
    let settings = kachel(&given).settings(1);
    let said: Vec<String> = settings.iter().map(|(key, value)| format!("{key} {value}")).collect();
    for line in [
        "kachel_line_timeout 3",
        "kachel_block_timeout 4",
        "kachel_reader_timeout 5",
        "kachel_pinned_percent 6",
    ] {
        assert!(said.iter().any(|said| said == line), "{line}");
    }
    for (given, error) in [
        ("--line-timeout=-1", "--line-timeout=-1: must be 0 to 4294967295"),
        ("--pinned-percent=101", "--pinned-percent=101: must be 0 to 100"),
        ("--reader-timeout=x", "--reader-timeout=x: must be a number, 0 to 4294967295"),
    ] {
        assert_eq!(refusal(&[given]).message, error);
    }
}

#[test]
fn leases_have_three_options() {
    let leases = |options: &ServeOptions| {
        [options.lease_s, options.lease_stale_s, options.lease_stale_percent]
    };
    assert_eq!([leases(&kachel(&[])), leases(&memcached(&[]))], [[10, 60, 5]; 2]);
    let given = ["--lease-seconds=3", "--lease-stale-seconds", "4", "--lease-stale-percent=6"];
    assert_eq!(leases(&kachel(&given)), [3, 4, 6]);
    assert_eq!(leases(&kachel(&["--lease-stale-percent=0", "--lease-stale-s=0"])), [10, 0, 0]);
    let settings = kachel(&given).settings(1);
    for (key, value) in [
        ("kachel_lease_seconds", "3"),
        ("kachel_lease_stale_seconds", "4"),
        ("kachel_lease_stale_percent", "6"),
    ] {
        assert!(settings.iter().any(|said| *said == (key.to_owned(), value.to_owned())), "{key}");
    }
    let error = refusal(&["--lease-seconds=0"]).message;
    assert_eq!(error, "--lease-seconds=0: must be 1 to 2592000");
}

#[test]
fn the_name_decides_where_to_listen_and_whether_dumps_are_answered() {
    let (ours, theirs) = (kachel(&[]), memcached(&[]));
    assert_eq!(ours.listeners.tcp, [named("127.0.0.1", 11211)]);
    assert_eq!(theirs.listeners.tcp.len(), 1);
    assert_eq!(theirs.listeners.tcp[0].host, Host::Any);
    assert!(!ours.dumps_allowed && theirs.dumps_allowed);
    assert!(kachel(&["--dumps"]).dumps_allowed);
    assert!(!memcached(&["-X"]).dumps_allowed);
    assert!(matches!(parse_as("./memcached-debug", &[]), Ok(Command::Serve(_))));
}

#[test]
fn listeners_are_read_as_memcached_reads_them() {
    let tcp = |args: &[&str]| memcached(args).listeners.tcp;
    assert_eq!(
        tcp(&["-l", "127.0.0.1,[::1]:5;fe80::1", "-l", "localhost:-1", "-l127.0.0.1", "-p", "7"]),
        [named("127.0.0.1", 7), named("::1", 5), named("fe80::1", 7), named("localhost", 0)]
    );
    assert_eq!(tcp(&["-l", "*:9"])[0].host, Host::Any);
    assert_eq!(tcp(&["-p", "-1"])[0].port, 0);
    let options = memcached(&["-l", "proto[ascii]:tag[blue]:127.0.0.1:8,tag_b_:127.0.0.1:9"]);
    assert_eq!(
        options.listeners.tcp,
        [IpListen { protocol: Protocol::Ascii, ..named("127.0.0.1", 8) }, named("127.0.0.1", 9)]
    );
    assert_eq!(options.reports.len(), 2);
    for list in [
        "notls:127.0.0.1",
        "127.0.0.1:abc",
        "127.0.0.1:70000",
        "[::1",
        ":5",
        "proto[proxy]:127.0.0.1",
        "proto[http]:127.0.0.1",
        "tag[much_too_long]:127.0.0.1",
        "tag[x",
        "proto[ascii",
    ] {
        assert_eq!(refusal(&["-l", list]).exit_code, 71, "{list}");
    }
}

#[test]
fn tls_is_refused_in_words_by_a_server_without_it() {
    if HAS_TLS {
        return;
    }
    for args in [&["-Z"][..], &["-o", "ssl_key=file"], &["-o", "ssl_session_cache"]] {
        let error = refusal(args);
        assert_eq!(error.exit_code, 64, "{error}");
        assert!(error.message.contains("without TLS"), "{error}");
    }
}

#[test]
fn tls_options_are_read_as_memcached_reads_them() {
    if !HAS_TLS {
        return;
    }
    let certificate = ["-Z", "-o", "ssl_chain_cert=a.pem,ssl_key=b.pem"];
    let with = |more: &[&'static str]| [&certificate[..], more].concat();
    let options = memcached(&with(&[
        "-o",
        "ssl_verify_mode=2,ssl_ca_cert=c.pem,ssl_min_version=3,ssl_session_cache,ssl_wbuf_size=64",
        "-l",
        "notls:127.0.0.1:1,btls:proto[ascii]:127.0.0.1:2,mtls:127.0.0.1:3,127.0.0.1:4",
    ]));
    let wanted = TlsOptions {
        enabled: true,
        chain_certificate: Some("a.pem".into()),
        key: Some("b.pem".into()),
        authorities: Some("c.pem".into()),
        verify_mode: 2,
        min_version: 3,
        session_cache: true,
        wbuf_bytes: 65536,
        ..TlsOptions::DEFAULTS
    };
    assert_eq!(options.tls, wanted);
    let of_listeners: Vec<ListenTls> = options.listeners.tcp.iter().map(|tcp| tcp.tls).collect();
    let [off, without, with_one, process] = [
        ListenTls::Off,
        ListenTls::WithoutClientCertificate,
        ListenTls::WithClientCertificate,
        ListenTls::OfProcess,
    ];
    assert_eq!(of_listeners, [off, without, with_one, process]);
    let settings = options.settings(1);
    for pair in [("ssl_enabled", "yes"), ("ssl_verify_mode", "3"), ("ssl_min_version", "tlsv1.3")] {
        assert!(settings.contains(&(pair.0.into(), pair.1.into())), "{pair:?}");
    }
    for (args, code) in [
        (vec!["-Z"], 64),
        (with(&["-s", "/tmp/socket"]), 64),
        (with(&["-o", "ssl_min_version=0"]), 64),
        (with(&["-o", "ssl_verify_mode=4"]), 1),
        (with(&["-o", "ssl_keyformat=3"]), 1),
        (with(&["-o", "ssl_chain_cert"]), 1),
        (vec!["-l", "notls:127.0.0.1"], 71),
    ] {
        assert_eq!(refusal(&args).exit_code, code, "{args:?}");
    }
    // Without authorities the server starts, as in memcached, and the operator is told.
    for more in [["-o", "ssl_verify_mode=2"], ["-l", "mtls:127.0.0.1"]] {
        assert_eq!(memcached(&with(&more)).reports.len(), 1);
    }
    // Datagrams have no TLS. Where clients must show a certificate, there are none.
    for (mode, sockets) in [(1, 1), (2, 0), (3, 0)] {
        let mode = format!("ssl_ca_cert=c.pem,ssl_verify_mode={mode}");
        let options = memcached(&[&certificate[..], &["-U", "1", "-o", &mode]].concat());
        assert_eq!((options.listeners.udp.len(), options.reports.len()), (sockets, 1), "{mode}");
        assert!(options.listeners.udp.iter().all(|udp| udp.tls == ListenTls::Off));
    }
    // Without -Z they have no effect, as in memcached, and the operator is told.
    let options = memcached(&["-o", "ssl_chain_cert=a.pem"]);
    assert_eq!((options.listeners.tcp[0].tls, options.reports.len()), (ListenTls::Off, 1));
}

#[test]
fn a_unix_socket_takes_the_place_of_tcp() {
    let options = memcached(&["-s", "/tmp/socket", "-a", "0777", "-l", "127.0.0.1"]);
    let Listeners { tcp, unix: Some(unix), .. } = &options.listeners else { panic!("no socket") };
    assert!(tcp.is_empty());
    assert_eq!((unix.path.clone(), unix.mode), (PathBuf::from("/tmp/socket"), 0o777));
    assert_eq!(options.reports.len(), 1, "-l is passed over");
}

#[test]
fn an_engine_on_a_disk_has_a_folder_and_says_when_a_change_is_durable() {
    let words = ["--engine", "rocksdb", "--data", "/d", "--sync", "interval:2s"];
    let options = kachel(&words);
    assert_eq!((options.engine, options.evict), (EngineMode::Rocksdb, false));
    let settings = options.settings(1);
    for (name, value) in
        [("kachel_engine", "rocksdb"), ("kachel_data", "/d"), ("kachel_sync", "interval:2000ms")]
    {
        assert!(settings.contains(&(name.into(), value.into())), "{name}");
    }
    let settings = kachel(&words[..4]).settings(1);
    assert!(settings.contains(&("kachel_sync".into(), "always".into())));
    let error = refusal(&[&words[..5], &["interval:2"]].concat());
    assert_eq!(error.exit_code, 64, "{error}");
}

#[test]
fn the_store_engine_never_evicts() {
    let options = kachel(&["--engine", "store"]);
    assert_eq!((options.engine, options.evict), (EngineMode::Store, false));
}

#[test]
fn debian_and_docker_start_their_servers() {
    let debian =
        ["-d", "-m", "64", "-p", "11211", "-u", "memcache", "-l", "127.0.0.1", "-P", "/r/p"];
    assert_eq!(memcached(&debian).user.as_deref(), Some("memcache"));
}

/// The arguments that the charts' templates make of our values, which crates/options knows as a
/// command line.
#[test]
fn what_the_charts_of_loki_and_mimir_render_starts_a_server() {
    let arguments = include_str!("../../../../packaging/helm-arguments.txt");
    let lines = arguments.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut caches: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in lines {
        match caches.last_mut() {
            Some((_, words)) if line.starts_with('-') => words.push(line),
            _ => caches.push((line, Vec::new())),
        }
    }
    assert_eq!(caches.len(), 6);
    for (name, words) in caches {
        let (chart, cache) = name.split_once(' ').expect("a chart and a cache");
        let options = memcached(&words);
        assert!(options.reports.is_empty(), "{name}: {:?}", options.reports);
        assert_eq!(options.user.as_deref(), Some("11211"), "{name}");
        assert!(u64::from(options.item_bytes_max) <= options.memory_bytes / 2, "{name}");
        // They are those of our values.
        let values = match chart {
            "loki" => include_str!("../../../../packaging/helm-loki.yaml"),
            _ => include_str!("../../../../packaging/helm-mimir.yaml"),
        };
        let section = values.split_once(&format!("\n{cache}:\n")).expect("the cache has values").1;
        let section = section.lines().take_while(|line| line.is_empty() || line.starts_with(' '));
        let section: Vec<&str> = section.map(str::trim).collect();
        let has = |key: &str, value: u64| section.contains(&&*format!("{key}: {value}"));
        assert!(has("allocatedMemory", options.memory_bytes >> 20), "{name}");
        assert!(has("maxItemMemory", u64::from(options.item_bytes_max >> 20)), "{name}");
        assert!(has("connectionLimit", options.connections_max.into()), "{name}");
        assert!(has("t", options.threads.expect("-t is given").into()), "{name}");
    }
}

#[test]
fn subcommands_are_told_apart() {
    assert!(matches!(parse_as("kachel", &[]), Ok(Command::Help(_))));
    assert!(matches!(parse_as("/bin/kachel", &["-V"]), Ok(Command::Version(_))));
    assert_eq!(parse_as("kachel", &["load", "-x"]), Ok(Command::Load(words(&["-x"]))));
    for args in [&["-p", "1"][..], &["sevre"]] {
        assert_eq!(parse_as("kachel", args).map_err(|error| error.exit_code), Err(64));
    }
}

#[test]
fn tools_find_memcached_in_the_first_line() {
    let Ok(Command::Version(version)) = parse_as("memcached", &["-V"]) else { panic!() };
    assert_eq!(version.lines().next(), Some("memcached 1.6.45"));
    let Ok(Command::Help(help)) = parse_as("memcached", &["-h"]) else { panic!() };
    assert_eq!(help.lines().next(), Some("memcached 1.6.45"));
    assert!(help.contains("unix-socket") && help.contains("enable-sasl"));
    // memcached's own tests take these words for promises.
    for word in ["ext_path", "proxy_config", "drop_privileges"] {
        assert!(!help.to_lowercase().contains(word), "{word}");
    }
    for word in ["enable-ssl", "ssl_chain_cert"] {
        assert_eq!(help.contains(word), HAS_TLS, "{word}");
    }
    assert!(help.lines().all(|line| line.len() <= 80), "{help}");
}

#[test]
fn settings_have_the_keys_of_memcached_in_its_order() {
    let options = memcached(&["-l", "127.0.0.1", "-p", "21998"]);
    let said = options.settings(4);
    let lines: Vec<String> = said.iter().map(|(key, value)| format!("{key} {value}")).collect();
    // What memcached 1.6.45 answers to `stats settings`, built with its second tier, TLS and proxy.
    let memcached = "maxbytes 67108864|maxconns 1024|tcpport 21998|udpport 0|inter 127.0.0.1|verbosity 0|\
        oldest 0|evictions on|domain_socket NULL|umask 700|shutdown_command no|growth_factor 1.25|\
        chunk_size 48|num_threads 4|num_threads_per_udp 4|stat_key_prefix :|detail_enabled no|\
        reqs_per_event 20|cas_enabled yes|tcp_backlog 1024|binding_protocol auto-negotiate|\
        auth_enabled_sasl no|auth_enabled_ascii no|item_size_max 1048576|maxconns_fast yes|\
        hashpower_init 0|slab_reassign yes|slab_automove 1|slab_automove_ratio 0.80|\
        slab_automove_window 10|slab_chunk_max 524288|lru_crawler yes|lru_crawler_sleep 100|\
        lru_crawler_tocrawl 0|tail_repair_time 0|flush_enabled yes|dump_enabled yes|\
        hash_algorithm murmur3|lru_maintainer_thread yes|lru_segmented yes|hot_lru_pct 20|\
        warm_lru_pct 40|hot_max_factor 0.20|warm_max_factor 2.00|temp_lru no|temporary_ttl 61|\
        idle_timeout 0|watcher_logbuf_size 262144|worker_logbuf_size 65536|read_buf_mem_limit 0|\
        track_sizes no|inline_ascii_response no|ext_item_size 512|ext_item_age 4294967295|\
        ext_low_ttl 0|ext_recache_rate 2000|ext_wbuf_size 4194304|ext_compact_under 0|\
        ext_drop_under 0|ext_max_sleep 1000000|ext_max_frag 0.80|slab_automove_freeratio 0.010|\
        ext_drop_unread no|ssl_enabled no|ssl_chain_cert NULL|ssl_key NULL|ssl_verify_mode 0|\
        ssl_keyformat 1|ssl_ciphers NULL|ssl_ca_cert NULL|ssl_wbuf_size 16384|\
        ssl_session_cache no|ssl_kernel_tls no|ssl_min_version tlsv1.2|proxy_enabled no|\
        proxy_uring_enabled no|num_napi_ids 0|memory_file (null)|client_flags_size 4";
    let memcached: Vec<&str> = memcached.split('|').collect();
    assert_eq!(lines[..memcached.len()], memcached[..]);
    assert!(said[memcached.len()..].iter().all(|(key, _)| key.starts_with("kachel_")));
    let odd = memcached_settings(&["-s", "/tmp/a\nb", "-D", "/", "-M"]);
    assert!(odd.contains(&("domain_socket".into(), "/tmp/a?b".into())));
    assert!(odd.contains(&("stat_key_prefix".into(), "/".into())));
    assert!(odd.contains(&("evictions".into(), "off".into())));
    for args in [&["-S"][..], &["--enable-sasl"], &["-B", "binary", "-S"]] {
        let sasl = memcached_settings(args);
        for (key, value) in [
            ("binding_protocol", "binary"),
            ("auth_enabled_sasl", "yes"),
            ("auth_enabled_ascii", "no"),
        ] {
            assert!(sasl.contains(&(key.into(), value.into())), "{args:?} {key}");
        }
    }
}

fn memcached_settings(args: &[&str]) -> Vec<(String, String)> {
    let options = memcached(args);
    options.settings(1)
}

#[test]
fn every_name_stands_in_one_row_and_every_range_fits_its_option() {
    for (index, row) in OPTIONS.iter().enumerate() {
        let twin = OPTIONS[..index].iter().any(|other| {
            (row.short.is_some() && row.short == other.short)
                || (!row.long.is_empty() && row.long == other.long)
        });
        assert!(!twin, "{:?} {}", row.short, row.long);
        assert!(!row.help.is_empty(), "{}", row.long);
        if let (Some(letter), Takes::Integer(_, low, high)) = (row.short, row.takes) {
            for value in [low, high] {
                // Whatever comes of it, no conversion may panic.
                let _any = parse_as("memcached", &[&format!("-{letter}{value}")]);
            }
        }
    }
    for (index, row) in suboptions().enumerate() {
        assert!(!suboptions().take(index).any(|other| other.name == row.name), "{}", row.name);
        assert!(!row.help.is_empty() || !matches!(row.class, Class::Works), "{}", row.name);
        if let Takes::Integer(_, low, high) | Takes::OptionalInteger(_, low, high, _) = row.takes {
            for value in [low, high] {
                let _any = parse_as("memcached", &["-o", &format!("{}={value}", row.name)]);
            }
        }
    }
}

#[test]
fn the_manual_and_the_example_file_are_what_the_tables_say() {
    for (file, wanted) in [("docs/options.md", manual()), ("packaging/kachel.toml", example_file())]
    {
        let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("KACHEL_BLESS").is_some() {
            std::fs::write(&path, &wanted).expect("it can be written");
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == wanted, "{file}: run KACHEL_BLESS=1 cargo test -p kachel-options");
    }
}

/// The options that `docs/migrating.md` calls refused are those that the tables refuse.
#[test]
fn the_page_on_migrating_names_what_is_refused() {
    let path = format!("{}/../../docs/migrating.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(path).expect("the page");
    let (_, page) = page.split_once("\n## Options\n").expect("its section");
    let (page, _) = page.split_once("\n## ").expect("the next section");
    let is_refused = |row: &&str| row.starts_with("| `-") && row.contains("` | refused: ");
    let named: Vec<&str> = page.lines().filter(is_refused).flat_map(|row| row.split('`')).collect();
    let is_named = |name: &str| {
        let family = name.split_once('_').map(|(family, _)| format!("-o {family}_*"));
        named.iter().any(|each| *each == format!("-o {name}") || Some(*each) == family.as_deref())
    };
    for row in suboptions() {
        let is_refused = matches!(row.class, Class::Refused(_));
        assert_eq!(is_named(row.name), is_refused, "-o {}", row.name);
    }
    for row in OPTIONS {
        let is_named = row.short.is_some_and(|letter| named.contains(&&*format!("-{letter}")));
        assert_eq!(is_named, matches!(row.class, Class::Refused(_)), "{}", row.long);
    }
}
