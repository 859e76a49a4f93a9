//! `watch`: each stream and each field, slow watchers, watchers that leave, and how many there may
//! be. The lines are those of memcached 1.6.45.

use std::net::SocketAddr;

use kachel_io::{FarEnd, Peer};
use kachel_shard::PlainOptions;
use kachel_testkit::{World, WorldOptions};

/// One shard; three that change each other's items; three that ask each other.
const SERVERS: [(u16, bool); 3] = [(1, true), (3, true), (3, false)];

fn world(shards: u16, crew: bool) -> World {
    World::new(WorldOptions { shards, crew, ..WorldOptions::default() })
}

fn watch(world: &mut World, streams: &str) -> FarEnd {
    let watcher = world.connect();
    let told = world.ask(&watcher, format!("watch {streams}\r\n").as_bytes());
    assert_eq!(told, b"OK\r\n", "watch {streams}");
    watcher
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

/// The number after `name=` in a line.
fn number(line: &str, name: &str) -> u64 {
    let field = line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    field.and_then(|number| number.parse().ok()).expect("the line has this field")
}

/// The lines that a watcher has got, in the order of their numbers, without time and number.
fn lines(watcher: &FarEnd) -> Vec<String> {
    let told = text(watcher.read());
    assert!(told.is_empty() || told.ends_with('\n'), "whole lines");
    let mut lines: Vec<(u64, &str)> =
        told.lines().map(|line| (number(line, "gid"), line)).collect();
    lines.sort_unstable();
    assert!(lines.windows(2).all(|pair| pair[0].0 < pair[1].0), "each line has its number");
    lines
        .into_iter()
        .map(|(_, line)| {
            let (time, fields) = line.split_once(" gid=").expect("a time and a number");
            let (seconds, us) = time["ts=".len()..].split_once('.').expect("a fraction");
            assert!(seconds.parse::<u64>().is_ok_and(|seconds| seconds >= 1_800_000_000), "{line}");
            assert!(us.len() == 6 && us.parse::<u64>().is_ok(), "{line}");
            fields.split_once(' ').expect("fields").1.to_string()
        })
        .collect()
}

/// The descriptor of a client, as `stats conns` shows it: that of the last connection.
fn descriptor(world: &mut World, client: &FarEnd) -> u64 {
    let told = text(world.ask(client, b"stats conns\r\n"));
    let state = told.lines().find(|line| line.ends_with(":state conn_parse_cmd"));
    let line = state.expect("the client asks");
    line["STAT ".len()..].split(':').next().and_then(|fd| fd.parse().ok()).expect("a number")
}

/// A request, its replies, and the lines that it writes.
type Case = (&'static str, &'static str, &'static [&'static str]);

/// The lines are those of memcached 1.6.45. `{N}` stands for N bytes, `cfd=N` for the client.
const CASES: &[Case] = &[
    ("get old\r\n", "END\r\n", &["item_get key=old status=expired clsid=0 cfd=N size=0"]),
    (
        "set a%b 7 100 3\r\nabc\r\n",
        "STORED\r\n",
        &[
            "item_get key=a%25b status=not_found clsid=0 cfd=N size=0",
            "item_store key=a%25b status=stored cmd=set ttl=100 clsid=1 cfd=N size=3",
        ],
    ),
    (
        "get a%b\r\n",
        "VALUE a%b 7 3\r\nabc\r\nEND\r\n",
        &["item_get key=a%25b status=found clsid=1 cfd=N size=3"],
    ),
    (
        "add a%b 0 0 1\r\nx\r\nreplace c 0 0 1\r\nx\r\ncas a%b 0 0 1 9999\r\nx\r\n",
        "NOT_STORED\r\nNOT_STORED\r\nEXISTS\r\n",
        &[
            "item_get key=a%25b status=found clsid=1 cfd=N size=3",
            "item_store key=a%25b status=not_stored cmd=add ttl=0 clsid=1 cfd=N size=1",
            "item_get key=c status=not_found clsid=0 cfd=N size=0",
            "item_store key=c status=not_stored cmd=replace ttl=0 clsid=1 cfd=N size=1",
            "item_get key=a%25b status=found clsid=1 cfd=N size=3",
            "item_store key=a%25b status=exists cmd=cas ttl=0 clsid=1 cfd=N size=1",
        ],
    ),
    (
        "append a%b 0 0 200\r\n{200}\r\ncas d 0 0 1 1\r\nx\r\n",
        "STORED\r\nNOT_FOUND\r\n",
        &[
            "item_get key=a%25b status=found clsid=1 cfd=N size=3",
            "item_store key=a%25b status=stored cmd=append ttl=100 clsid=6 cfd=N size=203",
            "item_get key=d status=not_found clsid=0 cfd=N size=0",
            "item_store key=d status=not_found cmd=cas ttl=0 clsid=1 cfd=N size=1",
        ],
    ),
    (
        "set n 0 0 2\r\n10\r\nincr n 5\r\ndecr none 1\r\ntouch n 5\r\ngat 0 n\r\n",
        "STORED\r\n15\r\nNOT_FOUND\r\nTOUCHED\r\nVALUE n 0 2\r\n15\r\nEND\r\n",
        &[
            "item_get key=n status=not_found clsid=0 cfd=N size=0",
            "item_store key=n status=stored cmd=set ttl=0 clsid=1 cfd=N size=2",
            "item_get key=n status=found clsid=1 cfd=N size=2",
            "item_get key=none status=not_found clsid=0 cfd=N size=0",
            "item_get key=n status=found clsid=1 cfd=N size=2",
            "item_get key=n status=found clsid=1 cfd=N size=2",
        ],
    ),
    (
        "ms bQBu 2 b MP\r\nxy\r\nma new N0 J12\r\nmg n s\r\n",
        "NS\r\nHD\r\nHD s2\r\n",
        &[
            "item_get key=m%00n status=not_found clsid=0 cfd=N size=0",
            "item_store key=m%00n status=not_stored cmd=prepend ttl=0 clsid=1 cfd=N size=2",
            "item_get key=new status=not_found clsid=0 cfd=N size=0",
            "item_store key=new status=stored cmd=add ttl=0 clsid=1 cfd=N size=2",
            "item_get key=n status=found clsid=1 cfd=N size=2",
        ],
    ),
    (
        "delete n\r\ndelete n\r\nmd new I\r\nmd new\r\n",
        "DELETED\r\nNOT_FOUND\r\nHD\r\nHD\r\n",
        &[
            "item_get key=n status=found clsid=1 cfd=N size=2",
            "deleted key=n cmd=delete clsid=1 size=2",
            "item_get key=n status=not_found clsid=0 cfd=N size=0",
            "item_get key=new status=found clsid=1 cfd=N size=2",
            "item_get key=new status=found clsid=1 cfd=N size=2",
            "deleted key=new cmd=md clsid=1 size=2",
        ],
    ),
    (
        "set f 0 0 1\r\nx\r\nflush_all\r\nget f\r\n",
        "STORED\r\nOK\r\nEND\r\n",
        &[
            "item_get key=f status=not_found clsid=0 cfd=N size=0",
            "item_store key=f status=stored cmd=set ttl=0 clsid=1 cfd=N size=1",
            "item_get key=f status=flushed clsid=0 cfd=N size=0",
        ],
    ),
    (
        "set big 0 0 2000000\r\n{2000000}\r\n",
        "SERVER_ERROR object too large for cache\r\n",
        &[
            "item_get key=big status=not_found clsid=0 cfd=N size=0",
            "item_store key=big status=too_large cmd=set ttl=0 clsid=0 cfd=N size=0",
        ],
    ),
];

#[test]
fn each_request_writes_the_lines_of_memcached() {
    for (shards, crew) in SERVERS {
        let mut world = world(shards, crew);
        let client = world.connect();
        // Its space does not come back by itself when it expires.
        world.ask(&client, b"set old 0 1000 2\r\nxx\r\ntouch old 1\r\n");
        world.clock.advance_s(2);
        let cfd = descriptor(&mut world, &client);
        let watcher = watch(&mut world, "fetchers mutations deletions");
        for (request, reply, expected) in CASES {
            let value = |request: &str, bytes: usize| {
                request.replace(&format!("{{{bytes}}}"), &"x".repeat(bytes))
            };
            let request = value(&value(request, 200), 2_000_000);
            let told = text(world.ask(&client, request.as_bytes()));
            assert_eq!(told, *reply);
            let expected = expected.iter().map(|line| line.replace("cfd=N", &format!("cfd={cfd}")));
            let mut expected: Vec<String> = expected.map(|line| format!("type={line}")).collect();
            let mut told = lines(&watcher);
            if !crew {
                // The shards of the keys execute the requests at the same time.
                expected.sort_unstable();
                told.sort_unstable();
            }
            let asked = &request[..request.len().min(80)];
            assert_eq!(told, expected, "{asked:?}, {shards} shards, crew {crew}");
        }
    }
}

#[test]
fn a_large_value_and_a_binary_request_are_logged() {
    for (shards, crew) in SERVERS {
        let mut world = world(shards, crew);
        let client = world.connect();
        let watcher = watch(&mut world, "mutations");
        let request = format!("set large 0 9 100000\r\n{}\r\n", "x".repeat(100_000));
        assert_eq!(world.ask(&client, request.as_bytes()), b"STORED\r\n");
        let told = lines(&watcher);
        assert_eq!(told.len(), 1);
        assert!(
            told[0].starts_with("type=item_store key=large status=stored cmd=set ttl=9 clsid=")
        );
        assert!(told[0].ends_with(" size=100000"));
        // A set of `key` to `v`.
        let mut set = vec![0x80, 1, 0, 3, 8, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0];
        set.extend([0; 16]);
        set.extend(b"keyv");
        let client = world.connect();
        assert_eq!(world.ask(&client, &set)[6..8], [0, 0]);
        let told = lines(&watcher);
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("type=item_store key=key status=stored cmd=set ttl=0 clsid=1"));
    }
}

#[test]
fn a_watcher_gets_the_streams_that_it_names() {
    for (shards, crew) in SERVERS {
        let mut world = world(shards, crew);
        let client = world.connect();
        let [default, mutations, nothing] =
            ["", "mut", "rawcmds proxyreqs"].map(|streams| watch(&mut world, streams));
        world.ask(&client, b"set a 0 0 1\r\nx\r\nget a\r\ndelete a\r\n");
        let told = lines(&default);
        assert_eq!(told.len(), 3);
        assert!(told.iter().all(|line| line.starts_with("type=item_get")), "{told:?}");
        let told = lines(&mutations);
        assert!(told.len() == 1 && told[0].starts_with("type=item_store"), "{told:?}");
        assert_eq!(nothing.read(), b"");
        // Requests of a watcher are dropped.
        assert_eq!(world.ask(&nothing, b"get a\r\nwatch\r\nset a 0 0 1\r\nx\r\n"), b"");
        assert_eq!(world.ask(&client, b"get a\r\n"), b"END\r\n");
    }
}

#[test]
fn evictions_are_logged_with_their_items() {
    for (shards, crew) in SERVERS {
        let memory_bytes = 4 << 20;
        let options = WorldOptions { shards, crew, memory_bytes, ..WorldOptions::default() };
        let mut world = World::new(options);
        let client = world.connect();
        let fill = |world: &mut World, prefix: &str, count: usize| {
            for number in 0..count {
                let ttl = 1000 * (number % 2);
                let head = format!("set {prefix}{number} 3 {ttl} 1000 noreply\r\n");
                client.write(format!("{head}{}\r\n", "x".repeat(1000)).as_bytes());
                world.rest();
            }
            world.settle();
        };
        fill(&mut world, "early", 6_000);
        world.clock.advance_s(7);
        world.settle();
        let watcher = watch(&mut world, "evictions");
        let before = world.sum_of_engines(|counters| &counters.evictions);
        fill(&mut world, "late", 500);
        let evicted = world.sum_of_engines(|counters| &counters.evictions) - before;
        let told = lines(&watcher);
        assert!(evicted > 100 && told.len() as u64 == evicted, "{} of {evicted}", told.len());
        let is_early = |line: &&String| line.starts_with("type=eviction key=early");
        let early = told.iter().find(is_early).expect("the oldest items go first");
        let ttls = [" fetch=no ttl=-1 la=7 clsid=", " fetch=no ttl=993 la=7 clsid="];
        assert!(ttls.iter().any(|ttl| early.contains(ttl)), "{early}");
        assert!(early.ends_with(" clsid=12 size=1000"), "{early}");
        // Nothing is listed once nobody watches.
        watcher.finish();
        world.settle();
        fill(&mut world, "more", 100);
        let watcher = watch(&mut world, "evictions");
        assert_eq!(watcher.read(), b"", "what was evicted before");
    }
}

#[test]
fn connections_are_logged_with_the_reason_for_their_end() {
    for (shards, crew) in SERVERS {
        let mut world = world(shards, crew);
        let watcher = watch(&mut world, "connevents");
        let peer = |address: &str| Peer::from(address.parse::<SocketAddr>().expect("an address"));
        let v4 = world.connect_from(peer("10.1.2.3:4567"));
        world.settle();
        let opened = lines(&watcher);
        assert_eq!(opened.len(), 1);
        let cfd = number(&opened[0], "cfd");
        let client = "rip=10.1.2.3 rport=4567 transport=tcp";
        assert_eq!(opened[0], format!("type=conn_new {client} cfd={cfd}"));
        world.ask(&v4, b"version\r\nquit\r\n");
        assert_eq!(lines(&watcher), [format!("type=conn_close {client} reason=normal cfd={cfd}")]);

        let v6 = world.connect_from(peer("[2001:db8::1]:80"));
        world.ask(&v6, b"GET / HTTP/1.1\r\n");
        let told = lines(&watcher);
        assert!(told[0].starts_with("type=conn_new rip=2001:db8::1 rport=80 transport=tcp cfd="));
        assert!(told[1].contains(" transport=tcp reason=error cfd="), "{told:?}");

        let local = world.connect();
        world.settle();
        local.finish();
        world.settle();
        let told = lines(&watcher);
        assert!(told[0].starts_with("type=conn_new rip=unix rport=0 transport=local cfd="));
        assert!(told[1].contains(" transport=local reason=normal cfd="), "{told:?}");

        let broken = world.connect();
        world.settle();
        broken.reset();
        world.settle();
        assert!(lines(&watcher)[1].contains(" reason=error cfd="));
    }
}

#[test]
fn an_idle_client_is_closed_for_that_and_a_watcher_is_not() {
    let limits = kachel_net::ClientLimits { idle_s: 5, reader_s: 5, ..Default::default() };
    let mut world = World::new(WorldOptions { limits, ..WorldOptions::default() });
    let watcher = watch(&mut world, "connevents");
    let idle = world.connect();
    world.settle();
    for _ in 0..20 {
        world.clock.advance_s(1);
        world.settle();
    }
    assert!(idle.is_closed() && !watcher.is_closed());
    assert!(lines(&watcher)[1].contains(" reason=idle_timeout cfd="));
    // A watcher that does not read misses lines. It is not closed for that.
    watcher.stall();
    for _ in 0..20 {
        let client = world.connect();
        world.ask(&client, b"quit\r\n");
        world.clock.advance_s(1);
        world.settle();
    }
    assert!(!watcher.is_closed());
}

#[test]
fn a_slow_watcher_misses_lines_and_is_told_how_many() {
    for (shards, crew) in SERVERS {
        let watcher_bytes_max = 8 << 10;
        let options = WorldOptions {
            shards,
            crew,
            plain: PlainOptions { watcher_bytes_max, ..PlainOptions::default() },
            ..WorldOptions::default()
        };
        let mut world = World::new(options);
        let client = world.connect();
        let watcher = watch(&mut world, "fetchers");
        watcher.stall();
        let spacer = "x".repeat(180);
        const READS: u64 = 2_000;
        for read in 0..READS {
            let request = format!("get {read}{spacer}\r\n");
            assert_eq!(world.ask(&client, request.as_bytes()), b"END\r\n", "no client waits");
        }
        let told = text(world.ask(&client, b"stats\r\n"));
        let stat = |name: &str| {
            let line = told.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
            line.and_then(|value| value.parse::<u64>().ok()).expect("a number")
        };
        assert_eq!(stat("log_worker_written"), READS);
        assert_eq!((stat("log_worker_dropped"), stat("log_watchers")), (0, 1));
        let skipped = stat("log_watcher_skipped");
        assert!(skipped > READS / 2, "{skipped}");
        assert_eq!(stat("log_watcher_sent") + skipped, READS);

        watcher.allow_all();
        world.settle();
        world.ask(&client, b"get last\r\n");
        let told = text(watcher.read());
        let place = told.lines().position(|line| line == format!("skipped={skipped}"));
        let place = place.expect("it is told once");
        let after: Vec<&str> = told.lines().skip(place + 1).collect();
        assert!(after.len() == 1 && after[0].contains(" key=last "), "{after:?}");
        assert_eq!(told.lines().count() as u64, READS - skipped + 2);
    }
}

#[test]
fn nothing_for_a_watcher_that_left_reaches_the_next_client_at_its_place() {
    for (shards, crew) in SERVERS {
        let watcher_bytes_max = 64 << 10;
        let options = WorldOptions {
            shards,
            crew,
            plain: PlainOptions { watcher_bytes_max, ..PlainOptions::default() },
            ..WorldOptions::default()
        };
        let mut world = World::new(options);
        let client = world.connect();
        let watcher = watch(&mut world, "fetchers mutations");
        watcher.stall();
        for read in 0..500 {
            let request = format!("get {read}{}\r\n", "x".repeat(200));
            world.ask(&client, request.as_bytes());
        }
        watcher.reset();
        world.settle();
        // They take the places of connections that have closed, on each core.
        let next: Vec<FarEnd> = (0..6).map(|_| world.connect()).collect();
        world.settle();
        world.ask(&client, b"get a\r\nset a 0 0 1\r\nx\r\n");
        for one in &next {
            assert_eq!(one.read(), b"", "lines of another client");
            assert!(world.ask(one, b"version\r\n").starts_with(b"VERSION "));
        }
        let deletions: Vec<FarEnd> = (0..6).map(|_| watch(&mut world, "deletions")).collect();
        world.ask(&client, b"get a\r\ndelete a\r\n");
        for one in &deletions {
            assert_eq!(lines(one), ["type=deleted key=a cmd=delete clsid=1 size=1"]);
        }
        let spent = world.shared.budget.spent_bytes();
        deletions.iter().for_each(FarEnd::finish);
        world.settle();
        let told = text(world.ask(&client, b"stats\r\n"));
        assert!(told.contains("STAT log_watchers 0\r\n"), "all have left");
        assert_eq!(
            spent - world.shared.budget.spent_bytes(),
            6 * (64 << 10),
            "their memory is back"
        );
    }
}

#[test]
fn twenty_clients_may_watch() {
    for (shards, crew) in SERVERS {
        let mut world = world(shards, crew);
        let mut watchers: Vec<FarEnd> = (0..20).map(|_| watch(&mut world, "fetchers")).collect();
        let client = world.connect();
        let refused = b"WATCHER_TOO_MANY log watcher limit reached\r\n";
        assert_eq!(world.ask(&client, b"watch\r\n"), refused);
        assert_eq!(world.ask(&client, b"get a\r\n"), b"END\r\n", "it is a client as before");
        let of_all: Vec<Vec<String>> = watchers.iter().map(lines).collect();
        assert!(of_all.iter().all(|lines| lines.len() == 1), "{of_all:?}");
        watchers.pop().expect("there are some").finish();
        world.settle();
        assert_eq!(world.ask(&client, b"watch\r\n"), b"OK\r\n");
    }
}

#[test]
fn watch_is_refused_as_in_memcached() {
    let mut world = world(1, true);
    let client = world.connect();
    assert_eq!(world.ask(&client, b"watch bogus\r\n"), b"ERROR\r\n");
    assert_eq!(world.ask(&client, b"watch fetchers foo\r\n"), b"ERROR\r\n");
    let pipelined = b"END\r\nERROR cannot pipeline other commands before watch\r\n";
    assert_eq!(world.ask(&client, b"get a\r\nwatch\r\n"), pipelined);
    let memory_bytes = 1 << 20;
    let options = WorldOptions {
        memory_bytes,
        plain: PlainOptions {
            watcher_bytes_max: 2 * memory_bytes as usize,
            ..PlainOptions::default()
        },
        ..WorldOptions::default()
    };
    let mut world = World::new(options);
    let client = world.connect();
    let failed = b"WATCHER_FAILED failed to add log watcher\r\n";
    assert_eq!(world.ask(&client, b"watch\r\n"), failed, "there is no memory for it");
    let mut world = World::new(WorldOptions {
        plain: PlainOptions { watch_allowed: false, ..PlainOptions::default() },
        ..WorldOptions::default()
    });
    let client = world.connect();
    let refused = b"CLIENT_ERROR watch commands not allowed\r\n";
    assert_eq!(world.ask(&client, b"watch\r\n"), refused);
    assert_eq!(world.ask(&client, b"watch bogus\r\n"), refused);
}

#[test]
fn a_watcher_is_woken_by_another_core() {
    let mut world = world(4, true);
    let watchers: Vec<FarEnd> = (0..4).map(|_| watch(&mut world, "fetchers")).collect();
    let clients: Vec<FarEnd> = (0..4).map(|_| world.connect()).collect();
    world.settle();
    for (number, client) in clients.iter().enumerate() {
        client.write(format!("get key{number}\r\n").as_bytes());
        // No time passes, so only a core that is woken does anything.
        world.rest();
        for watcher in &watchers {
            let told = lines(watcher);
            assert_eq!(told.len(), 1);
            assert!(told[0].contains(&format!("key=key{number} ")), "{told:?}");
        }
    }
}
