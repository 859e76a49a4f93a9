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
//!   nothing has no losses. Packets that are dropped in a look without answers do not count.
//! - L2  A verdict needs `JUDGEMENTS_MIN` judgments in turn, and each of them `ANSWERS_MIN`
//!   answers, from as many looks as that takes.

/// In how many judgments in turn nearly all replies must be lost.
const JUDGEMENTS_MIN: u32 = 2;

/// The fewest answers that are judged together.
///
/// An interface may also drop packets of others, so a few losses say nothing. Suppose that it drops
/// every second packet by chance. Then a judgment of 32 answers finds 30 or more lost with a
/// probability of 529 / 2^32, and two do so in turn with one of 1.5e-14. With two looks a second,
/// each with enough answers, that is a wrong verdict in a million years. With 16 answers there
/// would be four a year. More answers would be more replies that clients miss before the verdict.
const ANSWERS_MIN: u64 = 32;

/// One in this number of answers may be sent, or not be counted yet, if nearly all are lost. An
/// interface that is flooded drops many packets, too, and there the pipe must go on. A guess.
const SENT_ONE_IN: u64 = 16;

/// Replies that are judged together, and how many packets the interface dropped meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Packets that the program has answered.
    pub answered: u64,
    /// Packets that the interface has dropped instead of sending them. Of each look, at most as
    /// many as were answered.
    pub dropped: u64,
}

/// The counts at the last look, and what is not judged yet.
#[derive(Clone, Copy, Debug)]
pub struct Losses {
    answered: u64,
    dropped: u32,
    /// The looks since the last judgment.
    pending: Lost,
    /// How many judgments in turn have found losses.
    lossy: u32,
}

impl Losses {
    /// The counts at the beginning: answered by the program, and dropped by the interface.
    pub const fn new(answered: u64, dropped: u32) -> Self {
        Self { answered, dropped, pending: Lost { answered: 0, dropped: 0 }, lossy: 0 }
    }

    /// Packets that the program had answered at the last look.
    pub const fn answered(&self) -> u64 {
        self.answered
    }

    /// Looks at the counts of now (L1). The caller reads `answered` first; `dropped` may wrap.
    /// Returns the counts of the last judgment if nearly all replies were lost in several
    /// judgments in turn (L2).
    pub fn look(&mut self, answered: u64, dropped: u32) -> Option<Lost> {
        let more = answered.saturating_sub(self.answered);
        let more_dropped = u64::from(dropped.wrapping_sub(self.dropped));
        (self.answered, self.dropped) = (answered, dropped);
        self.pending.answered += more;
        self.pending.dropped += more_dropped.min(more);
        if self.pending.answered < ANSWERS_MIN {
            return None;
        }
        let judged = std::mem::take(&mut self.pending);
        debug_assert!(judged.dropped <= judged.answered, "L1");
        let is_lossy = judged.dropped >= judged.answered - judged.answered / SENT_ONE_IN;
        self.lossy = if is_lossy { self.lossy + 1 } else { 0 };
        debug_assert!(self.lossy <= JUDGEMENTS_MIN, "L2: a verdict begins anew");
        if self.lossy < JUDGEMENTS_MIN {
            return None;
        }
        self.lossy = 0;
        Some(judged)
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
            losses.look(answered, dropped).is_some()
        };
        rows.iter().map(look).collect()
    }

    /// After how many equal looks, of at most 1000, the first verdict comes.
    fn looks_until_verdict(row: (u64, u32)) -> Option<usize> {
        looks(&[row; 1000]).iter().position(|&found| found).map(|place| place + 1)
    }

    #[test]
    fn replies_are_lost_if_the_interface_drops_nearly_all_in_judgements_in_turn() {
        assert_eq!(looks(&[(32, 32), (32, 32)]), [false, true]);
        assert_eq!(looks(&[(32, 32), (0, 0), (0, 7), (99, 99)]), [false, false, false, true]);
        assert_eq!(looks(&[(32, 29), (32, 29), (32, 30), (32, 30)]), [false, false, false, true]);
        assert_eq!(looks(&[(160, 150), (160, 150)]), [false, true]);
        assert_eq!(looks(&[(160, 149), (160, 149), (160, 160)]), [false; 3], "a flood");
        assert_eq!(looks(&[(40, 40), (40, 0), (40, 40), (40, 0)]), [false; 4], "not in turn");
        assert_eq!(looks(&[(0, 99), (0, 99), (0, 99)]), [false; 3], "packets of others");
        assert_eq!(looks(&[(32, 32); 4]), [false, true, false, true], "again");
        let mut losses = Losses::new(0, 0);
        assert_eq!(losses.look(40, 39), None);
        assert_eq!(losses.look(90, 99), Some(Lost { answered: 50, dropped: 50 }), "as answered");
    }

    /// The fault: one answer and one dropped packet in each of two looks were a verdict.
    #[test]
    fn few_answers_are_no_verdict() {
        assert_eq!(looks_until_verdict((1, 1)), Some(64));
        assert_eq!(looks_until_verdict((31, 31)), Some(4));
        assert_eq!(looks_until_verdict((1, 0)), None);
        assert_eq!(looks(&[(1, 90), (31, 1)].repeat(9)), [false; 18], "packets of others");
    }
}
