"""Does a server grow under a light load, with a viewer of the live page and without?

The load is that of open-page.js: 10 stores and 500 gets a second, of items that live for a minute. Prints a line each 30
seconds: the resident memory, and by how much each mapping has grown since the line before, if it has.
"""

import argparse
import contextlib
import re
import socket
import threading
import time

from servers import ADMIN, PORT, kachel, say

LINE_S = 30
LOAD_S = 0.1
KEYS = 20_000
GETS = 50


def mappings(process):
    """The resident memory of each mapping by its first address, in KiB."""
    found, first = {}, None
    with open(f"/proc/{process.pid}/smaps", encoding="utf-8") as lines:
        for line in lines:
            if begins := re.match(r"([0-9a-f]+)-[0-9a-f]+ ", line):
                first = begins[1]
            elif line.startswith("Rss:"):
                found[first] = int(line.split()[1])
    return found


def view(ended):
    """Gets the updates of the live page."""
    with socket.create_connection(("127.0.0.1", ADMIN), timeout=5) as viewer:
        viewer.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not ended.is_set() and viewer.recv(1 << 18):
            pass


def ask(client, replies, number):
    """One store and some gets."""
    keys = [f"user:{(number * GETS + key) % KEYS}" for key in range(GETS)]
    gets = "".join(f"get {key}\r\n" for key in keys)
    client.sendall(f"set {keys[0]} 0 60 1000\r\n{'x' * 1000}\r\n{gets}".encode())
    left = GETS
    while left:
        left -= replies.readline() == b"END\r\n"


def main(words):
    """`run resident KACHEL`."""
    parser = argparse.ArgumentParser(prog="run resident", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kachel")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--viewed", action="store_true", help="with a viewer of the live page")
    options = parser.parse_args(words)
    ended = threading.Event()
    viewer = threading.Thread(target=view, args=(ended,))
    with contextlib.ExitStack() as opened:
        process = opened.enter_context(kachel(options.kachel, "-t", "2", "--observe=all"))
        if options.viewed:
            viewer.start()
            opened.callback(ended.set)
        client = opened.enter_context(socket.create_connection(("127.0.0.1", PORT), timeout=5))
        replies, began, before = client.makefile("rb"), time.monotonic(), {}
        lines, number = 0, 0
        while lines < options.minutes * 60 / LINE_S:
            ask(client, replies, number)
            number += 1
            elapsed_s = time.monotonic() - began
            if elapsed_s >= (lines + 1) * LINE_S:
                now = mappings(process)
                grown = {first: kib - before.get(first, 0) for first, kib in now.items() if kib > before.get(first, 0)}
                say(s=round(elapsed_s), resident_kib=sum(now.values()), grown_kib=grown if before else {})
                before, lines = now, lines + 1
            time.sleep(LOAD_S)
