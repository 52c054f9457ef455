import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.redisson.Redisson;
import org.redisson.api.RMap;
import org.redisson.api.RedissonClient;
import org.redisson.api.map.MapLoader;
import org.redisson.api.map.MapWriter;
import org.redisson.api.map.WriteMode;
import org.redisson.api.options.MapOptions;
import org.redisson.client.codec.LongCodec;
import org.redisson.client.codec.StringCodec;
import org.redisson.codec.CompositeCodec;
import org.redisson.config.Config;

/** An RMap whose MapWriter writes behind. */
final class Redissons implements Side, Side.Session {
    /** A drain in which nothing has moved for so long has come to its end. */
    private static final long PATIENCE_NS = 5_000_000_000L;

    private final RedissonClient client;
    private final RMap<Long, String> map;
    private final Rows rows;

    Redissons(Options options, Rows rows) {
        this.rows = rows;
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + options.text("server"));
        client = Redisson.create(config);
        Writer writer = new Writer();
        MapOptions<Long, String> settings = MapOptions.name(options.text("table"));
        settings.codec(new CompositeCodec(LongCodec.INSTANCE, StringCodec.INSTANCE));
        settings.writer(writer).loader(writer).writeMode(WriteMode.WRITE_BEHIND);
        settings.writeBehindDelay(options.number("delay_ms")).writeBehindBatchSize(options.number("batch"));
        int attempts = options.number("attempts", 0);
        if (attempts > 0) {
            settings.writeRetryAttempts(attempts).writeRetryInterval(Duration.ofMillis(500));
        }
        map = client.getMap(settings);
    }

    @Override
    public Session session() {
        return this;
    }

    @Override
    public String get(long key) {
        return map.get(key);
    }

    /** As documented for those who do not need the former value. */
    @Override
    public void put(long key, String value) {
        map.fastPut(key, value);
    }

    @Override
    public void remove(long key) {
        map.fastRemove(key);
    }

    /** It has no call for that. So what its writer has written is compared with what was acknowledged. */
    @Override
    public void drain(Acknowledged acknowledged) throws InterruptedException {
        long batches = rows.batches();
        long moved = System.nanoTime();
        for (int key = 0; key < acknowledged.records(); key++) {
            while (rows.written(key) < acknowledged.last(key)) {
                if (rows.batches() != batches) {
                    batches = rows.batches();
                    moved = System.nanoTime();
                } else if (System.nanoTime() - moved > PATIENCE_NS) {
                    return;
                }
                Thread.sleep(1);
            }
        }
    }

    @Override
    public void shutdown() {
        client.shutdown();
    }

    private final class Writer implements MapWriter<Long, String>, MapLoader<Long, String> {
        @Override
        public void write(Map<Long, String> values) {
            rows.store(values);
        }

        @Override
        public void delete(Collection<Long> keys) {
            rows.delete(keys);
        }

        @Override
        public String load(Long key) {
            return rows.load(key);
        }

        @Override
        public Iterable<Long> loadAllKeys() {
            return List.of();
        }
    }
}
