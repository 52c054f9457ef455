package shop;

import java.util.UUID;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cache.annotation.EnableCaching;
import org.springframework.context.annotation.Bean;
import org.springframework.data.redis.core.StringRedisTemplate;

/** Counts a visit of a customer, and shows the customer. */
@SpringBootApplication
@EnableCaching
public class Application {
    public static void main(String[] arguments) {
        SpringApplication.run(Application.class, arguments).close();
    }

    @Bean
    CommandLineRunner visit(Visits visits, Texts texts, StringRedisTemplate redis) {
        return arguments -> {
            long customer = arguments.length > 0 ? Long.parseLong(arguments[0]) : 1;
            // The same for each time that this visit is sent: here it is sent twice.
            String token = UUID.randomUUID().toString();
            System.out.println("points " + visits.count(customer, token));
            System.out.println("points " + visits.count(customer, token));
            System.out.println("row " + redis.opsForHash().entries("customers:" + customer));
            System.out.println("text " + texts.text(customer));
            System.out.println("text " + texts.text(customer));
        };
    }
}
