import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.locks.LockSupport;

/** Threads in a closed loop, the same for every side. Each has records of its own, so that the last write of a record is known. */
final class Load {
    /** Latencies above this many microseconds are counted as this. */
    private static final int LATENCY_MAX_US = 200_000;
    private static final int FAILURES_MAX = 3;

    private final Side side;
    private final Acknowledged acknowledged;
    private final Options options;
    private final int threads;
    private final String rest;
    private final long first;

    /** Serial numbers begin above those of earlier loads. */
    Load(Side side, Acknowledged acknowledged, Options options, int threads, long first) {
        this.side = side;
        this.acknowledged = acknowledged;
        this.options = options;
        this.threads = threads;
        this.first = first;
        rest = ".".repeat(options.number("bytes", 100) - 12);
    }

    /** What one thread has done. */
    private final class Lane extends Thread {
        private final int number;
        private final int[] latencies = new int[LATENCY_MAX_US + 1];
        private long requests;
        private long failures;
        private long wrong;
        private String failure = "";
        private long serial = first;

        Lane(int number) {
            this.number = number;
        }

        @Override
        public void run() {
            Side.Session session = side.session();
            SplittableRandom random = new SplittableRandom(options.number("seed") * 1000L + number);
            int own = acknowledged.records() / threads;
            // "each": every write is of a record of its own.
            boolean each = options.text("keys", "random").equals("each");
            int updates = options.number("updates", 100);
            int deletes = options.number("deletes", 0);
            int poison = number == 0 ? options.number("poison", -1) : -1;
            long rate = options.number("rate", 0);
            long start = System.nanoTime();
            long end = start + options.number("milliseconds") * 1_000_000L;
            for (long turn = 0; System.nanoTime() < end && failures < FAILURES_MAX && !(each && turn == own); turn++) {
                if (rate > 0) {
                    LockSupport.parkNanos(start + turn * threads * 1_000_000_000L / rate - System.nanoTime());
                }
                int key = number + threads * (each ? (int) turn : random.nextInt(own));
                boolean writes = random.nextInt(100) < updates;
                boolean deletion = writes && random.nextInt(100) < deletes;
                long before = System.nanoTime();
                try {
                    if (!writes) {
                        read(session, key);
                    } else if (deletion) {
                        serial++;
                        session.remove(key);
                        acknowledged.set(key, -serial);
                    } else {
                        serial++;
                        session.put(key, Rows.value(serial, turn == poison ? "poison" : rest));
                        acknowledged.set(key, serial);
                    }
                    requests++;
                } catch (RuntimeException refused) {
                    failures++;
                    failure = refused.toString();
                }
                latencies[(int) Math.min((System.nanoTime() - before) / 1000, LATENCY_MAX_US)]++;
            }
        }

        private void read(Side.Session session, int key) {
            String value = session.get(key);
            long expected = acknowledged.last(key);
            if (value == null || (expected != 0 && Rows.serial(value) != expected)) {
                wrong++;
            }
        }
    }

    /** What all threads did, as the members of a JSON object. */
    String run() throws InterruptedException {
        List<Lane> lanes = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            lanes.add(new Lane(number));
        }
        long start = System.nanoTime();
        lanes.forEach(Thread::start);
        long requests = 0;
        long failures = 0;
        long wrong = 0;
        String failure = "";
        long[] latencies = new long[LATENCY_MAX_US + 1];
        for (Lane lane : lanes) {
            lane.join();
            requests += lane.requests;
            failures += lane.failures;
            wrong += lane.wrong;
            failure = lane.failure.isEmpty() ? failure : lane.failure;
            for (int us = 0; us <= LATENCY_MAX_US; us++) {
                latencies[us] += lane.latencies[us];
            }
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        return String.format("\"requests\":%d,\"failures\":%d,\"wrong_reads\":%d,\"seconds\":%.6f,\"p50_us\":%d,\"p99_us\":%d,\"failure\":%s",
            requests, failures, wrong, seconds, quantile(latencies, 0.5), quantile(latencies, 0.99), Peers.quoted(failure));
    }

    private static int quantile(long[] latencies, double share) {
        long all = 0;
        for (long count : latencies) {
            all += count;
        }
        long seen = 0;
        for (int us = 0; us < latencies.length; us++) {
            seen += latencies[us];
            if (seen > 0 && seen >= share * all) {
                return us;
            }
        }
        return 0;
    }
}
