/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The programs of `kachel-lab breakdown`: they watch one process, and change nothing.
 *
 * Upstream:   the kernel calls them at each sample, system call, switch and wake-up of any process.
 * Downstream: crates/lab/src/breakdown/probe.rs reads the rings and the maps.
 *
 * Invariants:
 * - I1  The work for an event is bounded: a few lookups, and at most one record.
 * - I2  All memory is bounded. An event that finds no room is counted in `lost`.
 * - I3  Programs count only while `on` is set, and only until `end_ns`.
 *
 * A thread is in one state at a time. Only its own core, or a core that holds the lock of its
 * queue, changes the state.
 *
 *     RUNNING --sched_switch, it can go on--> RUNNABLE --sched_switch to it--> RUNNING
 *     RUNNING --sched_switch, it sleeps-----> BLOCKED  --sched_wakeup--------> RUNNABLE
 *     RUNNING --sched_switch, it ends-------> GONE
 */
#include "kernel.h"

static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 u64 flags) = (void *)2;
static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*const bpf_get_stack)(void *ctx, void *buffer, u32 bytes, u64 flags) = (void *)67;
static void *(*const bpf_get_current_task_btf)(void) = (void *)158;
static const u64 *(*const bpf_task_pt_regs)(void *task) = (void *)175;
static void *(*const bpf_ringbuf_reserve)(void *ring, u64 bytes, u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *record, u64 flags) = (void *)132;

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_RINGBUF 27
/* The reader looks at the ring by the clock. */
#define BPF_RB_NO_WAKEUP 1

/* Numbers of system calls are less. */
#define CALLS_MAX 1023
#define FRAMES_MAX 96
#define THREADS_MAX 16384

/* x86-64: the registers of the interrupted code, as an array of words. */
#define WORD_ORIG_AX 15
#define WORD_IP 16
#define WORD_CS 17

struct perf_event {
	u64 registers[21];
	u64 period;
	u64 address;
};

struct sys_enter {
	u64 common;
	long call;
	u64 arguments[6];
};

struct sys_exit {
	u64 common;
	long call;
	long result;
};

struct sched_switch {
	u64 common;
	u8 from_name[16];
	u32 from;
	u32 from_priority;
	u64 from_state;
	u8 to_name[16];
	u32 to;
	u32 to_priority;
};

struct sched_wakeup {
	u64 common;
	u8 name[16];
	u32 thread;
	u32 priority;
};

/* Of `from_state`: it was running when it was switched; it ends. */
#define TASK_PREEMPTED 0x100
#define TASK_DEAD 0x30

struct settings {
	u64 on;
	u64 process;
	u64 begin_ns;
	u64 end_ns;
};

/* UNKNOWN: it was there at the beginning, and nothing has happened to it yet. */
enum state { UNKNOWN, RUNNING, RUNNABLE, BLOCKED, GONE };

struct thread {
	/* When the state began; 0: at the beginning. */
	u64 since_ns;
	u64 state;
	/* 1: it was there at the beginning, and may be in a call that is not known. */
	u64 is_old;
	/* When its call began; 0: before the beginning. */
	u64 call_ns;
	/* The number of its call, and 1; 0: none. */
	u64 call;
	/* 1: it has slept in the call. */
	u64 has_slept;
};

/* The time of all threads in one call, or in none. */
struct times {
	u64 running_ns;
	u64 runnable_ns;
	u64 blocked_ns;
	u64 blocked_count;
	u64 preempted_count;
};

struct call {
	u64 begin_ns;
	u64 end_ns;
	u32 has_slept;
	u32 number;
};

struct sample {
	/* 1: it was in the user's code, and the address is the only frame. */
	u64 is_user;
	/* In the kernel: the number of the system call, if the stack shows that it is in one. */
	u64 call;
	/* From the innermost frame on; 0 ends them. */
	u64 frames[FRAMES_MAX];
};

/* The numbers under which losses and events are counted. The loader has the same order. */
enum lost { LOST_SAMPLES, LOST_CALLS, LOST_THREADS, LOSTS };
enum event { CYCLES, INSTRUCTIONS, CACHE_MISSES, BRANCH_MISSES, PAGE_FAULTS, EVENTS };

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct settings);
	MAP_NUMBER(max_entries, 1);
} settings SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_HASH);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct thread);
	MAP_NUMBER(max_entries, THREADS_MAX);
} threads SECTION(".maps");

/* By the number of the call, and 1; 0: in no call. */
struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct times);
	MAP_NUMBER(max_entries, CALLS_MAX + 1);
} times SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
	MAP_NUMBER(max_entries, LOSTS);
} lost SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
	MAP_NUMBER(max_entries, EVENTS);
} events SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_RINGBUF);
	MAP_NUMBER(max_entries, 4096);
} samples SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_RINGBUF);
	MAP_NUMBER(max_entries, 4096);
} calls SECTION(".maps");

INLINE const struct settings *counting(void)
{
	u32 first = 0;
	const struct settings *is = bpf_map_lookup_elem(&settings, &first);
	return is && READ(is->on) ? is : 0;
}

INLINE int is_ours(const struct settings *is)
{
	return bpf_get_current_pid_tgid() >> 32 == is->process;
}

INLINE void count(void *map, u32 of)
{
	u64 *number = bpf_map_lookup_elem(map, &of);
	if (number)
		__sync_fetch_and_add(number, 1);
}

SECTION("perf_event")
int sample(struct perf_event *ctx)
{
	const struct settings *is = counting();
	if (!is || !is_ours(is))
		return 0;
	struct sample *record = bpf_ringbuf_reserve(&samples, sizeof(*record), 0);
	if (!record) {
		count(&lost, LOST_SAMPLES);
		return 0;
	}
	record->is_user = ctx->registers[WORD_CS] & 3 ? 1 : 0;
	record->call = 0;
	if (record->is_user) {
		record->frames[0] = ctx->registers[WORD_IP];
		record->frames[1] = 0;
	} else {
		record->call = bpf_task_pt_regs(bpf_get_current_task_btf())[WORD_ORIG_AX];
		long bytes = bpf_get_stack(ctx, record->frames, sizeof(record->frames), 0);
		if (bytes < 8)
			record->frames[0] = ctx->registers[WORD_IP];
		if (bytes < 16)
			record->frames[1] = 0;
	}
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Each counts one event of the process. */
#define COUNTER(name, event)                                                                       \
	SECTION("perf_event") int name(void)                                                       \
	{                                                                                          \
		const struct settings *is = counting();                                            \
		if (is && is_ours(is))                                                             \
			count(&events, event);                                                     \
		return 0;                                                                          \
	}
COUNTER(cycles, CYCLES)
COUNTER(instructions, INSTRUCTIONS)
COUNTER(cache_misses, CACHE_MISSES)
COUNTER(branch_misses, BRANCH_MISSES)
COUNTER(page_faults, PAGE_FAULTS)

/* The thread that runs now, if it is one of the process. */
INLINE struct thread *current(u32 *number, u64 now)
{
	*number = (u32)bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, number);
	if (thread)
		return thread;
	struct thread fresh = { .since_ns = now, .state = RUNNING };
	if (bpf_map_update_elem(&threads, number, &fresh, 0))
		count(&lost, LOST_THREADS);
	return bpf_map_lookup_elem(&threads, number);
}

/* Is it within the window (I3)? */
INLINE int is_within(const struct settings *is, u64 now)
{
	return now >= is->begin_ns && now < READ(is->end_ns);
}

SECTION("tracepoint/raw_syscalls/sys_enter")
int enter(struct sys_enter *ctx)
{
	u64 now = bpf_ktime_get_ns();
	u32 number;
	const struct settings *is = counting();
	if (!is || !is_ours(is) || !is_within(is, now))
		return 0;
	struct thread *thread = current(&number, now);
	if (!thread)
		return 0;
	thread->is_old = 0;
	thread->call_ns = now;
	thread->has_slept = 0;
	thread->call = (u64)ctx->call < CALLS_MAX ? (u64)ctx->call + 1 : 0;
	return 0;
}

SECTION("tracepoint/raw_syscalls/sys_exit")
int leave(struct sys_exit *ctx)
{
	u64 now = bpf_ktime_get_ns();
	u32 number;
	const struct settings *is = counting();
	if (!is || !is_ours(is) || !is_within(is, now))
		return 0;
	struct thread *thread = current(&number, now);
	if (!thread)
		return 0;
	u64 call = thread->call, begin = thread->call_ns;
	/* A call that began before the beginning. Its number here is surer than the one read then. A
	 * new thread begins with the end of a call that it has not made. */
	if (thread->is_old)
		call = (u64)ctx->call < CALLS_MAX ? (u64)ctx->call + 1 : 0;
	thread->is_old = 0;
	thread->call = 0;
	if (!call)
		return 0;
	struct call *record = bpf_ringbuf_reserve(&calls, sizeof(*record), 0);
	if (!record) {
		count(&lost, LOST_CALLS);
		return 0;
	}
	record->begin_ns = begin ? begin : is->begin_ns;
	record->end_ns = now;
	record->has_slept = (u32)thread->has_slept;
	record->number = (u32)call - 1;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

/* The time in its state until now. */
INLINE u64 elapsed(const struct settings *is, const struct thread *thread, u64 now)
{
	u64 since = thread->since_ns ? thread->since_ns : is->begin_ns;
	return now > since ? now - since : 0;
}

INLINE struct times *times_of(const struct thread *thread)
{
	u32 call = (u32)thread->call;
	return bpf_map_lookup_elem(&times, &call);
}

INLINE void set_state(struct thread *thread, enum state state, u64 now)
{
	thread->state = state;
	thread->since_ns = now;
}

SECTION("tracepoint/sched/sched_switch")
int change(struct sched_switch *ctx)
{
	u64 now = bpf_ktime_get_ns();
	const struct settings *is = counting();
	if (!is || !is_within(is, now))
		return 0;
	if (is_ours(is)) {
		u32 number;
		struct thread *from = current(&number, now);
		struct times *spent = from ? times_of(from) : 0;
		if (spent) {
			u64 state = ctx->from_state;
			int goes_on = !state || state & TASK_PREEMPTED;
			__sync_fetch_and_add(&spent->running_ns, elapsed(is, from, now));
			if (goes_on)
				__sync_fetch_and_add(&spent->preempted_count, 1);
			else
				__sync_fetch_and_add(&spent->blocked_count, 1);
			from->has_slept |= !goes_on;
			set_state(from, goes_on ? RUNNABLE : state & TASK_DEAD ? GONE : BLOCKED,
				  now);
		}
	}
	u32 next = ctx->to;
	struct thread *to = bpf_map_lookup_elem(&threads, &next);
	struct times *spent = to ? times_of(to) : 0;
	if (spent && to->state != RUNNING) {
		u64 *waited = to->state == BLOCKED ? &spent->blocked_ns : &spent->runnable_ns;
		__sync_fetch_and_add(waited, elapsed(is, to, now));
		set_state(to, RUNNING, now);
	}
	return 0;
}

SECTION("tracepoint/sched/sched_wakeup")
int wake(struct sched_wakeup *ctx)
{
	u64 now = bpf_ktime_get_ns();
	u32 number = ctx->thread;
	const struct settings *is = counting();
	if (!is || !is_within(is, now))
		return 0;
	struct thread *thread = bpf_map_lookup_elem(&threads, &number);
	struct times *spent = thread ? times_of(thread) : 0;
	if (spent && (thread->state == BLOCKED || thread->state == UNKNOWN)) {
		__sync_fetch_and_add(&spent->blocked_ns, elapsed(is, thread, now));
		set_state(thread, RUNNABLE, now);
	}
	return 0;
}

/* `bpf_get_stack` and the rings are for programs under such a license. */
SECTION("license") char program_license[] = "Dual MIT/GPL";
