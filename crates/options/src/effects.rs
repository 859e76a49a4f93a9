//! Effects of options that are too long for their row.
//!
//! Upstream:   `apply.rs` calls the effect of each row that it found.
//! Downstream: [`PartialOptions`].

use crate::admin::{AdminListen, read_prefixes};
use crate::data::{DataOptions, SyncChoice};
use crate::partial::{Given, PartialOptions, set};
use crate::serve::FlushPrefixAccess;
use crate::suboptions::suboptions;
use crate::value::{classify, read};
use crate::{EXIT_FAILURE, EXIT_USAGE, OptionsError};

/// Bytes of the smallest and the largest item limit that `-I` accepts.
const ITEM_BYTES_RANGE: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 30;

/// The effect of `-o`: a list of `name` or `name=value`.
pub(crate) fn extended(partial: &mut PartialOptions, given: Given<'_>) -> Result<(), OptionsError> {
    for word in given.text().split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name.trim_end(), Some(value.trim_start())),
            None => (word, None),
        };
        let Some(row) = suboptions().find(|row| row.name == name) else {
            return Err(OptionsError::new(EXIT_FAILURE, format!("Illegal suboption \"{word}\"")));
        };
        let spelled = format!("-o {word}");
        let given = read(&spelled, value, row.takes, &mut partial.serve.reports)?;
        classify(&spelled, row.class, &mut partial.serve.reports)?;
        (row.effect)(partial, given)?;
    }
    Ok(())
}

/// The effect of `--admin`.
pub(crate) fn admin_address(
    partial: &mut PartialOptions,
    given: Given<'_>,
) -> Result<(), OptionsError> {
    let usage = |why| OptionsError::new(EXIT_USAGE, format!("{}: {why}", given.spelled()));
    let listen = match given.text() {
        "off" => None,
        text => Some(AdminListen::read(text).map_err(usage)?),
    };
    set(&mut partial.serve.admin.listen, listen)
}

/// The effect of `--admin-host`.
pub(crate) fn admin_host(
    partial: &mut PartialOptions,
    given: Given<'_>,
) -> Result<(), OptionsError> {
    let name = given.text();
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_of_name) {
        let message = format!("{}: give a name, without a port", given.spelled());
        return Err(OptionsError::new(EXIT_USAGE, message));
    }
    partial.serve.admin.hosts.push(name.to_string());
    Ok(())
}

/// The effect of `--admin-prefixes`.
pub(crate) fn admin_prefixes(
    partial: &mut PartialOptions,
    given: Given<'_>,
) -> Result<(), OptionsError> {
    let usage = |why| OptionsError::new(EXIT_USAGE, format!("{}: {why}", given.spelled()));
    set(&mut partial.serve.admin.prefixes, read_prefixes(given.text()).map_err(usage)?)
}

/// The observers that there are, as `--observe` names them.
pub(crate) const OBSERVERS: [&str; 3] = ["hotkeys", "curve", "prefixes"];

/// The effect of `--observe`.
pub(crate) fn observe(partial: &mut PartialOptions, given: Given<'_>) -> Result<(), OptionsError> {
    let asked: Vec<&str> = match given.text() {
        "off" => Vec::new(),
        "all" => OBSERVERS.to_vec(),
        list => list.split(',').collect(),
    };
    if asked.iter().any(|name| !OBSERVERS.contains(name)) {
        let names = OBSERVERS.join(", ");
        let message = format!("{}: give off, all, or a list of {names}", given.spelled());
        return Err(OptionsError::new(EXIT_USAGE, message));
    }
    let observe = OBSERVERS.into_iter().filter(|name| asked.contains(name)).collect();
    set(&mut partial.serve.observe, observe)
}

/// The effect of `-a`.
pub(crate) fn unix_mask(
    partial: &mut PartialOptions,
    given: Given<'_>,
) -> Result<(), OptionsError> {
    match u32::from_str_radix(given.text(), 8) {
        Ok(mode) if mode <= 0o777 => set(&mut partial.unix_mode, mode),
        _ => Err(OptionsError::new(
            EXIT_FAILURE,
            format!("{}: the mask must be octal, 0 to 777", given.spelled()),
        )),
    }
}

/// The effect of `-I`.
pub(crate) fn item_size(
    partial: &mut PartialOptions,
    given: Given<'_>,
) -> Result<(), OptionsError> {
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
            set(&mut partial.serve.item_bytes_max, bytes)
        }
        _ => Err(OptionsError::new(
            EXIT_USAGE,
            format!("{}: the largest item must be given as 1k to 1g", given.spelled()),
        )),
    }
}

/// The effect of `--space`.
pub(crate) fn space(partial: &mut PartialOptions, given: Given<'_>) -> Result<(), OptionsError> {
    let Some(bytes) = DataOptions::read_space(given.text()) else {
        let why = "give a number of bytes, or 64m, 10g, 2t; at least 16m for each engine";
        return Err(OptionsError::new(EXIT_USAGE, format!("{}: {why}", given.spelled())));
    };
    set(&mut partial.serve.data.space_bytes, Some(bytes))
}

/// The effect of `--flush-prefix`.
pub(crate) fn flush_prefix(
    partial: &mut PartialOptions,
    given: Given<'_>,
) -> Result<(), OptionsError> {
    let flushers = match given.text() {
        "off" => FlushPrefixAccess::None,
        "local" => FlushPrefixAccess::Local,
        _ => FlushPrefixAccess::All,
    };
    set(&mut partial.serve.flush_prefix, flushers)
}

/// The effect of `-D`.
pub(crate) fn prefix_delimiter(
    partial: &mut PartialOptions,
    given: Given<'_>,
) -> Result<(), OptionsError> {
    let delimiter = given.text().bytes().next().expect("a text is not empty");
    partial.serve.detail_at_start = true;
    set(&mut partial.serve.prefix_delimiter, delimiter)
}

/// The effect of `--sync`.
pub(crate) fn sync(partial: &mut PartialOptions, given: Given<'_>) -> Result<(), OptionsError> {
    let Some(sync) = SyncChoice::read(given.text()) else {
        let why = "give always, interval:50ms (1ms to 3600s), or os";
        return Err(OptionsError::new(EXIT_USAGE, format!("{}: {why}", given.spelled())));
    };
    set(&mut partial.serve.data.sync, Some(sync))
}
