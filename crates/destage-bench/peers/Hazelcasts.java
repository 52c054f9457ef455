import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.config.Config;
import com.hazelcast.config.JoinConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.config.NetworkConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import com.hazelcast.map.MapStore;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** An IMap whose MapStore writes behind: in a member of this process, or by a client. */
final class Hazelcasts implements Side, Side.Session {
    private static final String CLUSTER = "peers";

    private final HazelcastInstance instance;
    private final IMap<Long, String> map;

    private Hazelcasts(HazelcastInstance instance, String table) {
        this.instance = instance;
        map = instance.getMap(table);
    }

    /** A member that listens on this port of the loopback interface and joins those on the others. */
    static Hazelcasts member(Options options, Rows rows) {
        Config config = new Config();
        config.setClusterName(CLUSTER);
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.setProperty("hazelcast.socket.bind.any", "false");
        NetworkConfig network = config.getNetworkConfig();
        network.setPort(options.number("port")).setPortAutoIncrement(false);
        network.getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        JoinConfig join = network.getJoin();
        join.getAutoDetectionConfig().setEnabled(false);
        join.getMulticastConfig().setEnabled(false);
        String members = options.text("members", "");
        join.getTcpIpConfig().setEnabled(true);
        for (String member : members.isEmpty() ? new String[0] : members.split(",")) {
            join.getTcpIpConfig().addMember(member);
        }
        MapStoreConfig store = new MapStoreConfig();
        store.setEnabled(true).setImplementation(new Store(rows)).setInitialLoadMode(MapStoreConfig.InitialLoadMode.LAZY);
        store.setWriteDelaySeconds(options.number("delay_ms") / 1000).setWriteBatchSize(options.number("batch"));
        store.setWriteCoalescing(true);
        config.getMapConfig(options.text("table")).setMapStoreConfig(store);
        return new Hazelcasts(Hazelcast.newHazelcastInstance(config), options.text("table"));
    }

    static Hazelcasts client(Options options) {
        ClientConfig config = new ClientConfig();
        config.setClusterName(CLUSTER);
        config.getNetworkConfig().addAddress(options.text("members"));
        return new Hazelcasts(HazelcastClient.newHazelcastClient(config), options.text("table"));
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
        map.set(key, value);
    }

    @Override
    public void remove(long key) {
        map.delete(key);
    }

    @Override
    public void drain(Acknowledged acknowledged) {
        map.flush();
    }

    @Override
    public void shutdown() {
        instance.shutdown();
    }

    private static final class Store implements MapStore<Long, String> {
        private final Rows rows;

        Store(Rows rows) {
            this.rows = rows;
        }

        @Override
        public void store(Long key, String value) {
            rows.store(Map.of(key, value));
        }

        @Override
        public void storeAll(Map<Long, String> values) {
            rows.store(values);
        }

        @Override
        public void delete(Long key) {
            rows.delete(List.of(key));
        }

        @Override
        public void deleteAll(Collection<Long> keys) {
            rows.delete(keys);
        }

        @Override
        public String load(Long key) {
            return rows.load(key);
        }

        @Override
        public Map<Long, String> loadAll(Collection<Long> keys) {
            Map<Long, String> found = new HashMap<>();
            keys.forEach(key -> found.put(key, rows.load(key)));
            found.values().removeIf(value -> value == null);
            return found;
        }

        /** Nothing is loaded before it is asked for. */
        @Override
        public Iterable<Long> loadAllKeys() {
            return null;
        }
    }
}
