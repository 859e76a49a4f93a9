/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Stage 4, value store: copies the reply of an item out of its slot.
 *
 * Upstream:   probe, with the number of a slot.
 * Downstream: rewrite, with the text of the reply.
 *
 * Invariants:
 * - I1  The version of the slot is even, and the same before and after the copy. So no reply has
 *       parts of two values.
 * - I2  The second is the greater one of the server's and of the clock's, so nothing is answered in
 *       the second of its expiry, even if the server is late.
 * - I3  The slot was written since the last flush was done, and no flush is under way or due.
 */
#ifndef KACHEL_VALUES_H
#define KACHEL_VALUES_H

#include "probe.h"

/* The second in which the process of the server begins. */
#define FIRST_SECOND 2
/* After this time without a word of the server nothing is answered. */
#define SILENCE_NS 4000000000ULL

/* Bytes of the longest reply, and of all parts of an item in it besides the key and the value: the
 * words, the numbers and the line ends, or the head of the binary protocol, and `END`. */
#define REPLY_BYTES_MAX 511
#define ITEM_BYTES_OTHER 80

struct time {
	u64 ns;
	u64 second;
};

INLINE int is_serving(const struct settings *is, struct time *now)
{
	now->ns = bpf_ktime_get_ns();
	u64 beat = READ(is->beat_ns), start = is->start_ns;
	now->second = READ(is->second);
	/* The start may have wrapped: a server that goes on from an earlier one began before it. */
	u64 elapsed = now->ns - start;
	elapsed = elapsed >> 63 ? 0 : elapsed / 1000000000;
	if (elapsed + FIRST_SECOND > now->second)
		now->second = elapsed + FIRST_SECOND; /* I2 */
	return READ(is->on) == 1 && now->ns < beat + SILENCE_NS;
}

/* Appends bytes, and up to 8 more, which the next piece overwrites. */
#define APPEND(words_max, from, count)                                                             \
	do {                                                                                       \
		u64 count_ = (count);                                                              \
		_Pragma("clang loop unroll(disable)") for (u32 i_ = 0; i_ < (words_max); i_++)     \
		{                                                                                  \
			if (8 * i_ >= count_)                                                      \
				break;                                                             \
			u64 to_ = (used + 8 * i_) & 511;                                           \
			*(u64 *)(text + to_) = *(const volatile u64 *)((from) + 8 * i_);           \
		}                                                                                  \
		scratch->used = used + count_;                                                     \
		used = scratch->used & 511;                                                        \
	} while (0)

INLINE void put_word(u8 *text, u64 at, u64 word)
{
	*(u64 *)(text + (at & 511)) = word;
}

/* The texts of numbers in a slot. While the slot is written, their lengths may be wrong; they are
 * masked, and the reply is not used. */
INLINE u64 flags_bytes_of(const struct slot *slot)
{
	return READ(slot->flags_bytes) & 15;
}

/* The value begins at the next multiple of 8 bytes after the key. */
INLINE const u8 *value_of(const struct slot *slot, u64 key_bytes)
{
	u64 at = (key_bytes + 7) & KEY_BYTES_MAX;
	OPAQUE(at);
	return (const u8 *)slot->text + (at & KEY_BYTES_MAX);
}

INLINE u64 put_text_head(int with_cas, const struct slot *slot, struct scratch *scratch,
			 u64 key_bytes)
{
	u8 *text = scratch->text;
	u64 used = scratch->used & 511;
	put_word(text, used, 0x2045554c4156); /* "VALUE " */
	used += 6;
	APPEND(KEY_WORDS, (const u8 *)scratch->key, key_bytes & 127);
	APPEND(2, slot->head, READ(slot->head_bytes) & 31);
	if (with_cas)
		APPEND(3, slot->cas_text, READ(slot->cas_bytes) & 31);
	put_word(text, used, 0x0a0d);
	return used + 2;
}

INLINE u64 put_meta_head(u32 flags, const struct slot *slot, struct scratch *scratch, u64 key_bytes)
{
	u8 *text = scratch->text;
	u64 used = FRAME_BYTES, head_bytes = READ(slot->head_bytes) & 31;
	u64 flags_bytes = flags_bytes_of(slot);
	/* `head` is a space, the client flags, a space, the length. */
	const u8 *length = slot->head + flags_bytes + 2;
	u64 length_bytes = (head_bytes - flags_bytes - 2) & 7;
	put_word(text, used, 0x204156); /* "VA " */
	used += 3;
	APPEND(1, length, length_bytes);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < FLAGS_MAX; i++) {
		u32 flag = flags & 15;
		flags >>= 4;
		if (flag == NO_FLAG)
			break;
		if (flag == FLAG_F) {
			put_word(text, used, 0x6620); /* " f" */
			used += 2;
			APPEND(2, slot->head + 1, flags_bytes);
		} else if (flag == FLAG_S) {
			put_word(text, used, 0x7320); /* " s" */
			used += 2;
			APPEND(1, length, length_bytes);
		} else if (flag == FLAG_C) {
			put_word(text, used, 0x6320); /* " c" */
			used += 2;
			APPEND(3, slot->cas_text + 1, (READ(slot->cas_bytes) - 1) & 31);
		} else if (flag == FLAG_K) {
			put_word(text, used, 0x6b20); /* " k" */
			used += 2;
			APPEND(KEY_WORDS, (const u8 *)scratch->key, key_bytes & 127);
		}
	}
	put_word(text, used, 0x0a0d);
	return used + 2;
}

INLINE u64 put_binary_head(const struct request *request, const struct slot *slot,
			   struct scratch *scratch, u64 key_bytes, u64 value_bytes)
{
	u8 *text = scratch->text;
	u64 used = FRAME_BYTES, opcode = request->flags & 255;
	if (opcode < 0x0c)
		key_bytes = 0; /* GET and GETQ: no key in the reply. */
	u64 body_bytes = 4 + key_bytes + value_bytes;
	put_word(text, used, 0x81 | opcode << 8 | key_bytes << 24 | 4ULL << 32);
	put_word(text, used + 8, __builtin_bswap32(body_bytes) | (u64)request->opaque << 32);
	put_word(text, used + 16, __builtin_bswap64(READ(slot->cas)));
	put_word(text, used + 24, __builtin_bswap32(READ(slot->client_flags)));
	used += 28;
	APPEND(KEY_WORDS, (const u8 *)scratch->key, key_bytes & 127);
	return used;
}

/* Begins a reply: the frame of a datagram. */
INLINE void begin_reply(const struct request *request, struct scratch *scratch)
{
	put_word(scratch->text, 0, request->id | 1ULL << 40);
	scratch->used = FRAME_BYTES;
}

/* Ends the reply of the text protocol. */
INLINE void end_reply(const struct request *request, struct scratch *scratch)
{
	u32 verb = request->verb;
	if (verb != GET && verb != GETS)
		return;
	put_word(scratch->text, scratch->used, 0x0a0d444e45); /* "END\r\n" */
	scratch->used = scratch->used + 5;
}

/* Appends an item to the reply. Returns ANSWERED, or the reason. */
INLINE enum count values(const struct settings *is, const struct request *request,
			 const struct time *now, u32 number, struct scratch *scratch)
{
	u8 *text = scratch->text;
	const struct slot *slot = bpf_map_lookup_elem(&slots, &number);
	if (!slot)
		return MISS;
	u64 version = READ(slot->version), key_bytes = request->key_bytes;
	LOADS_IN_ORDER();
	if (version & 1)
		return CHANGING; /* I1 */
	if (READ(slot->hash) != request->hash || READ(slot->key_bytes) != key_bytes)
		return MISS;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < KEY_WORDS - 1; i++) {
		if (8 * i >= key_bytes)
			break;
		if (READ(slot->text[i]) != scratch->key[i])
			return MISS;
	}
	u64 flushes = READ(is->flushes_begun), due = READ(is->flush_due);
	u32 expiry = READ(slot->expiry);
	if (READ(slot->flushes) != flushes || READ(is->flushes_done) != flushes)
		return DEAD; /* I3 */
	if (due && due <= now->second)
		return DEAD; /* I3 */
	if (expiry && expiry <= now->second)
		return DEAD; /* I2 */

	u64 value_bytes = READ(slot->value_bytes);
	if (value_bytes > VALUE_BYTES_MAX)
		return CHANGING; /* I1 */
	u64 used = scratch->used;
	u32 verb = request->verb;
	if (used + ITEM_BYTES_OTHER + key_bytes + value_bytes > REPLY_BYTES_MAX)
		return NO_ROOM;
	if (verb == META)
		used = put_meta_head(request->flags, slot, scratch, key_bytes);
	else if (verb == BINARY)
		used = put_binary_head(request, slot, scratch, key_bytes, value_bytes);
	else
		used = put_text_head(verb == GETS, slot, scratch, key_bytes);
	APPEND(VALUE_BYTES_MAX / 8, value_of(slot, key_bytes), value_bytes);
	if (verb != BINARY) {
		put_word(text, used, 0x0a0d);
		used += 2;
	}
	LOADS_IN_ORDER();
	if (READ(slot->version) != version)
		return CHANGING; /* I1 */
	scratch->used = used;
	return ANSWERED;
}

#endif
