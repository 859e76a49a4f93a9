/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Stage 5, response formatter: turns the packet of the request into that of the reply, in place.
 *
 * Upstream:   values, with the text of the reply.
 * Downstream: the driver, which sends the packet where it came from.
 *
 * The packet grows or shrinks at its head, because some drivers (veth) have no room at its end.
 * So all headers are written anew.
 *
 * Invariants:
 * - I1  A packet that is not answered is not changed.
 * - I2  A reply has at most `reply_times` times the bytes of its request, frames included.
 */
#ifndef KACHEL_REWRITE_H
#define KACHEL_REWRITE_H

#include "values.h"

#define HOPS 64

/* Copies the reply behind the header of UDP. Returns its sum, or 1 << 63 if there is no room. */
INLINE u64 put_reply(u8 *to, const u8 *text, u64 bytes, const u8 *end)
{
	u64 sum = 0;
	u32 done = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < (REPLY_BYTES_MAX + 1) / 8; i++) {
		u8 *at = to + 8 * i;
		if (8 * i + 8 > bytes)
			break;
		OPAQUE(at);
		if (at + 8 > end)
			return 1ULL << 63;
		u64 word = *(const u64 *)(text + 8 * i);
		*(u64 *)at = word;
		sum += sum_of_word(word);
		done = 8 * i + 8;
	}
	if (done < bytes) {
		/* The word that ends with the reply overlaps the one before. */
		u8 *at = to + (bytes - 8);
		u64 word = *(const u64 *)(text + ((bytes - 8) & 511));
		OPAQUE(at);
		if (at + 8 > end)
			return 1ULL << 63;
		*(u64 *)at = word;
		sum += sum_of_word(word >> (8 * (8 - (bytes & 7))));
	}
	return sum;
}

/* Makes the packet the reply. Returns ANSWERED, or the reason why the packet is as it was (I1), or
 * DROPPED. */
INLINE enum count rewrite(struct xdp_md *ctx, const struct settings *is, const struct datagram *in,
			  struct scratch *scratch)
{
	const u8 *data = (const u8 *)(unsigned long)ctx->data;
	const u8 *end = (const u8 *)(unsigned long)ctx->data_end;
	struct ethernet frame;
	struct ipv4 v4;
	struct ipv6 v6;
	u16 from, to;
	u64 bytes = scratch->used;
	u32 is_ipv6 = in->is_ipv6;
	u64 udp_at = is_ipv6 ? ETHERNET_BYTES + IPV6_BYTES : ETHERNET_BYTES + IPV4_BYTES;

	if (bytes < FRAME_BYTES || bytes > REPLY_BYTES_MAX)
		return NO_ROOM;
	if (bytes > is->reply_times * (in->bytes - UDP_BYTES))
		return TOO_LARGE; /* I2 */
	if (data + ETHERNET_BYTES + IPV4_BYTES > end)
		return NO_ROOM;
	frame = *(const struct ethernet *)data;
	if (is_ipv6) {
		if (data + ETHERNET_BYTES + IPV6_BYTES > end)
			return NO_ROOM;
		v6 = *(const struct ipv6 *)(data + ETHERNET_BYTES);
	} else {
		v4 = *(const struct ipv4 *)(data + ETHERNET_BYTES);
	}
	if (data + udp_at + UDP_BYTES > end)
		return NO_ROOM;
	from = ((const struct udp *)(data + udp_at))->from;
	to = ((const struct udp *)(data + udp_at))->to;

	long packet_bytes = end - data;
	OPAQUE(packet_bytes);
	int growth = (int)(udp_at + UDP_BYTES + bytes) - (int)packet_bytes;
	if (bpf_xdp_adjust_head(ctx, -growth))
		return NO_ROOM; /* I1 */
	u8 *out = (u8 *)(unsigned long)ctx->data;
	const u8 *out_end = (const u8 *)(unsigned long)ctx->data_end;
	u16 udp_bytes = NETWORK16(UDP_BYTES + bytes);
	u64 sum = NETWORK16(PROTOCOL_UDP) + (u64)udp_bytes;
	if (out + ETHERNET_BYTES + IPV4_BYTES > out_end)
		return DROPPED;
	__builtin_memcpy(out, frame.from, 6);
	__builtin_memcpy(out + 6, frame.to, 6);
	((struct ethernet *)out)->type = frame.type;
	if (is_ipv6) {
		struct ipv6 *ip = (void *)(out + ETHERNET_BYTES);
		if (out + ETHERNET_BYTES + IPV6_BYTES > out_end)
			return DROPPED;
		ip->version_flow = 0x60;
		ip->bytes = udp_bytes;
		ip->protocol = PROTOCOL_UDP;
		ip->hops = HOPS;
		ip->from[0] = v6.to[0];
		ip->from[1] = v6.to[1];
		ip->to[0] = v6.from[0];
		ip->to[1] = v6.from[1];
		sum += sum_of_word(v6.to[0]) + sum_of_word(v6.to[1]) + sum_of_word(v6.from[0]) +
		       sum_of_word(v6.from[1]);
	} else {
		struct ipv4 *ip = (void *)(out + ETHERNET_BYTES);
		ip->version_words = 0x45;
		ip->service = 0;
		ip->bytes = NETWORK16(IPV4_BYTES + UDP_BYTES + bytes);
		ip->id = 0;
		ip->fragment = NETWORK16(0x4000);
		ip->hops = HOPS;
		ip->protocol = PROTOCOL_UDP;
		ip->checksum = 0;
		ip->from = v4.to;
		ip->to = v4.from;
		ip->checksum = ~fold(sum_of_ipv4(ip));
		sum += (u64)v4.from + v4.to;
	}
	struct udp *udp = (void *)(out + udp_at);
	if ((u8 *)(udp + 1) > out_end)
		return DROPPED;
	udp->from = to;
	udp->to = from;
	udp->bytes = udp_bytes;
	u64 text = put_reply((u8 *)(udp + 1), scratch->text, bytes, out_end);
	if (text >> 63)
		return DROPPED;
	sum += (u64)from + to + udp_bytes + text;
	u16 checksum = ~fold(sum);
	udp->checksum = checksum ? checksum : 0xffff;
	return ANSWERED;
}

#endif
