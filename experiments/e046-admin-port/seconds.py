"""What processor time does the admin address take, beside memcached with its exporter?

Windows of a minute, in random order, each with new servers and the same light load: Kachel that nobody asks, that is
scraped once a second, and that has 20 viewers of the live page besides; memcached with its exporter, not scraped and
scraped once a second. The exporter has no live page. Before each round, a Kachel without load and without a page.

Prints a line for each window, and at the end the medians of the rounds: the processor time of all processes of a
window, less that of the window of the same round in which nobody asks.
"""

import argparse
import contextlib
import os
import pathlib
import random
import selectors
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

from servers import ADMIN, PORT, fill, kachel, load, processor_s, say, server, since, threads, user

EXPORTER, EXPORTER_VERSION = "github.com/prometheus/memcached_exporter", "v0.16.0"
EXPORTER_PORT = PORT + 4
THREADS = 2
VIEWERS = 20
SCRAPE_S = 1.0
SETTLE_S = 2.0
# The windows: the servers, whether they are scraped, and how many viewers there are.
WINDOWS = {
    "kachel": ("kachel", False, 0),
    "kachel_scraped": ("kachel", True, 0),
    "kachel_scraped_viewed": ("kachel", True, VIEWERS),
    "memcached": ("memcached", False, 0),
    "memcached_scraped": ("memcached", True, 0),
}


class Asking:
    """Scrapers and viewers, which ask until the end of the block."""

    def __init__(self, port, is_scraped, viewers):
        self.scrapes, self.updates, self.bytes = 0, 0, 0
        self._ended = threading.Event()
        bodies = [(self._scrape, port)] * is_scraped + [(self._view, port, viewers)] * (viewers > 0)
        self._threads = [threading.Thread(target=body, args=words) for body, *words in bodies]

    def __enter__(self):
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        for one in self._threads:
            one.join()

    def _scrape(self, port):
        due = time.monotonic()
        while not self._ended.is_set():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SCRAPE_S) as answer:
                self.bytes += len(answer.read())
            self.scrapes += 1
            due += SCRAPE_S
            self._ended.wait(max(0, due - time.monotonic()))

    def _view(self, port, viewers):
        with contextlib.ExitStack() as opened, selectors.DefaultSelector() as readable:
            for _ in range(viewers):
                viewer = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
                viewer.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                readable.register(viewer, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in readable.select(0.1):
                    data = key.fileobj.recv(1 << 18)
                    if not data:
                        raise SystemExit("a viewer was closed")
                    self.updates += data.count(b"data: ")


def exporter_of(options, folder):
    """The exporter, which is built in the folder if no option names one."""
    if options.exporter:
        return options.exporter
    # Not `go install`: it wants the list of all versions, which not every proxy has.
    module = f"module exporter\n\nrequire {EXPORTER} {EXPORTER_VERSION}\n"
    (pathlib.Path(folder) / "go.mod").write_text(module, encoding="utf-8")
    words = ["go", "build", "-mod=mod", "-o", "memcached_exporter", f"{EXPORTER}/cmd/memcached_exporter"]
    subprocess.run(words, check=True, cwd=folder, env={**os.environ, "CGO_ENABLED": "0"})
    return str(pathlib.Path(folder) / "memcached_exporter")


@contextlib.contextmanager
def started(options, exporter, side):
    """The processes of one side by name, and the port of /metrics."""
    if side == "kachel":
        with kachel(options.kachel, "-t", str(THREADS)) as process:
            yield {"kachel": process}, ADMIN
        return
    words = [options.memcached, "-l", "127.0.0.1", "-p", str(PORT), "-U", "0", *user(), "-m", "64", "-t", str(THREADS)]
    place = [f"--memcached.address=127.0.0.1:{PORT}", f"--web.listen-address=127.0.0.1:{EXPORTER_PORT}"]
    with server(words, PORT) as process, server([exporter, *place], EXPORTER_PORT) as second:
        yield {"memcached": process, "exporter": second}, EXPORTER_PORT


def window(options, exporter, name):
    """One window; returns its line of raw data."""
    side, is_scraped, viewers = WINDOWS[name]
    with started(options, exporter, side) as (processes, port):
        fill(options.lab, PORT)
        mix = ["-c", "10", "--rate", str(options.rate), "--ratio", "9:1", "--spin", "never"]
        with Asking(port, is_scraped, viewers) as asking, load(options.lab, PORT, options.window_s, *mix) as results:
            time.sleep(SETTLE_S)
            before, began = {one: processor_s(process) for one, process in processes.items()}, time.monotonic()
            time.sleep(options.window_s - SETTLE_S)
            took = {one: processor_s(process) - before[one] for one, process in processes.items()}
            seconds = time.monotonic() - began
            requests = results()["requests_per_s"]
    per_s = {one: round(total / seconds, 6) for one, total in took.items()}
    asked = {"scrapes": asking.scrapes, "updates": asking.updates, "scraped_bytes": asking.bytes}
    return {"processor_s_per_s": per_s, "requests_per_s": round(requests), **asked}


def idle(options):
    """A Kachel without load, whose page is closed: the part of a core that it takes, and how often it wakes."""
    with kachel(options.kachel, "-t", str(THREADS)) as process:
        time.sleep(SETTLE_S)
        before, total, began = threads(process), processor_s(process), time.monotonic()
        time.sleep(options.window_s)
        took, by_thread, seconds = processor_s(process) - total, since(before, process), time.monotonic() - began
    of_thread = {
        name: {"percent": round(100 * ran / seconds, 4), "wake_ups_per_s": round(slept / seconds, 2)}
        for name, (ran, slept) in sorted(by_thread.items())
    }
    return {"percent_of_a_core": round(100 * took / seconds, 4), "threads": of_thread}


def asked_for(rounds, name, quiet):
    """The median of what a window takes more than the one in which nobody asks, in processor seconds a second."""
    return statistics.median(one[name] - one[quiet] for one in rounds)


def main(words):
    """`run seconds KACHEL LAB`."""
    parser = argparse.ArgumentParser(prog="run seconds", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kachel")
    parser.add_argument("lab")
    parser.add_argument("--memcached", default="/usr/bin/memcached")
    parser.add_argument("--exporter", help="a memcached_exporter 0.16.0; by default `go build` makes one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window-s", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=1000, help="requests a second")
    parser.add_argument("--seed", type=int, default=46, help="of the order of the windows")
    options = parser.parse_args(words)
    choices, rounds = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as folder:
        exporter = exporter_of(options, folder)
        for number in range(options.rounds):
            say(round=number, window="idle", **idle(options))
            totals = {}
            for name in choices.sample(sorted(WINDOWS), len(WINDOWS)):
                line = window(options, exporter, name)
                say(round=number, window=name, **line)
                totals[name] = sum(line["processor_s_per_s"].values())
            rounds.append(totals)
    ours = asked_for(rounds, "kachel_scraped", "kachel")
    viewed = asked_for(rounds, "kachel_scraped_viewed", "kachel")
    theirs = asked_for(rounds, "memcached_scraped", "memcached")
    took = {"kachel_scraped": ours, "kachel_scraped_viewed": viewed, "memcached_scraped": theirs}
    more_s_per_s = {name: round(one, 6) for name, one in took.items()}
    by_theirs = {"scraped": round(ours / theirs, 3), "scraped_viewed": round(viewed / theirs, 3)}
    say(rounds=len(rounds), more_s_per_s=more_s_per_s, by_memcached=by_theirs)
