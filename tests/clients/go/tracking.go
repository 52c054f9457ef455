package main

import (
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

// tracking has rueidis, as it is by default, hold copies of what it reads: what others change is read anew. It finds a row
// customers:1.
func tracking(port string) {
	place := rueidis.ClientOption{InitAddress: []string{"127.0.0.1:" + port}}
	reader, err := rueidis.NewClient(place)
	must("connect", err)
	defer reader.Close()
	writer, err := rueidis.NewClient(place)
	must("connect", err)
	defer writer.Close()

	get := func() (string, bool) {
		read := reader.B().Hget().Key("customers:1").Field("name").Cache()
		answer := reader.DoCache(ctx, read, time.Hour)
		name, err := answer.ToString()
		must("HGET", err)
		return name, answer.IsCacheHit()
	}
	hits, until := 0, time.Now().Add(time.Minute)
	for round := 0; round < 20; round++ {
		name := fmt.Sprintf("name %d", round)
		write := writer.B().Hset().Key("customers:1").FieldValue().FieldValue("name", name).Build()
		must("HSET", writer.Do(ctx, write).Error())
		// Once it was told, what it reads is new, and nothing else follows.
		got, _ := get()
		for got != name && time.Now().Before(until) {
			time.Sleep(time.Millisecond)
			got, _ = get()
		}
		for again := 0; again < 5; again++ {
			got, hit := get()
			check("HGET", got, name)
			if hit {
				hits++
			}
		}
	}
	check("it reads from its cache", hits >= 80, true)
	fmt.Printf("rueidis: %d checks\n", checks)
}
