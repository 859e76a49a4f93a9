import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactory;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.DefaultHashAlgorithm;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.transcoders.SerializingTranscoder;

/**
 * Checks memcached servers with spymemcached: text, binary, and keys distributed by ketama.
 *
 * <p>Usage: java Checks HOST:PORT[,...]. Uses the first server, and all of them for ketama; ignores
 * further arguments. Prints one line a check, "ok NAME" or "FAIL NAME why"; ends with 1 if any failed.
 */
public final class Checks {
    private static final int BIG_BYTES = 1_000_000;
    private static final long EXPIRE_WITHIN_MS = 4_000;
    private static final long POLL_MS = 50;
    private static final long OPERATION_TIMEOUT_MS = 20_000;

    private static MemcachedClient client;

    private interface Check {
        void run() throws Exception;
    }

    private Checks() {}

    /** Fails the running check unless the two are equal. */
    private static void same(Object found, Object wanted) {
        if (found == null ? wanted != null : !found.equals(wanted)) {
            throw new IllegalStateException("found " + found + ", wanted " + wanted);
        }
    }

    private static boolean set(String key, int ttl, Object value) throws Exception {
        return client.set(key, ttl, value).get(OPERATION_TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    private static void store() throws Exception {
        same(set("java-store", 0, "first"), true);
        same(set("java-store", 0, "second"), true);
    }

    private static void read() throws Exception {
        set("java-read", 0, "a value\r\nof two lines");
        same(client.get("java-read"), "a value\r\nof two lines");
    }

    private static void miss() {
        same(client.get("java-never-stored"), null);
    }

    private static void delete() throws Exception {
        set("java-delete", 0, "x");
        same(client.delete("java-delete").get(OPERATION_TIMEOUT_MS, TimeUnit.MILLISECONDS), true);
        same(client.get("java-delete"), null);
    }

    private static void count() throws Exception {
        set("java-count", 0, "41");
        same(client.incr("java-count", 1_001), 1_042L);
        same(client.decr("java-count", 42), 1_000L);
    }

    /** The server counts whole seconds, so an item may expire at once. It is then stored again. */
    private static void ttl() throws Exception {
        boolean seen = false;
        for (int attempt = 0; attempt < 5 && !seen; attempt++) {
            set("java-ttl", 1, "soon gone");
            seen = client.get("java-ttl") != null;
        }
        same(seen, true);
        long deadline = System.nanoTime() + EXPIRE_WITHIN_MS * 1_000_000;
        while (client.get("java-ttl") != null) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("outlived its TTL of 1 s by " + EXPIRE_WITHIN_MS);
            }
            Thread.sleep(POLL_MS);
        }
    }

    private static void casMatch() throws Exception {
        set("java-cas", 0, "old");
        CASValue<Object> item = client.gets("java-cas");
        same(item.getValue(), "old");
        same(client.cas("java-cas", item.getCas(), "new"), CASResponse.OK);
        same(client.get("java-cas"), "new");
    }

    private static void casMismatch() throws Exception {
        set("java-cas-late", 0, "old");
        CASValue<Object> item = client.gets("java-cas-late");
        set("java-cas-late", 0, "newer");
        same(client.cas("java-cas-late", item.getCas(), "too late"), CASResponse.EXISTS);
        same(client.get("java-cas-late"), "newer");
    }

    private static void multiget() throws Exception {
        Map<String, Object> wanted = new HashMap<>();
        for (int index = 0; index < 100; index++) {
            wanted.put("java-multi-" + index, "value " + index);
            set("java-multi-" + index, 0, "value " + index);
        }
        List<String> keys = new ArrayList<>(wanted.keySet());
        keys.add("java-multi-absent");
        same(new HashMap<>(client.getBulk(keys)), wanted);
    }

    private static void bigValue() throws Exception {
        byte[] value = new byte[BIG_BYTES];
        new Random().nextBytes(value);
        same(set("java-big", 0, value), true);
        byte[] found = (byte[]) client.get("java-big");
        same(found.length, BIG_BYTES);
        MessageDigest hash = MessageDigest.getInstance("SHA-256");
        byte[] wanted = hash.digest(value);
        same(Arrays.equals(hash.digest(found), wanted), true);
    }

    /** Each of the servers holds some of a hundred keys, and the client finds all of them. */
    private static void distribution(List<InetSocketAddress> servers) throws Exception {
        Map<String, Object> wanted = new HashMap<>();
        for (int index = 0; index < 100; index++) {
            wanted.put("java-ketama-" + index, "value " + index);
            set("java-ketama-" + index, 0, "value " + index);
        }
        same(new HashMap<>(client.getBulk(wanted.keySet())), wanted);
        int held = 0;
        for (InetSocketAddress server : servers) {
            MemcachedClient one = connect(List.of(server), ConnectionFactoryBuilder.Protocol.TEXT);
            int here = one.getBulk(wanted.keySet()).size();
            one.shutdown();
            same(here > 0, true);
            held += here;
        }
        same(held, wanted.size());
    }

    /** A client that never compresses what the checks store. */
    private static MemcachedClient connect(
            List<InetSocketAddress> servers, ConnectionFactoryBuilder.Protocol protocol)
            throws Exception {
        SerializingTranscoder transcoder = new SerializingTranscoder();
        transcoder.setCompressionThreshold(Integer.MAX_VALUE);
        ConnectionFactory factory =
                new ConnectionFactoryBuilder()
                        .setProtocol(protocol)
                        .setLocatorType(ConnectionFactoryBuilder.Locator.CONSISTENT)
                        .setHashAlg(DefaultHashAlgorithm.KETAMA_HASH)
                        .setTranscoder(transcoder)
                        .setOpTimeout(OPERATION_TIMEOUT_MS)
                        .build();
        return new MemcachedClient(factory, servers);
    }

    /** Runs one check and prints its line. Returns whether it passed. */
    private static boolean report(String name, Check check) {
        try {
            check.run();
            System.out.println("ok " + name);
            return true;
        } catch (Exception error) {
            System.out.println("FAIL " + name + " " + error);
            return false;
        }
    }

    /** Runs all checks with the present client. Returns whether they passed. */
    private static boolean reportAll(String name) {
        String[] names = {
            "store", "read", "miss", "delete", "count", "ttl", "cas-match", "cas-mismatch", "multiget",
            "big-value"
        };
        Check[] checks = {
            Checks::store, Checks::read, Checks::miss, Checks::delete, Checks::count, Checks::ttl,
            Checks::casMatch, Checks::casMismatch, Checks::multiget, Checks::bigValue
        };
        boolean passed = true;
        for (int index = 0; index < checks.length; index++) {
            passed &= report(name + "." + names[index], checks[index]);
        }
        return passed;
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
        Logger.getLogger("net.spy.memcached").setLevel(Level.SEVERE);
        List<InetSocketAddress> servers = new ArrayList<>();
        for (String address : arguments[0].split(",")) {
            int colon = address.lastIndexOf(':');
            int port = Integer.parseInt(address.substring(colon + 1));
            servers.add(new InetSocketAddress(address.substring(0, colon), port));
        }
        boolean passed = true;
        client = connect(servers.subList(0, 1), ConnectionFactoryBuilder.Protocol.TEXT);
        passed &= reportAll("spymemcached");
        client.shutdown();
        client = connect(servers.subList(0, 1), ConnectionFactoryBuilder.Protocol.BINARY);
        passed &= reportAll("spymemcached-binary");
        client.shutdown();
        client = connect(servers, ConnectionFactoryBuilder.Protocol.BINARY);
        passed &= reportAll("spymemcached-ketama");
        passed &= report("spymemcached-ketama.distribution", () -> distribution(servers));
        client.shutdown();
        System.exit(passed ? 0 : 1);
    }
}
