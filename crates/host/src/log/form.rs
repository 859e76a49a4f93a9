//! The forms of a line of the log: text, JSON, and the level that the journal takes from either.
//!
//! Upstream:   `log`, with a level, a sentence and fields.
//! Downstream: one string with its line end.
//!
//! ```text
//! 2026-11-26T22:44:54.123Z info: kachel 0.1.0 listens on 127.0.0.1:11211 with 2 threads
//! {"time":"2026-11-26T22:44:54.123Z","level":"info","message":"kachel ...","threads":2}
//! <6>kachel 0.1.0 listens on 127.0.0.1:11211 with 2 threads       to systemd's journal
//! ```
//!
//! The time is UTC. The journal notes its own time, and takes the level from the number
//! (`sd-daemon(3)`). In JSON the time stands in the object there, too.
//!
//! Invariants:
//! - F1  A line has one line end, its last byte, whatever the sentence and the fields have. In JSON
//!   it is one object (RFC 8259).
//! - F2  A sentence, or a text of a field, is cut at [`TEXT_BYTES_MAX`] bytes.

use std::fmt::{self, Write as _};
use std::time::Duration;

use kachel_stdx::{put_json_text, shows_itself};

use super::{Level, LogField, LogFormat, LogValue};

/// The most bytes of a sentence, and of a text of a field (F2).
pub(super) const TEXT_BYTES_MAX: usize = 4096;

/// The mark at the end of a text that was cut.
const CUT: &str = "...";

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// How lines are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) format: LogFormat,
    /// Whether the journal reads the lines.
    pub(super) is_for_journal: bool,
}

impl Form {
    /// A line with its end (F1). `since_1970` is the Unix time.
    pub(super) fn line(
        self,
        since_1970: Duration,
        level: Level,
        sentence: fmt::Arguments<'_>,
        fields: &[LogField<'_>],
    ) -> String {
        let mut line = String::new();
        if self.is_for_journal {
            let _ = write!(line, "<{}>", level.number());
        }
        let stamp = Stamp(since_1970.as_millis());
        let sentence = cut(sentence.to_string());
        match self.format {
            LogFormat::Text => {
                if !self.is_for_journal {
                    let _ = write!(line, "{stamp} {}: ", level.name());
                }
                put_plain(&mut line, &sentence);
            }
            LogFormat::Json => {
                let _ = write!(line, "{{\"time\":\"{stamp}\",\"level\":\"{}\"", level.name());
                put_field(&mut line, &LogField::text("message", &sentence));
                fields.iter().for_each(|field| put_field(&mut line, field));
                line.push('}');
            }
        }
        line.push('\n');
        debug_assert!(line.find(['\n', '\r']) == Some(line.len() - 1), "F1");
        line
    }
}

/// A text that is not longer than F2 allows.
fn cut(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX - CUT.len()));
        text.push_str(CUT);
    }
    debug_assert!(text.len() <= TEXT_BYTES_MAX, "F2");
    text
}

/// Appends a text, in which what a reader cannot see as itself has an escape (F1).
fn put_plain(line: &mut String, text: &str) {
    for character in text.chars() {
        if shows_itself(character) {
            line.push(character);
        } else {
            line.extend(character.escape_default());
        }
    }
}

fn put_field(line: &mut String, field: &LogField<'_>) {
    debug_assert!(field.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "a plain name");
    let _ = write!(line, ",\"{}\":", field.name);
    match field.value {
        LogValue::Text(text) => put_json_text(line, &cut(text.to_owned())),
        LogValue::Number(number) => _ = write!(line, "{number}"),
    }
}

/// Milliseconds since 1970, shown by RFC 3339.
struct Stamp(u128);

impl fmt::Display for Stamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = u64::try_from(self.0 / 1000).unwrap_or(0);
        let (year, month, day) = date(seconds / DAY_SECONDS);
        let (hour, minute) = (seconds % DAY_SECONDS / 3600, seconds / 60 % 60);
        let (second, millisecond) = (seconds % 60, self.0 % 1000);
        write!(
            formatter,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z"
        )
    }
}

/// The year, month and day of a day that is counted from 1970-01-01.
///
/// Years are counted from March, so that the day of a leap year is the last one. Four hundred
/// years have 146,097 days.
fn date(day: u64) -> (u64, u64, u64) {
    const DAYS_BEFORE_1970: u64 = 719_468; // Since 0000-03-01.
    let day = day + DAYS_BEFORE_1970;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // 0 is March.
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let is_next_year = month >= 10;
    let month = if is_next_year { month - 9 } else { month + 3 };
    (400 * era + year + u64::from(is_next_year), month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Form = Form { format: LogFormat::Text, is_for_journal: false };
    const JSON: Form = Form { format: LogFormat::Json, is_for_journal: false };
    const AT: Duration = Duration::from_millis(1_795_732_800_123);

    #[test]
    fn a_line_has_a_time_and_a_level() {
        let fields = [LogField::text("option", "-k"), LogField::number("error", 12)];
        let line =
            |form: Form| form.line(AT, Level::Warning, format_args!("-k: {}", "no"), &fields);
        assert_eq!(line(TEXT), "2026-11-26T22:40:00.123Z warning: -k: no\n");
        let object = "{\"time\":\"2026-11-26T22:40:00.123Z\",\"level\":\"warning\",\
            \"message\":\"-k: no\",\"option\":\"-k\",\"error\":12}\n";
        assert_eq!(line(JSON), object);
        assert_eq!(line(Form { is_for_journal: true, ..TEXT }), "<4>-k: no\n");
        assert_eq!(line(Form { is_for_journal: true, ..JSON }), format!("<4>{object}"));
    }

    /// F1.
    #[test]
    fn no_text_ends_its_line_or_its_object() {
        let hostile = "a\nb\r\"\\\0\x1b[2J\u{2028}\u{202e}\u{fffd}}{";
        let lost = String::from_utf8_lossy(b"\xff\xfe\"");
        for text in [hostile, &lost] {
            let fields = [LogField::text("name", text)];
            let line = |form: Form| form.line(AT, Level::Error, format_args!("{text}"), &fields);
            for form in [TEXT, JSON, Form { is_for_journal: true, ..JSON }] {
                let line = line(form);
                assert_eq!(line.chars().filter(|c| !shows_itself(*c)).count(), 1, "{line}");
                assert!(line.ends_with('\n'));
            }
        }
        let line = TEXT.line(AT, Level::Error, format_args!("{hostile}"), &[]);
        let escaped = "a\\nb\\r\"\\\\u{0}\\u{1b}[2J\\u{2028}\\u{202e}\u{fffd}}{\n";
        assert!(line.ends_with(escaped), "{line}");
    }

    /// F2.
    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let long = "\u{e4}".repeat(TEXT_BYTES_MAX);
        let line = JSON.line(AT, Level::Info, format_args!("{long}"), &[]);
        assert!(line.ends_with("\u{e4}...\"}\n") && line.len() < TEXT_BYTES_MAX + 100, "{line}");
        let fits = "x".repeat(TEXT_BYTES_MAX);
        assert!(!TEXT.line(AT, Level::Info, format_args!("{fits}"), &[]).contains(CUT));
    }

    /// The dates are those of `date -u -d @SECONDS`.
    #[test]
    fn a_time_is_shown_as_other_programs_show_it() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_210_096, "2024-02-29T12:34:56.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (1_795_732_800, "2026-11-26T22:40:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Stamp(seconds * 1000).to_string(), shown, "{seconds}");
        }
        assert_eq!(Stamp(1_789).to_string(), "1970-01-01T00:00:01.789Z");
    }
}
