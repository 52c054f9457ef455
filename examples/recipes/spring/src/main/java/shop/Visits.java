package shop;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.stream.Stream;
import org.springframework.dao.DataAccessException;
import org.springframework.data.redis.core.RedisCallback;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.stereotype.Component;

/** Points of customers. */
@Component
class Visits {
    private static final int ATTEMPTS = 5;

    private final StringRedisTemplate redis;

    Visits(StringRedisTemplate redis) {
        this.redis = redis;
    }

    /** Counts a visit once for its token, however often it has to be sent. */
    long count(long customer, String token) {
        return once("visit:" + token, "HINCRBY", "customers:" + customer, "points", "1");
    }

    private long once(String token, String... command) {
        byte[][] words = Stream.concat(Stream.of("ONCE", token), Stream.of(command))
                .map(word -> word.getBytes(StandardCharsets.UTF_8))
                .toArray(byte[][]::new);
        RedisCallback<Object> send = connection -> connection.execute("DESTAGE", words);
        for (int attempt = 1; ; attempt++) {
            try {
                return ((Number) redis.execute(send)).longValue();
            } catch (DataAccessException error) {
                if (attempt == ATTEMPTS || isRefused(error)) {
                    throw error;
                }
                pause(Duration.ofMillis(100L << attempt));
            }
        }
    }

    /** Tells answers of the server that stay as they are from those that ask to send the command again. */
    private static boolean isRefused(DataAccessException error) {
        if (!(error.getMostSpecificCause() instanceof redis.clients.jedis.exceptions.JedisDataException answer)) {
            return false;
        }
        String text = String.valueOf(answer.getMessage());
        return !text.startsWith("UNAVAILABLE") && !text.startsWith("PENDING");
    }

    private static void pause(Duration time) {
        try {
            Thread.sleep(time.toMillis());
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(stopped);
        }
    }
}
