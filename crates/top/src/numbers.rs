//! The statistics of an answer by name, as text: the lines of `stats`, or the metrics of `/metrics`
//! under the names of `stats`.
//!
//! Upstream:   `asker`, with the bytes of a server.
//! Downstream: `reading`.
//!
//! Invariants:
//! - N1  There are at most [`ROWS_MAX`] rows, each with a value of at most [`VALUE_BYTES_MAX`]
//!   bytes. What is longer is left out.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use kachel_observe::series_of_rows;
use kachel_stdx::printable;

/// The most bytes of an answer. Servers send some thousand.
pub(crate) const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The most rows of the answers to one question.
const ROWS_MAX: usize = 4096;
/// The most bytes of a value. The longest one has the times of 33 threads.
const VALUE_BYTES_MAX: usize = 1024;

/// The statistics of a server at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers(BTreeMap<String, String>);

/// The metrics that no statistic of `stats` has, and their names here.
const ONLY_METRICS: [(&str, &str); 3] = [
    ("memcached_up", "up"),
    ("kachel_ready", "kachel_ready"),
    ("kachel_stopped_shards", "kachel_stopped_shards"),
];

/// The statistics that are sums of each series.
static ROWS_OF_SERIES: LazyLock<BTreeMap<String, Vec<&str>>> = LazyLock::new(|| {
    let mut rows: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let only = ONLY_METRICS.map(|(series, name)| (series.to_owned(), name));
    for (series, name) in series_of_rows().into_iter().chain(only) {
        rows.entry(series).or_default().push(name);
    }
    rows
});

impl Numbers {
    /// Adds the rows of an answer to `stats`, which ends with `END`.
    ///
    /// Errors: the answer is something else, such as a refusal. The error has its first line.
    pub(crate) fn take_stats(&mut self, answer: &[u8]) -> Result<(), String> {
        for line in answer.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line == b"END" {
                return Ok(());
            } else if line.is_empty() {
                continue;
            }
            let mut words = line.splitn(3, |&byte| byte == b' ');
            if words.next() != Some(b"STAT") {
                let why = match line.starts_with(b"HTTP/") {
                    true => "it speaks HTTP; an admin address begins with http://".into(),
                    false => format!("the server answers: {}", printable(line, 60)),
                };
                return Err(why);
            }
            let (Some(name), Some(value)) = (words.next(), words.next()) else { continue };
            self.insert(name, value);
        }
        Err("the answer to stats has no end".into())
    }

    /// The statistics of metrics in Prometheus' text format.
    pub(crate) fn of_metrics(text: &[u8]) -> Self {
        let mut numbers = Self::default();
        for line in text.split(|&byte| byte == b'\n').filter(|line| !line.starts_with(b"#")) {
            let Some(space) = line.iter().rposition(|&byte| byte == b' ') else { continue };
            let (series, value) = (&line[..space], &line[space + 1..]);
            let rows = str::from_utf8(series).ok().and_then(|series| ROWS_OF_SERIES.get(series));
            if let Some(names) = rows {
                names.iter().for_each(|name| numbers.add(name, value));
            } else if series.starts_with(b"kachel_busy_seconds_total{") {
                numbers.append_busy(label(series, b"shard"), value);
            } else if series.starts_with(b"memcached_version{version=\"") {
                numbers.insert(b"version", label(series, b"version"));
            } else if series.starts_with(b"kachel_build_info{") {
                numbers.insert(b"kachel_version", label(series, b"version"));
            }
        }
        numbers
    }

    fn insert(&mut self, name: &[u8], value: &[u8]) {
        let fits = name.len().max(value.len()) <= VALUE_BYTES_MAX && self.0.len() < ROWS_MAX; // N1
        if let (true, Ok(name), Ok(value)) = (fits, str::from_utf8(name), str::from_utf8(value)) {
            self.0.insert(name.to_owned(), value.to_owned());
        }
    }

    /// Appends the time of a thread to the row that `stats kachel` has for all, `kachel_busy_ms`.
    fn append_busy(&mut self, shard: &[u8], value: &[u8]) {
        let (Ok(shard), Ok(value)) = (str::from_utf8(shard), str::from_utf8(value)) else { return };
        let Ok(seconds) = value.parse::<f64>() else { return };
        let name = "kachel_busy_ms";
        let before = self.text(name).unwrap_or_default();
        let row = format!("{before}{shard}:{:.0},", seconds * 1000.0);
        self.insert(name.as_bytes(), row.as_bytes());
    }

    /// Adds the value of a metric to a statistic.
    fn add(&mut self, name: &str, value: &[u8]) {
        let number = str::from_utf8(value).ok().and_then(|value| value.parse::<f64>().ok());
        let Some(number) = number.filter(|number| number.is_finite()) else { return };
        let sum = self.number(name).unwrap_or(0.0) + number;
        self.insert(name.as_bytes(), sum.to_string().as_bytes());
    }

    /// A statistic as a number: finite, and not below zero.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        let number: f64 = self.0.get(name)?.parse().ok()?;
        (number.is_finite() && number >= 0.0).then_some(number)
    }

    /// A statistic as a text of the server.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The values of the statistics whose names have this beginning and this end, as numbers.
    pub(crate) fn numbers_of<'n>(
        &'n self,
        beginning: &'n str,
        end: &'n str,
    ) -> impl Iterator<Item = (&'n str, f64)> {
        let names = self
            .0
            .keys()
            .filter_map(move |name| Some((name, name.strip_prefix(beginning)?.strip_suffix(end)?)));
        names.filter_map(|(name, middle)| Some((middle, self.number(name)?)))
    }
}

/// The value of a label, as far as its first quote.
fn label<'s>(series: &'s [u8], name: &[u8]) -> &'s [u8] {
    let wanted = [name, b"=\""].concat();
    let places = series.windows(wanted.len()).position(|window| window == wanted);
    let value = places.map_or(&[][..], |place| &series[place + wanted.len()..]);
    let end = value.iter().position(|&byte| byte == b'"').unwrap_or(value.len());
    &value[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_until_the_end() {
        let mut numbers = Numbers::default();
        let answer = b"STAT uptime 12\r\nSTAT version 1.6.45\r\nSTAT odd\r\nEND\r\nSTAT late 1\r\n";
        assert_eq!(numbers.take_stats(answer), Ok(()));
        assert_eq!(numbers.number("uptime"), Some(12.0));
        assert_eq!((numbers.text("version"), numbers.number("version")), (Some("1.6.45"), None));
        assert_eq!((numbers.text("odd"), numbers.text("late")), (None, None));
    }

    #[test]
    fn what_is_no_answer_to_stats_is_refused_in_words() {
        let refusal = |answer: &[u8]| Numbers::default().take_stats(answer).expect_err("refused");
        let answer = b"CLIENT_ERROR unauthenticated\r\n";
        assert_eq!(refusal(answer), "the server answers: CLIENT_ERROR unauthenticated");
        let of_http = refusal(b"HTTP/1.1 400 Bad Request\r\n");
        assert_eq!(of_http, "it speaks HTTP; an admin address begins with http://");
        assert_eq!(refusal(b"\x1b[2J\xff\r\n"), "the server answers: \\x1b[2J\\xff");
        assert_eq!(refusal(b"STAT a 1\r\n"), "the answer to stats has no end");
        assert!(refusal(&[b'x'; 10_000]).len() < 100);
    }

    /// T1, N1.
    #[test]
    fn long_and_wild_rows_are_left_out() {
        let mut numbers = Numbers::default();
        let long = "9".repeat(VALUE_BYTES_MAX + 1);
        let wild = "STAT inf inf\r\nSTAT less -1\r\nSTAT n NaN\r\nEND";
        let answer = format!("STAT long {long}\r\n{wild}");
        assert_eq!(numbers.take_stats(answer.as_bytes()), Ok(()));
        let names = ["long", "inf", "less", "n"];
        assert_eq!(names.map(|name| numbers.number(name)), [None; 4]);
        let many: String = (0..2 * ROWS_MAX).map(|row| format!("STAT r{row} 1\n")).collect();
        assert_eq!(numbers.take_stats(format!("{many}END\n").as_bytes()), Ok(()));
        assert_eq!(numbers.0.len(), ROWS_MAX);
    }

    #[test]
    fn metrics_have_the_names_of_stats() {
        let text = b"# TYPE memcached_uptime_seconds counter\nmemcached_uptime_seconds 12\n\
            memcached_version{version=\"1.6.45\"} 1\nmemcached_limit_bytes 6.7108864e+07\n\
            kachel_build_info{version=\"0.1.0\",memcached_version=\"1.6.45\",io=\"uring\"} 1\n\
            memcached_commands_total{command=\"set\",status=\"hit\"} 6\n\
            memcached_commands_total{command=\"cas\",status=\"hit\"} 2\nnonsense\n\
            kachel_threads NaN\n";
        let numbers = Numbers::of_metrics(text);
        assert_eq!(numbers.number("limit_maxbytes"), Some(67_108_864.0));
        assert_eq!((numbers.number("cmd_set"), numbers.number("threads")), (Some(8.0), None));
        assert_eq!(numbers.text("version"), Some("1.6.45"));
        assert_eq!(numbers.text("kachel_version"), Some("0.1.0"));
    }
}
