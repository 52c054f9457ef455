// Lettuce, unmodified, as a client that finds the owner of a log by look-ups of Sentinel's protocol: it adds to one row after the
// other, and says of each what it was told.
//
// Usage: java -cp ... Lettuce HOST:PORT,HOST:PORT FIRST-ROW SECONDS FILE
//
// It ends once there is such a file, or after so many seconds.

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;

final class Lettuce {
    private static final Duration PATIENCE = Duration.ofSeconds(2);

    public static void main(String[] arguments) throws InterruptedException {
        RedisURI.Builder owners = RedisURI.builder().withSentinelMasterId("destage").withTimeout(PATIENCE);
        for (String place : arguments[0].split(",")) {
            int colon = place.lastIndexOf(':');
            owners.withSentinel(place.substring(0, colon), Integer.parseInt(place.substring(colon + 1)));
        }
        long row = Long.parseLong(arguments[1]);
        long until = System.nanoTime() + (long) (Double.parseDouble(arguments[2]) * 1e9);
        Path end = Path.of(arguments[3]);
        RedisClient client = RedisClient.create(owners.build());
        // What has no answer when the connection breaks may be done. It is not sent again, since a second time would add again.
        client.setOptions(ClientOptions.builder()
            .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
            .replayFilter(command -> true)
            .build());
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            for (; System.nanoTime() < until && !Files.exists(end); row++) {
                try {
                    long answer = connection.sync().hincrby("t:" + row, "n", 1);
                    System.out.println((answer == 1 ? "told " : "wrong:" + answer + " ") + row);
                } catch (RedisException unanswered) {
                    System.out.println("unknown " + row);
                    Thread.sleep(20);
                }
            }
        }
        System.exit(0);
    }
}
