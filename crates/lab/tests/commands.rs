//! Tests the subcommands of the binary `kachel-lab` by their output and exit codes.

use std::process::{Command, Output};

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

#[test]
fn misses_refuses_bad_input_and_names_it() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("text");
    for (content, args, named) in [
        ("", &[][..], "no requests"),
        ("0,a,1\n", &[], "line 1"),
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
#[test]
fn power_is_measured_while_a_command_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let requests = r#"{"result": {"requests": 1000}}"#;
    std::fs::write(path("requests.json"), requests).expect("written");
    std::fs::write(path("recording.csv"), "0,7\n1,7\n").expect("written");
    let dying =
        format!("command:test ! -e {0} && echo 30 || (echo broken >&2; exit 1)", path("dead"));
    let work = format!("touch {}; sleep 2.5; exit 3", path("dead"));
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
    assert!((per_request * 1000.0 - joules.expect("covered")).abs() < 1e-6, "{report}");
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
        (
            &[
                "power",
                "--meter",
                "command:echo 1",
                "--idle-s",
                "0",
                "--requests",
                "/no",
                "--",
                "true",
            ],
            "--requests /no",
        ),
    ] {
        let answer = lab(args);
        assert_eq!(answer.status.code(), Some(64), "{args:?}: {answer:?}");
        assert!(text(&answer.stderr).contains(named), "{args:?}: {answer:?}");
    }
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
