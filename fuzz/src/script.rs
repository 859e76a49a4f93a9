//! The meaning of one input of the connection target: the bytes that a client sends, and how it
//! sends them.
//!
//! Upstream:   the connection target; the generator of seeds, which encodes scripts.
//! Downstream: `connection`, which plays scripts.
//!
//! ```text
//! input:  stream ... | plan ... | length of the plan in bytes u8
//! stream: bytes that stand for themselves, except:
//!         FE l n n  repeats the last l bytes (u8) n times (u16);  FE 0  is the byte FE
//! plan:   piece bytes u8 | switches u8 | reading step u8 | seconds u8 | cut u16 | cut u16 ...
//! ```
//!
//! The plan is at the end, so that it stays the same if the fuzzer inserts bytes into the stream or
//! removes some. Missing bytes of the plan are 0, so a wire case with a short plan is a seed.
//!
//! Invariants:
//! - I1  Every input is a script.

/// The byte that begins a repetition.
const REPEAT: u8 = 0xfe;
/// The most bytes of a stream: enough for a large value, or for requests with many reply bytes.
pub const STREAM_BYTES_MAX: usize = 48 * 1024;
/// A stream with this many words repeats no more words, because a long list of keys or requests
/// takes much time. A long value takes little.
const WORDS_MAX: usize = 200;
/// The most repetitions that one `FE l n n` makes.
const REPEATS_MAX: u16 = 0x7fff;
/// The most bytes of a plan.
const PLAN_BYTES_MAX: usize = 40;
/// The longest pause in seconds: shorter than any timeout of a request.
const PAUSE_SECONDS_MAX: u32 = 8;
/// The most pieces of equal size. They follow the first cut of the plan.
const PIECES_MAX: usize = 40;

/// A client's bytes, and how the client sends them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Everything that the client sends.
    pub stream: Vec<u8>,
    /// Where the stream is cut: positions inside the stream, in rising order.
    pub cuts: Vec<usize>,
    /// A number of bytes, and the seconds that pass after the server has served them.
    pub pause: Option<(usize, u32)>,
    /// The number of bytes that the client reads at a time; 0: all at once.
    pub reading_step: usize,
    /// Whether other clients are busy at the same time.
    pub noise: bool,
    /// Whether the server gets time to answer between two pieces.
    pub patient: bool,
    /// The shard, of three, that gets the client's connection; `None`: there is one shard.
    pub home: Option<usize>,
    /// Whether the client resets the connection instead of finishing it.
    pub resets: bool,
    /// Whether the largest item is smaller than usual.
    pub small_items: bool,
}

impl Script {
    /// The script that `data` encodes (I1).
    pub fn of(data: &[u8]) -> Self {
        let (stream, plan) = split(data);
        let stream = expanded(stream);
        let at = |place: usize| plan.get(place).copied().unwrap_or(0);
        let (piece_bytes, switches) = (usize::from(at(0)), at(1));
        let mut cuts: Vec<usize> = plan
            .get(4..)
            .unwrap_or_default()
            .chunks_exact(2)
            .map(|cut| usize::from(u16::from_le_bytes([cut[0], cut[1]])) % (stream.len() + 1))
            .collect();
        if piece_bytes > 0 {
            let first = cuts.first().copied().unwrap_or(0);
            let pieces = (1..=PIECES_MAX).map(|piece| first + piece * piece_bytes);
            cuts.extend(pieces.take_while(|at| *at < stream.len()));
        }
        let seconds = u32::from(at(3)) % (PAUSE_SECONDS_MAX + 1);
        let pause = cuts.first().map(|at| (*at, seconds)).filter(|_| seconds > 0);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.retain(|at| (1..stream.len()).contains(at));
        Self {
            cuts,
            pause,
            reading_step: usize::from(at(2)) * 32,
            noise: switches & 1 != 0,
            patient: switches & 2 != 0,
            resets: switches & 4 != 0,
            small_items: switches & 8 != 0,
            home: usize::from(switches >> 4 & 3).checked_sub(1),
            stream,
        }
    }

    /// The pieces of the stream, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.cuts.iter().copied());
        let ends = self.cuts.iter().copied().chain([self.stream.len()]);
        starts.zip(ends).map(|(start, end)| &self.stream[start..end])
    }
}

/// The bytes of a plan, to be appended to a stream: bytes per piece, switches, reading step, a
/// pause of one second at the first cut, and the cuts.
pub fn plan((piece_bytes, switches, reading_step): (u8, u8, u8), cuts: &[u16]) -> Vec<u8> {
    let mut plan = vec![piece_bytes, switches, reading_step, 1];
    plan.extend(cuts.iter().flat_map(|cut| cut.to_le_bytes()));
    plan.push(u8::try_from(plan.len()).expect("a short plan"));
    plan
}

fn split(data: &[u8]) -> (&[u8], &[u8]) {
    let Some((&count, data)) = data.split_last() else { return (&[], &[]) };
    let count = usize::from(count).min(PLAN_BYTES_MAX).min(data.len());
    data.split_at(data.len() - count)
}

/// The stream that `text` encodes.
fn expanded(text: &[u8]) -> Vec<u8> {
    let mut stream = Vec::with_capacity(text.len());
    let mut rest = text;
    // `words_before` counts the words in the stream up to `counted`.
    let (mut words_before, mut counted) = (0, 0);
    while let Some((&byte, behind)) = rest.split_first() {
        if stream.len() >= STREAM_BYTES_MAX {
            break;
        }
        rest = behind;
        let [length @ 1..=255, low, high, ..] = *rest else {
            stream.push(byte);
            if byte == REPEAT && rest.first() == Some(&0) {
                rest = &rest[1..];
            }
            continue;
        };
        if byte != REPEAT {
            stream.push(byte);
            continue;
        }
        rest = &rest[3..];
        let start = stream.len().saturating_sub(usize::from(length));
        let unit = stream[start..].to_vec();
        let times = usize::from(u16::from_le_bytes([low, high]) & REPEATS_MAX);
        let room = (STREAM_BYTES_MAX - stream.len()) / unit.len().max(1);
        let words = words_in(&unit);
        words_before += words_in(&stream[counted..]);
        counted = stream.len();
        let wordy = WORDS_MAX.saturating_sub(words_before).checked_div(words);
        for _ in 0..times.min(room).min(wordy.unwrap_or(room)) {
            stream.extend_from_slice(&unit);
        }
    }
    stream
}

fn words_in(text: &[u8]) -> usize {
    text.iter().filter(|byte| matches!(byte, b' ' | b'\n')).count()
}

/// The encoding of `times` copies of `unit`: the unit, then its repetition.
pub fn repeated(unit: &[u8], times: usize) -> Option<Vec<u8>> {
    let length = u8::try_from(unit.len()).ok().filter(|length| *length > 0)?;
    let more = u16::try_from(times.checked_sub(1)?).ok().filter(|more| *more <= REPEATS_MAX)?;
    let mut text = escaped(unit);
    if more > 0 {
        let [low, high] = more.to_le_bytes();
        text.extend_from_slice(&[REPEAT, length, low, high]);
    }
    Some(text)
}

/// The encoding of `bytes` without repetitions.
pub fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        text.push(byte);
        if byte == REPEAT {
            text.push(0);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Script, escaped, plan, repeated};

    #[test]
    fn a_seed_is_the_script_that_was_meant() {
        let mut data = escaped(b"a\xfeb ");
        data.extend(repeated(b"xy", 3).unwrap());
        data.extend(plan((4, 0b10_0101, 2), &[1, 7]));
        let script = Script::of(&data);
        assert_eq!(script.stream, b"a\xfeb xyxyxy");
        assert_eq!((&script.cuts[..], script.pause), (&[1, 5, 7, 9][..], Some((1, 1))));
        assert_eq!(script.pieces().collect::<Vec<_>>().concat(), script.stream);
        assert_eq!((script.reading_step, script.home), (64, Some(1)));
        assert!(script.noise && script.resets && !script.patient && !script.small_items);
    }

    #[test]
    fn every_input_is_a_script() {
        assert_eq!(Script::of(b""), Script::default());
        assert_eq!(Script::of(b"\x09").stream, b"");
        assert_eq!(Script::of(b"\xfe\0").stream, b"\xfe");
        assert_eq!(Script::of(b"ab\xfe\xff\xff\0").stream.len(), 2 + 3);
    }
}
