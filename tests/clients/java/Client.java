// Calls a server as YCSB's Redis binding does: rows under the keys that it makes, and an index of all of them.

import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import redis.clients.jedis.Jedis;

final class Client {
    private static final String INDEX = "_indices";
    private static final int ROWS = 60;
    private static final int FIELDS = 10;

    private final Jedis jedis;
    private int checks;

    private Client(Jedis jedis) {
        this.jedis = jedis;
    }

    public static void main(String[] arguments) {
        try (Jedis jedis = new Jedis("127.0.0.1", Integer.parseInt(arguments[0]), 120_000)) {
            jedis.connect();
            Client client = new Client(jedis);
            client.load();
            client.run();
            System.out.println(client.checks + " checks");
        }
    }

    private static String key(int row) {
        return "user" + (6_284_781_860_667_377_211L + row * 7_919L);
    }

    /** As the binding computes a row's place in the index. */
    private static double place(String key) {
        return key.hashCode();
    }

    private static Map<String, String> values(int row, String prefix) {
        Map<String, String> values = new HashMap<>();
        for (int field = 0; field < FIELDS; field++) {
            values.put("field" + field, (prefix + row + "-" + field + "-" + "x".repeat(100)).substring(0, 100));
        }
        return values;
    }

    private void check(Object found, Object expected, String what) {
        checks++;
        if (!expected.equals(found)) {
            throw new AssertionError(what + ": " + found + " instead of " + expected);
        }
    }

    private void load() {
        for (int row = 0; row < ROWS; row++) {
            check(jedis.hmset(key(row), values(row, "a")), "OK", "hmset");
            check(jedis.zadd(INDEX, place(key(row)), key(row)), 1L, "zadd");
        }
    }

    private void run() {
        check(read(key(5)), values(5, "a"), "hgetAll");
        List<String> some = jedis.hmget(key(6), "field3", "field0");
        check(some, List.of(values(6, "a").get("field3"), values(6, "a").get("field0")), "hmget");
        Map<String, String> update = new HashMap<>();
        update.put("field7", "changed");
        check(jedis.hmset(key(5), update), "OK", "update");
        check(jedis.hget(key(5), "field7"), "changed", "hget");
        scan(key(9), 7);
        scan(key(0), 1);
        scan(key(30), 1000);
        check(jedis.del(key(9)), 1L, "del");
        check(jedis.zrem(INDEX, key(9)), 1L, "zrem");
        check(jedis.del(key(9)), 0L, "del of what is gone");
        check(jedis.zrem(INDEX, key(9)), 0L, "zrem of what is gone");
        check(read(key(9)), Map.of(), "hgetAll of what is gone");
        check(jedis.zscore(INDEX, key(5)), place(key(5)), "zscore");
    }

    /** A row as the binding reads it; without its key, which is one of its columns here. */
    private Map<String, String> read(String key) {
        Map<String, String> row = new HashMap<>(jedis.hgetAll(key));
        row.remove("ycsb_key");
        return row;
    }

    private void scan(String start, int count) {
        Set<String> keys = jedis.zrangeByScore(INDEX, place(start), Double.POSITIVE_INFINITY, 0, count);
        int beyond = 0;
        Set<String> expected = new HashSet<>();
        for (int row = 0; row < ROWS; row++) {
            if (place(key(row)) >= place(start)) {
                beyond++;
                expected.add(key(row));
            }
        }
        check(keys.size(), Math.min(count, beyond), "rows of a scan");
        check(expected.containsAll(keys), true, "keys of a scan");
        for (String key : keys) {
            check(read(key).size(), FIELDS, "fields of a scanned row");
        }
    }
}
