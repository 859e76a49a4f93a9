//! The arguments of the load generators, checked before the first step.
//!
//! Upstream:   `mod`, with the experiment.
//! Downstream: `kachel_load::check`.
//!
//! Some combinations of the swept options come late in a run, so a wrong value must be found early.

use crate::experiment::Experiment;

/// Errors: the generator would refuse the arguments of some case and combination of the options.
pub(super) fn check(experiment: &Experiment) -> Result<(), String> {
    for case in experiment.case_names() {
        check_case(&experiment.of_case(case.as_deref()))?;
    }
    Ok(())
}

fn check_case(experiment: &Experiment) -> Result<(), String> {
    let load = &experiment.load;
    let fill = [&load.arguments[..], &load.fill].concat();
    let beside = experiment.beside.as_ref().map(|beside| &beside.arguments);
    let all = [("load", Some(&load.arguments)), ("fill", Some(&fill)), ("beside", beside)];
    for options in experiment.combinations() {
        for (name, arguments) in all.iter().filter_map(|(name, words)| Some((name, (*words)?))) {
            kachel_load::check(&experiment.words.fill(arguments, &options))
                .map_err(|error| format!("{name}: {}", error.trim_end()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::experiment::FILE;

    /// The experiments of the tree.
    fn experiments(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("a folder of the tree");
        let of = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.expect("an entry").path();
            let own = path.join(FILE);
            let below = if path.is_dir() { experiments(&path) } else { Vec::new() };
            own.is_file().then_some(own).into_iter().chain(below)
        };
        entries.flat_map(of).collect()
    }

    #[test]
    fn the_generator_accepts_the_arguments_of_every_experiment() {
        let files = experiments(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments"));
        assert!(files.len() >= 15, "{files:?}");
        for file in files {
            let experiment = Experiment::read(&file).expect("valid");
            check(&experiment).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
    }

    #[test]
    fn a_wrong_value_of_any_combination_is_found() {
        let text = "question = \"q\"\nbaseline = \"a\"\nrounds = 1\n[[server]]\nname = \"a\"\n\
                    address = \"x\"\n[load]\narguments = [\"--keys\", \"{keys}\"]\n\
                    duration_s = 1\n[beside]\narguments = [\"--rate\", \"{rate}\"]\n\
                    [sweep]\nkeys = [1, 2]\nrate = [1, 2]\n";
        let check = |text: &str| check(&Experiment::parse(text).expect("valid"));
        assert_eq!(check(text), Ok(()));
        let load = check(&text.replace("keys = [1, 2]", "keys = [1, \"x\"]")).expect_err("wrong");
        assert!(load.starts_with("load: ") && load.contains("--keys"), "{load}");
        let beside = check(&text.replace("rate = [1, 2]", "rate = [1, 0]")).expect_err("wrong");
        assert!(beside.starts_with("beside: ") && beside.contains("rate"), "{beside}");
    }
}
