"""Do clients of the cache notice an attack on the admin address?

Rounds of three windows, in random order: no attack; the attack on the admin address of a second Kachel, which runs on
the same core; the same attack on the server that is measured. All get the same open loop of GETs. The second window
takes the same processor time of that core, so the third one differs from it only in which process is attacked.

Both servers have one thread for clients and the thread of the admin address, all on the first core. The load and the
attackers have the second core; the attackers give way to the load. Attackers: clients that read slowly, connections
that send half of a request, requests with a header of 1 MB, junk in a pipeline, and guesses of the token.

Prints a line for each window, and a line for the ratios of the p99 of each round: the median, and its 90 % interval by
10,000 bootstrap samples of the rounds.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import random
import socket
import statistics
import struct
import tempfile
import threading
import time

from servers import ADMIN, PORT, fill, kachel, load, processor_s, raise_descriptors, say, since, threads

OTHER_PORT, OTHER_ADMIN = PORT + 2, ADMIN + 2
HALF_OPEN = 2000
SPARE_DESCRIPTORS = 200
GIVES_WAY = 10
SETTLE_S = 0.5
HEADER_BYTES = 1 << 20
SAMPLES = 10_000
INTERVAL = (0.05, 0.95)


def connect(port):
    """A connection that leaves nothing in the kernel when it is closed."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return connection


def send(port, data):
    """Sends a request, and reads its answer until the server closes."""
    with connect(port) as connection:
        connection.sendall(data)
        while connection.recv(1 << 16):
            pass


def read_slowly(port, token, _choices):
    """Asks for all metrics, and takes a byte now and then, as long as the server waits."""
    with connect(port) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        request = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        connection.sendall(request.encode())
        while connection.recv(1):
            time.sleep(0.1)


def send_header(port, _token, _choices):
    """A header of 1 MB."""
    send(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * HEADER_BYTES + b"\r\n\r\n")


def send_junk(port, _token, choices):
    """Bytes that are no request, behind one that is."""
    send(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + choices.randbytes(1 << 16))


def guess(port, _token, choices):
    """A wrong token."""
    wrong = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {choices.randbytes(32).hex()}\r\n\r\n"
    send(port, wrong.encode())


# How many threads of an attacker do this at once.
ATTACKS = ((read_slowly, 16), (send_header, 4), (send_junk, 4), (guess, 8))


def repeat(act, port, token, number, counts):
    """Does this again and again, until the process ends."""
    choices = random.Random(number)
    while True:
        with contextlib.suppress(OSError):
            act(port, token, choices)
        with counts.get_lock():
            counts.value += 1


def half_open(port, count, counts):
    """Keeps connections open that have sent half of a request. Opens one again if the server has closed it."""
    connections = [None] * count
    while True:
        for place, connection in enumerate(connections):
            with contextlib.suppress(OSError):
                if connection is not None:
                    with contextlib.suppress(BlockingIOError):
                        connection.recv(1 << 12, socket.MSG_DONTWAIT)
                        connection.close()
                        connections[place] = None
                if connections[place] is None:
                    connections[place] = connect(port)
                    connections[place].sendall(b"GET / HTTP/1.1\r\nHost: local")
                    with counts.get_lock():
                        counts.value += 1


def be_attacker(part, port, token, count, counts, core):
    """The process of one attacker. It ends when it is killed."""
    os.sched_setaffinity(0, {core})
    os.nice(GIVES_WAY)
    if part == len(ATTACKS):
        half_open(port, count, counts)
    act, at_once = ATTACKS[part]
    for number in range(at_once - 1):
        threading.Thread(target=repeat, args=(act, port, token, number, counts), daemon=True).start()
    repeat(act, port, token, at_once, counts)


@contextlib.contextmanager
def attack(port, token, core):
    """All attacks on an admin address. Gives a function that counts the connections so far."""
    count = min(HALF_OPEN, raise_descriptors() - SPARE_DESCRIPTORS)
    context = multiprocessing.get_context("fork")
    counts = [context.Value("L") for _ in range(len(ATTACKS) + 1)]
    arguments = [(part, port, token, count, counts[part], core) for part in range(len(counts))]
    attackers = [context.Process(target=be_attacker, args=words, daemon=True) for words in arguments]
    for attacker in attackers:
        attacker.start()
    names = [*(act.__name__ for act, _ in ATTACKS), "half_open"]
    try:
        yield lambda: {name: one.value for name, one in zip(names, counts, strict=True)}
    finally:
        for attacker in attackers:
            attacker.kill()
        for attacker in attackers:
            attacker.join()


def window(options, servers, attacked, token, core):
    """One window; returns its line of raw data. `attacked` is the name of a server, or none."""
    attacking = contextlib.nullcontext(dict)
    if attacked != "none":
        attacking = attack({"server": ADMIN, "other": OTHER_ADMIN}[attacked], token, core)
    with attacking as connections:
        time.sleep(SETTLE_S)
        mix = ["-c", str(options.connections), "--rate", str(options.rate), "--spin", "never"]
        with load(options.lab, PORT, options.window_s, *mix, cores=[core]) as results:
            before = [(processor_s(one), threads(one), one) for one in servers.values()]
            result = results()
            took = [(processor_s(one) - total, since(by_thread, one)) for total, by_thread, one in before]
        made = connections()
    line = {name: round(result["response"][name], 1) for name in ("p50_us", "p99_us", "p99_9_us")}
    line |= {"requests_per_s": round(result["requests_per_s"]), "connections": made}
    for name, (total, by_thread) in zip(servers, took, strict=True):
        line[f"{name}_s"] = round(total, 3)
        line[f"{name}_admin_s"] = round(by_thread.get("admin", (0, 0))[0], 3)
    return line


def ratios(rounds, one, other):
    """The median ratio of the p99 of two windows of each round, and its interval."""
    found = [windows[one] / windows[other] for windows in rounds]
    choices = random.Random(0)
    medians = sorted(statistics.median(choices.choices(found, k=len(found))) for _ in range(SAMPLES))
    low, high = (medians[int(part * (SAMPLES - 1))] for part in INTERVAL)
    return {"median": round(statistics.median(found), 3), "from": round(low, 3), "to": round(high, 3)}


def main(words):
    """`run attack KACHEL LAB`."""
    parser = argparse.ArgumentParser(prog="run attack", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kachel")
    parser.add_argument("lab")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--window-s", type=float, default=5.0)
    parser.add_argument("--rate", type=int, default=20_000, help="GETs a second")
    parser.add_argument("--connections", type=int, default=50, help="of the load")
    parser.add_argument("--seed", type=int, default=46, help="of the order of the windows")
    options = parser.parse_args(words)
    of_servers, of_clients = sorted(os.sched_getaffinity(0))[:2]
    choices, rounds = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as folder:
        token, path = choices.randbytes(32).hex(), pathlib.Path(folder) / "token"
        path.touch(mode=0o600)
        path.write_text(token, encoding="utf-8")
        shared = ("-t", "1", f"--admin-token-file={path}")
        other = kachel(options.kachel, *shared, port=OTHER_PORT, admin=OTHER_ADMIN, cores=[of_servers])
        with kachel(options.kachel, *shared, cores=[of_servers]) as measured, other as second:
            fill(options.lab, PORT)
            servers = {"server": measured, "other": second}
            for number in range(options.rounds):
                p99 = {}
                for attacked in choices.sample(("none", "other", "server"), 3):
                    line = window(options, servers, attacked, token, of_clients)
                    say(round=number, attacked=attacked, **line)
                    p99[attacked] = line["p99_us"]
                rounds.append(p99)
    of_process, of_core = ratios(rounds, "server", "other"), ratios(rounds, "server", "none")
    say(rounds=len(rounds), p99_server_by_other=of_process, p99_server_by_none=of_core)
