#!/bin/sh
# Three servers, an owner, a standby and a load balancer on one machine. Needs redis-server, haproxy and destage in the PATH, and
# PostgreSQL at $DESTAGE_ORIGIN. Ends with Ctrl-C, which leaves nothing behind.
set -eu
: "${DESTAGE_ORIGIN:?set DESTAGE_ORIGIN=postgres://USER:PASSWORD@HOST/DATABASE}"
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
pids=
finish() {
    for pid in $pids; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 0' INT TERM
replicas=
for port in 7391 7392 7393; do
    redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$work" >"$work/redis-$port.log" &
    pids="$pids $!"
    replicas="$replicas${replicas:+,}redis://127.0.0.1:$port"
done
serve() {
    destage serve --no-auth --replicas "$replicas" --copies 2 --failover 1s --data "$work/$1" --listen "127.0.0.1:$2" --admin "127.0.0.1:$3" $4 &
    pids="$pids $!"
}
serve first 6380 6381 ''
sleep 2
serve second 6480 6481 --standby
haproxy -f "$here/haproxy.cfg" &
pids="$pids $!"
echo "clients connect to 127.0.0.1:6390; kill the owner (port 6380) and see"
wait
