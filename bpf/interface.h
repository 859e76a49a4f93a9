/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Stage 1, network interface: the frame of Ethernet, the headers of IP and UDP, and the guards.
 *
 * Upstream:   the driver, with a packet.
 * Downstream: parse, with a datagram for the server from a client that may be answered.
 *
 * Invariants:
 * - I1  No fragment, no option or extension header of IP and no VLAN goes on.
 * - I2  The datagram goes to an address and port of the server, as a frame for this interface alone:
 *       to its address of Ethernet.
 * - I3  The sender is not a host group, not this host, and not a port that reflects. That holds for
 *       its address of Ethernet, too, because the reply goes there.
 * - I4  The checksums are right. A packet that has not left the machine may hold the sum of the pseudo
 *       header instead, for the device to complete. A program cannot see whether it has left the
 *       machine, so it is passed on.
 */
#ifndef KACHEL_INTERFACE_H
#define KACHEL_INTERFACE_H

#include "layout.h"

#define ETHERNET_BYTES 14
#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define UDP_BYTES 8
#define PROTOCOL_UDP 17
/* The longest datagram that is looked at, with the header of UDP. */
#define DATAGRAM_BYTES_MAX 192
/* Numbers in the order of the network, as a little-endian processor reads them. */
#define NETWORK16(x) ((u16)((((x) & 0xff) << 8) | ((x) >> 8)))
#define TYPE_IPV4 NETWORK16(0x0800)
#define TYPE_IPV6 NETWORK16(0x86dd)
/* The bytes of an address of Ethernet in a word; the lowest bit is that of a group of hosts. */
#define MAC_BYTES 0xffffffffffffULL

struct ethernet {
	u8 to[6];
	u8 from[6];
	u16 type;
};

struct ipv4 {
	u8 version_words;
	u8 service;
	u16 bytes;
	u16 id;
	u16 fragment;
	u8 hops;
	u8 protocol;
	u16 checksum;
	u32 from;
	u32 to;
};

struct ipv6 {
	u32 version_flow;
	u16 bytes;
	u8 protocol;
	u8 hops;
	u64 from[2];
	u64 to[2];
};

struct udp {
	u16 from;
	u16 to;
	u16 bytes;
	u16 checksum;
};

INLINE u16 fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (u16)((sum & 0xffff) + (sum >> 16));
}

INLINE u64 sum_of_word(u64 word)
{
	return (word & 0xffffffff) + (word >> 32);
}

INLINE u64 sum_of_ipv4(const struct ipv4 *ip)
{
	const u32 *words = (const u32 *)ip;
	return (u64)words[0] + words[1] + words[2] + words[3] + words[4];
}

/* The sum of the datagram with the header of UDP, or 1 << 63 if the packet is too short for it. */
INLINE u64 sum_of_datagram(const u8 *at, u32 bytes, const u8 *end)
{
	u64 sum = 0;
	u32 done = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < DATAGRAM_BYTES_MAX / 8; i++) {
		const u8 *word = at + 8 * i;
		if (8 * i + 8 > bytes)
			break;
		OPAQUE(word);
		if (word + 8 > end)
			return 1ULL << 63;
		sum += sum_of_word(*(const u64 *)word);
		done = 8 * i + 8;
	}
	if (done < bytes) {
		/* The word that ends with the datagram; its first bytes are in the sum. */
		const u8 *word = at + (bytes - 8);
		OPAQUE(word);
		if (word + 8 > end)
			return 1ULL << 63;
		sum += sum_of_word(*(const u64 *)word >> (8 * (8 - (bytes & 7))));
	}
	return sum;
}

INLINE int is_closed(const struct settings *is, u16 port)
{
	u32 number = NETWORK16(port);
	return (is->closed_ports[(number >> 6) & 1023] >> (number & 63)) & 1;
}

/* The place of an address in `closed_addresses`. crates/pipe/src/places.rs computes it, too. */
INLINE u32 address_bit(const u64 *address)
{
	u64 mixed = (address[0] ^ (address[1] << 32 | address[1] >> 32)) * 0x9e3779b97f4a7c15ULL;
	return (u32)(mixed >> 48);
}

INLINE int is_closed_address(const struct settings *is, const u64 *address)
{
	u32 bit = address_bit(address);
	return (is->closed_addresses[(bit >> 6) & 1023] >> (bit & 63)) & 1;
}

/* Whether a frame may be answered at the address that it says it comes from. */
INLINE int is_station(u64 mac, u64 own)
{
	return !(mac & 1) && mac != 0 && mac != own;
}

/* Reads the headers. Returns ANSWERED if the datagram goes on, else the reason why it does not. */
INLINE enum count interface(struct xdp_md *ctx, const struct settings *is, struct datagram *in)
{
	const u8 *data = (const u8 *)(unsigned long)ctx->data;
	const u8 *end = (const u8 *)(unsigned long)ctx->data_end;
	const struct ethernet *frame = (const void *)data;
	u64 to[2], from[2], pseudo;

	if (data + ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES > end)
		return NOT_FOR_US;
	/* A word has two bytes of the field behind the address, too. */
	if ((*(const u64 *)frame->to & MAC_BYTES) != is->mac)
		return NOT_FOR_US; /* I2 */
	u64 station = *(const u64 *)frame->from & MAC_BYTES;
	if (frame->type == TYPE_IPV4) {
		const struct ipv4 *ip = (const void *)(data + ETHERNET_BYTES);
		u32 first = ip->from & 0xff;
		if (ip->version_words != 0x45 || ip->protocol != PROTOCOL_UDP)
			return NOT_FOR_US; /* I1 */
		if (ip->fragment & ~NETWORK16(0x4000))
			return NOT_FOR_US; /* I1 */
		in->is_ipv6 = 0;
		in->udp_at = ETHERNET_BYTES + IPV4_BYTES;
		in->bytes = (u32)NETWORK16(ip->bytes) - IPV4_BYTES;
		to[0] = from[0] = 0;
		to[1] = (u64)ip->to << 32 | 0xffff0000;
		from[1] = (u64)ip->from << 32 | 0xffff0000;
		pseudo = (u64)ip->from + ip->to;
		if (fold(sum_of_ipv4(ip)) != 0xffff)
			return WRONG_CHECKSUM; /* I4 */
		if (first == 0 || first == 127 || first >= 224)
			return NOT_ANSWERABLE; /* I3: this network or host, groups, reserved. */
	} else if (frame->type == TYPE_IPV6) {
		const struct ipv6 *ip = (const void *)(data + ETHERNET_BYTES);
		if (data + ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES > end)
			return NOT_FOR_US;
		if ((ip->version_flow & 0xf0) != 0x60 || ip->protocol != PROTOCOL_UDP)
			return NOT_FOR_US; /* I1 */
		in->is_ipv6 = 1;
		in->udp_at = ETHERNET_BYTES + IPV6_BYTES;
		in->bytes = NETWORK16(ip->bytes);
		to[0] = ip->to[0];
		to[1] = ip->to[1];
		from[0] = ip->from[0];
		from[1] = ip->from[1];
		pseudo = sum_of_word(to[0]) + sum_of_word(to[1]) + sum_of_word(from[0]) +
			 sum_of_word(from[1]);
		/* I3: a group, no address, this host, or IPv4 that is mapped, which no network has. */
		if ((from[0] & 0xff) == 0xff || from[0] == 0)
			return NOT_ANSWERABLE;
	} else {
		return NOT_FOR_US; /* I1 */
	}

	u32 udp_at = in->udp_at;
	if (udp_at > ETHERNET_BYTES + IPV6_BYTES)
		return NOT_FOR_US;
	const struct udp *udp = (const void *)(data + udp_at);
	if ((const u8 *)(udp + 1) > end)
		return NOT_FOR_US;
	int found = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PLACES; i++) {
		const struct place *place = &is->places[i];
		if (place->port == 0)
			break;
		if (place->port == udp->to && place->address[0] == to[0] && place->address[1] == to[1]) {
			in->text = place->text;
			in->binary = place->binary;
			found = 1;
			break;
		}
	}
	if (!found)
		return NOT_FOR_US; /* I2 */
	if (!is_station(station, is->mac) || is_closed_address(is, from) || is_closed(is, udp->from))
		return NOT_ANSWERABLE; /* I3 */
	u32 bytes = in->bytes;
	if (bytes <= UDP_BYTES + 8 || bytes > DATAGRAM_BYTES_MAX)
		return NOT_KNOWN;
	if (NETWORK16(udp->bytes) != bytes)
		return NOT_KNOWN;
	if (udp->checksum == 0)
		return in->is_ipv6 ? WRONG_CHECKSUM : ANSWERED;
	pseudo += NETWORK16(PROTOCOL_UDP) + (u64)udp->bytes;
	u64 sum = sum_of_datagram((const u8 *)udp, bytes, end);
	if (sum >> 63)
		return NOT_KNOWN;
	if (fold(pseudo + sum) != 0xffff)
		return WRONG_CHECKSUM; /* I4 */
	return ANSWERED;
}

#endif
