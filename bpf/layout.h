/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The memory that the server and the program of the pipe share. crates/pipe/src/layout.rs has the
 * same numbers; the loader compares the sizes of the maps.
 *
 * Upstream:   the server writes the settings, the tags and the slots.
 * Downstream: every stage. The program writes only the counts and the hits.
 *
 * The kernel refuses a writable mapping of a map that it keeps the program from writing
 * (BPF_F_RDONLY_PROG), so the source alone shows that the program only reads the table: `settings`,
 * `buckets` and `slots` are lent as const everywhere.
 */
#ifndef KACHEL_LAYOUT_H
#define KACHEL_LAYOUT_H

#include "kernel.h"

/* A store that the compiler makes once, as it is written. */
#define WRITE(word, value) (*(volatile __typeof__(word) *)&(word) = (value))
/* The compiler must compute this value as it is written: its own rewriting of bounds is not what the
 * verifier accepts. */
#define OPAQUE(x) asm volatile("" : "+r"(x))
/* x86-64 does not reorder two loads; the compiler must not either. */
#define LOADS_IN_ORDER() asm volatile("" ::: "memory")

enum xdp_action { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

static long (*const bpf_xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)44;

#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_F_MMAPABLE 1024

#define KEY_BYTES_MAX 120
#define KEY_WORDS 16
/* The most keys of a request: more do not fit the bytes of a datagram that is looked at. */
#define KEYS_MAX 4
#define VALUE_BYTES_MAX 256
#define WAYS 8
#define PLACES 16

/* One address and port that the server receives datagrams at. */
struct place {
	/* The address as IPv6, in the order of the network; IPv4 is mapped. */
	u64 address[2];
	/* In the order of the network; 0 ends the list. */
	u16 port;
	u8 text;
	u8 binary;
	u32 unused;
	u64 reserved;
};

struct settings {
	/* 1: the program answers. */
	u64 on;
	/* When the server last wrote `second`, in nanoseconds of the monotonic clock. */
	u64 beat_ns;
	/* The greatest second that any core of the server has reached. */
	u64 second;
	/* Flushes that have begun and that are done. While they differ, nothing is answered. */
	u64 flushes_begun;
	u64 flushes_done;
	/* The second of a delayed flush; 0 if none is pending. */
	u64 flush_due;
	/* When second 2 of the server began, in nanoseconds of the monotonic clock; it may wrap. */
	u64 start_ns;
	/* The keys of the secret hash. */
	u64 hash_keys[2];
	/* The number of buckets, less 1. */
	u64 bucket_mask;
	/* The number of lanes, less 1. */
	u64 lane_mask;
	/* A reply has at most this many times the bytes of its request. */
	u64 reply_times;
	/* The address of the interface in its network of Ethernet; the upper two bytes are 0. */
	u64 mac;
	u64 reserved[3];
	struct place places[PLACES];
	/* A bit for each source port that is never answered. */
	u64 closed_ports[1024];
	/* A bit for each place (address_bit) of a source address that is never answered: the addresses of
	 * this host, and those of its networks that are no host's. Another address may have the same
	 * place; its requests are passed on, too. */
	u64 closed_addresses[1024];
};

struct bucket {
	/* The hashes of the keys in the slots of this bucket; 0: free, 1: being written. */
	u64 tags[WAYS];
};

/* The first cache line has all that a plain GET needs besides the key and the value. */
struct slot {
	/* Odd while the slot is written. */
	u64 version;
	u64 hash;
	/* The number of flushes when the item was copied. */
	u64 flushes;
	/* The second in which the item expires; 0 for never. */
	u32 expiry;
	u32 client_flags;
	u16 key_bytes;
	u16 value_bytes;
	/* Bytes of the decimal client flags in `head`. */
	u8 flags_bytes;
	/* Bytes of `head` and of `cas_text`. */
	u8 head_bytes;
	u8 cas_bytes;
	u8 unused;
	/* A space, the client flags, a space, the bytes of the value. */
	u8 head[16];
	u64 cas;
	/* The key, zeros up to a multiple of 8 bytes, and the value. */
	u64 text[KEY_WORDS + VALUE_BYTES_MAX / 8];
	/* A space and the token. */
	u8 cas_text[24];
	u64 reserved[5];
};

/* The results of the program. crates/pipe/src/counts.rs names them in this order. */
enum count {
	ANSWERED,
	/* Not a datagram for an address and port of the server, or with options or in fragments. */
	NOT_FOR_US,
	/* The server has switched the pipe off, or does not run any more. */
	NOT_SERVING,
	/* From an address or a port that is never answered. */
	NOT_ANSWERABLE,
	/* A checksum is wrong. */
	WRONG_CHECKSUM,
	/* Not a frame of one datagram with a request that the program knows. */
	NOT_KNOWN,
	/* The key is too long, or has bytes besides printable ASCII. */
	KEY_NOT_PLAIN,
	MISS,
	/* The slot was written meanwhile. */
	CHANGING,
	/* Expired or flushed. */
	DEAD,
	/* The reply would have too many times the bytes of the request. */
	TOO_LARGE,
	/* The driver gives no room for the reply. */
	NO_ROOM,
	/* A packet that was changed and could not be finished. There is none (pipe.c, I1). */
	DROPPED,
	/* Not a result: items in answers. */
	ITEMS = 14,
	/* Not a result: runs that are about to answer, or do so now. */
	ANSWERING = 15,
	COUNTS = 16
};

struct counts {
	u64 of[COUNTS];
};

/* A datagram that may be answered. Stages hand numbers on in memory of a map, and volatile, because
 * the verifier forgets what it knows of them there. Otherwise it would follow each length through
 * all later stages on its own. */
struct datagram {
	/* Bytes of the datagram, with the header of UDP. */
	volatile u32 bytes;
	/* Where the header of UDP starts in the packet. */
	volatile u32 udp_at;
	volatile u8 is_ipv6;
	/* Which protocols its port speaks. */
	volatile u8 text;
	volatile u8 binary;
	volatile u8 unused;
};

enum verb { GET, GETS, META, BINARY };

/* The flags of `mg` that the reply shows, and `v`. */
enum flag { NO_FLAG, FLAG_V, FLAG_F, FLAG_S, FLAG_C, FLAG_K };
#define FLAGS_MAX 5

/* A request for one key, or for several if the verb is `get` or `gets`. */
struct request {
	/* Of the key that is looked up. */
	volatile u64 hash;
	volatile u32 key_bytes;
	volatile u32 verb;
	/* Where the next key begins, and the last one ends, in bytes of the text. */
	volatile u32 key_at;
	volatile u32 keys_end;
	/* META: the flags in their order, from the lowest 4 bits on. BINARY: the opcode. */
	volatile u32 flags;
	/* BINARY: the client's number of the request. */
	volatile u32 opaque;
	volatile u16 id;
	volatile u16 unused[3];
};

/* Memory of a core for one packet. */
struct scratch {
	struct datagram in;
	struct request request;
	/* Bytes of `text`. */
	volatile u64 used;
	/* The slots of the keys. */
	volatile u32 slots[KEYS_MAX];
	u64 key[KEY_WORDS];
	/* The frame and the reply. Copies may write up to 8 bytes more. */
	u8 text[1024];
};

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct settings);
	MAP_NUMBER(max_entries, 1);
	MAP_NUMBER(map_flags, BPF_F_MMAPABLE);
} settings SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct bucket);
	MAP_NUMBER(max_entries, 1);
	MAP_NUMBER(map_flags, BPF_F_MMAPABLE);
} buckets SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct slot);
	MAP_NUMBER(max_entries, 1);
	MAP_NUMBER(map_flags, BPF_F_MMAPABLE);
} slots SECTION(".maps");

/* By lane, then by slot: the second of the last read in the upper half, the number of reads since the
 * server has taken them in the lower. */
struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
	MAP_NUMBER(max_entries, 1);
	MAP_NUMBER(map_flags, BPF_F_MMAPABLE);
} hits SECTION(".maps");

/* By core, so that no two cores write to one cache line. */
struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct counts);
	MAP_NUMBER(max_entries, 1);
	MAP_NUMBER(map_flags, BPF_F_MMAPABLE);
} counts SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct scratch);
	MAP_NUMBER(max_entries, 1);
} scratches SECTION(".maps");

#endif
