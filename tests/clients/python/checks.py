"""Checks a memcached server with three Python clients: pymemcache, pylibmc and emcache.

Usage: checks.py HOST:PORT[,...] SASL_HOST:PORT USER PASSWORD. Prints one line a check, "ok NAME" or
"FAIL NAME why"; ends with 1 if any failed. All clients run the same checks through one small class
each, which hides only how the library spells an operation. pylibmc speaks the text protocol, the
binary protocol, and the binary protocol after a login to the second server.
"""

import asyncio
import hashlib
import os
import sys
import time

import emcache
import pylibmc
from pymemcache.client.base import Client

BIG_BYTES = 1_000_000
EXPIRE_WITHIN_S = 4.0


class Pymemcache:
    """pymemcache: no serializer, so values are bytes and nothing is compressed."""

    name = "pymemcache"

    def __init__(self, host, port):
        self.client = Client((host, port), default_noreply=False, timeout=20)

    def set(self, key, value, ttl=0):
        return self.client.set(key, value, expire=ttl)

    def get(self, key):
        return self.client.get(key)

    def get_many(self, keys):
        return self.client.get_many(keys)

    def delete(self, key):
        return self.client.delete(key)

    def incr(self, key, by):
        return self.client.incr(key, by)

    def decr(self, key, by):
        return self.client.decr(key, by)

    def gets(self, key):
        return self.client.gets(key)

    def cas(self, key, value, token):
        return self.client.cas(key, value, token)


class Pylibmc:
    """pylibmc over libmemcached; min_compress_len=0 turns compression off."""

    def __init__(self, name, address, **options):
        self.name = name
        self.client = pylibmc.Client([address], behaviors={"cas": True}, **options)

    def set(self, key, value, ttl=0):
        return self.client.set(key, value, time=ttl, min_compress_len=0)

    def get(self, key):
        return self.client.get(key)

    def get_many(self, keys):
        return self.client.get_multi(keys)

    def delete(self, key):
        return self.client.delete(key)

    def incr(self, key, by):
        return self.client.incr(key, by)

    def decr(self, key, by):
        return self.client.decr(key, by)

    def gets(self, key):
        return self.client.gets(key)

    def cas(self, key, value, token):
        return self.client.cas(key, value, token)


class Emcache:
    """emcache, which is asynchronous: each call waits for its reply."""

    name = "emcache"

    def __init__(self, host, port):
        self.loop = asyncio.new_event_loop()
        address = emcache.MemcachedHostAddress(host, port)
        self.client = self.loop.run_until_complete(emcache.create_client([address], timeout=20))

    def call(self, operation, key, *operands, **options):
        reply = getattr(self.client, operation)(key.encode(), *operands, **options)
        return self.loop.run_until_complete(reply)

    def close(self):
        self.loop.run_until_complete(self.client.close())
        self.loop.close()

    def set(self, key, value, ttl=0):
        self.call("set", key, value, exptime=ttl)
        return True

    def get(self, key):
        item = self.call("get", key)
        return item and item.value

    def get_many(self, keys):
        found = self.client.get_many([key.encode() for key in keys])
        items = self.loop.run_until_complete(found)
        return {key.decode(): item.value for key, item in items.items()}

    def delete(self, key):
        self.call("delete", key)
        return True

    def incr(self, key, by):
        return self.call("increment", key, by)

    def decr(self, key, by):
        return self.call("decrement", key, by)

    def gets(self, key):
        item = self.call("gets", key)
        return item.value, item.cas

    def cas(self, key, value, token):
        try:
            self.call("cas", key, value, token)
        except emcache.NotStoredStorageCommandError:
            return False
        return True


def same(found, wanted):
    """Fails the running check unless the two are equal."""
    if found != wanted:
        raise AssertionError(f"found {found!r:.80}, wanted {wanted!r:.80}")


def check_store(client):
    same(client.set("py-store", b"first"), True)
    same(client.set("py-store", b"second"), True)


def check_read(client):
    client.set("py-read", b"a value\r\nof two lines")
    same(client.get("py-read"), b"a value\r\nof two lines")


def check_miss(client):
    same(client.get("py-never-stored"), None)


def check_delete(client):
    client.set("py-delete", b"x")
    same(client.delete("py-delete"), True)
    same(client.get("py-delete"), None)


def check_count(client):
    client.set("py-count", b"41")
    same(client.incr("py-count", 1), 42)
    same(client.incr("py-count", 1_000), 1_042)
    same(client.decr("py-count", 42), 1_000)


def check_ttl(client):
    # The server counts whole seconds, so an item with a TTL of one second may expire at once: try
    # again.
    for _ in range(5):
        client.set("py-ttl", b"soon gone", ttl=1)
        if client.get("py-ttl") is not None:
            break
    else:
        raise AssertionError("an item of one second was never readable")
    deadline = time.monotonic() + EXPIRE_WITHIN_S
    while client.get("py-ttl") is not None:
        if time.monotonic() > deadline:
            raise AssertionError(f"still there {EXPIRE_WITHIN_S} s after its TTL of 1 s was set")
        time.sleep(0.05)


def check_cas_match(client):
    client.set("py-cas", b"old")
    value, token = client.gets("py-cas")
    same(value, b"old")
    same(client.cas("py-cas", b"new", token), True)
    same(client.get("py-cas"), b"new")


def check_cas_mismatch(client):
    client.set("py-cas-late", b"old")
    _, token = client.gets("py-cas-late")
    client.set("py-cas-late", b"newer")
    same(client.cas("py-cas-late", b"too late", token), False)
    same(client.get("py-cas-late"), b"newer")


def check_multiget(client):
    wanted = {f"py-multi-{index}": b"value %d" % index for index in range(100)}
    for key, value in wanted.items():
        client.set(key, value)
    same(client.get_many([*wanted, "py-multi-absent"]), wanted)


def check_big_value(client):
    value = os.urandom(BIG_BYTES)
    same(client.set("py-big", value), True)
    found = client.get("py-big")
    same(len(found), BIG_BYTES)
    same(hashlib.sha256(found).hexdigest(), hashlib.sha256(value).hexdigest())


CHECKS = [
    ("store", check_store),
    ("read", check_read),
    ("miss", check_miss),
    ("delete", check_delete),
    ("count", check_count),
    ("ttl", check_ttl),
    ("cas-match", check_cas_match),
    ("cas-mismatch", check_cas_mismatch),
    ("multiget", check_multiget),
    ("big-value", check_big_value),
]


def report(name, check, *operands):
    """Runs one check and prints its line. Returns whether it passed."""
    try:
        check(*operands)
        print(f"ok {name}")
        return True
    except Exception as error:  # any exception of the library is a failure of the check
        print(f"FAIL {name} {type(error).__name__}: {error}")
        return False


def check_wrong_password(address, user, password):
    """A client with a wrong password stores nothing."""
    client = pylibmc.Client([address], binary=True, username=user, password=password + "x")
    try:
        stored = client.set("py-wrong-password", b"x")
    except pylibmc.Error:
        return
    raise AssertionError(f"the store answered {stored}")


def main():
    """Runs every check with every client."""
    addresses, sasl_address, user, password = sys.argv[1:]
    address = addresses.split(",")[0]
    host, port = address.rsplit(":", 1)
    emcache_client = Emcache(host, int(port))
    clients = [
        Pymemcache(host, int(port)),
        Pylibmc("pylibmc", address, binary=False),
        Pylibmc("pylibmc-binary", address, binary=True),
        Pylibmc("pylibmc-sasl", sasl_address, binary=True, username=user, password=password),
        emcache_client,
    ]
    passed = [report(f"{c.name}.{name}", check, c) for c in clients for name, check in CHECKS]
    emcache_client.close()
    passed.append(
        report("pylibmc-sasl.wrong-password", check_wrong_password, sasl_address, user, password)
    )
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
