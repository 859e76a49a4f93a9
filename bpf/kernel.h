/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The declarations of the kernel that all programs need.
 *
 * Upstream:   the kernel's interface.
 * Downstream: layout.h, for the pipe; breakdown.c.
 *
 * Nothing is included from the system, so an object depends on the compiler alone.
 */
#ifndef KACHEL_KERNEL_H
#define KACHEL_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define INLINE static __attribute__((always_inline)) inline
#define SECTION(name) __attribute__((section(name), used))
#define LIKELY(x) __builtin_expect(!!(x), 1)
/* A load that the compiler neither repeats nor leaves out. */
#define READ(word) (*(const volatile __typeof__(word) *)&(word))

/* Helpers by their numbers in the kernel's interface; all of them are older than Linux 5.15. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;

#define BPF_MAP_TYPE_ARRAY 2

/* How the loader reads the definition of a map. */
#define MAP_NUMBER(name, value) int(*name)[value]
#define MAP_TYPE(name, type) type *name

#endif
