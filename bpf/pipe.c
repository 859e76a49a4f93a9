/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The smart pipe: answers plain GETs over UDP in the driver of the network card. It passes all other
 * packets to the kernel, unchanged.
 *
 * Upstream:   the driver calls `pipe` with each packet.
 * Downstream: the stages, in the order in which a packet passes them.
 *
 * Invariants:
 * - I1  Each packet is answered or passed on; none is dropped. (A packet that was changed and could
 *       not be finished is dropped. The verifier asks for these branches; none of them can be taken.)
 * - I2  The work for a packet is bounded: 192 bytes are summed, searched for spaces and hashed, a
 *       bucket and a slot are read for each of 4 keys, and 511 bytes written.
 * - I3  A run says that it is about to answer before it reads whether it may. So the server, which has
 *       said that none may and then sees no such run, knows that none answers any more.
 */
#include "layout.h"
#include "interface.h"
#include "parse.h"
#include "probe.h"
#include "values.h"
#include "rewrite.h"

/* An atomic addition, which no load passes in either direction. */
INLINE void add(struct counts *counts, u32 result, u64 number)
{
	__sync_fetch_and_add(&counts->of[result & (COUNTS - 1)], number);
}

/* Notes a read of a slot. Two cores that share a lane may lose a read of one another. The server wants to
 * know whether there were a few reads, and when the last one was. */
INLINE void note_hit(const struct settings *is, const struct time *now, u32 slot)
{
	u32 lane = bpf_get_smp_processor_id() & is->lane_mask;
	u32 place = lane * (u32)(is->bucket_mask + 1) * WAYS + slot;
	u64 *hit = bpf_map_lookup_elem(&hits, &place);
	if (hit)
		WRITE(*hit, now->second << 32 | (u32)(READ(*hit) + 1));
}

SECTION("xdp")
int pipe(struct xdp_md *ctx)
{
	u32 first = 0, core = bpf_get_smp_processor_id();
	const struct settings *is = bpf_map_lookup_elem(&settings, &first);
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &first);
	struct counts *counted = bpf_map_lookup_elem(&counts, &core);
	struct time now;
	enum count result;

	if (!is || !scratch || !counted)
		return XDP_PASS;
	struct datagram *in = &scratch->in;
	struct request *request = &scratch->request;
	result = interface(ctx, is, in);
	if (result != ANSWERED)
		goto passed;
	result = NOT_SERVING;
	if (!is_serving(is, &now))
		goto passed;
	result = parse(ctx, in, request);
	if (result != ANSWERED)
		goto passed;
	begin_reply(request, scratch);
	u32 keys = 0;
#pragma clang loop unroll(disable)
	for (; keys < KEYS_MAX && !(keys && is_last_key(request)); keys++) {
		result = next_key(ctx, is, in, scratch->key, request);
		if (result != ANSWERED)
			goto passed;
		u32 slot = probe(is, request->hash);
		scratch->slots[keys] = slot;
		result = slot == NOWHERE ? MISS : values(is, request, &now, slot, scratch);
		if (result != ANSWERED)
			goto passed;
	}
	result = KEY_NOT_PLAIN;
	if (!is_last_key(request))
		goto passed; /* Too many keys. */
	end_reply(request, scratch);
	add(counted, ANSWERING, 1); /* I3 */
	result = READ(is->on) == 1 ? rewrite(ctx, is, in, scratch) : NOT_SERVING;
	add(counted, result, 1);
	add(counted, ANSWERING, -1);
	if (result == ANSWERED) {
		add(counted, ITEMS, keys);
#pragma clang loop unroll(disable)
		for (u32 i = 0; i < keys; i++)
			note_hit(is, &now, scratch->slots[i & (KEYS_MAX - 1)]);
		return XDP_TX;
	}
	return result == DROPPED ? XDP_DROP : XDP_PASS; /* I1 */
passed:
	add(counted, result, 1);
	return XDP_PASS;
}

SECTION("license") char program_license[] = "Dual MIT/GPL";
