import java.util.HashMap;
import java.util.Map;

/** Words of the form name=value. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] words, int first) {
        for (int at = first; at < words.length; at++) {
            String[] parts = words[at].split("=", 2);
            values.put(parts[0], parts[1]);
        }
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException(name + "=... is missing");
        }
        return value;
    }

    String text(String name, String missing) {
        return values.getOrDefault(name, missing);
    }

    int number(String name) {
        return Integer.parseInt(text(name));
    }

    int number(String name, int missing) {
        return Integer.parseInt(text(name, Integer.toString(missing)));
    }
}
