//! Traces of lines, in the format of the Twitter cache traces (Yang, Yue and Vinayak, OSDI 2020).
//!
//! Upstream:   the bytes of a file.
//! Downstream: `reading` adds each request to the trace.
//!
//! ```text
//! timestamp_s,key,key_size,value_size,client_id,operation,ttl_s
//! ```
//! The key is everything between the first comma and the fifth from the end, so it may contain
//! commas. Keys are often anonymized, so the size of a key is the one in its own column.
//!
//! A first line without a number is the head of a table, and left out.

use std::io::{BufRead, Read as _};

use super::reading::{Reading, Terms};
use super::{LINE_BYTES_MAX, Operation, Trace};
use crate::keys::KEY_BYTES_MAX;

/// The greatest size of a key that a trace may give. Sizes of objects must fit into 32 bits.
const KEY_SIZE_MAX: u64 = LINE_BYTES_MAX as u64;
/// The mark that some editors put before a text in UTF-8.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Errors: a line is no request, as a message for the user with the line's number.
pub(super) fn parse(
    mut input: impl BufRead,
    value_scale: f64,
    limit: Option<usize>,
) -> Result<Trace, String> {
    let mut reading = Reading::new(value_scale);
    let mut line = Vec::new();
    for number in 1usize.. {
        if limit.is_some_and(|limit| reading.len() >= limit) {
            break;
        }
        let named = |words: String| format!("line {number}: {words}");
        let is_whole =
            read_line(&mut input, &mut line).map_err(|error| named(error.to_string()))?;
        if line.is_empty() {
            break;
        }
        if !is_whole {
            reading.oddities().long_lines += 1;
            continue;
        }
        let text = match line.strip_prefix(&BYTE_ORDER_MARK) {
            Some(text) if number == 1 => text,
            _ => &line,
        };
        let text = text.trim_ascii_end();
        let is_left_out = text.is_empty() || number == 1 && is_head(text);
        if !is_left_out {
            take(&mut reading, text).map_err(named)?;
        }
    }
    Ok(reading.finish())
}

/// Reads a line, or its first `LINE_BYTES_MAX` bytes; the rest is thrown away. Returns whether the
/// line is whole. At the end of the file the line is empty.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    let mut bounded = input.by_ref().take(LINE_BYTES_MAX as u64);
    let bytes = bounded.read_until(b'\n', line)?;
    if bytes < LINE_BYTES_MAX || line.ends_with(b"\n") {
        return Ok(true);
    }
    input.skip_until(b'\n')?;
    Ok(false)
}

/// Whether a first line names the columns. A request has numbers.
fn is_head(text: &[u8]) -> bool {
    let is_number = |field: &[u8]| !field.is_empty() && field.iter().all(u8::is_ascii_digit);
    let is_word = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    text.iter().all(is_word) && !text.split(|&byte| byte == b',').any(is_number)
}

/// Adds the request of a line, or counts why it is left out.
fn take(reading: &mut Reading, line: &[u8]) -> Result<(), String> {
    let (time, rest) = split_first(line).ok_or("not seven fields")?;
    let (rest, ttl) = split_last(rest).ok_or("not seven fields")?;
    let (rest, operation) = split_last(rest).ok_or("not seven fields")?;
    let (rest, _client) = split_last(rest).ok_or("not seven fields")?;
    let (rest, value_bytes) = split_last(rest).ok_or("not seven fields")?;
    let (key, key_bytes) = split_last(rest).ok_or("not seven fields")?;
    let time_s = number(time).ok_or_else(|| wrong("a timestamp", time))?;
    let ttl_s = number(ttl).ok_or_else(|| wrong("a TTL", ttl))?;
    let value_bytes = number(value_bytes).ok_or_else(|| wrong("a size", value_bytes))?;
    let key_bytes = number(key_bytes)
        .filter(|&bytes| bytes <= KEY_SIZE_MAX)
        .ok_or_else(|| wrong("the size of a key", key_bytes))?;
    let operation = Operation::of(operation).ok_or_else(|| wrong("an operation", operation))?;
    let oddities = reading.oddities();
    if key.is_empty() {
        oddities.empty_keys += 1;
    } else if key.len() > KEY_BYTES_MAX {
        oddities.long_keys += 1;
    } else if !key.iter().all(|&byte| byte > b' ' && byte != 0x7f) {
        oddities.forbidden_keys += 1;
    } else {
        oddities.other_key_sizes += usize::from(key_bytes != key.len() as u64);
        return reading.add(key, operation, Terms { time_s, key_bytes, value_bytes, ttl_s });
    }
    Ok(())
}

fn split_first(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let comma = memchr::memchr(b',', text)?;
    Some((&text[..comma], &text[comma + 1..]))
}

fn split_last(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let comma = memchr::memrchr(b',', text)?;
    Some((&text[..comma], &text[comma + 1..]))
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn wrong(what: &str, text: &[u8]) -> String {
    format!("'{}' is not {what}", text.escape_ascii())
}
