// A counter of visits.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	port := "6380"
	if len(os.Args) > 1 {
		port = os.Args[1]
	}
	client := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:" + port,
		// The server answers within --client-wait (4 s).
		ReadTimeout: 6 * time.Second,
		// Increments must not be sent again by the library.
		MaxRetries: -1,
	})
	ctx := context.Background()
	before, err := client.HGet(ctx, "customers:1", "points").Int64()
	if err != nil {
		log.Fatal(err)
	}
	// One for each visit, the same for each time that it is sent.
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		log.Fatal(err)
	}
	now, err := client.Do(ctx, "DESTAGE", "ONCE", hex.EncodeToString(token), "HINCRBY", "customers:1", "points", 1).Int64()
	if err != nil || now != before+1 {
		log.Fatal(now, before, err)
	}
	fmt.Println(client.HGetAll(ctx, "customers:1").Val())
}
