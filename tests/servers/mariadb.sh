#!/bin/sh
# A private MariaDB server that lives as long as this script's standard input stays open.
#
#   mariadb.sh
#
# Makes a data folder in a temporary folder, starts its server, as the present user, on a free port of 127.0.0.1 with a password, and prints one line, `mysql://...`, once it answers. Then each line
# read from standard input is a command,
#
#   stop     stop without ceremony, as a crash does
#   start    start again on the same port
#   freeze   keep its process from running (SIGSTOP)
#   thaw     let it run again
#
# answered by one line, `ok` or `failed`. At the end of the input the server is stopped and its folder removed.
set -u
# The server refuses to run as root unless that is said.
user=$(id -un)
# Debian keeps the server's program where only root's path leads.
PATH=$PATH:/usr/sbin
# An interrupt at the terminal reaches this script too; it must outlive its caller to clean up.
trap '' INT HUP TERM

pid() { cat "$folder/server.pid" 2>/dev/null; }

answers() {
    mariadb --no-defaults --protocol=tcp -h 127.0.0.1 -P "$port" -u destage "-ppw-$port" -e 'SELECT 1' \
        </dev/null >/dev/null 2>>"$folder/client.log"
}

start() {
    rm -f "$folder/server.pid"
    # Started through a shell that says which process it becomes: a server that is killed leaves no file behind it.
    sh -c 'echo $$ >"$1"; shift; exec "$@"' - "$folder/server.pid" mariadbd --no-defaults "--user=$user" \
        "--datadir=$folder/data" "--tmpdir=$folder/tmp" "--socket=$folder/socket" "--port=$port" --bind-address=127.0.0.1 \
        --character-set-server=utf8mb4 --skip-name-resolve --innodb-buffer-pool-size=64M \
        --innodb-log-file-size=64M --max-connections=300 --thread-handling=one-thread-per-connection \
        "--ssl-cert=$folder/server.crt" "--ssl-key=$folder/server.key" --performance-schema=OFF \
        </dev/null >>"$folder/server.log" 2>&1 &
    tries=0
    while [ "$tries" -lt 3000 ]; do
        answers && return 0
        # It has given up.
        [ "$tries" -gt 20 ] && ! kill -0 "$(pid)" 2>/dev/null && return 1
        tries=$((tries + 1))
        sleep 0.1
    done
    return 1
}

stop() {
    server=$(pid) || return 0
    kill -KILL "$server" 2>/dev/null
    # The port is free once the process is gone.
    while kill -0 "$server" 2>/dev/null; do sleep 0.05; wait 2>/dev/null; done
    rm -f "$folder/server.pid"
}

signal() { kill "-$1" "$(pid)"; }

answer() {
    if "$@"; then echo ok; else echo failed; fi
}

finish() {
    signal CONT 2>/dev/null
    stop
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
folder=$(mktemp -d "${TMPDIR:-/tmp}/destage-maria-XXXXXX") || exit 1
free_port
# A start removes the temporary tables that it finds, those of others included.
mkdir "$folder/tmp" || exit 1
mariadb-install-db --no-defaults "--user=$user" "--datadir=$folder/data" "--tmpdir=$folder/tmp" --auth-root-authentication-method=normal \
    --skip-test-db --innodb-log-file-size=64M >"$folder/install.log" 2>&1 </dev/null || fail
# A certificate for the address that vouches for itself.
tee "$folder/openssl.cnf" >/dev/null <<CONFIGURATION
[req]
distinguished_name = name
x509_extensions = extensions
[name]
[extensions]
basicConstraints = critical, CA:FALSE
subjectAltName = IP:127.0.0.1
CONFIGURATION
sh -c 'umask 077; cd "$1" && openssl req -x509 -config openssl.cnf -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
    -nodes -days 2 -subj /CN=127.0.0.1 -keyout server.key -out server.crt' - "$folder" >"$folder/openssl.log" 2>&1 || fail
# The user is made while the server reads its tables only, before anybody can connect.
mariadbd --no-defaults "--user=$user" "--datadir=$folder/data" "--tmpdir=$folder/tmp" --bootstrap --skip-networking \
    --innodb-log-file-size=64M >"$folder/bootstrap.log" 2>&1 <<STATEMENTS || fail
FLUSH PRIVILEGES;
CREATE DATABASE destage;
CREATE USER 'destage'@'%' IDENTIFIED BY 'pw-$port';
GRANT ALL PRIVILEGES ON *.* TO 'destage'@'%' WITH GRANT OPTION;
STATEMENTS
start || fail
echo "mysql://destage:pw-$port@127.0.0.1:$port/destage"

while read -r command; do
    case $command in
    stop) answer stop ;;
    start) answer start ;;
    freeze) answer signal STOP ;;
    thaw) answer signal CONT ;;
    *) echo failed ;;
    esac
done
finish 0
