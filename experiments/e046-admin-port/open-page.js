// Keeps the live page open for an hour: node open-page.js PROGRAM [MINUTES], with NODE_PATH and CHROMIUM as
// tests/page/run sets them.
//
// Prints a JSON object a minute: the updates that the page has had, the browser's heap after a collection, and the
// server's resident memory. A client sends a light load meanwhile.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { Client, Server, until } = require(path.join(__dirname, "../../tests/page/servers.js"));

const [program, minutes = "60"] = process.argv.slice(2);
const MINUTE_MS = 60000;
const LOAD_MS = 100;

// What the kernel says of the process, in KiB.
function residentKib(pid) {
  return Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, "latin1"))[1]);
}

async function load(client, isOver) {
  for (let round = 0; !isOver(); round += 1) {
    const keys = Array.from({ length: 50 }, (_, number) => `user:${(round * 50 + number) % 20000}`);
    const gets = keys.map((key) => `get ${key}\r\n`).join("");
    await client.ask(`set ${keys[0]} 0 60 1000\r\n${"x".repeat(1000)}\r\n${gets}`);
    await new Promise((resolve) => setTimeout(resolve, LOAD_MS));
  }
}

async function main() {
  const server = await Server.start(program, ["-m", "64", "-t", "2", "--observe=all"]);
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
  const page = await browser.newPage();
  const wrong = [];
  page.on("console", (message) => wrong.push(message.text()));
  page.on("pageerror", (error) => wrong.push(String(error)));
  await page.addInitScript(() => {
    const { EventSource } = window;
    window.updates = 0;
    window.EventSource = class extends EventSource {
      constructor(...words) {
        super(...words);
        this.addEventListener("message", () => (window.updates += 1));
      }
    };
  });
  await page.goto(server.url);
  await until("live page", async () => (await page.locator("#state").innerText()) === "live");
  const browserOf = await page.context().newCDPSession(page);
  const client = new Client(server.port);
  let isOver = false;
  const loading = load(client, () => isOver);
  for (let minute = 1; minute <= Number(minutes); minute += 1) {
    await new Promise((resolve) => setTimeout(resolve, MINUTE_MS));
    await browserOf.send("HeapProfiler.collectGarbage");
    const heap = await browserOf.send("Runtime.getHeapUsage");
    const updates = await page.evaluate(() => window.updates);
    const residents = residentKib(server.process.pid);
    const line = { minute, updates, heap_kib: Math.round(heap.usedSize / 1024), server_kib: residents, errors: wrong.length };
    console.log(JSON.stringify(line));
  }
  isOver = true;
  await loading;
  client.close();
  await browser.close();
  await server.kill();
}

main();
