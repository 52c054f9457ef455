// A MongoDB server for tests: FerretDB on SQLite.
//
//	ferretdb ADDRESS FOLDER
//
// Listens on ADDRESS (127.0.0.1:PORT) with its data in FOLDER, prints one line, `mongodb://...`, once it is ready, and ends
// with its standard input.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: ferretdb ADDRESS FOLDER"))
	}
	server, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{TCP: os.Args[1]},
		Handler:   "sqlite",
		SQLiteURL: "file:" + os.Args[2] + "/",
	})
	if err != nil {
		fail(err)
	}
	go func() {
		// Nobody writes to it: it ends when whoever started this has ended.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println(server.MongoDBURI())
	if err := server.Run(context.Background()); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "ferretdb:", err)
	os.Exit(1)
}
