# How each side is put up before its slow disk, brought to rest, and taken down. $1 is the side. Its disks are
# /disk/SIDE-slow, /disk/SIDE-fast and, for Destage, /disk/SIDE-redo, which is on the slow disk as well.

bcache=/sys/block/bcache0/bcache

# Puts it up afresh. Sets $device. The second argument is "early" where everything is to be written back as soon as it can.
up() {
    case $1 in
    slow)
        device=/disk/slow-slow
        ;;
    bcache)
        wipe bcache-fast && wipe bcache-slow || return
        make-bcache --writeback --cache /disk/bcache-fast --bdev /disk/bcache-slow >/log/bcache 2>&1 || return
        readlink -f /disk/bcache-fast >/sys/fs/bcache/register || return
        readlink -f /disk/bcache-slow >/sys/fs/bcache/register || return
        until [ -e $bcache/cache ] && [ -b /dev/bcache0 ]; do usleep 10000; done
        echo 0 >$bcache/sequential_cutoff
        echo 0 >$bcache/cache/congested_read_threshold_us
        echo 0 >$bcache/cache/congested_write_threshold_us
        if [ "$2" = early ]; then
            write_back_at_once
        fi
        device=/dev/bcache0
        ;;
    writecache)
        wipe writecache-fast || return
        options=0
        if [ "$2" = early ]; then
            # It pauses for 3 s after each flush of a client, unless told otherwise.
            options="4 max_age 1000 pause_writeback 0"
        fi
        disks="/disk/writecache-slow /disk/writecache-fast"
        table="0 $(blockdev --getsz /disk/writecache-slow) writecache s $disks 4096 $options"
        dmsetup create writecache --noudevsync --noudevrules --table "$table" || return
        device=/dev/dm-0
        [ -b $device ]
        ;;
    *)
        : >/log/$1
        : >/log/$1-errors
        wipe $1-fast && wipe $1-redo || return
        options=
        if [ "$2" = early ]; then
            options="--staleness ${staleness}s"
        fi
        places="--origin /disk/$1-slow --redo /disk/$1-redo --cache /disk/$1-fast --cache-size ${fast_mib}M"
        destage block serve --policy $1 $places --listen unix:/run/$1 --admin $(admin $1) \
            $options $(cat /destage-arguments) >/log/$1 2>/log/$1-errors &
        echo $! >/run/$1.pid
        until grep -q ready /log/$1; do
            if grep -q ^error: /log/$1-errors; then
                return 1
            fi
            usleep 10000
        done
        device=/dev/nbd$(number $1)
        nbd-client -unix /run/$1 $device -block-size 4096 >/log/$1-client 2>&1 || return
        ;;
    esac
}

# Waits until the slow disk has everything; the cache need not be of use afterwards.
drain() {
    case $1 in
    slow) ;;
    bcache)
        # It writes back as fast as it can while it detaches, and does not wait for `writeback_delay`.
        echo 1 >$bcache/detach || return
        until [ "$(cat $bcache/state)" = "no cache" ]; do usleep 10000; done
        ;;
    *)
        settle $1
        ;;
    esac
}

# Waits until the slow disk has everything; what is cached stays so.
settle() {
    case $1 in
    slow) ;;
    bcache)
        write_back_at_once
        until [ "$(cat $bcache/state)" = clean ]; do usleep 10000; done
        echo 30 >$bcache/writeback_delay
        echo 10 >$bcache/writeback_percent
        ;;
    writecache)
        until has_flushed; do usleep 10000; done
        ;;
    *)
        destage block drain --admin $(admin $1) >/log/$1-drain 2>&1
        ;;
    esac
}

down() {
    case $1 in
    slow) ;;
    bcache)
        set=$(echo /sys/fs/bcache/*-*)
        echo 1 >$bcache/stop
        echo 1 >$set/stop
        while [ -e $set ] || [ -e $bcache ]; do usleep 10000; done
        ;;
    writecache)
        dmsetup remove --noudevsync --noudevrules writecache
        ;;
    *)
        nbd-client -d /dev/nbd$(number $1) >/dev/null
        kill -9 $(cat /run/$1.pid)
        wait $(cat /run/$1.pid)
        rm -f /run/$1
        ;;
    esac
}

# What tells whose disk it was is at its start. The rest stays as it is, so that writing to it needs no new space of the host.
wipe() {
    dd if=/dev/zero of=/disk/$1 bs=1M count=1 oflag=direct 2>/log/wipe
}

write_back_at_once() {
    echo 0 >$bcache/writeback_delay
    echo 0 >$bcache/writeback_percent
    echo 1 >$bcache/writeback_running
}

# Its status ends with: errors, blocks, free blocks, blocks being written back, and what it has counted.
has_flushed() {
    dmsetup message writecache 0 flush || return
    set -- $(dmsetup status writecache)
    [ "$5" = "$6" ]
}

number() {
    case $1 in
    ordered) echo 0 ;;
    journaled) echo 1 ;;
    *) echo 2 ;;
    esac
}

admin() {
    echo 127.0.0.1:638$(number $1)
}

# Since the start.
hundredths() {
    cut -d ' ' -f 1 /proc/uptime | tr -d .
}
