import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.Locale;

/**
 * Stands on one side of `destage-bench peers`. It takes commands, a line each, and answers each by a line of JSON.
 *
 * <p>java Peers SIDE table=NAME records=COUNT threads=COUNT acknowledged=FILE ...
 */
final class Peers {
    private static final long SERIALS = 10_000_000_000L;

    private final Side side;
    private final Rows rows;
    private final Acknowledged acknowledged;
    private final int threads;
    private long loads;

    private Peers(String name, Options options) throws Exception {
        int records = options.number("records");
        threads = options.number("threads");
        loads = options.number("loads", 0);
        acknowledged = new Acknowledged(Path.of(options.text("acknowledged")), records);
        rows = new Rows(options.text("jdbc"), options.text("table"), records);
        side = switch (name) {
            case "hazelcast" -> Hazelcasts.member(options, rows);
            case "hazelcast-client" -> Hazelcasts.client(options);
            case "redisson" -> new Redissons(options, rows);
            case "destage" -> new Destages(options);
            default -> throw new IllegalArgumentException("unknown side " + name);
        };
    }

    public static void main(String[] arguments) throws Exception {
        Locale.setDefault(Locale.ROOT);
        Peers peers = new Peers(arguments[0], new Options(arguments, 1));
        System.out.println("{\"ready\":true}");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.trim().split(" +");
            String answer;
            try {
                answer = peers.perform(words[0], new Options(words, 1));
            } catch (Exception failure) {
                answer = "\"error\":" + quoted(failure.toString());
            }
            System.out.println("{" + answer + "}");
        }
        // Whoever gave the commands is gone.
        Runtime.getRuntime().halt(0);
    }

    static String quoted(String text) {
        return '"' + text.replaceAll("[^ -~]", " ").replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    private String perform(String command, Options options) throws Exception {
        switch (command) {
            case "warm":
                return warm();
            case "load":
                loads++;
                return new Load(side, acknowledged, options, threads, loads * SERIALS).run();
            case "drain":
                long start = System.nanoTime();
                side.drain(acknowledged);
                return String.format("\"seconds\":%.6f", (System.nanoTime() - start) / 1e9);
            case "store":
                return String.format("\"batches\":%d,\"failures\":%d", rows.batches(), rows.failures());
            case "shutdown":
                side.shutdown();
                return "\"done\":true";
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    /** Reads each record once. */
    private String warm() throws InterruptedException {
        Thread[] readers = new Thread[threads];
        long[] found = new long[threads];
        for (int number = 0; number < threads; number++) {
            int lane = number;
            readers[lane] = new Thread(() -> {
                Side.Session session = side.session();
                for (int key = lane; key < acknowledged.records(); key += threads) {
                    found[lane] += session.get(key) == null ? 0 : 1;
                }
            });
            readers[lane].start();
        }
        long all = 0;
        for (int lane = 0; lane < threads; lane++) {
            readers[lane].join();
            all += found[lane];
        }
        return "\"found\":" + all;
    }
}
