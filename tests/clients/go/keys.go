// Mapped sets, sorted sets and strings, and plain keys: what go-redis makes of the answers. Each protocol has keys of its
// own, so that both can be tried on one server.

package main

import (
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// is expects an answer of that type and value. With an error it would be the type's zero.
func is(what string, command redis.Cmder, wanted interface{}) {
	must(what, command.Err())
	got := reflect.ValueOf(command).MethodByName("Val").Call(nil)[0]
	check(what, got.Interface(), wanted)
}

// isNil expects nothing.
func isNil(what string, command redis.Cmder) {
	check(what, command.Err(), redis.Nil)
}

func answers(r *redis.Client, protocol int) {
	number := strconv.Itoa(protocol)
	sets(r, "tags:"+number, "red"+number)
	scores(r, "rank:"+number)
	ranges(r, "rank:"+number)
	members(r, "rank:"+number+"l")
	shapes(r, protocol)
	is("ZADD to all", r.ZAdd(ctx, "_indices", redis.Z{Score: 7, Member: "m" + number}), int64(1))
	is("ZINCRBY in all", r.ZIncrBy(ctx, "_indices", 3, "m"+number), 10.0)
	is("ZSCORE in all", r.ZScore(ctx, "_indices", "m"+number), 10.0)
	texts(r, "note:p"+number, "note:q"+number)
	numbers(r, "counter:"+number)
	plain(r, "session:"+number, "hits:"+number)
}

func sets(r *redis.Client, key, red string) {
	is("SADD", r.SAdd(ctx, key, red, "blue", "green", "blue"), int64(3))
	is("SADD again", r.SAdd(ctx, key, "blue", "white"), int64(1))
	is("SREM", r.SRem(ctx, key, "green", "black"), int64(1))
	got, err := r.SMembers(ctx, key).Result()
	must("SMEMBERS", err)
	check("SMEMBERS", sorted(got), []string{"blue", red, "white"})
	is("SMEMBERS as a set", r.SMembersMap(ctx, key), map[string]struct{}{"blue": {}, red: {}, "white": {}})
	is("SMEMBERS of nothing", r.SMembers(ctx, "tags:999"), []string{})
	is("SISMEMBER", r.SIsMember(ctx, key, "blue"), true)
	is("SISMEMBER not", r.SIsMember(ctx, key, "green"), false)
	is("SMISMEMBER", r.SMIsMember(ctx, key, "green", "blue", red), []bool{false, true, true})
	is("SCARD", r.SCard(ctx, key), int64(3))
	is("SCARD of nothing", r.SCard(ctx, "tags:999"), int64(0))
	is("TYPE", r.Type(ctx, key), "set")
	replies, err := r.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.SAdd(ctx, key, "grey")
		p.SMIsMember(ctx, key, "grey", "green")
		p.SRem(ctx, key, "grey")
		return nil
	})
	must("MULTI EXEC", err)
	check("SMISMEMBER in EXEC", replies[1].(*redis.BoolSliceCmd).Val(), []bool{true, false})
}

func scores(r *redis.Client, key string) {
	z := func(member string, score float64) redis.Z { return redis.Z{Score: score, Member: member} }
	add := func(options redis.ZAddArgs, members ...redis.Z) *redis.IntCmd {
		options.Members = members
		return r.ZAddArgs(ctx, key, options)
	}
	raise := func(options redis.ZAddArgs, member redis.Z) *redis.FloatCmd {
		options.Members = []redis.Z{member}
		return r.ZAddArgsIncr(ctx, key, options)
	}
	is("ZADD", r.ZAdd(ctx, key, z("ann", 1), z("bob", 2.5), z("cid", -3)), int64(3))
	is("ZADD again", r.ZAdd(ctx, key, z("ann", 1), z("dan", 7)), int64(1))
	is("ZADD NX", r.ZAddNX(ctx, key, z("ann", 50), z("eve", 4)), int64(1))
	is("ZADD XX", r.ZAddXX(ctx, key, z("ann", 10), z("fay", 4)), int64(0))
	is("ZADD XX CH", add(redis.ZAddArgs{XX: true, Ch: true}, z("ann", 11), z("bob", 2.5)), int64(1))
	is("ZADD GT", add(redis.ZAddArgs{GT: true, Ch: true}, z("ann", 5), z("bob", 3.25)), int64(1))
	is("ZADD LT", add(redis.ZAddArgs{LT: true, Ch: true}, z("ann", 12), z("cid", -4)), int64(1))
	is("ZADD INCR", raise(redis.ZAddArgs{}, z("ann", 0.5)), 11.5)
	isNil("ZADD XX INCR", raise(redis.ZAddArgs{XX: true}, z("nobody", 1)))
	isNil("ZADD NX INCR", raise(redis.ZAddArgs{NX: true}, z("ann", 1)))
	is("ZSCORE", r.ZScore(ctx, key, "bob"), 3.25)
	isNil("ZSCORE of nobody", r.ZScore(ctx, key, "nobody"))
	is("ZMSCORE", r.ZMScore(ctx, key, "cid", "dan"), []float64{-4, 7})
	is("ZINCRBY", r.ZIncrBy(ctx, key, 1.75, "bob"), 5.0)
	is("ZINCRBY of a new member", r.ZIncrBy(ctx, key, -2, "gus"), -2.0)
	is("ZREM", r.ZRem(ctx, key, "gus", "nobody"), int64(1))
	is("ZCARD", r.ZCard(ctx, key), int64(5))
	is("ZCARD of nothing", r.ZCard(ctx, "rank:none"), int64(0))
	is("ZCOUNT", r.ZCount(ctx, key, "4", "7"), int64(3))
	is("ZCOUNT without its ends", r.ZCount(ctx, key, "(4", "(7"), int64(1))
	is("ZRANK", r.ZRank(ctx, key, "eve"), int64(1))
	is("ZREVRANK", r.ZRevRank(ctx, key, "eve"), int64(3))
	isNil("ZRANK of nobody", r.ZRank(ctx, key, "nobody"))
	is("TYPE", r.Type(ctx, key), "zset")
}

// ranges by place and by score, from both ends, with and without scores.
func ranges(r *redis.Client, key string) {
	all := []redis.Z{
		{Score: -4, Member: "cid"}, {Score: 4, Member: "eve"}, {Score: 5, Member: "bob"},
		{Score: 7, Member: "dan"}, {Score: 11.5, Member: "ann"},
	}
	is("ZRANGE", r.ZRange(ctx, key, 0, -1), []string{"cid", "eve", "bob", "dan", "ann"})
	is("ZRANGE from the end", r.ZRange(ctx, key, -2, -1), []string{"dan", "ann"})
	is("ZRANGE of nothing", r.ZRange(ctx, key, 7, 9), []string{})
	is("ZRANGE WITHSCORES", r.ZRangeWithScores(ctx, key, 0, -1), all)
	is("ZREVRANGE", r.ZRevRange(ctx, key, 0, 1), []string{"ann", "dan"})
	is("ZREVRANGE WITHSCORES", r.ZRevRangeWithScores(ctx, key, 0, 0), all[4:])
	by := redis.ZRangeArgs{Key: key, Start: "4", Stop: "7", ByScore: true}
	is("ZRANGE BYSCORE", r.ZRangeArgs(ctx, by), []string{"eve", "bob", "dan"})
	by = redis.ZRangeArgs{
		Key: key, Start: "-inf", Stop: "+inf", ByScore: true, Rev: true, Offset: 1, Count: 2,
	}
	is("ZRANGE BYSCORE REV LIMIT", r.ZRangeArgs(ctx, by), []string{"dan", "bob"})
	by = redis.ZRangeArgs{Key: key, Start: "(4", Stop: "inf", ByScore: true, Count: 2}
	is("ZRANGE BYSCORE LIMIT WITHSCORES", r.ZRangeArgsWithScores(ctx, by), all[2:4])
	between := &redis.ZRangeBy{Min: "4", Max: "12", Offset: 1, Count: 2}
	is("ZRANGEBYSCORE LIMIT", r.ZRangeByScore(ctx, key, between), []string{"bob", "dan"})
	is("ZRANGEBYSCORE LIMIT WITHSCORES", r.ZRangeByScoreWithScores(ctx, key, between), all[2:4])
	between = &redis.ZRangeBy{Min: "(4", Max: "7", Count: 1}
	is("ZREVRANGEBYSCORE", r.ZRevRangeByScore(ctx, key, between), []string{"dan"})
	is("ZREVRANGEBYSCORE WITHSCORES", r.ZRevRangeByScoreWithScores(ctx, key, between), all[3:4])
	replies, err := r.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.ZIncrBy(ctx, key, 0.5, "dan")
		p.ZRangeWithScores(ctx, key, -2, -2)
		p.ZAdd(ctx, key, redis.Z{Score: 7, Member: "dan"})
		return nil
	})
	must("MULTI EXEC", err)
	check("ZINCRBY in EXEC", replies[0].(*redis.FloatCmd).Val(), 7.5)
	pairs := []redis.Z{{Score: 7.5, Member: "dan"}}
	check("ZRANGE in EXEC", replies[1].(*redis.ZSliceCmd).Val(), pairs)
}

// members of one score, in ranges by themselves.
func members(r *redis.Client, key string) {
	for _, member := range []string{"a", "b", "c", "d", "e"} {
		is("ZADD", r.ZAdd(ctx, key, redis.Z{Member: member}), int64(1))
	}
	by := redis.ZRangeArgs{Key: key, Start: "[b", Stop: "(d", ByLex: true}
	is("ZRANGE BYLEX", r.ZRangeArgs(ctx, by), []string{"b", "c"})
	by = redis.ZRangeArgs{Key: key, Start: "-", Stop: "+", ByLex: true, Rev: true, Offset: 1, Count: 2}
	is("ZRANGE BYLEX REV LIMIT", r.ZRangeArgs(ctx, by), []string{"d", "c"})
	between := &redis.ZRangeBy{Min: "-", Max: "(c", Count: 1}
	is("ZRANGEBYLEX", r.ZRangeByLex(ctx, key, between), []string{"a"})
	is("ZREVRANGEBYLEX", r.ZRevRangeByLex(ctx, key, between), []string{"b"})
	is("ZLEXCOUNT", r.ZLexCount(ctx, key, "(a", "+"), int64(4))
	is("DEL", r.Del(ctx, key), int64(1))
}

// shapes of the answers before the client makes anything of them: RESP3 has numbers and pairs of its own.
func shapes(r *redis.Client, protocol int) {
	type list = []interface{}
	number := strconv.Itoa(protocol)
	shape := func(second, third interface{}, command ...interface{}) {
		wanted := second
		if protocol == 3 {
			wanted = third
		}
		is("the shape of "+command[0].(string), r.Do(ctx, command...), wanted)
	}
	key := "rank:" + number
	shape("11.5", 11.5, "ZSCORE", key, "ann")
	shape("5", 5.0, "ZINCRBY", key, 0, "bob")
	shape("5", 5.0, "ZADD", key, "INCR", 0, "bob")
	shape(list{"-4", nil}, list{-4.0, nil}, "ZMSCORE", key, "cid", "nobody")
	flat, nested := list{"cid", "-4", "eve", "4"}, list{list{"cid", -4.0}, list{"eve", 4.0}}
	shape(flat, nested, "ZRANGE", key, 0, 1, "WITHSCORES")
	shape(flat, nested, "ZRANGE", key, "-inf", 4, "BYSCORE", "WITHSCORES")
	shape(flat, nested, "ZRANGEBYSCORE", key, "-inf", 4, "WITHSCORES")
	shape(list{"ann", "11.5"}, list{list{"ann", 11.5}}, "ZREVRANGE", key, 0, 0, "WITHSCORES")
	shape(int64(1), int64(1), "SISMEMBER", "tags:"+number, "blue")
}

func texts(r *redis.Client, key, other string) {
	isNil("GET of nothing", r.Get(ctx, key))
	is("SET XX of nothing", r.SetXX(ctx, key, "no", 0), false)
	is("SET NX", r.SetArgs(ctx, key, "one", redis.SetArgs{Mode: "NX"}), "OK")
	isNil("SET NX again", r.SetArgs(ctx, key, "two", redis.SetArgs{Mode: "NX"}))
	is("SETNX", r.SetNX(ctx, key, "two", 0), false)
	is("SET XX", r.SetXX(ctx, key, "two", 0), true)
	is("SET GET", r.SetArgs(ctx, key, "three", redis.SetArgs{Get: true}), "two")
	is("GET", r.Get(ctx, key), "three")
	is("APPEND", r.Append(ctx, key, " and é"), int64(12))
	is("STRLEN", r.StrLen(ctx, key), int64(12))
	is("STRLEN of nothing", r.StrLen(ctx, other), int64(0))
	is("GETRANGE", r.GetRange(ctx, key, 0, 4), "three")
	is("MSET", r.MSet(ctx, key, "left", other, ""), "OK")
	is("MGET", r.MGet(ctx, key, "note:none", other), []interface{}{"left", nil, ""})
	is("MSETNX", r.MSetNX(ctx, "note:none", "x", other, "x"), false)
	is("GETSET", r.GetSet(ctx, other, "1.5"), "")
	is("INCRBYFLOAT", r.IncrByFloat(ctx, other, 0.25), 1.75)
	is("GETDEL", r.GetDel(ctx, other), "1.75")
	is("EXISTS", r.Exists(ctx, key, other), int64(1))
	is("TYPE", r.Type(ctx, key), "string")
	is("SET", r.Set(ctx, other, "right", 0), "OK")
}

func numbers(r *redis.Client, key string) {
	is("INCR of nothing", r.Incr(ctx, key), int64(1))
	is("INCRBY", r.IncrBy(ctx, key, 41), int64(42))
	is("DECR", r.Decr(ctx, key), int64(41))
	is("DECRBY", r.DecrBy(ctx, key, 50), int64(-9))
	is("GET", r.Get(ctx, key), "-9")
	is("STRLEN", r.StrLen(ctx, key), int64(2))
	is("TTL of what does not expire", r.TTL(ctx, key), time.Duration(-1))
	is("TTL of nothing", r.TTL(ctx, "counter:999"), time.Duration(-2))
	refused("INCRBY beyond its range", r.IncrBy(ctx, key, math.MinInt64).Err())
	is("nothing done", r.Incr(ctx, key), int64(-8))
}

func plain(r *redis.Client, key, hits string) {
	within := func(what string, command *redis.DurationCmd, least, most time.Duration) {
		got, err := command.Result()
		must(what, err)
		check(what, least < got && got <= most, true)
	}
	is("SET EX", r.Set(ctx, key, "x", 1000*time.Second), "OK")
	within("TTL", r.TTL(ctx, key), 900*time.Second, 1000*time.Second)
	within("PTTL", r.PTTL(ctx, key), 900*time.Second, 1000*time.Second)
	is("PERSIST", r.Persist(ctx, key), true)
	is("PERSIST again", r.Persist(ctx, key), false)
	is("TTL of what does not expire", r.TTL(ctx, key), time.Duration(-1))
	is("EXPIRE", r.Expire(ctx, key, 100*time.Second), true)
	is("EXPIRE NX", r.ExpireNX(ctx, key, 200*time.Second), false)
	is("EXPIRE GT", r.ExpireGT(ctx, key, 200*time.Second), true)
	is("EXPIREAT", r.ExpireAt(ctx, key, time.Unix(4_000_000_000, 0)), true)
	is("EXPIRETIME", r.ExpireTime(ctx, key), 4_000_000_000*time.Second)
	is("SET KEEPTTL", r.Set(ctx, key, "y", redis.KeepTTL), "OK")
	is("GETEX PERSIST", r.GetEx(ctx, key, 0), "y")
	is("EXPIRE of nothing", r.Expire(ctx, "session:none", 10*time.Second), false)
	is("TTL of nothing", r.TTL(ctx, "session:none"), time.Duration(-2))
	is("SETEX", r.SetEx(ctx, hits, 5, 1000*time.Second), "OK")
	is("INCR", r.Incr(ctx, hits), int64(6))
	is("DECRBY", r.DecrBy(ctx, hits, 2), int64(4))
	is("INCRBYFLOAT", r.IncrByFloat(ctx, hits, 0.5), 4.5)
	is("APPEND", r.Append(ctx, hits, "0"), int64(4))
	is("STRLEN", r.StrLen(ctx, hits), int64(4))
	is("MGET", r.MGet(ctx, hits, key), []interface{}{"4.50", "y"})
	is("MSET", r.MSet(ctx, hits, "1", key, "z"), "OK")
	is("SET NX EX", r.SetNX(ctx, key, "w", 10*time.Second), false)
	is("HSET", r.HSet(ctx, key+":h", "a", "1", "b", "2"), int64(2))
	is("HGETALL", r.HGetAll(ctx, key+":h"), map[string]string{"a": "1", "b": "2"})
	is("EXPIRE at once", r.Expire(ctx, hits, -time.Second), true)
	isNil("GET of what has expired", r.Get(ctx, hits))
	is("DEL", r.Del(ctx, key, key+":h"), int64(2))
}

// differs where a row's key is not what it is in Redis.
func differs(r *redis.Client, protocol int) {
	number := strconv.Itoa(protocol)
	is("the same rows under another key", r.SMembers(ctx, "tagged:red"+number), []string{number})
	is("a row as a hash", r.HGet(ctx, "ranks:"+number+":ann", "points"), "11.5")
	note := "note:p" + number
	refused("EXPIRE of a row", r.Expire(ctx, note, time.Minute).Err(), "rows do not expire")
	refused("SET EX of a row", r.Set(ctx, note, "x", time.Minute).Err(), "rows do not expire")
	refused("GET of a set", r.Get(ctx, "tags:"+number).Err(), "wrongtype")
	refused("SADD to a sorted set", r.SAdd(ctx, "rank:"+number, "x").Err(), "wrongtype")
	refused("text in a number", r.Set(ctx, "counter:"+number, "many", 0).Err(), "counters.n")
}
