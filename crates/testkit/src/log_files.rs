//! Files of logs in tests: values of records, the points at which the power is cut, and damage.
//!
//! Upstream:   the tests of `log`, and of the engine over it.
//! Downstream: `log` for the layout of a file, `io` for operations.

use std::sync::LazyLock;

use kachel_io::{FileWork, Rng as _, SeededRng};
use kachel_log::SEGMENT_BYTES_MIN;

/// The kinds of damage that [`damaged`] does.
pub const DAMAGE_KINDS: usize = 4;

/// A value of this length: a piece of random bytes that `bits` choose. A part of it that was lost,
/// moved or exchanged is seen. The bytes repeat after 32 KiB.
///
/// Cost: that of a copy. Tests make values by the hundred thousand.
#[must_use]
pub fn random_value(bits: u64, bytes: usize) -> Vec<u8> {
    static RANDOM: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut rng = SeededRng::new(1);
        (0..4096).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
    });
    let mut value = Vec::with_capacity(bytes);
    let mut piece = &RANDOM[(bits >> 32) as usize % RANDOM.len()..];
    while value.len() < bytes {
        value.extend_from_slice(&piece[..piece.len().min(bytes - value.len())]);
        piece = &RANDOM;
    }
    value
}

/// The name of an operation among the points at which the power is cut. The segments have
/// [`SEGMENT_BYTES_MIN`].
#[must_use]
pub fn operation_name(work: &FileWork) -> &'static str {
    match work {
        FileWork::Write { transfer, .. } => match transfer.offset % SEGMENT_BYTES_MIN {
            0..4096 => "slot 0",
            4096..8192 => "slot 1",
            _ => "commit",
        },
        FileWork::Read(_) => "read",
        FileWork::Sync { .. } => "sync",
        FileWork::Allocate { .. } => "allocate",
        FileWork::Open { .. } => "open",
        FileWork::SyncFolder { .. } => "sync folder",
        _ => "other",
    }
}

/// A file with one damage, and what it is. Of a file that is damaged again and again, `number` says
/// which damage it is, and so its kind, which is `number` modulo [`DAMAGE_KINDS`]: a bit is turned,
/// a sector or a page has zeros, two pages are exchanged, the file is cut off.
#[must_use]
pub fn damaged(content: &[u8], number: u64, dice: &mut SeededRng) -> (Vec<u8>, String) {
    let mut damaged = content.to_vec();
    let mut below = |end: usize| dice.next_u64() as usize % end;
    let (at, other) = (below(content.len()), below(content.len() / 4096) * 4096);
    let (page, sector) = (at / 4096 * 4096, at / 512 * 512);
    match number as usize % DAMAGE_KINDS {
        0 => damaged[at] ^= 1 << below(8),
        1 => damaged[sector..sector + [512, 4096][below(2)].min(4096 - sector % 4096)].fill(0),
        2 => {
            let content = damaged[page..page + 4096].to_vec();
            damaged.copy_within(other..other + 4096, page);
            damaged[other..other + 4096].copy_from_slice(&content);
        }
        _ => damaged.truncate([at, sector, page][below(3)]),
    }
    (damaged, format!("damage {number} at {at} or {other}"))
}
