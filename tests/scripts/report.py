"""Checks the reports of runs: report.py [--no-browser] [--figures N] FOLDER...

The page is well formed, loads nothing, and has the rows of the raw data, at least one figure, and at least N
(5) that can be enlarged. With KACHEL_FULL=1 Chromium opens
it without a network; it must draw every figure and print no message on its console.
"""

import argparse
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

VOID = {"meta", "link", "br", "hr", "img", "input"}
LOADING = {"src", "href", "srcset", "data", "action", "poster", "xlink:href"}


class Page(html.parser.HTMLParser):
    """The open tags, the scripts, and everything that a browser would load."""

    def __init__(self):
        super().__init__()
        self.open, self.scripts, self.loads, self.canvases = [], {}, [], 0
        self.script, self.style = None, False
        self.ids, self.tables, self.figures = [], 0, 0
        # The texts of the tables.
        self.cells = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [f"{tag} {name}" for name in given if name in LOADING]
        self.ids += [given["id"]] if "id" in given else []
        self.tables += tag == "table"
        self.figures += tag == "figure"
        self.canvases += tag == "canvas"
        self.script = given.get("id", "") if tag == "script" else None
        self.style = tag == "style"

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            raise SystemExit(f"</{tag}> closes {self.open[-1:]}")
        self.open.pop()
        self.script, self.style = None, False

    def handle_data(self, data):
        if self.script is not None:
            self.scripts[self.script] = self.scripts.get(self.script, "") + data
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)
        if self.style and re.search(r"@import|url\(", data):
            self.loads.append("style")


def parsed(text):
    page = Page()
    page.feed(text)
    page.close()
    return page


def check(is_right, what):
    if not is_right:
        raise SystemExit(f"report: {what}")


def check_page(folder, least):
    """Checks the file by itself. Returns the number of figures that a script draws."""
    page = parsed((folder / "report.html").read_text(encoding="utf-8"))
    check(not page.open, f"not closed: {page.open}")
    check(not page.loads, f"loads from elsewhere: {page.loads}")
    check(len(page.ids) == len(set(page.ids)), f"a name stands twice: {sorted(page.ids)}")
    [run] = json.loads(page.scripts["data"])
    lines = (folder / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    check(run["rows"] == [json.loads(line) for line in lines], "its data are not the raw data")
    conditions = json.loads((folder / "conditions.json").read_text(encoding="utf-8"))
    check(run["conditions"] == conditions, "its conditions are not those of the run")
    figures = json.loads(page.scripts["figures"])
    has_cases = any(row["case"] for row in run["rows"])
    check(page.figures >= max(1, least, len(figures)), f"{page.figures} figures")
    check(has_cases or len(figures) >= least, f"{len(figures)} figures with lines")
    check(page.tables >= page.figures, "a figure lacks its table")
    # A round is a median of itself, so points are rows.
    means = [figure for figure in figures if figure["y_label"] == "mean response time, us"]
    is_plain = all(row["round"] == 1 and not row["options"] for row in run["rows"])
    check(means or has_cases or least == 0, "no figure has the mean")
    if max(row["round"] for row in run["rows"]) == 1 and has_cases:
        check_cases(run["rows"], page)
    elif means and is_plain:
        [mean] = means
        drawn = {(line["name"], point[0] * 1e3): point[1] for line in mean["lines"]
                 for point in line["points"]}
        rows = {(row["server"], row["rate_per_s"]): row["mean_us"] for row in run["rows"]}
        check(drawn.keys() == rows.keys() and all(
            abs(drawn[key] - rows[key]) <= 1e-9 * rows[key] for key in rows
        ), f"drawn {drawn}, measured {rows}")
    return len(figures)


def number(value):
    """A number as the tables have it."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def check_cases(rows, page):
    """Checks that the tables have the figures of each case, those of a key where a get has several."""
    cells = set(page.cells)
    for row in rows:
        is_many = row["keys_per_s"] is not None
        check(row["case"] + ", a key" * is_many in cells, f"no row of {row['case']}")
        columns = ["p50_us", "p99_us", "server_busy_cores"]
        columns += ["keys_per_s", "server_cpu_us_per_key"] if is_many else [
            "achieved_per_s", "server_cpu_us"]
        for column in columns:
            text = number(row[column])
            check(text in cells, f"{row['case']}: no {column} of {text}")


def check_browser(folder, figures):
    """Opens the file in Chromium, in a network namespace with nothing in it."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium-headless-shell") or "chromium"
    words = ["unshare", "--net", "--map-root-user", chromium, "--headless", "--no-sandbox",
             "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom",
             (folder / "report.html").resolve().as_uri()]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    messages = [line for line in answer.stderr.splitlines() if "CONSOLE" in line]
    check(not messages, f"the console has {messages}")
    canvases = answer.stdout.count("<canvas")
    check(canvases == figures, f"{figures} figures, and {canvases} are drawn")


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--no-browser", action="store_true")
    words.add_argument("--figures", type=int, default=5)
    words.add_argument("folders", type=pathlib.Path, nargs="+")
    options = words.parse_args()
    for folder in options.folders:
        figures = check_page(folder, options.figures)
        if os.environ.get("KACHEL_FULL") == "1" and not options.no_browser:
            check_browser(folder, figures)


if __name__ == "__main__":
    main()
