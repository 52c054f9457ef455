#!/bin/sh
# The first process of the guest. What it has to say goes to the console, in lines that begin with @.

export PATH=/bin HOME=/
. /task
. /sides.sh

# As `drain`, and notes how long it took, in hundredths of a second. fio calls this when its last request has ended.
if [ "$1" = drain ]; then
    from=$(hundredths)
    drain $2 && echo $(($(hundredths) - from)) >/run/drained
    exit
fi

fail() {
    echo "@failed $*"
    for log in /log/*; do
        tail -n 2 $log | cut -c 1-200 | sed "s|^|@log $log: |"
    done
    dmesg | tail -n 5 | sed "s|^|@log kernel: |"
    poweroff -f
    sleep 60
}

# One load before one side, from a fresh state.
load() {
    up $1 || fail "cannot put up $1"
    case $2 in
    mixed | *-reads)
        dd if=/dev/urandom of=$device bs=64k count=$((blocks / 16)) oflag=direct 2>/log/dd || fail "cannot fill $1"
        ;;
    esac
    case $2 in
    mixed | old-reads)
        settle $1 || fail "cannot drain $1"
        ;;
    esac
    end="/init drain $1"
    rm -f /run/drained /run/fio
    case $2 in
    *-reads)
        end=true
        echo 0 >/run/drained
        ;;
    esac
    fio $(cat /loads/$2) --name=load --filename=$device --output=/run/fio --output-format=json \
        --exec_postrun="$end" >/log/fio 2>&1 || fail "fio failed before $1, $2"
    [ -s /run/drained ] || fail "cannot drain $1 after $2"
    echo "@fio $1 $2 $(cat /run/drained) $(tr -d ' \n' </run/fio)"
    down $1 || fail "cannot take down $1"
}

mkdir -p /proc /sys /dev /run /log /disk /tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
ip link set lo up
for module in $modules; do
    modprobe $module || fail "no module $module"
done
for disk in /sys/block/vd*; do
    ln -s /dev/${disk##*/} /disk/$(cat $disk/serial)
done
echo "@ready $(uname -r)"
for load in $loads; do
    for side in $sides; do
        load $side $load
    done
done
for side in $numbered; do
    up $side early || fail "cannot put up $side"
    destage-bench numbered --device $device --blocks $blocks --seed $seed \
        --sync-every $sync_every --side $side || fail "$side" &
done
wait
echo "@done"
poweroff -f
