"""The servers of this experiment, the load that they get, and what they take of the processor."""

import contextlib
import json
import os
import pathlib
import resource
import socket
import subprocess
import tempfile
import time

PORT, ADMIN = 21890, 21891
PATIENCE_S = 20
KEYS = 100_000
WARM_UP_S = 0.5
CLOCK_OF_PROCESS = 2  # CPUCLOCK_SCHED of the kernel.


@contextlib.contextmanager
def server(command, port, cores=None):
    """A server that runs in the block, on these cores if they are given."""
    pin = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
    process = subprocess.Popen([*pin, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"{command[0]} does not listen on {port}")
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def user():
    """The option without which a server that root starts does not start. It reads the files of root."""
    return ["-u", "root"] if os.getuid() == 0 else []


def kachel(program, *options, port=PORT, admin=ADMIN, cores=None, memory_mib=64):
    """A server with an admin address."""
    place = ["-l", "127.0.0.1", "-p", str(port), "--admin", f"127.0.0.1:{admin}"]
    return server([program, "serve", *place, *user(), "-m", str(memory_mib), *options], admin, cores)


def lab(program, port, *options, json_path=None, cores=None):
    """The words that start the load generator."""
    pin = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
    target = ["--json", str(json_path)] if json_path else []
    words = ["load", "-s", f"127.0.0.1:{port}", "-q", "-k", str(KEYS), *options, *target]
    return [*pin, program, *words]


def fill(program, port):
    """Stores all keys."""
    subprocess.run(lab(program, port, "--preload-only"), check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def load(program, port, seconds, *options, cores=None):
    """Loads a server for so long, from the beginning of the block. Gives a function that waits for the results."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "load.json"
        times = ["--no-preload", "--warm-up-s", str(WARM_UP_S), "--duration-s", str(seconds)]
        words = lab(program, port, *times, *options, json_path=path, cores=cores)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)

        def results():
            if process.wait(seconds + 2 * PATIENCE_S):
                raise SystemExit("the load generator has failed")
            return json.loads(path.read_text(encoding="utf-8"))["result"]

        try:
            yield results
        finally:
            process.kill()
            process.wait()


def raise_descriptors():
    """Allows as many descriptors as the machine does. Returns how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def processor_s(process):
    """The processor time of a process so far, with that of threads that have ended (clock_getcpuclockid(3)).

    /proc/PID/stat has the same, in units of 10 ms.
    """
    return time.clock_gettime(~process.pid << 3 | CLOCK_OF_PROCESS)


def threads(process):
    """The processor time of each thread by its name, in seconds, and how often it has slept."""
    found = {}
    for folder in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        name = (folder / "comm").read_text(encoding="utf-8").strip()
        ran_ns = int((folder / "schedstat").read_text(encoding="utf-8").split()[0])
        status = (folder / "status").read_text(encoding="utf-8").splitlines()
        slept = next(int(line.split()[1]) for line in status if line.startswith("voluntary"))
        before = found.get(name, (0, 0))
        found[name] = (before[0] + ran_ns / 1e9, before[1] + slept)
    return found


def since(before, process):
    """The growth of `threads` since `before`."""
    zero = (0, 0)
    now = threads(process).items()
    return {name: (ran - before.get(name, zero)[0], slept - before.get(name, zero)[1]) for name, (ran, slept) in now}


def say(**line):
    """Prints a line of raw data."""
    print(json.dumps(line), flush=True)
