//! The file of options.

use super::{kachel, memcached, parse_as, refusal};
use crate::{Command, HAS_TLS, ServeOptions, example_file, parse_file};

/// The path of a file with this text, in a folder that lasts as long as the first value.
fn config(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kachel.toml");
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("UTF-8").to_string();
    (folder, path)
}

fn kachel_with(text: &str, args: &[&str]) -> ServeOptions {
    let (_folder, path) = config(text);
    without_file(kachel(&[&["--config", &path], args].concat()))
}

/// The options without the file that they come from.
fn without_file(options: ServeOptions) -> ServeOptions {
    assert!(options.options_file.is_some(), "there is one");
    ServeOptions { options_file: None, ..options }
}

#[test]
fn a_file_has_the_effect_of_a_command_line() {
    let text = "memory-limit = 100\nt = 3\nenable-shutdown = true\ndisable-cas = false\n\
                verbose = 2\nlisten = [\"127.0.0.1:1\", \"[::1]:2\"]\nmax-item-size = \"2m\"\n\
                [extended]\nidle_timeout = 60\nmaxconns_fast = true\nmodern = false\n\
                no_hashexpand = false\nslab_automove = false\n";
    let args = ["-m100", "-t3", "-A", "-vv", "-l", "127.0.0.1:1", "-l", "[::1]:2", "-I", "2m"];
    let extended =
        ["-o", "idle_timeout=60", "-o", "maxconns_fast", "-o", "no_modern,no_slab_automove"];
    assert_eq!(kachel_with(text, &[]), kachel(&[&args[..], &extended].concat()));
    assert_eq!(kachel_with("", &[]), kachel(&[]));
    for name in ["lru_crawler", "maxconns_fast", "slab_reassign", "lru_maintainer"] {
        let file = kachel_with(&format!("[extended]\n{name} = false\n"), &[]);
        assert_eq!(file, kachel(&["-o", &format!("no_{name}")]));
    }
}

#[test]
fn the_command_line_counts_more_than_the_file_wherever_it_names_it() {
    let text = "memory-limit = 100\nthreads = 3\nlisten = \"127.0.0.1:1\"\n";
    let (_folder, path) = config(text);
    let path = format!("--config={path}");
    for args in [&["-m", "200", "-l", "127.0.0.1:2", &path][..], &[&path, "-m200", "-l127.0.0.1:2"]]
    {
        assert_eq!(
            without_file(kachel(args)),
            kachel(&["-t", "3", "-m", "200", "-l", "127.0.0.1:2"])
        );
    }
    // memcached's name takes a file as well, and help needs none.
    assert_eq!(
        without_file(memcached(&[&path])),
        memcached(&["-m100", "-t3", "-l", "127.0.0.1:1"])
    );
    assert!(matches!(parse_as("memcached", &["-h", "--config=/none"]), Ok(Command::Help(_))));
}

#[test]
fn a_mistake_in_a_file_is_an_error_that_names_it() {
    for (text, sentence) in [
        ("memory-limit", "TOML parse error at line 1"),
        ("memory = 1", "memory: no such option"),
        ("\"\" = 1", ": no such option"),
        ("memory-limit = true", "must be a text or a number"),
        ("memory-limit = \"much\"", "--memory-limit=much: must be a number"),
        ("m = \"much\"", "-m much: must be a number"),
        ("udp-port = 70000", "--udp-port=70000: must be "),
        ("memory-limit = 1\nmemory-limit = 2", "duplicate key"),
        ("enable-shutdown = 1", "must be true or false"),
        ("disable-dumping = false", "disable-dumping: false does not turn it off (default: on;"),
        ("W = false", "W: false does not turn it off"),
        ("dumps = false", "default: off; called as memcached: on"),
        ("port = false", "must be a text or a number"),
        ("[extended]\nidle_timeout = false", "extended.idle_timeout: must be a text or a number"),
        ("[extended]\nno_drop_privileges = false", "no_drop_privileges: false does not turn it"),
        ("verbose = 10", "must be 0 to 9"),
        ("[threads]\nt = 1", "must be a text or a number"),
        ("[extended]\nidle = 1", "extended.idle: no such option"),
        ("[extended]\nslab_automove = []", "must be a text or a number"),
        ("config = \"other\"", "names no other file"),
        ("[extended]\nssl_kernel_tls = true", "not encrypted by the kernel"),
    ] {
        let (_folder, path) = config(text);
        let error = refusal(&["--config", &path]);
        assert!(error.message.starts_with(&format!("{path}:")), "{error}");
        assert!(error.message.contains(sentence), "{text}: {error}");
        assert_eq!(error.exit_code, 64, "a service manager does not try again: {text}");
    }
    // The text alone is read in the same way.
    let error = parse_file("the file", "verbose = 10").expect_err("it is refused");
    let expected = ("the file:1: verbose: must be 0 to 9", 64);
    assert_eq!((error.message.as_str(), error.exit_code), expected);
}

/// The fault: a file of options that could not be read was a mistake in any case.
#[test]
fn a_file_of_options_may_come_with_its_folder_and_not_by_itself() {
    let said = |path: &str| format!("{path}: No such file or directory (os error 2)");
    for (path, exit_code) in [("/none/such", 71), ("/no-such-file", 64)] {
        for (name, words) in
            [("kachel", &["serve", "--config", path][..]), ("memcached", &["--config", path])]
        {
            let parsed = crate::parse(words.iter().map(std::ffi::OsString::from), name.as_ref());
            let error = parsed.expect_err("there is no such file");
            assert_eq!((error.message, error.exit_code), (said(path), exit_code), "{name}");
        }
        for words in [&["serve", "--config", path, "--check"][..], &["check-config", path]] {
            let words = words.iter().map(std::ffi::OsString::from);
            let error = crate::parse(words, "kachel".as_ref()).expect_err("it cannot be used now");
            assert_eq!((error.message, error.exit_code), (said(path), 64), "a check");
        }
    }
}

#[test]
fn a_mistake_is_reported_with_its_line_and_its_key() {
    for (text, at) in [
        ("\n\nmemory-limit = \"much\"", "3: memory-limit: "),
        ("\u{feff}# no option\r\nmemory = 1", "2: memory: "),
        ("threads = 2\n[extended]\n\nidle = 1", "4: extended.idle: "),
        ("threads = 2\n[extended]\nidle_timeout = \"x\"\n", "3: extended.idle_timeout: "),
        ("threads = 2\nextended.idle = 1", "2: extended.idle: "),
        ("listen = [\n\"127.0.0.1:1\",\ntrue]", "1: listen: "),
        ("lock-memory = true\nt = 0", "2: t: "),
        ("check = true", "1: check: "),
    ] {
        let error = parse_file("file", text).expect_err(text);
        assert!(error.message.starts_with(&format!("file:{at}")), "{text}: {error}");
        assert_eq!(error.exit_code, 64, "{text}: {error}");
    }
    // Options that exclude each other have no line of their own.
    let error = parse_file("file", "auth-file = \"a\"\nenable-sasl = true").expect_err("both");
    assert_eq!(error.exit_code, 64);
}

#[test]
fn what_has_changed_in_a_file_is_known() {
    let (_folder, path) = config("threads = 2\nport = 1\n[extended]\nidle_timeout = 60\n");
    let file = kachel(&["--config", &path]).options_file.expect("a file");
    let changes = |text: &str| {
        std::fs::write(&path, text).expect("written");
        file.changes()
    };
    let same = "# Other lines.\nport = 1\nthreads = 2\n[extended]\nidle_timeout = 60\n";
    assert_eq!(changes(same), Ok(vec![]));
    let other = "port = 2\nmemory-limit = 9\n[extended]\nidle_timeout = 60\n";
    assert_eq!(changes(other), Ok(["memory-limit", "port", "threads"].map(String::from).to_vec()));
    assert_eq!(changes("port").expect_err("it is not TOML").exit_code, 64);
}

#[test]
fn a_check_is_a_start_that_serves_nobody() {
    let (_folder, path) = config("threads = 2\n");
    let words = ["check-config", &path].map(std::ffi::OsString::from);
    let Ok(Command::Serve(options)) = crate::parse(words, "kachel".as_ref()) else {
        panic!("it checks the options of a server");
    };
    assert!(options.checks_only && options.threads == Some(2));
    assert!(kachel(&["--check"]).checks_only && !kachel(&[]).checks_only);
    for words in [&["check-config"][..], &["check-config", "a", "b"], &["check-config", "--check"]]
    {
        let words = words.iter().map(std::ffi::OsString::from);
        let error = crate::parse(words, "kachel".as_ref()).expect_err("it is refused");
        assert_eq!(error.exit_code, 64);
    }
}

#[test]
fn each_line_of_the_example_file_works() {
    let text = example_file();
    let mut table = "";
    let mut count = 0;
    for line in text.lines() {
        if line.starts_with('[') {
            table = line;
        } else if let Some(setting) = line.strip_prefix('#').filter(|line| !line.starts_with(' ')) {
            if setting.is_empty() {
                continue;
            }
            let of_tls = setting.starts_with("enable-ssl") || setting.starts_with("ssl_");
            if of_tls && !HAS_TLS {
                continue;
            }
            let of_disk = ["data", "sync", "rocksdb-options"];
            let needed = if of_tls {
                &["-o", "ssl_chain_cert=file"][..]
            } else if of_disk.iter().any(|key| setting.starts_with(key)) {
                &["--engine", "rocksdb", "--data", "folder"][..]
            } else {
                &[]
            };
            let mut words = [&["-m", "1024"], needed].concat();
            let mut setting = setting.to_owned();
            if setting.starts_with("space") {
                words = vec!["--engine", "flash", "--data", "folder"];
                setting = setting.replace("num[k|m|g|t]", "64m");
            }
            let _options = kachel_with(&format!("{table}\n{setting}\n"), &words);
            count += 1;
        }
    }
    assert!(count > 30, "{count} options");
}
