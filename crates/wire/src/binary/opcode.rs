//! The opcodes of the binary protocol, and the lengths that a request of each must have.
//!
//! Upstream:   the parser, with the lengths in a header.
//! Downstream: the parser refuses a request whose lengths are wrong.
//!
//! Source: memcached's protocol_binary.txt, and 1.6.45's replies where the two differ.

pub(super) const GET: u8 = 0x00;
pub(super) const SET: u8 = 0x01;
pub(super) const ADD: u8 = 0x02;
pub(super) const REPLACE: u8 = 0x03;
pub(super) const DELETE: u8 = 0x04;
pub(super) const INCREMENT: u8 = 0x05;
pub(super) const DECREMENT: u8 = 0x06;
pub(super) const QUIT: u8 = 0x07;
pub(super) const FLUSH: u8 = 0x08;
pub(super) const NOOP: u8 = 0x0a;
pub(super) const VERSION: u8 = 0x0b;
pub(super) const GETK: u8 = 0x0c;
pub(super) const APPEND: u8 = 0x0e;
pub(super) const PREPEND: u8 = 0x0f;
pub(super) const STAT: u8 = 0x10;
pub(super) const TOUCH: u8 = 0x1c;
pub(super) const GAT: u8 = 0x1d;
pub(super) const SASL_LIST_MECHS: u8 = 0x20;
pub(super) const SASL_AUTH: u8 = 0x21;
pub(super) const SASL_STEP: u8 = 0x22;
pub(super) const GATK: u8 = 0x23;

/// The opcode without `Q`, and whether there was one.
#[inline]
pub(super) const fn without_quiet(opcode: u8) -> (u8, bool) {
    match opcode {
        0x09 => (GET, true),
        0x0d => (GETK, true),
        0x11..=0x18 => (opcode - 0x10, true), // SETQ to FLUSHQ
        0x19 => (APPEND, true),
        0x1a => (PREPEND, true),
        0x1e => (GAT, true),
        0x24 => (GATK, true),
        _ => (opcode, false),
    }
}

/// Whether a request with this opcode is part of a login.
#[inline]
pub(super) const fn is_sasl(opcode: u8) -> bool {
    matches!(opcode, SASL_LIST_MECHS..=SASL_STEP)
}

/// The lengths that a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) extras_bytes: usize,
    pub(super) key_bytes: usize,
    pub(super) value_bytes: u32,
}

/// Whether the lengths of a request are right for its opcode, which is not quiet. `None` for an
/// unknown opcode.
pub(super) const fn are_right(opcode: u8, lengths: Lengths) -> Option<bool> {
    let Lengths { extras_bytes, key_bytes, value_bytes } = lengths;
    let (has_key, has_value) = (key_bytes > 0, value_bytes > 0);
    Some(match opcode {
        GET | GETK | DELETE => extras_bytes == 0 && has_key && !has_value,
        SET | ADD | REPLACE => extras_bytes == 8 && has_key,
        APPEND | PREPEND | SASL_AUTH | SASL_STEP => extras_bytes == 0 && has_key,
        INCREMENT | DECREMENT => extras_bytes == 20 && has_key && !has_value,
        // 1.6.45 accepts a value here, and then loses its place in the stream.
        TOUCH | GAT | GATK => extras_bytes == 4 && has_key && !has_value,
        STAT => extras_bytes == 0 && !has_value,
        NOOP | VERSION | QUIT | SASL_LIST_MECHS => extras_bytes == 0 && !has_key && !has_value,
        FLUSH => (extras_bytes == 0 || extras_bytes == 4) && !has_key && !has_value,
        _ => return None,
    })
}
