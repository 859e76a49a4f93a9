/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Stage 2, request parser: the frame of a datagram, the verb, and each key with its hash.
 *
 * Upstream:   interface, with a datagram.
 * Downstream: probe, with a key and its hash.
 *
 * Only the plainest spelling of a request is known: one space between words, `\r\n` at the end, keys
 * of printable ASCII, nothing behind them. The server's parser reads all others.
 *
 * Source of the hash: Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012 (SipHash-1-3).
 */
#ifndef KACHEL_PARSE_H
#define KACHEL_PARSE_H

#include "interface.h"

#define FRAME_BYTES 8
#define BINARY_HEAD_BYTES 24
/* Where the key of `mg` begins. */
#define META_KEY_AT 3

#define BYTES(x) (0x0101010101010101ULL * (x))

/* Whether each byte is printable ASCII and no space. */
INLINE int is_plain(u64 word)
{
	u64 below = (word - BYTES(0x21)) & ~word;
	u64 delete = word ^ BYTES(0x7f);
	u64 is_delete = (delete - BYTES(1)) & ~delete;
	return ((below | is_delete | word) & BYTES(0x80)) == 0;
}

#define ROTATE(x, by) ((x) << (by) | (x) >> (64 - (by)))
#define SIP_ROUND()                                                                                \
	do {                                                                                       \
		v0 += v1;                                                                          \
		v1 = ROTATE(v1, 13) ^ v0;                                                          \
		v0 = ROTATE(v0, 32);                                                               \
		v2 += v3;                                                                          \
		v3 = ROTATE(v3, 16) ^ v2;                                                          \
		v0 += v3;                                                                          \
		v3 = ROTATE(v3, 21) ^ v0;                                                          \
		v2 += v1;                                                                          \
		v1 = ROTATE(v1, 17) ^ v2;                                                          \
		v2 = ROTATE(v2, 32);                                                               \
	} while (0)

/* Copies a key to `key`, filled with zeros, and hashes it. There are 8 bytes before it. */
INLINE enum count read_key(const u8 *at, u64 bytes, const u8 *end, const struct settings *is,
			   u64 *key, volatile u64 *hash)
{
	u64 v0 = is->hash_keys[0] ^ 0x736f6d6570736575ULL;
	u64 v1 = is->hash_keys[1] ^ 0x646f72616e646f6dULL;
	u64 v2 = is->hash_keys[0] ^ 0x6c7967656e657261ULL;
	u64 v3 = is->hash_keys[1] ^ 0x7465646279746573ULL;
	u64 words = bytes / 8, rest = bytes & 7;
	u64 last = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < KEY_WORDS - 1; i++) {
		const u8 *from = at + 8 * i;
		u64 word;
		if (i >= words)
			break;
		OPAQUE(from);
		if (from + 8 > end)
			return NOT_KNOWN;
		word = *(const u64 *)from;
		if (!is_plain(word))
			return KEY_NOT_PLAIN;
		key[i] = word;
		v3 ^= word;
		SIP_ROUND();
		v0 ^= word;
	}
	if (rest) {
		const u8 *from = at + bytes - 8;
		OPAQUE(from);
		if (from + 8 > end)
			return NOT_KNOWN;
		last = *(const u64 *)from >> (8 * (8 - rest));
		if (!is_plain(last | BYTES(0x21) << (8 * rest)))
			return KEY_NOT_PLAIN;
	}
	key[words & (KEY_WORDS - 1)] = last; /* No more words than a key has. */
	last |= (u64)bytes << 56;
	v3 ^= last;
	SIP_ROUND();
	v0 ^= last;
	v2 ^= 0xff;
	SIP_ROUND();
	SIP_ROUND();
	SIP_ROUND();
	*hash = v0 ^ v1 ^ v2 ^ v3;
	return ANSWERED;
}

/* The number of bytes before the first space in `bytes` bytes of a line. There are 8 bytes before
 * them. If there is none, `bytes`; if it comes after the longest key, more than that key has. */
INLINE u64 bytes_before_space(const u8 *at, u64 bytes, const u8 *end)
{
	OPAQUE(bytes);
	if (bytes > DATAGRAM_BYTES_MAX)
		return 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < KEY_WORDS; i++) {
		const u8 *from = at + 8 * i;
		u64 shift = 0, spaces;
		if (8 * i >= bytes)
			return bytes;
		if (8 * i + 8 > bytes) {
			/* The word that ends with the line. */
			from = at + bytes - 8;
			shift = 8 * (8 - (bytes & 7));
		}
		OPAQUE(from);
		if (from + 8 > end)
			return 0;
		spaces = (*(const u64 *)from >> shift) ^ BYTES(' ');
		spaces = (spaces - BYTES(1)) & ~spaces & BYTES(0x80);
		/* The lowest bit is that of the first space. */
		if (spaces)
			return 8 * i +
			       ((((spaces & -spaces) >> 7) * 0x0001020304050607ULL) >> 56);
	}
	return KEY_BYTES_MAX + 1;
}

INLINE u32 flag_of(u8 letter)
{
	switch (letter) {
	case 'v':
		return FLAG_V;
	case 'f':
		return FLAG_F;
	case 's':
		return FLAG_S;
	case 'c':
		return FLAG_C;
	case 'k':
		return FLAG_K;
	default:
		return NO_FLAG;
	}
}

/* Reads the flags of `mg` from the end of its line, `bytes` bytes before the line end. Returns the
 * bytes before the flags, or 0 if there is a flag that the program does not know, a flag twice, or
 * no `v`. */
INLINE u64 read_flags(const u8 *text, u64 bytes, const u8 *end, volatile u32 *flags)
{
	u32 seen = 0, all = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < FLAGS_MAX; i++) {
		if (bytes < META_KEY_AT + 3 || bytes > DATAGRAM_BYTES_MAX)
			break;
		const u8 *at = text + (bytes - 2);
		OPAQUE(at);
		if (at + 2 > end)
			return 0;
		if (at[0] != ' ')
			break;
		u32 flag = flag_of(at[1]);
		if (flag == NO_FLAG || seen >> flag & 1)
			return 0;
		seen |= 1 << flag;
		all = all << 4 | flag;
		bytes -= 2;
	}
	*flags = all;
	return seen >> FLAG_V & 1 ? bytes : 0;
}

/* Parses a request of the binary protocol: GET, GETQ, GETK or GETKQ. */
INLINE enum count parse_binary(const u8 *text, u64 bytes, const u8 *end, struct request *request)
{
	if (text + BINARY_HEAD_BYTES > end || bytes <= BINARY_HEAD_BYTES)
		return NOT_KNOWN;
	const u32 *words = (const u32 *)text;
	u8 opcode = text[1];
	if (opcode != 0x00 && opcode != 0x09 && opcode != 0x0c && opcode != 0x0d)
		return NOT_KNOWN;
	u32 key_bytes = (u32)text[2] << 8 | text[3];
	/* No extras, data type 0, partition 0, and a body that is the key; no token. */
	if (words[1] || words[2] != __builtin_bswap32(key_bytes) || words[4] || words[5])
		return NOT_KNOWN;
	if (bytes != BINARY_HEAD_BYTES + key_bytes || key_bytes == 0 || key_bytes > KEY_BYTES_MAX)
		return KEY_NOT_PLAIN;
	request->verb = BINARY;
	request->flags = opcode;
	request->opaque = words[3];
	request->key_at = BINARY_HEAD_BYTES;
	request->keys_end = bytes;
	return ANSWERED;
}

/* Parses a request up to its keys. Returns ANSWERED if the program knows it, else the reason why it
 * does not. */
INLINE enum count parse(struct xdp_md *ctx, const struct datagram *in, struct request *request)
{
	const u8 *data = (const u8 *)(unsigned long)ctx->data;
	const u8 *end = (const u8 *)(unsigned long)ctx->data_end;
	u32 udp_at = in->udp_at, key_at;
	u64 bytes = in->bytes - UDP_BYTES - FRAME_BYTES;
	if (udp_at > ETHERNET_BYTES + IPV6_BYTES || bytes > DATAGRAM_BYTES_MAX || bytes < 7)
		return NOT_KNOWN;
	const u8 *frame = data + udp_at + UDP_BYTES, *text = frame + FRAME_BYTES;
	if (text + 7 > end)
		return NOT_KNOWN;
	/* Sequence number 0 of 1. */
	if (*(const u32 *)(frame + 2) != 0x01000000)
		return NOT_KNOWN;
	request->id = *(const u16 *)frame;
	if (text[0] == 0x80)
		return in->binary ? parse_binary(text, bytes, end, request) : NOT_KNOWN;
	if (!in->text)
		return NOT_KNOWN;
	u32 first = *(const u32 *)text;
	if (first == 0x20746567) { /* "get " */
		request->verb = GET;
		key_at = 4;
	} else if (first == 0x73746567 && text[4] == ' ') { /* "gets " */
		request->verb = GETS;
		key_at = 5;
	} else if ((first & 0xffffff) == 0x20676d) { /* "mg " */
		request->verb = META;
		key_at = META_KEY_AT;
	} else {
		return NOT_KNOWN;
	}
	if (bytes < key_at + 3)
		return KEY_NOT_PLAIN;
	const u8 *tail = text + (bytes - 2);
	OPAQUE(tail);
	if (tail + 2 > end)
		return NOT_KNOWN;
	if (*(const u16 *)tail != 0x0a0d)
		return NOT_KNOWN;
	bytes -= 2;
	if (key_at == META_KEY_AT) {
		bytes = read_flags(text, bytes, end, &request->flags);
		if (!bytes)
			return NOT_KNOWN;
	}
	request->key_at = key_at;
	request->keys_end = bytes;
	return ANSWERED;
}

/* Reads the next key of a request, and hashes it. Returns ANSWERED, or the reason why the server must
 * read it. */
INLINE enum count next_key(struct xdp_md *ctx, const struct settings *is, const struct datagram *in,
			   u64 *key, struct request *request)
{
	const u8 *data = (const u8 *)(unsigned long)ctx->data;
	const u8 *end = (const u8 *)(unsigned long)ctx->data_end;
	u32 udp_at = in->udp_at, key_at = request->key_at, keys_end = request->keys_end;
	if (udp_at > ETHERNET_BYTES + IPV6_BYTES || key_at > DATAGRAM_BYTES_MAX ||
	    keys_end > DATAGRAM_BYTES_MAX || key_at >= keys_end)
		return KEY_NOT_PLAIN;
	const u8 *at = data + udp_at + UDP_BYTES + FRAME_BYTES + key_at;
	OPAQUE(at);
	u32 verb = request->verb;
	request->key_bytes = verb == GET || verb == GETS ?
				     bytes_before_space(at, keys_end - key_at, end) :
				     keys_end - key_at;
	u64 key_bytes = request->key_bytes;
	if (key_bytes == 0 || key_bytes > KEY_BYTES_MAX)
		return KEY_NOT_PLAIN;
	/* Behind the space, if there is one. */
	request->key_at = key_at + key_bytes + 1;
	return read_key(at, key_bytes, end, is, key, &request->hash);
}

/* Whether all keys of a request were read. */
INLINE int is_last_key(const struct request *request)
{
	return request->key_at > request->keys_end;
}

#endif
