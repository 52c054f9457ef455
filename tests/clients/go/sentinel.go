package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentinel finds the owner of a log by look-ups of Sentinel's protocol, adds to one row after the other, and says of each what
// it was told. It ends once there is a file called end, or after so many
// seconds.
func sentinel(places, first, seconds, end string) {
	row, err := strconv.Atoi(first)
	must("first row", err)
	span, err := strconv.ParseFloat(seconds, 64)
	must("seconds", err)
	owner := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:    "destage",
		SentinelAddrs: strings.Split(places, ","),
		// What may have been done is not sent again: the test counts.
		MaxRetries:  -1,
		DialTimeout: 2 * time.Second,
		ReadTimeout: 2 * time.Second,
	})
	isOver := func() bool {
		_, err := os.Stat(end)
		return err == nil
	}
	until := time.Now().Add(time.Duration(span * float64(time.Second)))
	for ; time.Now().Before(until) && !isOver(); row++ {
		answer, err := owner.HIncrBy(ctx, fmt.Sprintf("t:%d", row), "n", 1).Result()
		switch {
		case err != nil:
			fmt.Println("unknown", row)
			time.Sleep(20 * time.Millisecond)
		case answer == 1:
			fmt.Println("told", row)
		default:
			log.Fatalf("row %d: %d", row, answer)
		}
	}
}
