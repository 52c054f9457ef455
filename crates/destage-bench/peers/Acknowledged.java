import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.FileChannel.MapMode;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * The serial number of the last write of each record that was acknowledged; below zero if it was a deletion. They are in a mapped
 * file, so that they outlive this process. A record has one writer only.
 */
final class Acknowledged {
    private final LongBuffer last;

    Acknowledged(Path file, int records) throws Exception {
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE, StandardOpenOption.CREATE)) {
            last = channel.map(MapMode.READ_WRITE, 0, 8L * records).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
        }
    }

    int records() {
        return last.capacity();
    }

    long last(int key) {
        return last.get(key);
    }

    void set(int key, long serial) {
        last.put(key, serial);
    }
}
