"""Do the expressions of the board and of the alerts return data?

A Prometheus scrapes a loaded Kachel, and memcached behind its exporter, every two seconds for a minute. Then it evaluates
each expression of the board, and each rule. Prints a line for each: the number of series, and how many of them are
numbers. An alert that fires has series; others have none, but must evaluate without an error.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

from seconds import EXPORTER_PORT, exporter_of
from servers import ADMIN, PORT, kachel, load, say, server, user

PROMETHEUS_PORT = PORT + 6
MEMCACHED_PORT = PORT + 8
SCRAPE_S = 2
PACKAGING = pathlib.Path(__file__).resolve().parent.parent.parent / "packaging"
# What Grafana puts in the place of its variables.
VARIABLES = {"$job": ".*", "$instance": ".*", "$__rate_interval": "30s"}


def ask(path, **words):
    """The data of an answer of Prometheus."""
    query = urllib.parse.urlencode(words)
    with urllib.request.urlopen(f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/{path}?{query}", timeout=20) as answer:
        return json.load(answer)["data"]


def expressions():
    """The expressions of the board, by panel."""
    board = json.loads((PACKAGING / "grafana" / "kachel.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression


def configuration(folder):
    """Writes the file of Prometheus; returns its path."""
    jobs = {"kachel": ADMIN, "memcached": EXPORTER_PORT}
    scrapes = [{"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in jobs.items()]
    rules = str(PACKAGING / "prometheus" / "kachel.rules.yml")
    every = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"}
    path = folder / "prometheus.json"
    path.write_text(json.dumps({"global": every, "rule_files": [rules], "scrape_configs": scrapes}), encoding="utf-8")
    return path


def main(words):
    """`run board KACHEL LAB PROMETHEUS`."""
    parser = argparse.ArgumentParser(prog="run board", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kachel")
    parser.add_argument("lab")
    parser.add_argument("prometheus")
    parser.add_argument("--memcached", default="/usr/bin/memcached")
    parser.add_argument("--exporter", help="a memcached_exporter 0.16.0; by default `go build` makes one")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        exporter = exporter_of(options, name)
        place = [f"--config.file={configuration(folder)}", f"--storage.tsdb.path={folder / 'data'}"]
        prometheus = [options.prometheus, *place, f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}"]
        memcached = [options.memcached, "-l", "127.0.0.1", "-p", str(MEMCACHED_PORT), *user()]
        export = [exporter, f"--memcached.address=127.0.0.1:{MEMCACHED_PORT}"]
        export += [f"--web.listen-address=127.0.0.1:{EXPORTER_PORT}"]
        # Keys are `k` and 29 digits, so with this delimiter all have the prefix `k0`. Items are evicted, and requests
        # wait for other threads.
        prefixes = ["-D", "0", "--admin-prefixes=k"]
        ours = kachel(options.kachel, "-t", "2", "--reads=erew", "--observe=all", *prefixes, memory_mib=16)
        mix = ["-c", "10", "--rate", "2000", "--ratio", "6:4:1", "--value-size", "2000", "--ttl-s", "0:0.7,20:0.3"]
        with ours, server(memcached, MEMCACHED_PORT), server(export, EXPORTER_PORT), server(prometheus, PROMETHEUS_PORT):
            with load(options.lab, PORT, options.seconds, *mix), load(options.lab, MEMCACHED_PORT, options.seconds, *mix):
                time.sleep(options.seconds)
                judge()


def judge():
    """Evaluates all expressions now."""
    targets = ask("targets")["activeTargets"]
    say(targets={target["labels"]["job"]: target["health"] for target in targets})
    with_data = total = 0
    for panel, expression in expressions():
        series = ask("query", query=expression)["result"]
        numbers = [one["value"][1] for one in series if one["value"][1] != "NaN"]
        say(panel=panel, expression=expression, series=len(series), numbers=len(numbers))
        with_data += bool(numbers)
        total += 1
    for group in ask("rules")["groups"]:
        for rule in group["rules"]:
            say(alert=rule["name"], health=rule["health"], error=rule.get("lastError", ""), series=len(rule["alerts"]))
    say(expressions=total, with_data=with_data)
