#!/bin/sh
# A private CephFS, mounted, that lives as long as this script's standard input stays open.
#
#   cephfs.sh SCRIPTS [OPTION]...
#
# SCRIPTS is the folder of start.sh and stop.sh, which bring a CephFS up on the loopback interface; the options go to
# start.sh. Prints one line, the folder of its state, once the file system is mounted at `mnt/1` in there. Then each line
# read from standard input is a command,
#
#   kill NAME   ends a process without ceremony: osd.0, mds.a, client.1 and so on
#   start       starts again what is not running, and mounts what is not mounted
#   evict       ends the sessions of all clients, so that none holds up the others
#   evict N     ends the session of the client that is mounted at mnt/N
#
# answered by one line, `ok` or `failed`. At the end of the input all its processes are ended and the folder is removed.
set -u
scripts=$1
shift
# An interrupt at the terminal reaches this script too; it must outlive its caller to clean up.
trap '' INT HUP TERM

finish() {
    # The processes that are ended say so to nobody.
    "$scripts/stop.sh" "$folder" >&2 </dev/null
    exit "$1"
}

answer() {
    if "$@" >&2 </dev/null; then echo ok; else echo failed; fi
}

start() { "$scripts/start.sh" "$folder" --port "$port" $options; }

kill_one() {
    process=$(cat "$folder/run/$1.pid") || return 1
    # Another process may have got the number of one that has ended.
    tr '\0' ' ' <"/proc/$process/cmdline" | grep -qF "$folder/" || return 1
    kill -KILL "$process" || return 1
    while kill -0 "$process" 2>/dev/null; do sleep 0.01; done
}

evict() {
    if [ -n "$1" ]; then
        session=$("$folder/ceph" tell mds.a client ls | awk -v place="/mnt/$1\"" '
            /^ *"id": [0-9]*,$/ { sub(",", "", $2); id = $2 }
            /"mount_point": / && index($0, place) { print id }')
        [ -n "$session" ] && "$folder/ceph" tell mds.a client evict "id=$session"
        return
    fi
    for session in $("$folder/ceph" tell mds.a client ls | sed -n 's/^ *"id": \([0-9]*\),$/\1/p'); do
        "$folder/ceph" tell mds.a client evict "id=$session" || return 1
    done
}

# Of the monitor; a range behind it is the others'. All are below those that the kernel gives away.
free_port() { port=$((15000 + $(od -An -N2 -tu2 /dev/urandom) % 80 * 210)); }

cd /
options=$*
folder=$(mktemp -d "${TMPDIR:-/tmp}/destage-ceph-XXXXXX") || exit 1
for _ in 1 2 3; do
    free_port
    # One of its processes may die as it starts; what is missing is started again.
    if start >&2 </dev/null || start >&2 </dev/null || start >&2 </dev/null; then
        echo "$folder"
        while read -r command name; do
            case $command in
            kill) answer kill_one "$name" ;;
            start) answer start ;;
            evict) answer evict "$name" ;;
            *) echo failed ;;
            esac
        done
        finish 0
    fi
    # Somebody else may have that port.
    "$scripts/stop.sh" "$folder" >&2 </dev/null
    mkdir -p "$folder"
done
tail -n 20 "$folder"/log/* >&2
finish 1
