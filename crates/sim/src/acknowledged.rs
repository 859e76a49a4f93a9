//! Checks that a power cut leaves every value whose store was acknowledged.
//!
//! Upstream:   `run`, which passes each settled request over engines that keep values in files.
//! Downstream: `run` fails if a value is missing.
//!
//! Plain engines only append to their files. So a value stays there even if its item was replaced.

use std::collections::BTreeMap;

use kachel_io::memory::disk::Disk;

use crate::answer::Asked;
use crate::value::{read_head, token};

/// The values that were acknowledged and not found in a file yet, by the numbers of their writes:
/// the key and the padding of each.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged(BTreeMap<u64, (Vec<u8>, usize)>);

impl Acknowledged {
    /// Notes a settled request. Numbers are not noted, because they are not unique.
    pub(crate) fn note(&mut self, asked: &Asked) {
        if let Some((key, write, padding, _)) = asked.acknowledged_value().and_then(read_head) {
            self.0.insert(write, (key.to_vec(), padding));
        }
    }

    /// Cuts the power of the disk, and looks for each value. Returns how many there are.
    ///
    /// Errors: one is missing.
    pub(crate) fn check(mut self, disk: &Disk, seed: u64) -> Result<u64, String> {
        let count = self.0.len() as u64;
        for (_, content) in disk.crash(seed).image() {
            let heads = content.windows(2).enumerate();
            for (at, _) in heads.filter(|(_, head)| matches!(head, [b'h' | b'f', b'0'..=b'9'])) {
                self.find(&content[at..]);
            }
        }
        let Some((write, (key, _))) = self.0.first_key_value() else { return Ok(count) };
        let (left, key) = (self.0.len(), key.escape_ascii());
        Err(format!("write {write} of {key}, and {left} in all, were told and are not on the disk"))
    }

    /// Forgets the value that begins with the first byte of `content`, if there is one.
    fn find(&mut self, content: &[u8]) {
        let Some((key, write, padding, _)) = read_head(content) else { return };
        let is_wanted = self.0.get(&write).is_some_and(|known| known.0 == key);
        if is_wanted && content.starts_with(&token(key, write, padding)) {
            self.0.remove(&write);
        }
    }
}
