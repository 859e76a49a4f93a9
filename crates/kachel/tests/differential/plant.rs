//! Wrong replies that are put into ours, to show that each kind of fault is caught.
//!
//! Upstream: the tests choose one. Downstream: `run` applies it to the first batch that it fits.

use crate::command::SeenTokens;
use crate::reply::{joined, lines, number};

/// Changes a batch's replies; `None` if the batch has nothing that it could change.
pub(crate) type Plant = fn(&[u8], &SeenTokens) -> Option<Vec<u8>>;

/// `END` before the value that it should follow.
pub(crate) fn end_swapped(reply: &[u8], _: &SeenTokens) -> Option<Vec<u8>> {
    let mut lines = lines(reply);
    let at = lines.windows(2).position(|pair| pair[0].data.is_some() && pair[1].head == b"END")?;
    lines.swap(at, at + 1);
    Some(joined(&lines))
}

/// One bit of a value flipped.
pub(crate) fn value_byte_flipped(reply: &[u8], _: &SeenTokens) -> Option<Vec<u8>> {
    let mut lines = lines(reply);
    let at = lines.iter().position(|line| line.data.is_some_and(|data| data.len() > 2))?;
    let mut data = lines[at].data?.to_vec();
    data[0] ^= 1;
    lines[at].data = Some(&data);
    Some(joined(&lines))
}

/// One `STORED` missing.
pub(crate) fn reply_dropped(reply: &[u8], _: &SeenTokens) -> Option<Vec<u8>> {
    let mut lines = lines(reply);
    let at = lines.iter().position(|line| line.head == b"STORED")?;
    lines.remove(at);
    Some(joined(&lines))
}

/// A new token of an item, but lower than the one seen before.
pub(crate) fn token_decreased(reply: &[u8], seen: &SeenTokens) -> Option<Vec<u8>> {
    let mut lines = lines(reply);
    for at in 0..lines.len() {
        let words = lines[at].words();
        if words[0] != b"VALUE" || words.len() != 5 {
            continue;
        }
        let Some((newest, _)) = seen.get(words[1]).and_then(|list| list.last()) else { continue };
        if number::<u64>(words[4])? > *newest {
            let kept = lines[at].head.len() - words[4].len();
            let mut head = lines[at].head[..kept].to_vec();
            head.extend((newest - 1).to_string().bytes());
            lines[at].head = &head;
            return Some(joined(&lines));
        }
    }
    None
}

/// Five seconds less to live than is true.
pub(crate) fn time_off_by_five(reply: &[u8], _: &SeenTokens) -> Option<Vec<u8>> {
    let mut lines = lines(reply);
    for at in 0..lines.len() {
        let mut words: Vec<Vec<u8>> = lines[at].words().iter().map(|word| word.to_vec()).collect();
        if words[0] != b"HD" && words[0] != b"VA" {
            continue;
        }
        let Some(word) = words.iter_mut().find(|word| word.starts_with(b"t")) else { continue };
        let Some(seconds) = number::<i64>(&word[1..]).filter(|seconds| *seconds > 5) else {
            continue;
        };
        *word = format!("t{}", seconds - 5).into_bytes();
        let head = words.join(&b' ');
        lines[at].head = &head;
        return Some(joined(&lines));
    }
    None
}
