// Checks the live page of real servers in Chromium, or writes screenshots of it.
//
// Usage: node checks.js PROGRAM [FOLDER], with NODE_PATH at the folder of installed packages and CHROMIUM
// at the browser. Prints one line a check, "ok page.NAME" or "FAIL page.NAME why"; ends with 1 if any failed.
// No check judges a time: each waits until the page shows what it must.
"use strict";

const assert = require("node:assert");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { Client, Server, until } = require("./servers.js");

const [program, folder] = process.argv.slice(2);
const TOKEN = "0123456789abcdef0123456789abcdef";
// Keys with what would be markup, script or an end of one, as clients may send them.
const HOSTILE = ["<script>alert(1)</script>", "\"><img/src=x/onerror=alert(1)>", "'+alert(1)+'", "</script>", "\u2028{{1}}",
  "ad\u202enim"];
// A key as the page shows it: a character that changes how others are seen makes it %XX.
const shown = (key) => /[\u2028\u202e]/.test(key) ? encodeURIComponent(key) : key;
const MIB = 1 << 20;

let browser;
const servers = [];

async function start(...options) {
  const server = await Server.start(program, options);
  servers.push(server);
  return server;
}

// Opens a page, and notes what goes wrong in it.
async function open(url, options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.wrong = [];
  page.asked = [];
  page.on("console", (message) => page.wrong.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => page.wrong.push(String(error)));
  page.on("dialog", (dialog) => page.wrong.push(`a dialog: ${dialog.message()}`) && dialog.dismiss());
  page.on("request", (request) => page.asked.push(request.url()));
  await page.goto(url);
  return page;
}

const textOf = (page, selector) => page.locator(selector).innerText();
const isLive = (page) => until("live page", async () => (await textOf(page, "#state")) === "live");
const says = (page, words) =>
  until(`sentence '${words}'`, async () => (await textOf(page, "#verdict")).includes(words));

// Makes a known load for a few seconds: hits, misses, stores and deletes, and more items than fit.
async function load(server, rounds) {
  const client = new Client(server.port);
  for (let round = 0; round < rounds; round += 1) {
    let requests = "";
    for (let number = 0; number < 100; number += 1) {
      const key = `key:${round}-${number}`;
      requests += `set ${key} 0 ${number % 2} 2000\r\n${"x".repeat(2000)}\r\nget ${key}\r\nget no${key}\r\n`;
    }
    await client.ask(`${requests}delete key:${round}-0\r\n`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  client.close();
}

const checks = {
  // The server loads nothing and nobody asks it, so it is well.
  async idle_and_one_request() {
    const server = await start("-t", 2);
    const page = await open(server.url);
    await isLive(page);
    await says(page, "The cache is well");
    const answer = await page.request.get(server.url);
    assert.ok((await answer.body()).length <= 150 * 1024, "it is small");
    const paths = [...new Set(page.asked.filter((url) => !url.startsWith("data:")))].sort();
    assert.deepStrictEqual(paths, ["", "api/history", "live"].map((name) => server.url + name));
    assert.deepStrictEqual(page.wrong, []);
  },

  async each_chart_moves_and_numbers_equal_stats() {
    const server = await start("-t", 1, "-m", 8);
    const page = await open(server.url);
    await isLive(page);
    const before = await figures(page);
    const loading = load(server, 120);
    const moves = ["Load", "Hit ratio", "Latency inside the server", "Processor time of a request", "Processors in use",
      "Memory by purpose", "Expiry and eviction", "Age at eviction", "Connections", "New connections", "Network",
      "Replies in memory"];
    for (const title of moves) {
      await until(`movement of the chart ${title}`, async () => {
        const now = (await figures(page))[title];
        return now.isLine && now.drawn !== before[title].drawn;
      });
    }
    await loading;
    const client = new Client(server.port);
    await until("page with the numbers of stats", async () => {
      const stats = await client.stats();
      const names = ["cmd_get", "get_hits", "get_misses", "cmd_set", "evictions", "reclaimed", "curr_items", "bytes",
        "curr_connections", "limit_maxbytes"];
      const shown = await Promise.all(names.map((name) => textOf(page, `#total-${name}`)));
      return names.every((name, place) => shown[place] === stats[name]);
    });
    await checkTables(page);
    client.close();
    assert.deepStrictEqual(page.wrong, []);
  },

  async hostile_keys_do_nothing() {
    const server = await start("-t", 1, "--observe=all", "--dumps");
    const page = await open(server.url);
    const client = new Client(server.port);
    const requests = HOSTILE.map((key) => `set ${key} 0 0 1\r\nx\r\n${`get ${key}\r\n`.repeat(500)}`);
    await isLive(page);
    // The requests go on, because the observer begins anew when it knows the load.
    for (const key of HOSTILE) {
      await until(`hot key ${key}`, async () => {
        await client.ask(requests.join(""));
        return (await textOf(page, ".lists")).includes(shown(key));
      });
    }
    const timer = setInterval(() => client.socket.write("get <b>hottest</b>\r\n".repeat(1000)), 100);
    await says(page, "One key, <b>hottest</b>, has");
    clearInterval(timer);
    const curve = page.locator(".panel", { hasText: "What more memory is worth" });
    await until("word about the curve", async () => /sampled|learning|memory/.test(await curve.locator("p").innerText()));
    assert.ok(!(await curve.locator("p").innerText()).startsWith("Off"), "it is observed");
    assert.deepStrictEqual(page.wrong, [], "no key has run or loaded anything");
    assert.strictEqual(await page.locator("img, iframe, script").count(), 1, "the script of the page");
    client.close();
  },

  // Prefixes with what would be markup, and the numbers of stats behind them.
  async prefixes_are_shown_as_stats_has_them() {
    const server = await start("-t", 2, "--dumps");
    const page = await open(server.url);
    await isLive(page);
    const panel = page.locator(".panel", { hasText: "What fills the cache" });
    assert.match(await panel.locator("p").last().innerText(), /^Off\. .*observe prefixes on/);
    assert.strictEqual(await panel.locator(".core").count(), 0);
    const client = new Client(server.port);
    for (const [prefix, count, bytes] of [["large", 40, 3000], ["<img/src=x/onerror=alert(1)>", 100, 100], ["", 3, 10]]) {
      for (let number = 0; number < count; number += 1) {
        await client.ask(`set ${prefix}:${number} 0 0 ${bytes} noreply\r\n${"x".repeat(bytes)}\r\n`);
      }
    }
    await client.ask("set alone 0 0 1 noreply\r\nx\r\nobserve prefixes on\r\n");
    await panel.locator("summary").click();
    const row = (cells) => cells.slice(0, 4).map((cell) => cell.replace(/ .*/, ""));
    await until("prefixes of the walk", async () => {
      const rows = await panel.locator("tbody tr").evaluateAll((all) =>
        all.map((one) => [...one.children].map((cell) => cell.textContent)));
      const names = ["large:", "<img/src=x/onerror=alert(1)>:", ":", "other prefixes", "no prefix"];
      return JSON.stringify(rows.map(([name]) => name)) === JSON.stringify(names)
        && JSON.stringify(rows.map((cells) => row(cells)[3])) === JSON.stringify(["40", "100", "3", "0", "1"]);
    });
    assert.match(await panel.locator("p").last().innerText(), /estimated from 1 of 256\.$/, "no word of hashes");
    assert.match(await panel.locator(".core").first().innerText(), /^large: \d+(\.\d+)? % of the bytes: 1[12]\d KiB, 40 items/);
    const stats = await client.stats("prefixes");
    assert.strictEqual(stats["prefix:1:items"], "40");
    assert.deepStrictEqual(page.wrong, [], "no prefix has run or loaded anything");
    assert.strictEqual(await page.locator("img, iframe, script").count(), 1, "the script of the page");
    client.close();
  },

  // Names are hidden unless the server has --dumps, and then the page says how to find a key.
  async hashes_are_explained_only_where_they_are_shown() {
    const server = await start("-t", 1, "--observe=all");
    const named = await start("-t", 1, "--observe=all", "--dumps");
    for (const [{ port, url }, isHashed] of [[server, true], [named, false]]) {
      const page = await open(url);
      await isLive(page);
      const client = new Client(port);
      for (const [title, word] of [["Hot keys", "a key is"], ["What fills the cache", "a prefix is"]]) {
        const panel = page.locator(".panel", { has: page.locator("h2", { hasText: title }) });
        const key = isHashed ? /\b[0-9a-f]{16}\b/ : /user:/;
        await until(`names of ${title}`, async () => {
          await client.ask(`set user:1 0 0 1\r\nx\r\n${"get user:1\r\n".repeat(500)}`);
          return key.test((await panel.locator(".core, td").allInnerTexts()).join(" "));
        });
        const note = (await panel.locator("p").allInnerTexts()).join(" ");
        assert.strictEqual(note.includes(`Without --dumps ${word} shown by its hash`), isHashed, note);
      }
      client.close();
      assert.deepStrictEqual(page.wrong, []);
    }
  },

  // A server that is killed under the page and starts again.
  async a_restart_is_told_and_draws_no_spike() {
    const server = await start("-t", 2);
    await load(server, 60);
    const page = await open(server.url);
    await isLive(page);
    await until("requests", async () => Number(await textOf(page, "#total-kachel_requests")) > 10000);
    await server.kill();
    await says(page, "has not answered");
    const lost = page.wrong.splice(0);
    assert.ok(lost.every((text) => text.includes("Failed to load resource")), String(lost));
    await server.startAgain();
    await says(page, "was restarted");
    await isLive(page);
    await load(server, 10);
    await until("requests since", async () => Number(await textOf(page, "#total-kachel_requests")) > 1000);
    // In the browser, `page` is the state of the page.
    const most = await page.evaluate("Math.max(...page.samples.map((sample) => sample.requests))");
    assert.ok(most < 18000, `${most} requests in a second; there were fewer in all`);
  },

  // A process that stands still accepts connections and answers nobody.
  async a_server_that_stands_still_is_told_and_goes_on() {
    const server = await start("-t", 1);
    const page = await open(server.url);
    await isLive(page);
    server.process.kill("SIGSTOP");
    await says(page, "has not answered");
    server.process.kill("SIGCONT");
    await isLive(page);
    await says(page, "The cache is well");
  },

  async faults_have_their_sentences() {
    const server = await start("-t", 2, "-m", 16, "-M", "-c", 10);
    const page = await open(server.url);
    await isLive(page);
    const client = new Client(server.port);
    const value = "x".repeat(100000);
    for (let number = 0; number < 300; number += 1) {
      await client.ask(`set key${number} 0 0 ${value.length} noreply\r\n${value}\r\n`);
    }
    await says(page, "for lack of memory");
    const slow = new Client(server.port);
    slow.socket.pause();
    slow.socket.write("get key0\r\n".repeat(300));
    const many = Array.from({ length: 20 }, () => new Client(server.port));
    await says(page, "all 10 (-c) were open");
    many.forEach((other) => other.close());
    const misses = setInterval(() => client.socket.write("get nobody stores this\r\n".repeat(40)), 50);
    await says(page, "clients store nothing for them");
    await says(page, "slow client");
    clearInterval(misses);
    [client, slow].forEach((other) => other.close());
    assert.deepStrictEqual(page.wrong, []);
  },

  async small_memory_has_its_sentence() {
    const server = await start("-t", 1, "-m", 8);
    const page = await open(server.url);
    const client = new Client(server.port);
    const value = "x".repeat(1000);
    let number = 0;
    const timer = setInterval(() => {
      let requests = "";
      for (let more = 0; more < 100; more += 1) {
        number += 1;
        requests += `get key${number}\r\nset key${number} 0 0 1000 noreply\r\n${value}\r\n`;
      }
      client.socket.write(requests);
    }, 50);
    await says(page, "memory is too small");
    clearInterval(timer);
    client.close();
    assert.deepStrictEqual(page.wrong, []);
  },

  async the_token_lets_a_browser_in() {
    const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "kachel-page-"));
    fs.chmodSync(scratch, 0o755);
    const file = path.join(scratch, "token");
    fs.writeFileSync(file, TOKEN);
    fs.chmodSync(file, 0o600);
    if (process.getuid() === 0) fs.chownSync(file, 65534, 65534);
    const server = await start("-t", 1, "--admin-token-file", file);
    const page = await open(server.url);
    await page.locator("#token").fill("f".repeat(32));
    await page.keyboard.press("Enter");
    await until("refusal", async () => (await textOf(page, "p")).includes("wrong"));
    await page.locator("#token").fill(TOKEN);
    await page.keyboard.press("Enter");
    await isLive(page);
    assert.ok(!page.url().includes(TOKEN) && page.asked.every((url) => !url.includes(TOKEN)), "not in an address");
    assert.strictEqual(await page.evaluate(() => document.cookie), "", "scripts see no cookie");
    await server.kill();
    await says(page, "has not answered");
    await server.startAgain();
    await isLive(page);
    // Another token: the page stops asking with the old one, and shows the form.
    const asked = page.asked.length;
    fs.writeFileSync(file, TOKEN.toUpperCase());
    server.process.kill("SIGHUP");
    await until("form", async () => page.url().endsWith("/login?replaced") && (await textOf(page, "p")).includes("replaced"));
    // The history may be asked for before the token is replaced.
    const since = page.asked.slice(asked).filter((url) => !/\/(login\?replaced|api\/history)$/.test(url));
    assert.deepStrictEqual(since, [], "no question with the old token");
    await page.locator("#token").fill(TOKEN.toUpperCase());
    await page.keyboard.press("Enter");
    await isLive(page);
    fs.rmSync(scratch, { recursive: true });
  },

  async the_keyboard_and_narrow_screens_work() {
    const server = await start("-t", 2);
    for (const colorScheme of ["light", "dark"]) {
      for (const width of [390, 1600]) {
        const page = await open(server.url, { viewport: { width, height: 900 }, colorScheme });
        await isLive(page);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= width, `${wide} pixels of ${width}`);
        const chart = page.locator("svg.chart").first();
        await chart.focus();
        await page.keyboard.press("ArrowLeft");
        await until("cursor", async () => Number(await chart.locator(".cursor").getAttribute("x1")) > 0);
        await page.keyboard.press("Escape");
        await until("no cursor", async () => Number(await chart.locator(".cursor").getAttribute("x1")) < 0);
        assert.match(await chart.getAttribute("aria-label"), /^Load/);
        await page.context().close();
      }
    }
  },
};

// Of each chart: all that is drawn, and whether there is a line or an area.
async function figures(page) {
  return page.evaluate(() => Object.fromEntries([...document.querySelectorAll(".panel")].map((panel) => {
    const paths = [...panel.querySelectorAll("path")].map((path) => path.getAttribute("d") ?? "");
    return [panel.querySelector("h2").textContent, { drawn: paths.join(), isLine: paths.some((path) => path.includes("L")) }];
  })));
}

// Each chart has a table behind it, with rows. The curve has none before it can be trusted.
async function checkTables(page) {
  const tables = await page.evaluate(async () => {
    const all = [...document.querySelectorAll("details")];
    all.forEach((details) => {
      details.open = true;
    });
    await new Promise((resolve) => setTimeout(resolve, 0));
    return all.map((details) => details.querySelectorAll("tbody tr").length);
  });
  assert.ok(tables.length >= 14, `${tables.length} tables`);
  await until("rows", () => page.evaluate(() => [...document.querySelectorAll(".panel")].every((panel) => {
    const table = panel.querySelector("details table");
    return !table || table.querySelector("tbody tr") || /--observe=(curve|prefixes)/.test(panel.textContent);
  })));
}

// Writes screenshots of the whole page of a server that has some load.
async function writeScreenshots(url) {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [390, 1600]) {
      const page = await open(url, { viewport: { width, height: width === 390 ? 844 : 900 }, colorScheme });
      await isLive(page);
      await page.waitForTimeout(1500);
      await page.screenshot({ path: path.join(folder, `page-${colorScheme}-${width}.png`), fullPage: true });
      await page.context().close();
    }
  }
}

async function main() {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
  let status = 0;
  if (folder) {
    const server = await start("-t", 2, "-m", 64, "--observe=all", "--dumps");
    await load(server, 200);
    await writeScreenshots(server.url);
  } else {
    const all = Object.entries(checks).map(async ([name, check]) => {
      try {
        await check();
        console.log(`ok page.${name}`);
      } catch (error) {
        status = 1;
        console.log(`FAIL page.${name} ${String(error.message).split("\n").join(" ")}`);
      }
    });
    await Promise.all(all);
  }
  await browser.close();
  await Promise.all(servers.map((server) => server.kill()));
  process.exit(status);
}

main();
