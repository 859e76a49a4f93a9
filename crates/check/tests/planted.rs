//! Hand-written histories. Each bad history contains one fault that a server might have. Each good
//! history looks faulty and is correct. `tests/porcupine` at the root judges the same files.

use std::path::Path;

use kachel_check::{Violation, check_history, read_history, write_history};

/// The names of the histories in a folder beside this file, with the judge's verdict on each.
fn judged(folder: &str) -> Vec<(String, Result<(), Violation>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories").join(folder);
    let files = std::fs::read_dir(&folder).expect("the histories are there");
    let judged = files.map(|file| {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("a text");
        let (history, rules) =
            read_history(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let again = read_history(&write_history(&history, &rules));
        assert_eq!(again, Ok((history.clone(), rules)), "{}", path.display());
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, check_history(&history, &rules).map(|_| ()))
    });
    judged.collect()
}

#[test]
fn every_bad_history_is_rejected_and_named() {
    let judged = judged("bad");
    assert!(judged.len() >= 20, "{}", judged.len());
    for (name, verdict) in judged {
        match verdict {
            Err(Violation::Contradiction(found)) => {
                let text = found.to_string();
                assert!(text.contains("no order"), "{name}: {text}");
                println!(
                    "{name}: {} operations of key {}",
                    found.prefix.len(),
                    found.key.escape_ascii()
                );
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn every_good_history_is_accepted() {
    let judged = judged("good");
    assert!(judged.len() >= 10, "{}", judged.len());
    for (name, verdict) in judged {
        assert!(verdict.is_ok(), "{name}: {}", verdict.expect_err("just seen"));
    }
}
