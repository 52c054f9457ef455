#!/bin/sh
# A private CephFS, mounted, that lives as long as this script's standard input stays open.
#
#   cephfs.sh SCRIPTS [OPTION]...
#
# SCRIPTS is the folder of start.sh and stop.sh, which bring a CephFS up on the loopback interface; the options go to
# start.sh. Prints one line, the folder of its state, once the file system is mounted at `mnt/1` in there. At the end of
# the input all its processes are ended and the folder is removed.
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

# The monitor and a range of ports behind it, below those that the kernel gives away.
port() { echo $((15000 + $(od -An -N2 -tu2 /dev/urandom) % 80 * 210)); }

cd /
folder=$(mktemp -d "${TMPDIR:-/tmp}/destage-ceph-XXXXXX") || exit 1
for _ in 1 2 3; do
    if "$scripts/start.sh" "$folder" --port "$(port)" "$@" >&2 </dev/null; then
        echo "$folder"
        cat >/dev/null
        finish 0
    fi
    # Somebody else may have that port.
    "$scripts/stop.sh" "$folder" >&2 </dev/null
    mkdir -p "$folder"
done
tail -n 20 "$folder"/log/* >&2
finish 1
