//! Values of swept options within the arguments of commands.
//!
//! Upstream:   the tables `[sweep]` and `[words]` of the file, and the options of a group of steps.
//! Downstream: `run`, which executes the commands.
//!
//! `{NAME}` stands for the value of the swept option NAME. An argument that is only `{NAME}` stands
//! for several arguments, or for none, if `[words.NAME]` has a list for each value.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Experiment;

/// The ports that are chosen for a server.
const PORTS: [&str; 2] = ["port", "tls_port"];
/// The files that are made for servers.
const FILES: [&str; 2] = ["certificate", "key"];

/// The arguments that the values of some options stand for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Words(BTreeMap<String, BTreeMap<String, Vec<String>>>);

impl Words {
    /// These arguments with the values of the options in place of their names in braces.
    pub(crate) fn fill(
        &self,
        arguments: &[String],
        options: &BTreeMap<String, String>,
    ) -> Vec<String> {
        let of_one = |word: &String| match self.of(word, options) {
            Some(words) => words.iter().map(|word| filled(word, options)).collect(),
            None => vec![filled(word, options)],
        };
        arguments.iter().flat_map(of_one).collect()
    }

    /// The arguments for which this one stands. `None`: it is no name of a list.
    fn of(&self, word: &str, options: &BTreeMap<String, String>) -> Option<&Vec<String>> {
        let name = word.strip_prefix('{')?.strip_suffix('}')?;
        let lists = self.0.get(name)?;
        let words = lists.get(options.get(name)?);
        assert!(words.is_some(), "the file was checked: each value has a list");
        words
    }

    /// Errors: the lists are not those of the values of an option, or an argument, an environment
    /// or a list of cores names an option that does not exist.
    pub(super) fn check(&self, experiment: &Experiment) -> Result<(), String> {
        let combinations = experiment.combinations();
        for (name, lists) in &self.0 {
            let values: Vec<&String> = combinations.iter().filter_map(|it| it.get(name)).collect();
            if values.is_empty() {
                return Err(format!("words: the sweep has no {name}"));
            }
            if let Some(value) = values.iter().find(|value| !lists.contains_key(**value)) {
                return Err(format!("words.{name}: no list for '{value}'"));
            }
            if let Some(value) = lists.keys().find(|value| !values.contains(value)) {
                return Err(format!("words.{name}: the sweep has no '{value}'"));
            }
        }
        let is_option = |name: &str| combinations[0].contains_key(name);
        let servers = &experiment.servers;
        let of_servers = servers.iter().flat_map(|server| &server.arguments);
        let unknown_of_servers = of_servers
            .flat_map(|word| names(word))
            .find(|name| !PORTS.contains(name) && !FILES.contains(name) && !is_option(name));
        let load = &experiment.load;
        let of_beside = experiment.beside.iter().map(|beside| &beside.cores);
        let cores = servers.iter().map(|server| &server.cores).chain([&load.cores]);
        let unknown_core = cores
            .chain(of_beside)
            .flatten()
            .flat_map(|cores| names(cores))
            .find(|name| !is_option(name));
        let beside = experiment.beside.iter().flat_map(|beside| &beside.arguments);
        let cases = experiment.cases.iter().flat_map(|case| &case.arguments);
        let of_load = load.arguments.iter().chain(&load.fill).chain(beside).chain(cases);
        let of_load = of_load.chain(self.0.values().flat_map(|lists| lists.values().flatten()));
        // The files are made only if an argument names them.
        let environments = servers.iter().flat_map(|server| server.environment.values());
        let unknown = of_load
            .chain(environments)
            .flat_map(|word| names(word))
            .find(|name| !PORTS.contains(name) && !is_option(name));
        match unknown_of_servers.or(unknown).or(unknown_core) {
            Some(name) => Err(format!("the sweep has no {name} for {{{name}}}")),
            None => Ok(()),
        }
    }
}

/// A text with the values of the options in place of their names in braces.
pub(crate) fn filled(text: &str, values: &BTreeMap<String, String>) -> String {
    let fill = |text: String, (name, value): (&String, &String)| {
        text.replace(&format!("{{{name}}}"), value)
    };
    values.iter().fold(text.to_owned(), fill)
}

/// The names in braces. `${NAME}` is the shell's.
fn names(text: &str) -> Vec<&str> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let of = |(at, _): (usize, &str)| {
        let name = text[at + 1..].split_once('}')?.0;
        let is_name = !name.is_empty() && name.bytes().all(is_letter);
        (is_name && !text[..at].ends_with('$')).then_some(name)
    };
    text.match_indices('{').filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_replace_their_names_in_braces() {
        let values = BTreeMap::from([("port".to_owned(), "1".to_owned())]);
        assert_eq!(filled("-p{port},{port} {other}", &values), "-p1,1 {other}");
        assert_eq!(names("-p{port},{a-b} ${HOME} {} {x y} {z"), ["port", "a-b"]);
    }

    #[test]
    fn a_value_may_stand_for_several_arguments_or_none() {
        let words: Words =
            toml::from_str("[way]\ntcp = []\nudp = [\"--udp\", \"-x{n}\"]\n").unwrap();
        let fill = |way: &str| {
            let options = [("way", way), ("n", "5")];
            let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let arguments = ["a{n}", "{way}", "b{way}"].map(str::to_owned);
            words.fill(&arguments, &BTreeMap::from(options)).join(" ")
        };
        assert_eq!(fill("tcp"), "a5 btcp");
        assert_eq!(fill("udp"), "a5 --udp -x5 budp");
    }
}
