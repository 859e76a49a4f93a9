/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Stage 3, hash table: finds the slot of a key by the tags of one bucket.
 *
 * Upstream:   parse, with the hash of a key.
 * Downstream: values, with the number of a slot.
 *
 * A bucket is one cache line of eight tags. A tag is the whole secret hash, so a second look at the
 * wrong slot is very rare; the key itself is compared in the slot.
 */
#ifndef KACHEL_PROBE_H
#define KACHEL_PROBE_H

#include "parse.h"

#define NOWHERE 0xffffffff

INLINE u32 probe(const struct settings *is, u64 hash)
{
	u32 number = (u32)(hash & is->bucket_mask);
	const struct bucket *bucket = bpf_map_lookup_elem(&buckets, &number);
	if (!bucket || hash <= 1)
		return NOWHERE;
#pragma clang loop unroll(full)
	for (u32 way = 0; way < WAYS; way++)
		if (READ(bucket->tags[way]) == hash)
			return number * WAYS + way;
	return NOWHERE;
}

#endif
