//! Tests the subcommands of the binary `kachel-lab` by their output and exit codes.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kachel-lab")).args(args).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn load_is_the_load_generator() {
    let help = lab(&["load", "--help"]);
    assert!(help.status.success() && help.stderr.is_empty(), "{help:?}");
    let help = text(&help.stdout);
    assert!(help.contains("--connections") && help.contains("kachel load replay"), "{help}");
    let unknown = lab(&["load", "--no-such-option"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("--no-such-option"), "{unknown:?}");
}

#[test]
fn packets_needs_both_ends_and_refuses_nonsense() {
    let ends = "packets -i lo -s 10.0.0.2:11211 --server-mac 2:0:0:0:0:2 --client 10.0.0.3";
    for (words, name) in [
        ("packets", "--interface"),
        (&format!("{ends} --window 0")[..], "--window"),
        (&format!("{ends} --server-pid 4194305"), "--server-pid"),
    ] {
        let refused = lab(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(refused.status.code(), Some(2), "{words}: {refused:?}");
        assert!(text(&refused.stderr).contains(name), "{words}: {refused:?}");
    }
}

#[test]
fn the_lab_says_what_it_can_do() {
    for args in [&[][..], &["--help"], &["help"]] {
        let answer = lab(args);
        assert!(answer.status.success() && answer.stderr.is_empty(), "{answer:?}");
        assert!(text(&answer.stdout).contains("kachel-lab load [options]"), "{answer:?}");
    }
    let version = concat!("kachel-lab ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(text(&lab(&["--version"]).stdout), version);
}

#[test]
fn an_unknown_subcommand_is_refused() {
    let answer = lab(&["serve"]);
    assert_eq!(answer.status.code(), Some(64));
    assert!(answer.stdout.is_empty() && text(&answer.stderr).contains("serve"), "{answer:?}");
}

#[test]
fn breakdown_refuses_bad_input_and_names_it() {
    let own = std::process::id().to_string();
    for (words, code, named) in [
        (&["breakdown"][..], 64, "--pid"),
        (&["breakdown", "--pid", "4194305"], 64, "--pid 4194305"),
        (&["breakdown", "--pid", &own, "--duration-s", "0"], 64, "--duration-s"),
        (&["breakdown", "--pid", &own, "--parts", "/no/such"], 64, "/no/such"),
    ] {
        let answer = lab(words);
        assert_eq!(answer.status.code(), Some(code), "{words:?}: {answer:?}");
        assert!(text(&answer.stderr).contains(named), "{words:?}: {answer:?}");
    }
}

#[test]
fn breakdown_without_rights_says_so_in_one_sentence() {
    let own = std::process::id().to_string();
    let words = ["breakdown", "--pid", &own, "--duration-s", "1"];
    let mut answer = Command::new("setpriv")
        .args(["--bounding-set", "-all", "--inh-caps", "-all", env!("CARGO_BIN_EXE_kachel-lab")])
        .args(words)
        .output()
        .expect("setpriv of util-linux starts");
    // A user who may not give up rights has none of these.
    if text(&answer.stderr).starts_with("setpriv: ") {
        answer = lab(&words);
    }
    assert!(!answer.status.success() && answer.stdout.is_empty(), "{answer:?}");
    let said = text(&answer.stderr);
    if said.contains("outside of containers") {
        println!("skip breakdown.kernel this is a container, whose processes have other numbers");
        return;
    }
    assert!(said.contains("CAP_PERFMON") && said.lines().count() == 1, "{said}");
}

/// A shell script that unmounts tracefs, in a mount namespace of its own. It makes the mounts
/// private first. `unshare` cannot do that in a chroot, whose root is no mount; /sys is one.
const UNMOUNT: &str = "
    mount --make-rprivate /sys
    for folder in /sys/kernel/tracing /sys/kernel/debug; do
        for _ in 1 2 3 4; do ! mountpoint -q $folder || umount --lazy $folder; done
    done";

/// A command that executes `then`, a line of a shell, where nobody has mounted tracefs; nothing if
/// this machine does not let a test unmount.
fn without_tracefs(then: &str) -> Option<Command> {
    let command = |then: &str| {
        let mut command = Command::new("unshare");
        let script = format!("{UNMOUNT}\n{then}");
        command.args(["--mount", "--propagation", "unchanged", "sh", "-euc", &script, "sh"]);
        command
    };
    let tried = command("exit 0").stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success()).then(|| command(then))
}

#[test]
fn breakdown_that_cannot_mount_says_how_and_offers_the_other_view() {
    let then = "exec setpriv --bounding-set -sys_admin --inh-caps -all \"$@\"";
    let Some(mut command) = without_tracefs(then) else {
        println!("skip breakdown.kernel no right to unmount tracefs");
        return;
    };
    let own = std::process::id().to_string();
    let lab = env!("CARGO_BIN_EXE_kachel-lab");
    let words = [lab, "breakdown", "--pid", &own, "--duration-s", "1", "--view", "wall"];
    let answer = command.args(words).output().expect("unshare of util-linux starts");
    let said = text(&answer.stderr);
    if said.contains("outside of containers") || said.starts_with("setpriv: ") {
        println!("skip breakdown.kernel {}", said.trim());
        return;
    }
    assert!(!answer.status.success() && answer.stdout.is_empty(), "{answer:?}");
    for words in ["mount -t tracefs tracefs /sys/kernel/tracing", "--view cpu"] {
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    }
}

/// Watches the planted process until it ends. Returns the figures, the text, and the numbers that
/// the process itself has printed; nothing if this machine does not allow to watch.
fn watch_planted(
    planted: &[&str],
    view: &str,
) -> Option<(serde_json::Value, String, BTreeMap<String, f64>)> {
    let binary = Path::new(env!("CARGO_BIN_EXE_kachel-lab"));
    // Cargo builds the examples of a package together with its tests.
    let example = binary.parent().expect("a folder").join("examples/planted");
    let mut process = Command::new(example)
        .args(planted)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the example starts: cargo build -p kachel-lab --example planted");
    let file = tempfile::NamedTempFile::new().expect("a file");
    // Where a test may do that, the tool finds no tracefs, as on most machines.
    let mut watcher = without_tracefs("exec \"$@\"").map_or_else(
        || Command::new(binary),
        |mut command| {
            command.arg(binary);
            command
        },
    );
    let mut watcher = watcher
        .args(["breakdown", "--pid", &process.id().to_string(), "--view", view])
        .args(["--duration-s", "600", "--json", file.path().to_str().expect("text")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut said = String::new();
    let mut errors = BufReader::new(watcher.stderr.take().expect("it is piped"));
    errors.read_line(&mut said).expect("a line");
    // The process starts when it is watched, and ends either way.
    process.stdin.take().expect("it is piped").write_all(b"go\n").expect("it reads");
    let process = process.wait_with_output().expect("it ends");
    let watcher = watcher.wait_with_output().expect("it ends");
    if said.contains("outside of containers") || said.contains("no right to watch") {
        println!("skip breakdown.kernel {}", said.trim());
        return None;
    }
    assert!(process.status.success() && watcher.status.success(), "{said}{watcher:?}");
    let figures = std::fs::read_to_string(&file).expect("written");
    let number = |line: &str| {
        let (name, number) = line.split_once(' ').expect("a name and a number");
        (name.to_owned(), number.parse().expect("a number"))
    };
    let numbers = text(&process.stdout).lines().map(number).collect();
    Some((serde_json::from_str(&figures).expect("JSON"), text(&watcher.stdout), numbers))
}

#[test]
fn breakdown_counts_each_system_call() {
    let Some((figures, table, numbers)) = watch_planted(&["calls"], "wall") else { return };
    let wall = &figures["wall"];
    assert_eq!(numbers.len(), 3, "{numbers:?}");
    for (name, number) in &numbers {
        let mut rows = wall["calls"].as_array().expect("rows").iter();
        let row = rows.find(|row| row["name"] == name.as_str()).expect("the call is listed");
        assert_eq!(row["calls"].as_f64(), Some(*number), "{name}: {table}");
        // One thread: nothing overlaps.
        assert_eq!(row["sum_ns"], row["covered_ns"], "{name}: {table}");
    }
    for lost in ["calls_lost", "threads_lost"] {
        assert_eq!(wall[lost], 0, "{table}");
    }
    assert_eq!(wall["threads"], 1, "{table}");
    // The thread was in one state at each time until it ended.
    let times = |name: &str| wall["all"][name].as_f64().expect("a number");
    let states = times("running_ns") + times("runnable_ns") + times("blocked_ns");
    let window = wall["seconds"].as_f64().expect("a number") * 1e9;
    assert!(states > 0.0 && states <= window * 1.000_001, "{states} of {window}");
    assert!(times("blocked_ns") > 0.0, "it slept until it was told to begin");
    assert!(figures["cpu"].is_null() && table.contains("Time by the clock"), "{table}");
}

#[test]
fn breakdown_finds_all_parts_of_a_planted_process() {
    let Some((figures, table, numbers)) = watch_planted(&["shares", "300"], "cpu") else { return };
    let cpu = &figures["cpu"];
    let parts = cpu["parts"].as_array().expect("rows");
    let percent = |name: &str| {
        let row = parts.iter().find(|row| row["part"] == name).expect("the part is listed");
        row["percent"].as_f64().expect("a number")
    };
    let sum: f64 = parts.iter().map(|row| row["percent"].as_f64().expect("a number")).sum();
    assert!((sum - 100.0).abs() < 1e-6, "{sum}: {table}");
    let samples: u64 = parts.iter().map(|row| row["samples"].as_u64().expect("a number")).sum();
    assert_eq!(cpu["samples"], samples, "{table}");
    assert_eq!(cpu["samples_lost"], 0, "{table}");
    for name in ["network", "memory", "key_value"] {
        assert!(percent(name) > 0.0 && numbers[name] > 0.0, "{name}: {table}");
    }
    for name in ["concurrency", "other", "no_symbol"] {
        assert!(percent(name) >= 0.0, "{name}: {table}");
    }
    let functions = cpu["functions"].as_array().expect("rows");
    let named = |name: &str| functions.iter().any(|row| row["name"].as_str() == Some(name));
    assert!(named("planted::planted_hash"), "its symbols are read: {table}");
    // Not judged otherwise, because it is measured: the difference to what the process found
    // itself.
    if std::env::var_os("KACHEL_FULL").is_some_and(|full| full == "1") {
        for name in ["network", "memory", "key_value"] {
            let apart = (percent(name) - numbers[name]).abs();
            assert!(apart < 15.0, "{name}: {apart} points, {table}");
        }
    }
    assert!(table.contains("Not seen:") && table.contains("interrupts off"), "{table}");
}

/// The words of the line of a table that begins with `name`.
fn line_of<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let line = table.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {table}")).split_whitespace().collect()
}

#[test]
fn cost_scales_the_published_systems_and_quotes_the_others() {
    let answer = lab(&["cost", "--published"]);
    assert!(answer.status.success() && answer.stderr.is_empty(), "{answer:?}");
    let table = text(&answer.stdout);
    let tile = ["128", "2", "2680000", "462", "5801", "12141", "-", "-", "-"];
    assert_eq!(line_of(&table, "4x TILEPro64"), tile, "{table}");
    assert_eq!(line_of(&table, "TSSP"), ["282", "16", "17.62", "computed", "tssp"], "{table}");
    let quoted = ["410", "-", "1", "quoted", "ntua"];
    assert_eq!(line_of(&table, "Memcached, Xeon (ISCA '13)"), quoted, "{table}");
}

#[test]
fn cost_compares_measured_systems_with_a_base() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let systems = r#"[
        {"system": "large", "ram_gb": 64, "capacity_tps": 300000, "power_w": 400, "price": 9000},
        {"system": "small", "ram_gb": 64, "capacity_tps": 100000, "power_w": 20}
    ]"#;
    std::fs::write(&file, systems).expect("written");
    let path = file.path().to_str().expect("text");
    let rest = ["--memory-gb", "1", "--rate", "300000", "--kwh-price", "0", "--base", "large"];
    let answer = lab(&[&["cost", path][..], &rest].concat());
    assert!(answer.status.success() && answer.stderr.is_empty(), "{answer:?}");
    let table = text(&answer.stdout);
    let small = ["64", "3", "300000", "60", "5000", "1577", "0", "-", "-", "3.00"];
    assert_eq!(line_of(&table, "small"), small, "{table}");
    assert_eq!(line_of(&table, "large").last(), Some(&"1.00"), "{table}");
}

#[test]
fn cost_refuses_bad_input_and_names_it() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("text");
    let row = r#"{"system": "a", "ram_gb": 1, "capacity_tps": 1, "power_w": 1}"#;
    for (content, args, named) in [
        (String::new(), &[][..], path),
        (format!("[{row}"), &[], path),
        (format!("[{}]", row.replace("\"power_w\": 1", "\"power_w\": 0")), &[], "power_w"),
        (format!("[{}]", row.replace("\"ram_gb\": 1", "\"ram_gb\": -1")), &[], "ram_gb"),
        (format!("[{}]", row.replace("power_w", "watts")), &[], "watts"),
        (format!("[{row}]"), &["--base", "b"], "--base b"),
        (format!("[{row}]"), &["--base", "a"], "--base a"),
        (format!("[{row}]"), &["--years", "0"], "--years"),
        (format!("[{row}]"), &["--pue", "0.9"], "--pue"),
        (format!("[{row}]"), &["--memory-gb", "inf"], "--memory-gb"),
    ] {
        std::fs::write(&file, &content).expect("written");
        let answer = lab(&[&["cost", path][..], args].concat());
        assert_eq!(answer.status.code(), Some(64), "{content} {args:?}: {answer:?}");
        let said = text(&answer.stderr);
        assert!(said.contains(named) && answer.stdout.is_empty(), "{content} {args:?}: {said}");
    }
    assert_eq!(lab(&["cost"]).status.code(), Some(64));
    assert_eq!(lab(&["cost", "/no/such/file"]).status.code(), Some(64));
}

/// Two keys take turns, and memory holds one of them or both.
#[test]
fn misses_are_counted_for_each_policy_and_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("turns.csv");
    let lines = (0..10).map(|second| format!("{second},{},1,9,1,get,0\n", ["a", "b"][second % 2]));
    std::fs::write(&trace, lines.collect::<String>()).expect("written");
    let (trace, out) = (trace.to_str().expect("text"), folder.path().join("out"));
    let rest =
        ["--memory", "0.5,1", "--policies", "lru,belady", "--out", out.to_str().expect("text")];
    let answer = lab(&[&["misses", trace][..], &rest].concat());
    assert!(answer.status.success(), "{answer:?}");
    let table = text(&answer.stdout);
    assert!(table.starts_with("turns.csv: 10 reads of 2 keys, 20 bytes\n"), "{table}");
    assert_eq!(line_of(&table, "          10 "), ["50.00%", "1.0000", "0.6000"], "{table}");
    assert_eq!(line_of(&table, "          20 "), ["100.00%", "0.2000", "0.2000"], "{table}");
    let json = std::fs::read_to_string(out.join("turns.json")).expect("written");
    let figures: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&figures["rows"][1]["policy"], &figures["rows"][1]["misses"]),
        (&"belady".into(), &6.into())
    );
    assert!(std::fs::read_to_string(out.join("turns.svg")).expect("written").starts_with("<svg"));
}

/// A record of `oracleGeneral` has the size of the object with its key, so the digits of the key
/// are not added.
#[test]
fn objects_of_equal_sizes_miss_by_bytes_as_they_do_by_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("equal.bin");
    let keys: Vec<u64> = (0..20_000_u64).map(|at| at * at % 7_919).collect();
    let mut bytes = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let next = keys[at + 1..].iter().position(|other| other == key);
        let next = next.map_or(-1, |steps| (at + steps + 2) as i64);
        bytes.extend([&1_u32.to_le_bytes()[..], &key.to_le_bytes()].concat());
        bytes.extend([&40_u32.to_le_bytes()[..], &next.to_le_bytes()].concat());
    }
    std::fs::write(&path, bytes).expect("written");
    let ratios = |memory: &str, objects: &[&str]| {
        let trace = path.to_str().expect("text");
        let rest = [&["--policies", "lru,arc", "--memory", memory][..], objects].concat();
        let answer = lab(&[&["misses", trace][..], &rest].concat());
        assert!(answer.status.success(), "{answer:?}");
        let table = text(&answer.stdout);
        let ratios: Vec<&str> = table.lines().last().expect("a line").split(' ').rev().collect();
        let footprint = table.lines().next().and_then(|line| line.rsplit(' ').nth(1));
        (ratios[0].to_owned(), ratios[1].to_owned(), footprint.expect("a number").to_owned())
    };
    let (by_objects, by_bytes) = (ratios("1000", &["--objects"]), ratios("40000", &[]));
    assert_eq!((&by_objects.0, &by_objects.1), (&by_bytes.0, &by_bytes.1));
    let objects: u64 = by_objects.2.parse().expect("a number");
    assert_eq!(by_bytes.2, (objects * 40).to_string());
}

/// Requests that are left out or changed are counted beside the figures.
#[test]
fn misses_says_which_requests_are_not_as_the_trace_has_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("odd.csv");
    let long = "k".repeat(251);
    let lines = format!("\u{feff}5,a,1,9,1,get,0\n5,{long},251,9,1,get,0\n4,a,1,9,1,get,0\n");
    std::fs::write(&path, lines).expect("written");
    let (trace, out) = (path.to_str().expect("text"), folder.path().join("out"));
    let rest = ["--memory", "1", "--policies", "lru", "--out", out.to_str().expect("text")];
    let answer = lab(&[&["misses", trace][..], &rest].concat());
    assert!(answer.status.success(), "{answer:?}");
    let table = text(&answer.stdout);
    let lines: Vec<&str> = table.lines().take(3).collect();
    let expected = [
        "odd.csv: 2 reads of 1 keys, 10 bytes",
        "1 request left out: the key is longer than 250 bytes",
        "1 request changed: the time goes backward",
    ];
    assert_eq!(lines, expected, "{table}");
    let json = std::fs::read_to_string(out.join("odd.json")).expect("written");
    let figures: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(figures["oddities"]["long_keys"], 1);
    assert_eq!(figures["oddities"]["backward_times"], 1);
}

/// Names lose only endings that say how a trace is written, and no result replaces another.
#[test]
fn misses_writes_the_figures_of_each_trace_under_its_own_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    std::fs::create_dir(path("b")).expect("a folder");
    for name in ["day.1.csv", "day.2.oracleGeneral.bin.zst", ".csv", "b/day.1.csv"] {
        std::fs::write(path(name), "0,a,1,9,1,get,0\n").expect("written");
    }
    let misses = |traces: &[&str], out: &str| {
        let traces: Vec<String> = traces.iter().map(|name| path(name)).collect();
        let traces: Vec<&str> = traces.iter().map(String::as_str).collect();
        lab(&[&["misses", "--memory", "1", "--out", &path(out)][..], &traces].concat())
    };
    let answer = misses(&["day.1.csv", "day.2.oracleGeneral.bin.zst", ".csv"], "out");
    assert!(answer.status.success(), "{answer:?}");
    for (stem, trace) in
        [("day.1", "day.1.csv"), ("day.2", "day.2.oracleGeneral.bin.zst"), (".csv", ".csv")]
    {
        let json = std::fs::read_to_string(path(&format!("out/{stem}.json"))).expect("written");
        let figures: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(figures["trace"], trace);
    }
    let refused = misses(&["day.1.csv", "b/day.1.csv"], "none");
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    assert!(text(&refused.stderr).contains("two traces would be written to day.1.json"));
    assert!(!Path::new(&path("none")).exists(), "refused before the first run");
}

#[test]
fn misses_refuses_bad_input_and_names_it() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("text");
    for (content, args, named) in [
        ("", &[][..], "no requests"),
        ("0,a,1\n", &[], "line 1"),
        ("\x1f\0gz", &[], "record 1"),
        ("BZh9", &[], "compressed with bzip2"),
        ("0,a,1,9,1,set,0\n", &[], "no reads"),
        ("0,a,1,9,1,get,0\n", &["--memory", "0"], "--memory"),
        ("0,a,1,9,1,get,0\n", &["--memory", "1.5"], "--memory"),
        ("0,a,1,9,1,get,0\n", &["--policies", "random"], "--policies"),
        ("0,a,1,9,1,get,0\n", &["--threads", "0"], "--threads"),
        ("0,a,1,9,1,get,0\n", &["--out", path], path),
    ] {
        std::fs::write(&file, content).expect("written");
        let answer = lab(&[&["misses", path][..], args].concat());
        assert_eq!(answer.status.code(), Some(64), "{content} {args:?}: {answer:?}");
        assert!(text(&answer.stderr).contains(named), "{content} {args:?}: {answer:?}");
    }
    assert_eq!(lab(&["misses"]).status.code(), Some(64));
}

/// A meter of constant power, one that fails after its first sample, an estimate, and a recording.
/// The requests are those of one second of the command.
#[test]
fn power_is_measured_while_a_command_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    std::fs::write(path("recording.csv"), "0,7\n1,7\n").expect("written");
    let dying =
        format!("command:test ! -e {0} && echo 30 || (echo broken >&2; exit 1)", path("dead"));
    let requests = r#"{"result": {"requests": 1000, "begin_unix_s": %s, "window_s": 1}}"#;
    let work = format!(
        "touch {}; now=$(date +%s.%N); sleep 2.5; printf '{requests}' $now >{}; exit 3",
        path("dead"),
        path("requests.json")
    );
    let answer = lab(&[
        "power",
        "--meter",
        "command:echo 40",
        "--meter",
        &dying,
        "--meter",
        "model:10,20",
        "--meter",
        &format!("csv:{}", path("recording.csv")),
        "--idle-s",
        "0.2",
        "--every-ms",
        "2000",
        "--requests",
        &path("requests.json"),
        "--json",
        &path("out.json"),
        "--",
        "sh",
        "-c",
        &work,
    ]);
    assert_eq!(answer.status.code(), Some(3), "{answer:?}");
    let json = std::fs::read_to_string(path("out.json")).expect("written");
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let [constant, dying, model, recording] = &report["meters"].as_array().expect("a list")[..]
    else {
        panic!("{report}");
    };
    assert_eq!(
        (&constant["idle_w"], &constant["loaded_w"], &constant["net_w"]),
        (&40.0.into(), &40.0.into(), &0.0.into())
    );
    let (joules, seconds) = (constant["joules"].as_f64(), report["seconds"].as_f64());
    assert!((joules.expect("covered") / seconds.expect("a time") - 40.0).abs() < 1e-6, "{report}");
    let per_request = constant["joules_per_request"].as_f64().expect("a figure");
    assert!((per_request * 1000.0 - 40.0).abs() < 1e-6, "{report}");
    assert!(dying["error"].as_str().expect("a reason").contains("broken"), "{report}");
    assert!(dying["covered"] == 0.0 && dying["joules"].is_null(), "{report}");
    assert!(model["is_estimate"] == true && constant["is_estimate"] == false, "{report}");
    assert!(recording["covered"] == 0.0 && recording["loaded_w"].is_null(), "another time");
    let text = text(&answer.stdout);
    assert!(text.contains("model:10,20  (an estimate, not measured)"), "{text}");
    assert!(text.contains("missing    sh -c") && text.contains("energy     unknown"), "{text}");
}

#[test]
fn power_refuses_bad_input_and_names_it() {
    for (args, named) in [
        (&["power", "--meter", "command:echo 1"][..], "COMMAND"),
        (&["power", "--meter", "watts", "--", "true"], "--meter"),
        (&["power", "--meter", "hwmon:/no/such/folder", "--", "true"], "/no/such/folder"),
        (&["power", "--meter", "command:echo 1", "--idle-s", "4000", "--", "true"], "--idle-s"),
        (&["power", "--meter", "command:echo 1", "--idle-s", "0", "--", "/no/such"], "/no/such"),
    ] {
        let answer = lab(args);
        assert_eq!(answer.status.code(), Some(64), "{args:?}: {answer:?}");
        assert!(text(&answer.stderr).contains(named), "{args:?}: {answer:?}");
    }
}

/// The command has run, so its exit status and the figures of the meter stand.
#[test]
fn power_keeps_its_figures_if_the_requests_are_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.json");
    let measured = |json: &str, status: &str| {
        let words = "power --meter model:10,20 --idle-s 0 --every-ms 10 --requests /no/such --json";
        let command = ["--", "sh", "-c", status];
        lab(&[&words.split(' ').collect::<Vec<_>>()[..], &[json], &command].concat())
    };
    let answer = measured(out.to_str().expect("text"), "sleep 0.1; exit 3");
    assert_eq!(answer.status.code(), Some(3), "{answer:?}");
    let json = std::fs::read_to_string(&out).expect("written");
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let error = report["requests_error"].as_str().expect("a reason");
    assert!(error.contains("--requests /no/such: "), "{report}");
    let meter = &report["meters"][0];
    assert!(meter["loaded_w"].is_f64() && meter["joules_per_request"].is_null(), "{report}");
    let table = text(&answer.stdout);
    assert!(table.contains("requests   unknown: --requests /no/such: "), "{table}");
    assert!(table.contains("power      idle "), "{table}");
    let answer = measured("/no/such/out.json", "sleep 0.1");
    assert_eq!(answer.status.code(), Some(1), "{answer:?}");
    assert!(text(&answer.stderr).contains("--json /no/such/out.json: "), "{answer:?}");
    assert!(text(&answer.stdout).contains("power      idle "), "{answer:?}");
}

const EXPERIMENT: &str = r#"
question = "Which one?"
baseline = "a"
rounds = 1
[[server]]
name = "a"
program = "/no/such/program"
variable = "KACHEL_TEST_NO_SUCH_VARIABLE"
arguments = ["{port}"]
[load]
arguments = ["--keys", "10"]
duration_s = 0.1
[steps]
rates = [10]
"#;

#[test]
fn run_refuses_bad_input_and_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text").to_owned();
    let out = folder.path().join("out");
    let out = out.to_str().expect("text");
    let said = |content: &str, args: &[&str]| {
        std::fs::write(folder.path().join("experiment.toml"), content).expect("written");
        let answer = lab(&[&["run", &path, "--smoke", "--out", out], args].concat());
        assert_eq!(answer.status.code(), Some(64), "{content} {args:?}: {answer:?}");
        assert!(answer.stdout.is_empty(), "{answer:?}");
        text(&answer.stderr)
    };
    let typo = said(&EXPERIMENT.replace("rounds", "runds"), &[]);
    assert!(typo.contains("line 4") && typo.contains("runds"), "{typo}");
    let missing = said(EXPERIMENT, &[]);
    for word in ["'/no/such/program'", "KACHEL_TEST_NO_SUCH_VARIABLE", "--program a=PATH"] {
        assert!(missing.contains(word), "{word} in {missing}");
    }
    assert!(said(EXPERIMENT, &["--program", "b=sh"]).contains("no server 'b'"));
    // The shell ends at once, because no file has the name of the port.
    let ended = said(EXPERIMENT, &["--program", "a=sh"]);
    assert!(ended.contains("server 'a' ended (exit status: ") && ended.contains("sh:"), "{ended}");
    let changed = said(&EXPERIMENT.replace("Which one?", "Which?"), &["--program", "a=sh"]);
    assert!(changed.contains("another version of this experiment"), "{changed}");
    assert!(text(&lab(&["run", "no-such-experiment"]).stderr).contains("no-such-experiment"));
    let report = lab(&["report", out]);
    assert_eq!(report.status.code(), Some(64));
    assert!(text(&report.stderr).contains("no step is measured yet"), "{report:?}");
    assert!(text(&lab(&["report", "/no/such"]).stderr).contains("/no/such"));
}

#[test]
fn run_finds_the_experiments_that_are_installed_with_it() {
    let root = tempfile::tempdir().expect("a folder");
    let (bin, share) = (root.path().join("bin"), root.path().join("share/kachel/experiments/one"));
    for folder in [&bin, &share] {
        std::fs::create_dir_all(folder).expect("a folder");
    }
    std::fs::write(share.join("experiment.toml"), EXPERIMENT).expect("written");
    let installed = bin.join("kachel-lab");
    std::fs::copy(env!("CARGO_BIN_EXE_kachel-lab"), &installed).expect("copied");
    let run = |name: &str| {
        let mut command = Command::new(&installed);
        command.current_dir(root.path()).args(["run", name, "--smoke"]);
        text(&command.output().expect("the binary starts").stderr)
    };
    let said = run("one");
    assert!(said.contains("'/no/such/program'"), "it was read: {said}");
    assert!(run("two").contains("experiments/two"), "the folder of the tree is named");
}
