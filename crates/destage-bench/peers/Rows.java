import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Collection;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;

/** The table, through JDBC: each batch is one transaction of as few statements as the driver makes of it. */
final class Rows {
    private static final int SERIAL_DIGITS = 12;

    private final String url;
    private final String upsert;
    private final String delete;
    private final String select;
    private final ConcurrentLinkedQueue<Connection> idle = new ConcurrentLinkedQueue<>();
    /** The serial number that the table holds of each record, as far as this program has written it. */
    private final AtomicLongArray written;
    private final AtomicLong batches = new AtomicLong();
    private final AtomicLong failures = new AtomicLong();

    Rows(String url, String table, int records) {
        this.url = url + (url.contains("?") ? "&" : "?") + "reWriteBatchedInserts=true";
        upsert = "INSERT INTO " + table + " (id, v) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v";
        delete = "DELETE FROM " + table + " WHERE id = ANY (?)";
        select = "SELECT v FROM " + table + " WHERE id = ?";
        written = new AtomicLongArray(records);
    }

    static long serial(String value) {
        return Long.parseLong(value.substring(0, SERIAL_DIGITS));
    }

    static String value(long serial, String rest) {
        char[] digits = new char[SERIAL_DIGITS];
        for (int at = SERIAL_DIGITS - 1; at >= 0; at--) {
            digits[at] = (char) ('0' + serial % 10);
            serial /= 10;
        }
        return new String(digits) + rest;
    }

    long written(int key) {
        return written.get(key);
    }

    long batches() {
        return batches.get();
    }

    long failures() {
        return failures.get();
    }

    /** What a map's own threads call has no checked exceptions. */
    private interface Work<T> {
        T on(Connection connection) throws SQLException;
    }

    private <T> T transaction(Work<T> work) {
        Connection connection = null;
        try {
            connection = idle.poll();
            if (connection == null) {
                connection = DriverManager.getConnection(url);
                connection.setAutoCommit(false);
            }
            T result = work.on(connection);
            connection.commit();
            idle.add(connection);
            return result;
        } catch (SQLException failure) {
            failures.incrementAndGet();
            close(connection);
            throw new IllegalStateException(failure.getMessage(), failure);
        }
    }

    private static void close(Connection connection) {
        try {
            if (connection != null) {
                connection.close();
            }
        } catch (SQLException broken) {
            // It is given up in any case.
        }
    }

    String load(long key) {
        return transaction(connection -> {
            try (PreparedStatement statement = connection.prepareStatement(select)) {
                statement.setLong(1, key);
                try (ResultSet rows = statement.executeQuery()) {
                    return rows.next() ? rows.getString(1) : null;
                }
            }
        });
    }

    void store(Map<Long, String> values) {
        transaction(connection -> {
            try (PreparedStatement statement = connection.prepareStatement(upsert)) {
                for (Map.Entry<Long, String> entry : values.entrySet()) {
                    statement.setLong(1, entry.getKey());
                    statement.setString(2, entry.getValue());
                    statement.addBatch();
                }
                return statement.executeBatch();
            }
        });
        batches.incrementAndGet();
        values.forEach((key, value) -> written.set(key.intValue(), serial(value)));
    }

    void delete(Collection<Long> keys) {
        transaction(connection -> {
            try (PreparedStatement statement = connection.prepareStatement(delete)) {
                statement.setArray(1, connection.createArrayOf("bigint", keys.toArray()));
                return statement.executeUpdate();
            }
        });
        batches.incrementAndGet();
    }
}
