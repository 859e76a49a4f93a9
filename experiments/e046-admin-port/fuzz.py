"""Sends malformed inputs to the admin address of a server, which must go on answering.

Prints a line after each 100,000 inputs.
"""

import argparse
import collections
import contextlib
import multiprocessing
import os
import random
import socket
import struct
import urllib.request

from servers import ADMIN, kachel, say

FUZZERS = 8
PART = 100_000
FUZZ_SEED = 46


PIECES = [
    b"GET ", b"HEAD ", b"POST ", b"OPTIONS ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"/", b"/metrics", b"/live",
    b"/health", b"/ready", b"/login", b"/api/now", b"/api/history", b"/../../etc/passwd", b"/%2e%2e/%00", b"?a=b",
    b"*", b"http://localhost/metrics", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/9.9\r\n", b"Host: localhost\r\n",
    b"Host: 127.0.0.1\r\n", b"Host: evil.example\r\n", b"Host:\r\n", b"Origin: http://evil.example\r\n",
    b"Sec-Fetch-Site: cross-site\r\n", b"Authorization: Bearer x\r\n", b"Cookie: kachel=x\r\n", b"Cookie: ;=;\r\n",
    b"Content-Length: 10\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked, identity\r\n", b"Expect: 100-continue\r\n",
    b"Upgrade: h2c\r\n", b"Connection: upgrade\r\n", b"Range: bytes=0-0\r\n", b"\r\n", b"\n", b"\r", b"\0",
    b"token=x", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"\xff\xfe", b": ", b" ", b"\t", b"a" * 4096,
]
GOOD = [
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/now HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 7\r\n\r\ntoken=x",
]


def malformed(choices):
    """An input: pieces of requests in any order, or a good request with bytes changed."""
    if choices.random() < 0.5:
        return b"".join(choices.choices(PIECES, k=choices.randint(1, 12)))
    data = bytearray(choices.choice(GOOD))
    for _ in range(choices.randint(1, 6)):
        at, kind = choices.randrange(len(data)), choices.randrange(3)
        if kind == 0:
            data[at] = choices.randrange(256)
        elif kind == 1:
            data[at:at] = choices.choice(PIECES)
        else:
            del data[at : at + choices.randint(1, 8)]
            data = data or bytearray(b"\n")
    return bytes(data)


def fuzz_some(number, count):
    """Sends inputs of one seed. Each is followed by the end of the stream, so that it is answered at once."""
    choices, totals = random.Random(FUZZ_SEED * 1000 + number), collections.Counter()
    for _ in range(count):
        data, answer = malformed(choices), b""
        with contextlib.suppress(OSError):
            with socket.create_connection(("127.0.0.1", ADMIN), timeout=10) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(64)
        totals[answer[9:12].decode("latin1") if answer.startswith(b"HTTP/1.") else "none"] += 1
    return totals


def fuzz(program, count):
    """Sends the inputs from some processes, and looks at the server after each part."""
    parts = max(1, count // PART)
    with kachel(program, "-t", "1") as process, multiprocessing.Pool(FUZZERS) as pool:
        for part in range(parts):
            share = count // parts // FUZZERS
            numbers = range(part * FUZZERS, (part + 1) * FUZZERS)
            totals = sum(pool.starmap(fuzz_some, [(number, share) for number in numbers]), collections.Counter())
            if process.poll() is not None:
                raise SystemExit(f"the server has ended: {process.returncode}")
            with open(f"/proc/{process.pid}/status", encoding="utf-8") as lines:
                resident = next(line.split()[1] for line in lines if line.startswith("VmRSS"))
            with urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/health", timeout=10) as answer:
                health = answer.status
            descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
            say(inputs=totals.total(), statuses=totals, health=health, resident_kib=int(resident), descriptors=descriptors)


def main(words):
    """`run fuzz KACHEL COUNT`."""
    parser = argparse.ArgumentParser(prog="run fuzz", description=__doc__)
    parser.add_argument("kachel")
    parser.add_argument("count", type=int)
    options = parser.parse_args(words)
    fuzz(options.kachel, options.count)
