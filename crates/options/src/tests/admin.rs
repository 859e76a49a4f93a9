//! The options of the admin address, and the time for which a server drains.

use super::{kachel, memcached};
use crate::{AdminListen, HAS_TLS, OptionsError, parse};

fn refused(args: &[&str]) -> OptionsError {
    let args = ["serve"].iter().chain(args).map(std::ffi::OsString::from);
    parse(args, "kachel".as_ref()).expect_err("an error")
}

#[test]
fn the_admin_address_is_one_of_this_machine() {
    assert_eq!(kachel(&[]).admin.listen, None);
    assert_eq!(kachel(&["--admin", "127.0.0.1:9000", "--admin=off"]).admin.listen, None);
    for (given, address) in [
        ("127.0.0.1:9000", "127.0.0.1:9000"),
        ("localhost:0", "127.0.0.1:0"),
        ("127.8.9.7:1", "127.8.9.7:1"),
        ("[::1]:9000", "[::1]:9000"),
    ] {
        let wanted = AdminListen::Ip(address.parse().expect("an address"));
        assert_eq!(kachel(&["--admin", given]).admin.listen, Some(wanted), "{given}");
    }
    for (given, path, mode) in [
        ("unix:/run/k", "/run/k", 0o600),
        ("unix:/run/k,mode=0660", "/run/k", 0o660),
        ("unix:a,b,mode=7", "a,b", 0o7),
    ] {
        let wanted = AdminListen::Unix { path: path.into(), mode };
        assert_eq!(memcached(&["--admin", given]).admin.listen, Some(wanted), "{given}");
    }
    for given in [
        "9000",
        ":9000",
        "127.0.0.1",
        "127.0.0.1:x",
        "::1:9000",
        "*:9000",
        "example.org:9000",
        "localhost:",
        "unix:",
        "unix:,mode=600",
        "unix:/k,mode=1777",
        "unix:/k,mode=9",
        "on",
    ] {
        assert_eq!(refused(&["--admin", given]).exit_code, 64, "{given}");
    }
}

#[test]
fn another_address_needs_tls_and_a_token() {
    let tls = ["-Z", "-o", "ssl_chain_cert=file"];
    let tls: &[&str] = if HAS_TLS { &tls } else { &[] };
    for address in ["0.0.0.0:9000", "10.0.0.7:9000", "[::]:9000", "[2001:db8::1]:9000"] {
        let (at, token) = (&["--admin", address][..], &["--admin-token-file", "file"][..]);
        let error = refused(&[at, token].concat());
        assert!(error.exit_code == 64 && error.message.contains("TLS"), "{error}");
        if HAS_TLS {
            let error = refused(&[at, tls].concat());
            assert!(error.message.contains("--admin-token-file"), "{error}");
            let options = kachel(&[at, tls, token].concat());
            assert!(options.admin.listen.is_some_and(|listen| !listen.is_local()));
        }
    }
}

#[test]
fn observers_are_named_in_a_list() {
    for (given, wanted, shown) in [
        (&[][..], &[][..], "off"),
        (&["--observe=hotkeys,hotkeys"], &["hotkeys"], "hotkeys"),
        (&["--observe=prefixes,curve"], &["curve", "prefixes"], "curve,prefixes"),
        (&["--observe", "all", "--observe=off"], &[], "off"),
    ] {
        let options = kachel(given);
        assert_eq!(options.observe, wanted, "{given:?}");
        assert!(
            options.settings(1).contains(&("kachel_observe".into(), shown.into())),
            "{given:?}"
        );
    }
    for list in ["", "hotkey", "hotkeys,", "all,hotkeys", "off,hotkeys", "HOTKEYS"] {
        let error = refused(&["--observe", list]);
        assert!(error.exit_code == 64, "{list}: {error}");
    }
}

#[test]
fn hosts_are_names_and_what_has_no_effect_is_reported() {
    let options = kachel(&["--admin=[::1]:1", "--admin-host", "a.example", "--admin-host=b-1"]);
    assert_eq!(options.admin.hosts, ["a.example", "b-1"]);
    assert!(options.reports.is_empty(), "{:?}", options.reports);
    for host in ["", "a:80", "http://a", "a b", "*", "*.example", "a/b"] {
        assert_eq!(refused(&["--admin=[::1]:1", "--admin-host", host]).exit_code, 64, "{host}");
    }
    let options = kachel(&["--admin-host=a", "--admin-token-file=b", "--drain=7"]);
    assert_eq!(options.reports.len(), 2, "{:?}", options.reports);
    assert_eq!(options.drain_s, 7);
    let settings = kachel(&["--admin", "unix:/k"]).settings(1);
    for (key, value) in [("kachel_admin", "unix:/k,mode=600"), ("kachel_drain", "0")] {
        assert!(settings.contains(&(key.into(), value.into())), "{key}");
    }
}

#[test]
fn metrics_may_name_50_prefixes() {
    let admin = ["--admin=[::1]:1", "--observe=prefixes"];
    let with = |list: &str| kachel(&[&admin[..], &["--admin-prefixes", list]].concat());
    assert_eq!(with("user,page,user,caf\u{e9}").admin.prefixes, ["user", "page", "caf\u{e9}"]);
    let many = |count: usize| {
        let names: Vec<String> = (0..count).map(|number| format!("p{number}")).collect();
        names.join(",")
    };
    assert_eq!(with(&many(50)).admin.prefixes.len(), 50);
    assert!(with("user").reports.is_empty());
    let long = "p".repeat(250);
    for list in ["", ",", "a,,b", "a b", "a\u{7f}", "user:", &long, &many(51)] {
        let error = refused(&[&admin[..], &["--admin-prefixes", list]].concat());
        assert!(error.exit_code == 64, "{list}: {error}");
    }
    let error = refused(&["--admin=[::1]:1", "--admin-prefixes", "a/b", "-D", "/"]);
    assert!(error.message.contains("which ends a prefix (-D)"), "{error}");
    assert_eq!(kachel(&["--admin=[::1]:1", "--admin-prefixes=a"]).reports.len(), 1);
    assert_eq!(kachel(&["--observe=all", "--admin-prefixes=a"]).reports.len(), 1, "no address");
}
