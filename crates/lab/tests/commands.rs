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
