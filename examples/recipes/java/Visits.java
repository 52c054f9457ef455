import redis.clients.jedis.Jedis;
import redis.clients.jedis.Transaction;

/** A counter of visits, with Jedis. */
public class Visits {
    public static void main(String[] args) {
        int port = args.length > 0 ? Integer.parseInt(args[0]) : 6380;
        // The server answers within --client-wait (4 s): wait for longer. Jedis sends nothing again by itself.
        try (Jedis client = new Jedis("127.0.0.1", port, 2_000, 6_000)) {
            long before = Long.parseLong(client.hget("customers:1", "points"));
            Transaction both = client.multi();
            both.hincrBy("customers:1", "points", 1);
            both.hset("customers:1", "city", "Oslo");
            both.exec();
            long now = Long.parseLong(client.hget("customers:1", "points"));
            if (now != before + 1) {
                throw new IllegalStateException(now + " after " + before);
            }
            System.out.println(client.hgetAll("customers:1"));
        }
    }
}
