//! Judges whether the interface sends what the program answers.
//!
//! Upstream:   `kachel`, with the counts of the program and of the interface, twice a second.
//! Downstream: nothing; `kachel` switches the pipe off.
//!
//! Nothing confirms a reply over UDP. But a driver that cannot send a packet of the program counts
//! it as dropped. The best known case is a pair of virtual interfaces (veth) whose other end has
//! neither an XDP program nor GRO: it takes no packet of a program, so all replies are lost.
//!
//! Invariants:
//! - L1  Counts of one look are compared with those of the look before, so a server that answers
//!   nothing has no losses.

/// In how many looks in turn nearly all replies must be lost. An interface may also drop packets of
/// others, so one look says little. A guess.
const LOOKS: u32 = 2;

/// One in this number of answers may be sent, or not be counted yet, if nearly all are lost. An
/// interface that is flooded drops many packets, too, and there the pipe must go on. A guess.
const SENT_ONE_IN: u64 = 16;

/// The replies of a look, and how many packets the interface dropped meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Packets that the program has answered.
    pub answered: u64,
    /// Packets that the interface has dropped instead of sending them.
    pub dropped: u32,
}

/// The counts at the last look.
#[derive(Clone, Copy, Debug)]
pub struct Losses {
    answered: u64,
    dropped: u32,
    /// How many looks in turn have found losses.
    lossy: u32,
}

impl Losses {
    /// The counts at the beginning: answered by the program, and dropped by the interface.
    pub const fn new(answered: u64, dropped: u32) -> Self {
        Self { answered, dropped, lossy: 0 }
    }

    /// Packets that the program had answered at the last look.
    pub const fn answered(&self) -> u64 {
        self.answered
    }

    /// Looks at the counts of now (L1). The caller reads `answered` first; `dropped` may wrap.
    /// Returns the counts since the last look if nearly all replies of several looks in turn were
    /// lost.
    pub fn look(&mut self, answered: u64, dropped: u32) -> Option<Lost> {
        let since = Lost {
            answered: answered.saturating_sub(self.answered),
            dropped: dropped.wrapping_sub(self.dropped),
        };
        (self.answered, self.dropped) = (answered, dropped);
        if since.answered == 0 {
            return None;
        }
        let is_lossy = u64::from(since.dropped) >= since.answered - since.answered / SENT_ONE_IN;
        self.lossy = if is_lossy { self.lossy + 1 } else { 0 };
        debug_assert!(self.lossy <= LOOKS, "the caller stops looking");
        if self.lossy < LOOKS {
            return None;
        }
        self.lossy = 0;
        Some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict of each look. A row has the packets answered and dropped since the look before.
    fn looks(rows: &[(u64, u32)]) -> Vec<bool> {
        let (mut answered, mut dropped) = (5, u32::MAX - 1);
        let mut losses = Losses::new(answered, dropped);
        let look = |&(more, lost): &(u64, u32)| {
            answered += more;
            dropped = dropped.wrapping_add(lost);
            let found = losses.look(answered, dropped);
            assert!(found.is_none_or(|found| found == Lost { answered: more, dropped: lost }));
            found.is_some()
        };
        rows.iter().map(look).collect()
    }

    #[test]
    fn replies_are_lost_if_the_interface_drops_nearly_all_in_looks_in_turn() {
        assert_eq!(looks(&[(1, 1), (1, 1)]), [false, true]);
        assert_eq!(looks(&[(1, 1), (0, 0), (0, 7), (9, 9)]), [false, false, false, true]);
        assert_eq!(looks(&[(15, 14), (15, 14), (15, 15), (15, 15)]), [false, false, false, true]);
        assert_eq!(looks(&[(160, 150), (160, 150)]), [false, true]);
        assert_eq!(looks(&[(160, 149), (160, 149), (160, 160)]), [false; 3], "a flood");
        assert_eq!(looks(&[(1, 1), (9, 0), (1, 1), (9, 0)]), [false; 4], "not in turn");
        assert_eq!(looks(&[(0, 9), (0, 9), (0, 9)]), [false; 3], "packets of others");
        assert_eq!(looks(&[(1, 1), (1, 1), (1, 1), (1, 1)]), [false, true, false, true], "again");
    }
}
