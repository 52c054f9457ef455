// go-redis, unmodified, calls what its arguments name and checks each answer.
//
// Usage: go-client PORT PROTOCOL rows|keys|differs [PASSWORD], or go-client sentinel HOST:PORT,HOST:PORT FIRST-ROW SECONDS FILE,
// or go-client tracking PORT
//
// rows: the hashes of the shop. keys: mapped sets, sorted sets and strings, and plain keys, which answer as Redis itself
// does. differs: what rows do that keys of Redis do not.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	ctx    = context.Background()
	checks int
)

func check(what string, got, wanted interface{}) {
	checks++
	if !reflect.DeepEqual(got, wanted) {
		log.Fatalf("%s: got %#v, wanted %#v", what, got, wanted)
	}
}

func must(what string, err error) {
	if err != nil {
		log.Fatalf("%s: %v", what, err)
	}
}

// refused expects an error that names what would help.
func refused(what string, err error, words ...string) {
	checks++
	if err == nil {
		log.Fatalf("%s: not refused", what)
	}
	for _, word := range words {
		if !strings.Contains(strings.ToLower(err.Error()), word) {
			log.Fatalf("%s: the error does not mention %q: %v", what, word, err)
		}
	}
}

func sorted(values []string) []string {
	sort.Strings(values)
	return values
}

func fields(r *redis.Client) {
	check("PING", r.Ping(ctx).Val(), "PONG")
	check("ECHO", r.Echo(ctx, "hello").Val(), "hello")
	check("HSET", r.HSet(ctx, "customers:10", "name", "Linus", "email", "l@x.org").Val(), int64(2))
	check("EXISTS", r.Exists(ctx, "customers:10", "customers:999").Val(), int64(1))
	check("TYPE", r.Type(ctx, "customers:10").Val(), "hash")
	check("HGET", r.HGet(ctx, "customers:10", "name").Val(), "Linus")
	check("HGET of a NULL", r.HGet(ctx, "customers:10", "note").Err(), redis.Nil)
	values := []interface{}{"l@x.org", nil, "0"}
	check("HMGET", r.HMGet(ctx, "customers:10", "email", "note", "visits").Val(), values)
	check("HSET of a NULL", r.HSet(ctx, "customers:10", "note", "").Val(), int64(1))
	check("HDEL", r.HDel(ctx, "customers:10", "note", "email").Val(), int64(2))
	check("HEXISTS", r.HExists(ctx, "customers:10", "email").Val(), false)
	check("HSETNX", r.HSetNX(ctx, "customers:10", "email", "new@x.org").Val(), true)
	check("HINCRBY", r.HIncrBy(ctx, "customers:10", "visits", 3).Val(), int64(3))
	must("HSET", r.HSet(ctx, "customers:10", "balance", "12.5").Err())
	check("HINCRBYFLOAT", r.HIncrByFloat(ctx, "customers:10", "balance", 0.25).Val(), 12.75)
	row := map[string]string{
		"id": "10", "name": "Linus", "email": "new@x.org", "visits": "3", "balance": "12.75",
	}
	check("HGETALL", r.HGetAll(ctx, "customers:10").Val(), row)
	check("HLEN", r.HLen(ctx, "customers:10").Val(), int64(5))
	names := []string{"balance", "email", "id", "name", "visits"}
	check("HKEYS", sorted(r.HKeys(ctx, "customers:10").Val()), names)
	check("HVALS", len(r.HVals(ctx, "customers:10").Val()), 5)
	check("HMSET", r.HMSet(ctx, "customers:11", "name", "Ken").Val(), true)
	check("DEL", r.Del(ctx, "customers:11").Val(), int64(1))
	check("UNLINK", r.Unlink(ctx, "customers:11").Val(), int64(0))
}

func groups(r *redis.Client) {
	found := map[string]bool{}
	keys := r.Scan(ctx, 0, "customers:*", 2).Iterator()
	for keys.Next(ctx) {
		found[keys.Val()] = true
	}
	must("SCAN", keys.Err())
	check("SCAN", found["customers:1"] && found["customers:2"] && found["customers:10"], true)

	replies, err := r.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, "orders:50", "customer_id", "10", "status", "new")
		p.HSet(ctx, "order_lines:50:1", "quantity", "3")
		p.HIncrBy(ctx, "products:1", "stock", -3)
		return nil
	})
	must("MULTI EXEC", err)
	check("HSET in EXEC", replies[0].(*redis.IntCmd).Val(), int64(2))
	check("HINCRBY in EXEC", replies[2].(*redis.IntCmd).Val(), int64(7))

	_, err = r.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n := 100; n < 150; n++ {
			p.HSet(ctx, "customers:"+strconv.Itoa(n), "name", "customer "+strconv.Itoa(n))
		}
		return nil
	})
	must("pipeline", err)
	check("after the pipeline", r.HGet(ctx, "customers:149", "name").Val(), "customer 149")

	aof, err := r.Do(ctx, "WAITAOF", 1, 0, 1000).Slice()
	must("WAITAOF", err)
	check("WAITAOF", aof[0], interface{}(int64(1)))
	next, err := r.Do(ctx, "DESTAGE", "NEXTID", "orders").Int64()
	must("DESTAGE NEXTID", err)
	check("DESTAGE NEXTID", next > 1, true)
	must("DESTAGE WAIT", r.Do(ctx, "DESTAGE", "WAIT", 10000).Err())
}

func errors(r *redis.Client) {
	refused("unsupported command", r.LPush(ctx, "customers:10", "x").Err(), "lpush")
	refused("unknown table", r.HSet(ctx, "nosuch:1", "name", "x").Err(), "nosuch")
	refused("unknown column", r.HSet(ctx, "customers:10", "nosuch", "x").Err(), "nosuch")
	half := r.HSet(ctx, "customers:10", "name", "half", "visits", "many")
	refused("unfitting value", half.Err(), "visits")
	check("nothing half done", r.HGet(ctx, "customers:10", "name").Val(), "Linus")
	_, err := r.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, "customers:10", "name", "half")
		p.HSet(ctx, "customers:10", "visits", "many")
		return nil
	})
	refused("EXEC with an error", err)
	check("nothing half executed", r.HGet(ctx, "customers:10", "name").Val(), "Linus")
}

func main() {
	if os.Args[1] == "sentinel" {
		sentinel(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
		return
	}
	if os.Args[1] == "tracking" {
		tracking(os.Args[2])
		return
	}
	protocol, err := strconv.Atoi(os.Args[2])
	must("PROTOCOL", err)
	options := &redis.Options{
		Addr: "127.0.0.1:" + os.Args[1], Protocol: protocol, MaxRetries: -1,
	}
	if len(os.Args) > 4 {
		options.Password = os.Args[4]
	}
	r := redis.NewClient(options)
	switch os.Args[3] {
	case "rows":
		fields(r)
		groups(r)
		errors(r)
	case "keys":
		answers(r, protocol)
	case "differs":
		differs(r, protocol)
	default:
		log.Fatalf("no section %s", os.Args[3])
	}
	must("close", r.Close())
	fmt.Printf("go-redis protocol %d: %d checks\n", protocol, checks)
}
