//! Time that jumps, clocks that are set, and memory that is refused at any moment.

use kachel_io::{Clock as _, FarEnd};
use kachel_net::LINE_SECONDS_MAX;

use kachel_shard::PlainOptions;
use kachel_testkit::{World, WorldOptions};

const HOUR_S: u64 = 3_600;
const YEAR_S: u64 = 365 * 24 * HOUR_S;
/// The first second that does not fit in 31 bits: in 2038; and in 32: in 2106.
const AFTER_2038: i64 = 1 << 31;
const AFTER_2106: i64 = 1 << 32;

/// Which of these keys are there, in their order.
fn living(world: &mut World, client: &FarEnd, keys: &str) -> String {
    let reply = world.ask(client, format!("get {keys}\r\n").as_bytes());
    let reply = String::from_utf8(reply).expect("text");
    let found = reply.lines().filter_map(|line| line.strip_prefix("VALUE ")?.split(' ').next());
    found.collect::<Vec<_>>().join(" ")
}

#[test]
fn items_die_by_the_time_that_has_passed_though_the_process_slept_through_it() {
    for shards in [1, 3] {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let client = world.connect();
        world.ask(
            &client,
            b"set minute 0 60 1\r\na\r\nset day 0 86400 1\r\nb\r\nset ever 0 0 1\r\nc\r\n",
        );
        world.clock.advance_s(HOUR_S);
        assert_eq!(
            String::from_utf8_lossy(&world.ask(&client, b"get minute day ever\r\n")),
            "VALUE day 0 1\r\nb\r\nVALUE ever 0 1\r\nc\r\nEND\r\n",
            "{shards} shards"
        );
        // Past 2038, and past every TTL that is relative.
        world.clock.advance_s(12 * YEAR_S);
        assert!(world.clock.unix_s() > AFTER_2038);
        assert_eq!(world.ask(&client, b"get day ever\r\n"), b"VALUE ever 0 1\r\nc\r\nEND\r\n");
        assert_eq!(world.ask(&client, b"set new 0 60 1\r\nd\r\n"), b"STORED\r\n");
        assert_eq!(world.ask(&client, b"get new\r\n"), b"VALUE new 0 1\r\nd\r\nEND\r\n");
    }
}

#[test]
fn a_clock_of_day_that_is_set_shortens_and_lengthens_no_life() {
    let options = WorldOptions { shards: 2, ..WorldOptions::default() };
    let start = options.start_unix_s;
    let (hour, decade) = (HOUR_S.cast_signed(), 10 * YEAR_S.cast_signed());
    let jumps = [-hour, hour, -decade, decade];
    let days = jumps.map(|jump| start + jump).into_iter().chain([0, AFTER_2038, AFTER_2106]);
    for unix_s in days {
        let mut world = World::new(options);
        let client = world.connect();
        let absolute = start + 100;
        let store = |ttl: i64, key: &str| format!("set {key} 0 {ttl} 1\r\nx\r\n");
        let before = [store(100, "relative"), store(absolute, "absolute"), store(0, "ever")];
        assert_eq!(world.ask(&client, before.concat().as_bytes()), b"STORED\r\n".repeat(3));
        world.clock.set_unix_s(unix_s);
        // By the clock with which the process began, as memcached has it.
        let after = [store(60, "minute"), store(absolute, "then"), store(-1, "never")].concat();
        assert_eq!(world.ask(&client, after.as_bytes()), b"STORED\r\n".repeat(3));
        assert_eq!(world.ask(&client, b"touch minute 80\r\n"), b"TOUCHED\r\n");
        assert_eq!(world.ask(&client, b"mg relative t\r\nmg ever t\r\n"), b"HD t100\r\nHD t-1\r\n");
        let keys = "relative absolute ever minute then never";
        for (seconds, alive) in [
            (0, "relative absolute ever minute then"),
            (79, "relative absolute ever minute then"),
            (1, "relative absolute ever then"),
            (19, "relative absolute ever then"),
            (1, "ever"),
            (20 * YEAR_S, "ever"),
        ] {
            world.clock.advance_s(seconds);
            let found = living(&mut world, &client, keys);
            assert_eq!(found, alive, "set to {unix_s}, {seconds} s later");
        }
    }
}

#[test]
fn a_process_that_begins_in_another_age_counts_the_same_seconds() {
    for start_unix_s in [0, AFTER_2038 + 10, AFTER_2106 + 10] {
        let mut world = World::new(WorldOptions { start_unix_s, ..WorldOptions::default() });
        let client = world.connect();
        // The last absolute second that the protocol can name: long past, or long to come.
        let last = "set last 0 2147483647 1\r\nx\r\n";
        let stores = format!("set minute 0 60 1\r\nx\r\nset ever 0 0 1\r\nx\r\n{last}");
        assert_eq!(world.ask(&client, stores.as_bytes()), b"STORED\r\n".repeat(3));
        let last = if start_unix_s == 0 { " last" } else { "" };
        for (seconds, minute) in [(59, "minute "), (1, ""), (20 * YEAR_S, "")] {
            world.clock.advance_s(seconds);
            let found = living(&mut world, &client, "minute ever last");
            assert_eq!(found, format!("{minute}ever{last}"), "began at {start_unix_s}");
        }
        let stats = world.ask(&client, b"stats\r\n");
        let told = format!("STAT time {}\r\n", world.clock.unix_s());
        assert!(String::from_utf8_lossy(&stats).contains(&told), "{told}");
    }
}

#[test]
fn a_client_that_sent_all_in_time_is_served_though_the_process_slept() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    assert_eq!(world.ask(&client, b"set a 0 0 5\r\nhe"), b"");
    world.clock.advance_s(HOUR_S);
    // Both pieces lay in the kernel while the process slept; a tick brings one of them.
    client.write(b"ll");
    client.write(b"o\r\n");
    world.settle();
    assert_eq!(client.read(), b"STORED\r\n");
}

#[test]
fn a_client_that_stays_late_is_closed_after_a_sleep_too() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    world.ask(&client, b"set a 0 0 5\r\nhe");
    world.clock.advance_s(HOUR_S);
    for second in 0..=LINE_SECONDS_MAX {
        world.settle();
        assert!(!client.is_closed(), "the server sees it be late for {second} seconds");
        world.clock.advance_s(1);
    }
    world.settle();
    assert!(client.is_closed());
}

#[test]
fn a_client_is_not_late_by_sleeps_of_the_process_that_follow_each_other() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    assert_eq!(world.ask(&client, b"set a 0 0 5\r\nhe"), b"");
    for _ in 0..LINE_SECONDS_MAX {
        world.clock.advance_s(HOUR_S);
        world.settle();
    }
    assert_eq!(world.ask(&client, b"llo\r\n"), b"STORED\r\n");
}

/// A conversation that takes memory in every way: inline and large values, growth of what is
/// there, numbers, long lines, and replies that wait.
fn requests() -> Vec<Vec<u8>> {
    let mut requests = Vec::new();
    // 42 KB of both shards' keys, and no more of them, or most of the time would go into these.
    let absent = (0..1_550).map(|key| format!("a-key-that-is-nowhere-{key:04}"));
    let absent = absent.collect::<Vec<_>>().join(" ");
    for key in 0..40 {
        let bytes = [10, 900, 20_000, 300_000][key % 4];
        let value = "v".repeat(bytes);
        requests.push(format!("set k{key} 0 0 {bytes}\r\n{value}\r\n").into_bytes());
        requests.push(format!("append k{} 0 0 9\r\n and more\r\n", key / 2).into_bytes());
        requests.push(format!("ma n{key} N0 J1 v\r\nms m{key} 3 T60\r\nabc\r\n").into_bytes());
        requests.push(format!("get k{key} k{} {absent}\r\n", key / 2).into());
    }
    requests
}

/// A line from the front of `reply`, its end included; `None`: no whole one.
fn line<'r>(reply: &mut &'r [u8]) -> Option<&'r [u8]> {
    let end = reply.iter().position(|&byte| byte == b'\n')? + 1;
    let (line, rest) = reply.split_at(end);
    *reply = rest;
    Some(line)
}

/// Takes the value that a header announced, `bytes` its number from the end of its words.
fn value(reply: &mut &[u8], header: &[u8]) -> Option<()> {
    let mut words = header.trim_ascii_end().split(|&byte| byte == b' ');
    let bytes: usize = std::str::from_utf8(words.next_back()?).ok()?.parse().ok()?;
    let (value, rest) = reply.split_at_checked(bytes + 2)?;
    *reply = rest;
    value.ends_with(b"\r\n").then_some(())
}

/// Takes one whole reply from the front; `None`: there is none that a client knows.
fn one(reply: &mut &[u8]) -> Option<()> {
    loop {
        let line = line(reply)?;
        match line.split(|byte| b" \r".contains(byte)).next()? {
            b"VALUE" => value(reply, line)?,
            b"VA" => return value(reply, line),
            b"STORED" | b"NOT_STORED" | b"HD" | b"NS" | b"NF" | b"END" | b"SERVER_ERROR" => {
                return Some(());
            }
            _ => return None,
        }
    }
}

/// Whether `reply` is `owed` whole replies; or fewer, and whole ones, where the connection ended.
fn is_all(mut reply: &[u8], owed: usize, is_closed: bool) -> bool {
    let mut whole = 0;
    while !reply.is_empty() {
        if one(&mut reply).is_none() {
            return false;
        }
        whole += 1;
    }
    whole == owed || is_closed && whole < owed
}

/// Asks, and reads until nothing more comes.
fn ask_to_the_end(world: &mut World, client: &FarEnd, request: &[u8]) -> Vec<u8> {
    let mut reply = world.ask(client, request);
    loop {
        world.settle();
        let more = client.read();
        if more.is_empty() {
            return reply;
        }
        reply.extend_from_slice(&more);
    }
}

/// The kinds of request take turns every so many.
const KINDS: usize = 16;

/// Whether request `index` is sent in the run in which memory is refused from `moment` on. Twice
/// all kinds meet the refusal, and in one run of [`KINDS`] all requests that are left. A retrieval
/// that was answered long before has left nothing.
fn is_sent(requests: &[Vec<u8>], index: usize, moment: usize) -> bool {
    if index + KINDS < moment {
        return !requests[index].starts_with(b"get ");
    }
    index < moment + 2 * KINDS || moment.is_multiple_of(KINDS)
}

/// Sends requests with memory refused from one of them on, and that for each of them.
fn refuse_at_any_moment(evict: bool) {
    let requests = requests();
    // Bytes that are given before all are refused: none, a line's, a piece of a value's, most of
    // one's. So requests are refused in their middle, too.
    let last_bytes = [0, 48 << 10, 1 << 17, 1 << 18];
    let replies = |request: &[u8]| if request.starts_with(b"ma ") { 2 } else { 1 };
    for (turn, last_bytes) in last_bytes.into_iter().enumerate() {
        // Thirds and fifths meet all kinds ([`KINDS`]). The turns begin at different moments.
        let step = match last_bytes {
            0 if std::env::var_os("KACHEL_FULL").is_some() => 1,
            0 => 3,
            _ => 5,
        };
        let first = if evict { turn + 4 } else { turn };
        for moment in (first % step..requests.len()).step_by(step) {
            let memory_bytes = 16 << 20;
            let options =
                WorldOptions { shards: 2, memory_bytes, evict, ..WorldOptions::default() };
            let mut world = World::new(options);
            let mut client = world.connect();
            for (index, request) in requests.iter().enumerate() {
                if index == moment {
                    let budget = &world.shared.budget;
                    budget.set_limit_bytes(budget.spent_bytes() + last_bytes);
                }
                if !is_sent(&requests, index, moment) {
                    continue;
                }
                let reply = ask_to_the_end(&mut world, &client, request);
                let is_closed = client.is_closed();
                assert!(
                    is_all(&reply, replies(request), is_closed),
                    "moment {moment}, {last_bytes} bytes more, request {index}, closed \
                     {is_closed}: {}",
                    reply[reply.len().saturating_sub(200)..].escape_ascii()
                );
                if is_closed {
                    client = world.connect();
                }
            }
            world.shared.budget.set_limit_bytes(memory_bytes);
            world.clock.advance_s(1);
            world.settle();
            let after = world.connect();
            assert_eq!(world.ask(&after, b"set last 0 0 1\r\nx\r\n"), b"STORED\r\n", "{moment}");
            assert_eq!(world.ask(&after, b"get last\r\n"), b"VALUE last 0 1\r\nx\r\nEND\r\n");
        }
    }
}

#[test]
fn memory_refused_to_a_store_at_any_moment_is_answered_and_forgotten() {
    refuse_at_any_moment(false);
}

#[test]
fn memory_refused_to_a_cache_at_any_moment_is_answered_and_forgotten() {
    refuse_at_any_moment(true);
}

#[test]
fn a_test_moves_the_clock_of_all_cores_on() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let options = WorldOptions {
            shards,
            crew,
            plain: PlainOptions { time_moves: true, ..PlainOptions::default() },
            ..WorldOptions::default()
        };
        let mut world = World::new(options);
        let client = world.connect();
        let sets: String = (0..50).map(|key| format!("set k{key} 0 10 1\r\n1\r\n")).collect();
        world.ask(&client, sets.as_bytes());
        let gets: String = (0..50).map(|key| format!("mg k{key} t\r\n")).collect();
        let told = world.ask(&client, format!("debugtime 4\r\n{gets}").as_bytes());
        assert_eq!(told, format!("OK\r\n{}", "HD t6\r\n".repeat(50)).as_bytes());
        let told = world.ask(&client, format!("debugtime 6\r\n{gets}").as_bytes());
        assert_eq!(told, format!("OK\r\n{}", "EN\r\n".repeat(50)).as_bytes());
        world.settle();
        assert!(!client.is_closed(), "the server did not run meanwhile");
        world.audit();
    }
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    assert_eq!(world.ask(&client, b"debugtime 4\r\n"), b"ERROR\r\n", "this is no test");
}
