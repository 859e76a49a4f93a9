//! Queues of keys in which every key stands at most once.
//!
//! Upstream:   the policies, which move keys between their queues.
//! Downstream: vectors with an entry for each key of the trace.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A key is in the queue that `place` names, and in no other.
//! - I2  The bytes of a queue are the sum of those of its keys.
//!
//! Cost: every operation takes the same time, whatever the length. 13 bytes a key.

/// A key of the trace: its number.
pub(super) type Key = u32;

/// No key: the end of a queue.
pub(super) const NONE: Key = Key::MAX;
/// The place of a key that is in no queue.
const NOWHERE: u8 = u8::MAX;

/// One end and the other of a queue, and the sums over its keys.
#[derive(Clone, Copy, Debug)]
struct Queue {
    front: Key,
    back: Key,
    bytes: u64,
}

/// The queues of a policy. New keys enter at the front.
#[derive(Debug)]
pub(super) struct Queues {
    /// The neighbor of each key towards the front.
    newer: Vec<Key>,
    /// The neighbor of each key towards the back.
    older: Vec<Key>,
    bytes: Vec<u32>,
    place: Vec<u8>,
    queues: Vec<Queue>,
}

impl Queues {
    /// `queues` empty queues for keys below `keys`.
    pub(super) fn new(queues: usize, keys: usize) -> Self {
        let empty = Queue { front: NONE, back: NONE, bytes: 0 };
        Self {
            newer: vec![NONE; keys],
            older: vec![NONE; keys],
            bytes: vec![0; keys],
            place: vec![NOWHERE; keys],
            queues: vec![empty; queues],
        }
    }

    /// The queue of a key.
    pub(super) fn place(&self, key: Key) -> Option<usize> {
        let place = self.place[key as usize];
        (place != NOWHERE).then_some(usize::from(place))
    }

    /// The bytes of a queue.
    pub(super) fn bytes(&self, queue: usize) -> u64 {
        self.queues[queue].bytes
    }

    /// The bytes of a key that is in a queue.
    pub(super) fn bytes_of(&self, key: Key) -> u32 {
        debug_assert!(self.place(key).is_some(), "I1");
        self.bytes[key as usize]
    }

    /// The key that has been in a queue for longest.
    pub(super) fn back(&self, queue: usize) -> Option<Key> {
        let back = self.queues[queue].back;
        (back != NONE).then_some(back)
    }

    /// The neighbor towards the front.
    pub(super) fn newer(&self, key: Key) -> Option<Key> {
        let newer = self.newer[key as usize];
        (newer != NONE).then_some(newer)
    }

    /// Puts a key that is in no queue at the front of one.
    pub(super) fn push(&mut self, queue: usize, key: Key, bytes: u32) {
        let index = key as usize;
        debug_assert!(self.place[index] == NOWHERE, "I1");
        let front = self.queues[queue].front;
        self.older[index] = front;
        self.newer[index] = NONE;
        match front {
            NONE => self.queues[queue].back = key,
            front => self.newer[front as usize] = key,
        }
        self.bytes[index] = bytes;
        self.place[index] = u8::try_from(queue).expect("a policy has few queues");
        let queue = &mut self.queues[queue];
        queue.front = key;
        queue.bytes += u64::from(bytes);
    }

    /// Takes a key out of its queue. Returns its bytes.
    pub(super) fn remove(&mut self, key: Key) -> u32 {
        let index = key as usize;
        let place = usize::from(self.place[index]);
        assert!(place < self.queues.len(), "I1: the key is in a queue");
        let (newer, older) = (self.newer[index], self.older[index]);
        let queue = &mut self.queues[place];
        match newer {
            NONE => queue.front = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NONE => queue.back = newer,
            older => self.newer[older as usize] = newer,
        }
        let bytes = self.bytes[index];
        assert!(queue.bytes >= u64::from(bytes), "I2");
        queue.bytes -= u64::from(bytes);
        self.place[index] = NOWHERE;
        bytes
    }

    /// Changes the bytes of a key where it stands.
    pub(super) fn resize(&mut self, key: Key, bytes: u32) {
        let place = self.place(key).expect("I1: the key is in a queue");
        let before = std::mem::replace(&mut self.bytes[key as usize], bytes);
        let queue = &mut self.queues[place];
        assert!(queue.bytes >= u64::from(before), "I2");
        queue.bytes = queue.bytes - u64::from(before) + u64::from(bytes);
    }

    /// Takes a key out of its queue, if it is in one. Returns whether it was.
    pub(super) fn discard(&mut self, key: Key) -> bool {
        let is_there = self.place(key).is_some();
        if is_there {
            self.remove(key);
        }
        is_there
    }

    /// Takes out the key at the back of a queue.
    pub(super) fn pop(&mut self, queue: usize) -> Option<(Key, u32)> {
        let key = self.back(queue)?;
        Some((key, self.remove(key)))
    }

    /// Moves a key to the front of a queue, which may be its own.
    pub(super) fn shift(&mut self, queue: usize, key: Key) {
        let bytes = self.remove(key);
        self.push(queue, key, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_leave_in_the_order_in_which_they_came_and_sums_follow() {
        let mut queues = Queues::new(2, 4);
        for (key, bytes) in [(0, 10), (1, 20), (2, 30)] {
            queues.push(0, key, bytes);
        }
        queues.shift(0, 0);
        queues.shift(1, 2);
        assert_eq!((queues.bytes(0), queues.place(2)), (30, Some(1)));
        queues.resize(1, 25);
        assert_eq!((queues.bytes(0), queues.bytes_of(1)), (35, 25));
        queues.resize(1, 20);
        assert_eq!((queues.newer(1), queues.newer(0)), (Some(0), None));
        assert_eq!(queues.pop(0), Some((1, 20)));
        assert_eq!(queues.pop(0), Some((0, 10)));
        assert_eq!((queues.pop(0), queues.place(1), queues.place(3)), (None, None, None));
        assert_eq!((queues.bytes(0), queues.pop(1), queues.bytes(1)), (0, Some((2, 30)), 0));
    }
}
