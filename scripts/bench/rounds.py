"""The common parts of the comparisons: servers started and pinned, interleaved rounds, medians.

Upstream:   `replay`, `capacity` and `resize` beside this file; the soak test; `e014-pipe` and
            `e016-generators` in `experiments`.
Downstream: the servers that it starts; `kachel-lab load`, which measures them and writes JSON.

Uses only Python's standard library, and runs only on Linux (taskset, /proc).
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

START_PATIENCE_S = 20.0
SIDES = ("ours", "peer")
# The process that binds this abstract name may pin threads (crates/host/src/cores.rs: claim_pins).
PIN_CLAIM = b"\0kachel: threads are pinned"


def arguments(description, rounds, memory_mib):
    """Returns a parser with the options that every comparison takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--ours", default="target/release/kachel serve", help="one server")
    parser.add_argument("--peer", default="memcached", help="the other server")
    parser.add_argument("--load", default="target/release/kachel-lab load", help="the generator")
    parser.add_argument("--server-cores", default="0", help="cores of both servers, as for taskset")
    parser.add_argument("--load-cores", default="1", help="cores of the generator, as for taskset")
    parser.add_argument("--threads", type=int, default=1, help="threads of both servers")
    parser.add_argument(
        "--no-pins",
        action="store_true",
        help="no Kachel pins its threads; without this, the Kachel that starts first does",
    )
    parser.add_argument("--memory", default=memory_mib, help="-m of both servers, in MiB")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the raw JSON")
    parser.add_argument(
        "--lock",
        type=pathlib.Path,
        default=pathlib.Path(tempfile.gettempdir()) / "kachel-bench.lock",
        help="held while measuring, so that comparisons do not disturb each other",
    )
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, help="interleaved rounds")
    return parser


@contextlib.contextmanager
def alone(options):
    """Waits for the lock file and holds it; warns if other programs keep the machine busy."""
    lock_path = options.lock
    with open(lock_path, "w", encoding="ascii") as lock, contextlib.ExitStack() as stack:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for {lock_path}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        load = os.getloadavg()[0]
        if load > 0.5:
            print(f"warning: the machine is busy (load {load:.2f})", file=sys.stderr)
        if options.no_pins:
            claim = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            try:
                claim.bind(PIN_CLAIM)
            except OSError as error:
                # It holds the claim, so no other Kachel pins. It may disturb the measurement.
                warning = f"warning: another Kachel has pinned its threads ({error})"
                print(warning, file=sys.stderr)
        yield


def free_port():
    """Returns a port of TCP that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server on an ephemeral loopback port, pinned to the cores that the options name."""

    def __init__(self, side, command, memory_mib, options):
        self.side = side
        self.port = free_port()
        words = ["taskset", "-c", options.server_cores]
        if "{port}" in command:
            # A server that does not take memcached's options.
            words += shlex.split(command.replace("{port}", str(self.port)))
        else:
            words += shlex.split(command)
            words += ["-l", "127.0.0.1", "-p", str(self.port)]
            words += ["-t", str(options.threads), "-m", str(memory_mib)]
            if os.geteuid() == 0:
                words += ["-u", "root"]
        self.words = words
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)

    def __enter__(self):
        deadline = time.monotonic() + START_PATIENCE_S
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.side}: ended at once: {shlex.join(self.words)}")
            try:
                self.connect().close()
                return self
            except OSError:
                if time.monotonic() > deadline:
                    self.__exit__(None, None, None)
                    raise SystemExit(f"{self.side}: does not listen: {shlex.join(self.words)}")
                time.sleep(0.01)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def connect(self):
        """A new blocking connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def stats(self):
        """Returns the reply to `stats`, as text by name."""
        with self.connect() as connection:
            return stats(connection)

    def memory_bytes(self, name):
        """`VmRSS`, `VmHWM`, ... of the process, in bytes."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
        return None


def stats(connection, of=""):
    """Returns the reply to `stats`, or to its sub-command `of`, on this connection, as text by name."""
    connection.sendall(f"stats {of}".rstrip().encode() + b"\r\n")
    answer = b""
    while not answer.endswith(b"END\r\n"):
        piece = connection.recv(65536)
        if not piece:
            raise SystemExit("the server closed the connection")
        answer += piece
    lines = answer.decode("utf-8", "replace").splitlines()
    fields = (line.split(" ", 2) for line in lines if line.startswith("STAT "))
    return {words[1]: words[2] for words in fields if len(words) == 3}


def run_load(options, server, words, json_path):
    """Runs the generator against a server; returns the data of its JSON file, if it has a path."""
    generator = shlex.split(options.load)
    if shutil.which(generator[0]) is None:
        raise SystemExit(f"no {generator[0]}: cargo build --release -p kachel-lab builds it")
    command = ["taskset", "-c", options.load_cores] + generator
    command += words + ["--server", f"127.0.0.1:{server.port}", "--quiet"]
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        command += ["--server-pid", str(server.process.pid), "--json", str(json_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"generator failed: {shlex.join(command)}\n{done.stdout}")
    if json_path is None:
        if done.returncode != 0:
            raise SystemExit(f"{server.side}: errors: {shlex.join(command)}\n{done.stdout}")
        return None
    run = json.loads(json_path.read_text())
    errors = run["result"]["errors"]
    if errors["total"] > 0:
        print(f"{server.side}: {errors['total']} errors, first: {errors['first']}", file=sys.stderr)
    return run


def order(round_index, sides=SIDES):
    """Returns the sides in this round's order. It alternates, so a drift affects all of them."""
    return sides if round_index % 2 == 0 else sides[::-1]


def commands(options):
    """The command of each side."""
    return {"ours": options.ours, "peer": options.peer}


def middle(values):
    """Returns the median with the range, as text; values may be absent."""
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    low, mid, high = min(values), statistics.median(values), max(values)
    form = ".0f" if mid >= 1000 else ".3f"
    return f"{mid:{form}} ({low:{form}}..{high:{form}})"


def median(values):
    """Returns the median of the values that are not None, or None."""
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def ratio(ours, peer):
    """Returns our median divided by the peer's."""
    ours, peer = median(ours), median(peer)
    return ours / peer if ours is not None and peer else None


def table(rows):
    """Prints rows in columns; the first row is the head."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip())


def core_busy(run):
    """Returns the share of the pinned core that was not idle, for any reason, or None."""
    cores = run["result"]["cost"]["cores"]
    return 1.0 - cores[0]["idle"] if len(cores) == 1 else None


def save(options, name, summary):
    """Writes a summary beside the raw files."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / name
    path.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"raw figures and summary: {path}")
