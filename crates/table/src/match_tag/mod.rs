//! Finds the slots of a bucket that have a tag. There are two implementations.
//!
//! Upstream:   `bucket`.
//! Downstream: `scalar` compares one tag at a time, with atomic loads, so any core may call it;
//!             `sse2` uses vectors, which every x86-64 has, and is for the owner alone.

mod scalar;
#[cfg(all(target_arch = "x86_64", not(loom)))]
mod sse2;

/// Any core may compare tags so.
pub(crate) use scalar::match_tag as match_tag_shared;

#[cfg(any(loom, not(target_arch = "x86_64")))]
pub(crate) use scalar::match_tag;
#[cfg(all(target_arch = "x86_64", not(loom)))]
pub(crate) use sse2::match_tag;

#[cfg(all(test, target_arch = "x86_64", not(loom)))]
mod tests {
    use super::{scalar, sse2};
    use proptest::prelude::{Strategy, any, prop_oneof, proptest};
    use std::sync::atomic::AtomicU64;

    fn tag() -> impl Strategy<Value = u16> {
        prop_oneof![0_u16..3, 0x7ffe_u16..=0x8001, 0xfffe_u16..=0xffff, any::<u16>()]
    }

    proptest! {
        #[test]
        fn twins_agree(
            tags in proptest::array::uniform8(tag()),
            rest in any::<u64>(),
            tag in tag(),
        ) {
            #[repr(align(64))]
            struct Aligned([AtomicU64; 8]);
            let line = Aligned(tags.map(|tag| AtomicU64::new(u64::from(tag) << 48 | rest >> 16)));
            let expected = scalar::match_tag(&line.0, tag);
            assert_eq!(sse2::match_tag(&line.0, tag), expected);
            for slot in 0..7 {
                assert_eq!(expected >> slot & 1 == 1, tags[1 + slot] == tag);
            }
        }
    }
}
