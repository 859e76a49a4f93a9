//! Named loads: each is a list of options that stand before those of the command line.
//!
//! Upstream:   `lib` hands over the arguments before they are parsed.
//! Downstream: `options` parses the result, so a later option overrides that of a preset.
//!
//! Sources: YCSB's core workloads (Cooper et al., SoCC 2010); Facebook's pools (Atikoglu et al.,
//! SIGMETRICS 2012); Twitter's clusters (Yang, Yue and Vinayak, OSDI 2020; `presets/twitter.csv`).
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every preset is a list of valid options.

use std::ffi::OsString;

/// The option that names a preset.
const OPTION: &str = "--preset";
/// The longest relative TTL of memcached. Longer ones would be points in time.
const TTL_S_MAX: f64 = 30.0 * 86_400.0;

/// A preset with its options and a remark.
struct Preset {
    name: &'static str,
    words: &'static str,
    remark: &'static str,
}

/// The presets. All workloads of YCSB have values of ten fields of 100 bytes.
const PRESETS: [Preset; 8] = [
    Preset {
        name: "ycsb-a",
        words: "--key-size 30 --value-size 1000 --popularity scrambled --ratio 50:50",
        remark: "YCSB A: reads and updates",
    },
    Preset {
        name: "ycsb-b",
        words: "--key-size 30 --value-size 1000 --popularity scrambled --ratio 95:5",
        remark: "YCSB B: mostly reads",
    },
    Preset {
        name: "ycsb-c",
        words: "--key-size 30 --value-size 1000 --popularity scrambled --ratio 100:0",
        remark: "YCSB C: only reads",
    },
    Preset {
        name: "ycsb-d",
        words: "--key-size 30 --value-size 1000 --popularity latest --ratio 95:0:0:0:0:5",
        remark: "YCSB D: reads of the newest keys, and inserts",
    },
    Preset {
        name: "ycsb-e",
        words: "--protocol meta --key-size 30 --value-size 1000 --popularity scrambled --ratio \
                0:0:0:0:0:5:95",
        remark: "YCSB E: scans of 1 to 100 items, and inserts; needs a server with --scan",
    },
    Preset {
        name: "ycsb-f",
        words: "--key-size 30 --value-size 1000 --popularity scrambled --ratio 50:0:0:0:50",
        remark: "YCSB F: reads, and reads with a write after them (gets, cas)",
    },
    Preset {
        name: "etc",
        words: "--key-size fb_key --value-size fb_value --ratio 30:1",
        remark: "Facebook's ETC: sizes as fitted, gets to sets 30:1; popularity is not published",
    },
    Preset {
        name: "usr",
        words: "--key-size 21 --value-size 2 --ratio 998:2",
        remark: "Facebook's USR: 99.8 % gets, values of 2 bytes, keys of 21 (some have 16)",
    },
];

/// The statistics of Twitter's clusters.
const TWITTER: &str = include_str!("presets/twitter.csv");

/// Inserts the options of `--preset NAME` after the name of the program. `words` has that name
/// first. Without `--preset` the words stay as they are.
///
/// Errors: there is no such preset, or it cannot be sent; as a message for the user.
pub(crate) fn expand(mut words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let mut name = None;
    for (index, word) in words.iter().enumerate() {
        let Some(word) = word.to_str() else { continue };
        if word == OPTION {
            name = words.get(index + 1).and_then(|name| name.to_str());
        } else if let Some(value) =
            word.strip_prefix(OPTION).and_then(|rest| rest.strip_prefix('='))
        {
            name = Some(value);
        }
    }
    let Some(name) = name else { return Ok(words) };
    let options = options_of(name).map_err(|error| format!("{OPTION} {name}: {error}"))?;
    words.splice(1..1, options.split(' ').map(OsString::from));
    Ok(words)
}

fn options_of(name: &str) -> Result<String, String> {
    if let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) {
        return Ok(preset.words.to_owned());
    }
    match name {
        "app" | "var" | "sys" => Err(
            "the sizes and the mix of this pool of Facebook are published as curves only, so they \
             cannot be repeated from figures; set --key-size, --value-size and --ratio"
                .into(),
        ),
        _ => match rows().find(|row| row[0] == name) {
            Some(row) => cluster(row),
            None => Err("there is no such preset; `kachel load presets` lists them".into()),
        },
    }
}

fn rows() -> impl Iterator<Item = [&'static str; 8]> {
    let lines = TWITTER.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        fields.try_into().expect("I1: eight fields")
    })
}

/// The options of a cluster of Twitter. Sizes are the means, because only those are published.
fn cluster(row: [&str; 8]) -> Result<String, String> {
    let [_, key_bytes, value_bytes, _, _, alpha, operations, ttls] = row;
    if key_bytes.is_empty() {
        return Err("no statistics of this cluster are published".into());
    }
    let mut parts = [0_u32; 5];
    for operation in operations.split(' ') {
        let (name, share) = operation.split_once(':').expect("I1: a name and a share");
        let percent = (share.parse::<f64>().expect("I1: a share") * 100.0).round() as u32;
        match name {
            "get" => parts[0] += percent,
            "set" | "add" | "prepend" => parts[1] += percent,
            "delete" => parts[2] += percent,
            "incr" => parts[3] += percent,
            "cas" => parts[4] += percent,
            // A `cas` of the ratio has its own gets.
            "gets" => {}
            name => unreachable!("I1: {name}"),
        }
    }
    let ttls: Vec<String> = ttls.split(' ').map(ttl).collect();
    let popularity = match alpha {
        "" | "0" => "uniform".to_owned(),
        alpha => format!("zipf:{alpha}"),
    };
    let ratio = parts.map(|parts| parts.to_string()).join(":");
    Ok(format!(
        "--key-size {key_bytes} --value-size {value_bytes} --popularity {popularity} --ratio \
         {ratio} --ttl-s {}",
        ttls.join(",")
    ))
}

/// A TTL of the table with its share, in seconds: `4d:0.59` is `345600:0.59`.
fn ttl(text: &str) -> String {
    let (time, share) = text.split_once(':').expect("I1: a time and a share");
    let (number, unit) = time.split_at(time.len() - 1);
    let unit_s = match unit {
        "s" => 1.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        unit => unreachable!("I1: {unit}"),
    };
    let seconds = number.parse::<f64>().expect("I1: a number") * unit_s;
    format!("{}:{share}", seconds.round().min(TTL_S_MAX))
}

/// All presets with their options, one a line.
pub(crate) fn list() -> String {
    let mut list = String::new();
    for preset in &PRESETS {
        list += &format!("{:<10} {}\n           {}\n", preset.name, preset.remark, preset.words);
    }
    for row in rows() {
        if let Ok(words) = cluster(row) {
            list += &format!("{:<10} {words}\n", row[0]);
        }
    }
    list + "\nThe clusters are Twitter's (Yang, Yue and Vinayak, OSDI 2020; CC BY 4.0): mean sizes, \
            operations (add and\nprepend as sets), Zipf exponent of their popularity, TTLs (30 days \
            at most).\n"
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::options::Options;

    fn words(line: &str) -> Vec<OsString> {
        std::iter::once("load").chain(line.split(' ')).map(OsString::from).collect()
    }

    fn expanded(line: &str) -> String {
        let words = expand(words(line)).expect("a preset");
        let words: Vec<String> =
            words.into_iter().map(|word| word.into_string().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn every_preset_is_a_list_of_valid_options() {
        let clusters = rows().map(|row| row[0]).filter(|&name| name != "cluster5");
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).chain(clusters).collect();
        assert_eq!(names.len(), 8 + 53);
        for name in names {
            let line = expand(words(&format!("--preset {name}"))).expect("a preset");
            let options = Options::try_parse_from(line).expect("I1: valid options");
            options.steady.check().expect("I1: valid options");
            assert!(list().contains(name), "{name}");
        }
    }

    #[test]
    fn a_preset_stands_before_the_options_of_the_command_line() {
        let etc = "load --key-size fb_key --value-size fb_value --ratio 30:1";
        assert_eq!(expanded("--preset etc --ratio 1:1"), format!("{etc} --preset etc --ratio 1:1"));
        assert_eq!(expanded("--ratio 1:1 --preset=etc"), format!("{etc} --ratio 1:1 --preset=etc"));
        assert_eq!(expanded("--ratio 1:1"), "load --ratio 1:1");
        let options = Options::try_parse_from(expanded("--preset etc --ratio 1:1").split(' '));
        assert_eq!(options.expect("valid").steady.ratio, "1:1".parse().expect("a ratio"));
    }

    #[test]
    fn a_cluster_has_the_figures_of_the_table() {
        assert_eq!(
            options_of("cluster11").as_deref(),
            Ok("--key-size 24 --value-size 170 --popularity zipf:1.4891 --ratio 96:2:0:0:1 \
                --ttl-s 432000:0.97,20:0.03")
        );
        assert_eq!(
            options_of("cluster27").as_deref(),
            Ok("--key-size 66 --value-size 8 --popularity zipf:1.065 --ratio 85:15:0:0:0 \
                --ttl-s 2592000:0.28,86400:0.25,3600:0.20,14400:0.18,21600:0.06,43200:0.02")
        );
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_its_reason() {
        for (name, words) in [
            ("app", "curves only"),
            ("cluster5", "no statistics"),
            ("cluster55", "there is no such preset"),
            ("etc ", "there is no such preset"),
        ] {
            let line = ["load", "--preset", name].map(OsString::from).to_vec();
            let error = expand(line).expect_err("refused");
            assert!(error.contains(words), "{name}: {error}");
        }
    }
}
