// Servers of the checks of the live page, and plain clients of them.
//
// Upstream:   checks.js.
// Downstream: the server's program, on loopback.
"use strict";

const child_process = require("node:child_process");
const net = require("node:net");

// The longest that anything may take. The checks wait for events, and judge no time.
const PATIENCE_MS = 60000;
const POLL_MS = 10;

// Waits until `is` returns something that is true, and returns it.
async function until(what, is) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await is();
    if (found) return found;
    if (Date.now() > end) throw new Error(`no ${what}`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

// Two ports of loopback that are free.
async function freePorts() {
  const listeners = [net.createServer(), net.createServer()];
  const ports = [];
  for (const listener of listeners) {
    await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
    ports.push(listener.address().port);
  }
  for (const listener of listeners) await new Promise((resolve) => listener.close(resolve));
  return ports;
}

// A client of the cache that sends text, and keeps the replies.
class Client {
  constructor(port) {
    this.received = Buffer.alloc(0);
    this.isClosed = false;
    this.socket = net.connect(port, "127.0.0.1");
    this.socket.on("data", (bytes) => {
      this.received = Buffer.concat([this.received, bytes]);
    });
    this.socket.on("error", () => {});
    this.socket.on("close", () => {
      this.isClosed = true;
    });
  }

  // Sends requests, and returns the replies up to that of a last `mn`.
  async ask(requests) {
    this.received = Buffer.alloc(0);
    this.socket.write(Buffer.concat([Buffer.from(requests), Buffer.from("mn\r\n")]));
    await until("reply", () => this.isClosed || this.received.subarray(-4).equals(Buffer.from("MN\r\n")));
    return this.received.toString("latin1");
  }

  // The names and values of these topics of `stats`.
  async stats(...topics) {
    const asked = topics.length > 0 ? topics : ["", "kachel"];
    const requests = asked.map((topic) => `stats ${topic}`.trimEnd() + "\r\n").join("");
    const lines = (await this.ask(requests)).matchAll(/STAT (\S+) (.*)\r\n/g);
    return Object.fromEntries([...lines].map(([, name, value]) => [name, value]));
  }

  close() {
    this.socket.destroy();
  }
}

// A server that can be killed and started again on its ports.
class Server {
  static async start(program, options) {
    const server = new Server();
    const [port, admin] = await freePorts();
    const place = ["serve", "-l", "127.0.0.1", "-p", port, "--admin", `127.0.0.1:${admin}`];
    const user = process.getuid() === 0 ? ["-u", "nobody"] : [];
    Object.assign(server, { program, port, url: `http://127.0.0.1:${admin}/` });
    server.words = [...place, ...user, ...options].map(String);
    await server.startAgain();
    return server;
  }

  async startAgain() {
    this.process = child_process.spawn(this.program, this.words, { stdio: "ignore" });
    this.ended = new Promise((resolve) => this.process.on("exit", resolve));
    await until("server that is ready", () =>
      fetch(`${this.url}ready`).then((answer) => answer.ok, () => false));
  }

  async kill() {
    this.process.kill("SIGKILL");
    await this.ended;
  }
}

module.exports = { Client, Server, until };
