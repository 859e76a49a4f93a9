/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The programs of this experiment: `pass` lets every packet on, `echo` sends each datagram over IPv4
 * back as it is. Between two virtual interfaces, both ends need a program.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

enum { XDP_PASS = 2, XDP_TX = 3 };

#define SECTION(name) __attribute__((section(name), used))
#define EXCHANGE(type, left, right) \
	do { type kept = (left); (left) = (right); (right) = kept; } while (0)

SECTION("pass") int pass_all(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

SECTION("echo") int echo_datagrams(struct xdp_md *ctx)
{
	u8 *data = (u8 *)(unsigned long)ctx->data;
	u8 *end = (u8 *)(unsigned long)ctx->data_end;

	/* Ethernet, IPv4 without options, UDP. The checksums stay right: their sums have no order. */
	if (data + 42 > end || data[12] != 0x08 || data[13] != 0 || data[14] != 0x45 || data[23] != 17)
		return XDP_PASS;
	u16 *words = (u16 *)data;
	EXCHANGE(u16, words[0], words[3]);
	EXCHANGE(u16, words[1], words[4]);
	EXCHANGE(u16, words[2], words[5]);
	EXCHANGE(u16, words[13], words[15]);
	EXCHANGE(u16, words[14], words[16]);
	EXCHANGE(u16, words[17], words[18]);
	return XDP_TX;
}

SECTION("license") char terms[] = "Dual MIT/GPL";
