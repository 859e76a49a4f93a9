//! Lets the options found take effect, one after another, and checks that they go together.
//!
//! Upstream:   `getopt.rs` finds rows and values.
//! Downstream: [`ServeOptions`], checked.

use std::path::PathBuf;

use crate::getopt::{Found, Scan};
use crate::listen::{Host, Listeners, TcpListen, UnixListen, port_number, read_list};
use crate::suboptions::SUBOPTIONS;
use crate::table::{Class, Takes};
use crate::{
    CalledAs, Command, EXIT_FAILURE, EXIT_USAGE, EngineMode, OptionsError, Protocol, ServeOptions,
};

/// Bytes of the smallest and the largest item limit that `-I` takes.
const ITEM_BYTES_RANGE: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 30;

/// Options on their way to being [`ServeOptions`].
pub(crate) struct Draft {
    pub(crate) serve: ServeOptions,
    pub(crate) port: i32,
    pub(crate) listen: Vec<String>,
    pub(crate) unix_path: Option<String>,
    pub(crate) unix_mode: u32,
}

/// The value of an option, already held against what its row takes.
#[derive(Clone, Copy)]
pub(crate) struct Given<'words> {
    text: &'words str,
    integer: i64,
    real: f64,
}

impl<'words> Given<'words> {
    /// The value as text; empty where there is none.
    pub(crate) const fn text(self) -> &'words str {
        self.text
    }

    /// The value as a number. Panics: when the row's range does not fit the type, a bug in the
    /// table.
    pub(crate) fn integer<T: TryFrom<i64>>(self) -> T {
        T::try_from(self.integer)
            .unwrap_or_else(|_| panic!("the row's range fits the option's type: {}", self.integer))
    }

    pub(crate) const fn real(self) -> f64 {
        self.real
    }
}

/// An effect that only sets one thing.
pub(crate) fn set<T>(place: &mut T, value: T) -> Result<(), OptionsError> {
    *place = value;
    Ok(())
}

/// Reads the words of `kachel serve`, or of `memcached`.
pub(crate) fn serve(words: &[String], called_as: CalledAs) -> Result<Command, OptionsError> {
    let mut draft = Draft {
        serve: ServeOptions::defaults(called_as),
        port: 11211,
        listen: Vec::new(),
        unix_path: None,
        unix_mode: 0o700,
    };
    for found in Scan::new(words) {
        match found? {
            Found::Option(row, value) => {
                let spelled = match (row.short, value) {
                    (Some(letter), None) => format!("-{letter}"),
                    (Some(letter), Some(value)) => format!("-{letter} {value}"),
                    (None, None) => format!("--{}", row.long),
                    (None, Some(value)) => format!("--{}={value}", row.long),
                };
                if let Class::Answers(answer) = row.class {
                    return Ok(answer(called_as));
                }
                let given = read(&spelled, value, row.takes, &mut draft.serve.reports)?;
                classify(&spelled, row.class, &mut draft.serve.reports)?;
                (row.effect)(&mut draft, given)?;
            }
            // memcached lets such a word pass; at `kachel serve` it is more likely a dash
            // forgotten.
            Found::Operand(word) if called_as == CalledAs::Memcached => {
                draft.serve.reports.push(format!("{word}: no option, passed over"));
            }
            Found::Operand(word) => {
                let message = format!("kachel serve: {word} is no option; -h lists them.");
                return Err(OptionsError::new(EXIT_USAGE, message));
            }
        }
    }
    draft.finish().map(|options| Command::Serve(Box::new(options)))
}

/// The effect of `-o`: a list of words, `name` or `name=value`.
pub(crate) fn extended(draft: &mut Draft, given: Given<'_>) -> Result<(), OptionsError> {
    for word in given.text().split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name.trim_end(), Some(value.trim_start())),
            None => (word, None),
        };
        let Some(row) = SUBOPTIONS.iter().find(|row| row.name == name) else {
            return Err(OptionsError::new(EXIT_FAILURE, format!("Illegal suboption \"{word}\"")));
        };
        let spelled = format!("-o {word}");
        let given = read(&spelled, value, row.takes, &mut draft.serve.reports)?;
        classify(&spelled, row.class, &mut draft.serve.reports)?;
        (row.effect)(draft, given)?;
    }
    Ok(())
}

/// Refuses what is refused (I2), and reports what has no meaning (I3).
fn classify(spelled: &str, class: Class, reports: &mut Vec<String>) -> Result<(), OptionsError> {
    match class {
        Class::Works | Class::Own | Class::Answers(_) => {}
        Class::NoMeaning(why) => {
            reports.push(format!("{spelled}: accepted, has no meaning here: {why}"));
        }
        Class::Refused(why) => {
            return Err(OptionsError::new(EXIT_USAGE, format!("{spelled}: refused: {why}.")));
        }
    }
    Ok(())
}

/// Holds a value against what its row takes. Numbers are read as far as they are digits, as
/// memcached reads them, and what is left over is reported.
fn read<'words>(
    spelled: &str,
    value: Option<&'words str>,
    takes: Takes,
    reports: &mut Vec<String>,
) -> Result<Given<'words>, OptionsError> {
    let text = value.unwrap_or("");
    let mut given = Given { text, integer: 0, real: 0.0 };
    let bad = |why: String| Err(OptionsError::new(EXIT_FAILURE, format!("{spelled}: {why}")));
    match takes {
        // A word of `-o` that takes nothing passes over what it is given, as in memcached.
        Takes::Nothing | Takes::OptionalText(_) => {}
        Takes::Text(name) => {
            if text.is_empty() {
                return bad(format!("the {name} is missing"));
            }
        }
        Takes::Word(words) => {
            if !words.contains(&text) {
                return bad(format!("should be one of {}", words.join(", ")));
            }
        }
        Takes::OptionalInteger(.., otherwise) if value.is_none() => given.integer = otherwise,
        Takes::Integer(_, low, high) | Takes::OptionalInteger(_, low, high, _) => {
            let digits = number_length(text, false);
            let Ok(integer) = text[..digits].parse::<i64>() else {
                return bad(format!("must be a number, {low} to {high}"));
            };
            if integer < low || integer > high {
                return bad(format!("must be {low} to {high}"));
            }
            report_rest(spelled, text, digits, reports);
            given.integer = integer;
        }
        Takes::Real(name, above, high) => {
            let digits = number_length(text, true);
            let Ok(real) = text[..digits].parse::<f64>() else {
                return bad(format!("the {name} is missing"));
            };
            if real <= above || real > high {
                return bad(format!("must be greater than {above} and at most {high}"));
            }
            report_rest(spelled, text, digits, reports);
            given.real = real;
        }
    }
    Ok(given)
}

/// Bytes at the beginning of `text` that are a number.
fn number_length(text: &str, fraction: bool) -> usize {
    let sign = usize::from(text.starts_with(['-', '+']));
    let is_part = |byte: &u8| byte.is_ascii_digit() || (fraction && *byte == b'.');
    sign + text.as_bytes()[sign..].iter().take_while(|byte| is_part(byte)).count()
}

fn report_rest(spelled: &str, text: &str, digits: usize, reports: &mut Vec<String>) {
    if digits < text.len() {
        reports.push(format!("{spelled}: read as {}", &text[..digits]));
    }
}

/// The effect of `-a`.
pub(crate) fn unix_mask(draft: &mut Draft, given: Given<'_>) -> Result<(), OptionsError> {
    match u32::from_str_radix(given.text(), 8) {
        Ok(mode) if mode <= 0o777 => set(&mut draft.unix_mode, mode),
        _ => Err(OptionsError::new(
            EXIT_FAILURE,
            format!("-a {}: the mask must be octal, 0 to 777", given.text()),
        )),
    }
}

/// The effect of `-I`.
pub(crate) fn item_size(draft: &mut Draft, given: Given<'_>) -> Result<(), OptionsError> {
    let text = given.text();
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = digits.trim_end().parse::<u32>().map(|number| u64::from(number) << shift);
    match bytes {
        Ok(bytes) if ITEM_BYTES_RANGE.contains(&bytes) => {
            let bytes = u32::try_from(bytes).expect("a gigabyte fits 32 bits");
            set(&mut draft.serve.item_bytes_max, bytes)
        }
        _ => Err(OptionsError::new(
            EXIT_USAGE,
            format!("-I {text}: the largest item must be given as 1k to 1g"),
        )),
    }
}

/// The effect of `-D`.
pub(crate) fn prefix_delimiter(draft: &mut Draft, given: Given<'_>) -> Result<(), OptionsError> {
    let delimiter = given.text().bytes().next().expect("a text is not empty");
    draft.serve.detail_at_start = true;
    set(&mut draft.serve.prefix_delimiter, delimiter)
}

impl Draft {
    /// Checks what no row can check alone, and says where to listen.
    fn finish(mut self) -> Result<ServeOptions, OptionsError> {
        let usage = |message: String| Err(OptionsError::new(EXIT_USAGE, message));
        let serve = &mut self.serve;
        if serve.engine == EngineMode::Store {
            serve.evict = false;
        }
        if u64::from(serve.item_bytes_max) > serve.memory_bytes / 2 {
            return usage(format!(
                "-I: the largest item ({} bytes) must not be more than half of the memory limit (-m, \
                 {} bytes)",
                serve.item_bytes_max, serve.memory_bytes
            ));
        }
        let echo = &serve.echo;
        if echo.hot_lru_pct + echo.warm_lru_pct > 80 {
            return usage("-o: hot_lru_pct and warm_lru_pct must not exceed 80 together".into());
        }
        if echo.temporary_ttl.is_some() && !echo.lru_maintainer {
            return usage("-o: temporary_ttl needs lru_maintainer".into());
        }
        if let Some(threads) = serve.threads
            && echo.napi_ids > u32::from(threads)
        {
            return usage(format!("-N {} is more than -t {threads}", echo.napi_ids));
        }
        self.listen()?;
        if self.serve.listeners.tcp.iter().any(|tcp| tcp.protocol == Protocol::Binary)
            || self.serve.protocol == Protocol::Binary
        {
            return usage("-B binary: the binary protocol is not built yet.".to_string());
        }
        assert!(
            !self.serve.listeners.tcp.is_empty() || self.serve.listeners.unix.is_some(),
            "a server without listeners was refused above"
        );
        Ok(self.serve)
    }

    /// Turns `-l`, `-p`, `-s` and `-a` into listeners.
    fn listen(&mut self) -> Result<(), OptionsError> {
        let serve = &mut self.serve;
        let mut entries: Vec<&str> = Vec::new();
        for entry in self.listen.iter().flat_map(|list| list.split([',', ';'])).map(str::trim) {
            // The same address twice is one listener; memcached says so too.
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        if entries.is_empty() && serve.called_as == CalledAs::Kachel {
            entries.push("127.0.0.1");
        }
        let list = entries.join(",");
        serve.echo.inter = (!entries.is_empty()).then(|| list.clone());
        serve.echo.tcp_port = self.port;
        serve.echo.unix_path = self.unix_path.clone();
        serve.echo.unix_mode = self.unix_mode;

        if let Some(path) = self.unix_path.take() {
            if !self.listen.is_empty() {
                serve.reports.push("-l: passed over: with -s there is no TCP".to_string());
            }
            let unix = UnixListen { path: PathBuf::from(path), mode: self.unix_mode };
            serve.listeners = Listeners { tcp: Vec::new(), unix: Some(unix) };
            return Ok(());
        }
        if self.port == 0 {
            let message =
                "-p 0: there is nothing to listen on; give a port, or a unix socket by -s.";
            return Err(OptionsError::new(EXIT_USAGE, message));
        }
        let tcp = if entries.is_empty() {
            let port = port_number(self.port).expect("the row's range is that of ports");
            vec![TcpListen { host: Host::Any, port, protocol: serve.protocol }]
        } else {
            read_list(&list, self.port, serve.protocol, &mut serve.reports)?
        };
        if tcp.is_empty() {
            return Err(OptionsError::new(EXIT_USAGE, "-l: the list is empty."));
        }
        serve.listeners = Listeners { tcp, unix: None };
        Ok(())
    }
}
