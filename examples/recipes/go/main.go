// Rows of Destage in a web server.
//
//	destage serve
//	go run . 8000
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const attempts = 5

func connect() *redis.Client {
	port := os.Getenv("DESTAGE_PORT")
	if port == "" {
		port = "6380"
	}
	return redis.NewClient(&redis.Options{
		Addr:        net.JoinHostPort("127.0.0.1", port),
		Password:    os.Getenv("DESTAGE_PASSWORD"),
		DialTimeout: 2 * time.Second,
		// The server answers within --client-wait (4 s): wait for longer.
		ReadTimeout: 6 * time.Second,
		// The library would send increments again by itself. once does it instead, harmlessly.
		MaxRetries: -1,
	})
}

// once carries a command out once for its token, however often it has to be sent.
func once(ctx context.Context, client *redis.Client, token string, command ...any) (int64, error) {
	words := append([]any{"DESTAGE", "ONCE", token}, command...)
	for attempt := 1; ; attempt++ {
		result, err := client.Do(ctx, words...).Int64()
		if err == nil || attempt == attempts || ctx.Err() != nil || isRefused(err) {
			return result, err
		}
		time.Sleep(100 * time.Millisecond << attempt)
	}
}

// isRefused tells answers of the server that stay as they are from those that ask to send the command again.
func isRefused(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := reply.Error()
	return !strings.HasPrefix(text, "UNAVAILABLE") && !strings.HasPrefix(text, "PENDING")
}

func answer(w http.ResponseWriter, body any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		body = map[string]string{"error": err.Error()}
	}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		log.Print(err)
	}
}

func main() {
	client := connect()
	http.HandleFunc("POST /visits/{customer}", func(w http.ResponseWriter, r *http.Request) {
		// The same for each time that a proxy or the browser sends this request.
		token := r.Header.Get("Idempotency-Key")
		if token == "" {
			random := make([]byte, 16)
			if _, err := rand.Read(random); err != nil {
				answer(w, nil, err)
				return
			}
			token = hex.EncodeToString(random)
		}
		key := "customers:" + r.PathValue("customer")
		points, err := once(r.Context(), client, "visit:"+token, "HINCRBY", key, "points", 1)
		answer(w, map[string]int64{"points": points}, err)
	})
	http.HandleFunc("GET /customers/{customer}", func(w http.ResponseWriter, r *http.Request) {
		row, err := client.HGetAll(r.Context(), "customers:"+r.PathValue("customer")).Result()
		answer(w, map[string]any{"row": row}, err)
	})
	port := "8000"
	if len(os.Args) > 1 {
		port = os.Args[1]
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, nil))
}
