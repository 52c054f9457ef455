package shop;

import java.util.UUID;
import org.springframework.cache.annotation.Cacheable;
import org.springframework.stereotype.Component;

/** Texts that take long to make: each is made once in the cache's time-to-live. */
@Component
class Texts {
    @Cacheable("texts")
    public String text(long customer) {
        return customer + " " + UUID.randomUUID();
    }
}
