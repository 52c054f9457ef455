import java.nio.charset.StandardCharsets;
import redis.clients.jedis.Jedis;

/** `destage serve`, by Jedis. */
final class Destages implements Side {
    /** A drain may take a while. */
    private static final int TIMEOUT_MS = 120_000;

    private final String host;
    private final int port;
    private final String table;

    Destages(Options options) {
        String[] server = options.text("server").split(":");
        host = server[0];
        port = Integer.parseInt(server[1]);
        table = options.text("table");
    }

    @Override
    public Session session() {
        return new Connection(new Jedis(host, port, TIMEOUT_MS));
    }

    @Override
    public void drain(Acknowledged acknowledged) {
        try (Jedis jedis = new Jedis(host, port, TIMEOUT_MS)) {
            jedis.sendCommand(() -> "DESTAGE".getBytes(StandardCharsets.US_ASCII), "DRAIN");
        }
    }

    /** The server is another process. */
    @Override
    public void shutdown() {}

    private final class Connection implements Session {
        private final Jedis jedis;

        Connection(Jedis jedis) {
            this.jedis = jedis;
        }

        private String name(long key) {
            return table + ":" + key;
        }

        @Override
        public String get(long key) {
            return jedis.hget(name(key), "v");
        }

        @Override
        public void put(long key, String value) {
            jedis.hset(name(key), "v", value);
        }

        @Override
        public void remove(long key) {
            jedis.del(name(key));
        }
    }
}
