#!/bin/sh
# A private PostgreSQL server that lives as long as this script's standard input stays open.
#
#   postgres.sh PROGRAMS USER
#
# PROGRAMS is the folder of initdb and pg_ctl; USER is the system user to run them as, or empty for the present one.
# Makes a cluster in a temporary folder, starts its server on a free port of 127.0.0.1 with a password, and prints one
# line, `postgres://...`, once it answers. Then each line read from standard input is a command,
#
#   stop     stop without ceremony, as a crash does
#   start    start again on the same port
#   freeze   keep all its processes from running (SIGSTOP)
#   thaw     let them run again
#
# answered by one line, `ok` or `failed`. At the end of the input the server is stopped and its folder removed.
set -u
programs=$1
user=$2
# An interrupt at the terminal reaches this script too; it must outlive its caller to clean up.
trap '' INT HUP TERM

as_user() {
    if [ -n "$user" ]; then runuser -u "$user" -- "$@"; else "$@"; fi
}

control() {
    as_user "$programs/pg_ctl" -D "$folder/data" -s -w -t 300 "$@" </dev/null >>"$folder/control.log" 2>&1
}

start() { control -l "$folder/server.log" start; }

signal_all() {
    master=$(head -n 1 "$folder/data/postmaster.pid" 2>/dev/null) || return 1
    kill "-$1" "$master" || return 1
    # A child may end by itself meanwhile, as one does whose client has gone.
    for child in $(cat "/proc/$master/task/$master/children"); do kill "-$1" "$child" 2>/dev/null; done
    return 0
}

answer() {
    if "$@"; then echo ok; else echo failed; fi
}

finish() {
    signal_all CONT 2>/dev/null
    [ -f "$folder/data/postmaster.pid" ] && control -m immediate stop
    rm -rf "$folder"
    exit "$1"
}

fail() {
    cat "$folder"/*.log >&2
    finish 1
}

free_port() {
    while :; do
        port=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 12000))
        # The kernel lists the ports in use in hexadecimal.
        grep -qi ":$(printf %04X "$port") " /proc/net/tcp || return
    done
}

cd /
folder=$(mktemp -d "${TMPDIR:-/tmp}/destage-pg-XXXXXX") || exit 1
[ -z "$user" ] || chown "$user" "$folder"
free_port
as_user sh -c 'umask 077; echo "$2" >"$1/password"' - "$folder" "pw-$port"
as_user "$programs/initdb" -D "$folder/data" -U destage -A scram-sha-256 --pwfile="$folder/password" \
    --encoding=UTF8 --locale=C.UTF-8 --no-sync >"$folder/initdb.log" 2>&1 || fail
# A certificate for the address that vouches for itself; the tests find it in the data folder.
as_user tee "$folder/data/openssl.cnf" >/dev/null <<CONFIGURATION
[req]
distinguished_name = name
x509_extensions = extensions
[name]
[extensions]
basicConstraints = critical, CA:FALSE
subjectAltName = IP:127.0.0.1
CONFIGURATION
as_user sh -c 'umask 077; cd "$1" && openssl req -x509 -config openssl.cnf -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
    -nodes -days 2 -subj /CN=127.0.0.1 -keyout server.key -out server.crt' - "$folder/data" \
    >"$folder/openssl.log" 2>&1 || fail
as_user tee -a "$folder/data/postgresql.conf" >/dev/null <<CONFIGURATION
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = ''
ssl = on
max_connections = 200
shared_buffers = 64MB
max_wal_size = 512MB
# After a crash the files are synced one by one otherwise, which takes a slow disk minutes.
recovery_init_sync_method = syncfs
CONFIGURATION
start || fail
echo "postgres://destage:pw-$port@127.0.0.1:$port/postgres"

while read -r command; do
    case $command in
    stop) answer control -m immediate stop ;;
    start) answer start ;;
    freeze) answer signal_all STOP ;;
    thaw) answer signal_all CONT ;;
    *) echo failed ;;
    esac
done
finish 0
