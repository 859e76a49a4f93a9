// Checks a memcached server with the npm packages `memcached` and `memjs`.
//
// Usage: node checks.js HOST:PORT[,...] SASL_HOST:PORT USER PASSWORD, with NODE_PATH at the folder of
// installed packages. Prints one line a check, "ok NAME" or "FAIL NAME why"; ends with 1 if any failed.
// memjs speaks the binary protocol, to the first server and, after a login, to the second.
"use strict";

const assert = require("node:assert");
const crypto = require("node:crypto");
const Memcached = require("memcached");
const memjs = require("memjs");

const BIG_BYTES = 1000000;
const EXPIRE_WITHIN_MS = 4000;
const POLL_MS = 50;

const [addresses, saslAddress, username, password] = process.argv.slice(2);
const address = addresses.split(",")[0];
const client = new Memcached(address, { timeout: 20000, retries: 0 });

// Calls one operation of the library and returns a promise of its answer.
function call(operation, ...operands) {
  return new Promise((resolve, reject) => {
    client[operation](...operands, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

function wait(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function checkStore() {
  assert.strictEqual(await call("set", "js-store", "first", 0), true);
  assert.strictEqual(await call("set", "js-store", "second", 0), true);
}

async function checkRead() {
  await call("set", "js-read", "a value\r\nof two lines", 0);
  assert.strictEqual(await call("get", "js-read"), "a value\r\nof two lines");
}

async function checkMiss() {
  assert.strictEqual(await call("get", "js-never-stored"), undefined);
}

async function checkDelete() {
  await call("set", "js-delete", "x", 0);
  assert.strictEqual(await call("del", "js-delete"), true);
  assert.strictEqual(await call("get", "js-delete"), undefined);
}

async function checkCount() {
  await call("set", "js-count", 41, 0);
  assert.strictEqual(await call("incr", "js-count", 1001), 1042);
  assert.strictEqual(await call("decr", "js-count", 42), 1000);
}

// The server counts whole seconds, so an item with a TTL of one second may expire at once. The
// check stores it again until a read finds it.
async function checkTtl() {
  let seen = false;
  for (let attempt = 0; attempt < 5 && !seen; attempt += 1) {
    await call("set", "js-ttl", "soon gone", 1);
    seen = (await call("get", "js-ttl")) === "soon gone";
  }
  assert.ok(seen, "an item of one second was never readable");
  const deadline = Date.now() + EXPIRE_WITHIN_MS;
  while ((await call("get", "js-ttl")) !== undefined) {
    assert.ok(Date.now() < deadline, `still there ${EXPIRE_WITHIN_MS} ms after a TTL of 1 s`);
    await wait(POLL_MS);
  }
}

async function checkCasMatch() {
  await call("set", "js-cas", "old", 0);
  const item = await call("gets", "js-cas");
  assert.strictEqual(item["js-cas"], "old");
  assert.strictEqual(await call("cas", "js-cas", "new", item.cas, 0), true);
  assert.strictEqual(await call("get", "js-cas"), "new");
}

async function checkCasMismatch() {
  await call("set", "js-cas-late", "old", 0);
  const item = await call("gets", "js-cas-late");
  await call("set", "js-cas-late", "newer", 0);
  assert.strictEqual(await call("cas", "js-cas-late", "too late", item.cas, 0), false);
  assert.strictEqual(await call("get", "js-cas-late"), "newer");
}

async function checkMultiget() {
  const wanted = {};
  for (let index = 0; index < 100; index += 1) {
    wanted[`js-multi-${index}`] = `value ${index}`;
    await call("set", `js-multi-${index}`, `value ${index}`, 0);
  }
  const found = await call("getMulti", [...Object.keys(wanted), "js-multi-absent"]);
  assert.deepStrictEqual({ ...found }, wanted);
}

// The library sends bytes as UTF-8 text, so a byte above 127 would become two. It also escapes CR,
// LF and the backslash. So this draws from the other 125 characters. The library never compresses.
function bigValue() {
  const plain = (code) => code < 128 && code !== 10 && code !== 13 && code !== 92;
  const codes = crypto.randomBytes(3 * BIG_BYTES).filter(plain);
  assert.ok(codes.length >= BIG_BYTES, "three times as many bytes are enough to draw from");
  return codes.subarray(0, BIG_BYTES).toString("latin1");
}

async function checkBigValue() {
  const hash = (text) => crypto.createHash("sha256").update(text, "latin1").digest("hex");
  const value = bigValue();
  assert.strictEqual(await call("set", "js-big", value, 0), true);
  const found = await call("get", "js-big");
  assert.strictEqual(found.length, BIG_BYTES);
  assert.strictEqual(hash(found), hash(value));
}

// A client of memjs. Without retries and logs, a check sees the first error of the library.
function connectMemjs(server, login) {
  const logger = { log() {} };
  return memjs.Client.create(server, { timeout: 20, retries: 1, logger, ...login });
}

async function memjsStore(client) {
  assert.strictEqual(await client.set("memjs-store", "first", {}), true);
  assert.strictEqual(await client.set("memjs-store", "second", {}), true);
}

async function memjsRead(client) {
  await client.set("memjs-read", "a value\r\nof two lines", {});
  const item = await client.get("memjs-read");
  assert.strictEqual(item.value.toString(), "a value\r\nof two lines");
}

async function memjsMiss(client) {
  assert.strictEqual((await client.get("memjs-never-stored")).value, null);
}

async function memjsDelete(client) {
  await client.set("memjs-delete", "x", {});
  assert.strictEqual(await client.delete("memjs-delete"), true);
  assert.strictEqual((await client.get("memjs-delete")).value, null);
}

async function memjsCount(client) {
  await client.set("memjs-count", "41", {});
  assert.strictEqual((await client.increment("memjs-count", 1001, {})).value, 1042);
  assert.strictEqual((await client.decrement("memjs-count", 42, {})).value, 1000);
}

async function memjsTtl(client) {
  let seen = false;
  for (let attempt = 0; attempt < 5 && !seen; attempt += 1) {
    await client.set("memjs-ttl", "soon gone", { expires: 1 });
    seen = (await client.get("memjs-ttl")).value !== null;
  }
  assert.ok(seen, "an item of one second was never readable");
  const deadline = Date.now() + EXPIRE_WITHIN_MS;
  while ((await client.get("memjs-ttl")).value !== null) {
    assert.ok(Date.now() < deadline, `still there ${EXPIRE_WITHIN_MS} ms after a TTL of 1 s`);
    await wait(POLL_MS);
  }
}

async function memjsBigValue(client) {
  const value = crypto.randomBytes(BIG_BYTES);
  assert.strictEqual(await client.set("memjs-big", value, {}), true);
  const found = (await client.get("memjs-big")).value;
  assert.ok(found.equals(value), "the same bytes came back");
}

// The login fails, so the store must fail.
async function memjsWrongPassword() {
  const client = connectMemjs(saslAddress, { username, password: `${password}x` });
  await assert.rejects(client.set("memjs-wrong-password", "x", {}));
  client.close();
}

const memjsChecks = [
  ["store", memjsStore],
  ["read", memjsRead],
  ["miss", memjsMiss],
  ["delete", memjsDelete],
  ["count", memjsCount],
  ["ttl", memjsTtl],
  ["big-value", memjsBigValue],
];

const checks = [
  ["store", checkStore],
  ["read", checkRead],
  ["miss", checkMiss],
  ["delete", checkDelete],
  ["count", checkCount],
  ["ttl", checkTtl],
  ["cas-match", checkCasMatch],
  ["cas-mismatch", checkCasMismatch],
  ["multiget", checkMultiget],
  ["big-value", checkBigValue],
];

// Runs the checks one after the other and prints a line for each.
async function runAll(name, list, ...operands) {
  for (const [checkName, check] of list) {
    try {
      await check(...operands);
      console.log(`ok ${name}.${checkName}`);
    } catch (error) {
      process.exitCode = 1;
      console.log(`FAIL ${name}.${checkName} ${String(error.message).split("\n")[0]}`);
    }
  }
}

async function main() {
  await runAll("memcached-js", checks);
  client.end();
  const plain = connectMemjs(address, {});
  await runAll("memjs", memjsChecks, plain);
  plain.close();
  const withLogin = connectMemjs(saslAddress, { username, password });
  await runAll("memjs-sasl", memjsChecks, withLogin);
  withLogin.close();
  await runAll("memjs-sasl", [["wrong-password", memjsWrongPassword]]);
}

main();
