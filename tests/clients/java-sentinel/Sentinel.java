// Jedis, unmodified, as a client that finds the owner of a log by look-ups of Sentinel's protocol: it adds to one row after the
// other, and says of each what it was told.
//
// Usage: java -cp ... Sentinel HOST:PORT,HOST:PORT FIRST-ROW SECONDS FILE
//
// It ends once there is such a file, or after so many seconds.

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisSentinelPool;
import redis.clients.jedis.exceptions.JedisException;

final class Sentinel {
    private static final int PATIENCE_MS = 2_000;

    public static void main(String[] arguments) throws InterruptedException {
        HashSet<String> places = new HashSet<>(Arrays.asList(arguments[0].split(",")));
        long row = Long.parseLong(arguments[1]);
        long until = System.nanoTime() + (long) (Double.parseDouble(arguments[2]) * 1e9);
        Path end = Path.of(arguments[3]);
        GenericObjectPoolConfig<Jedis> few = new GenericObjectPoolConfig<>();
        try (JedisSentinelPool owners = new JedisSentinelPool("destage", places, few, PATIENCE_MS)) {
            for (; System.nanoTime() < until && !Files.exists(end); row++) {
                try (Jedis owner = owners.getResource()) {
                    long answer = owner.hincrBy("t:" + row, "n", 1);
                    System.out.println((answer == 1 ? "told " : "wrong:" + answer + " ") + row);
                } catch (JedisException unanswered) {
                    System.out.println("unknown " + row);
                    Thread.sleep(20);
                }
            }
        }
        System.exit(0);
    }
}
