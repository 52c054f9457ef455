//! Unmodified NBD clients.

use crate::disks::Folder;
use crate::harness::{Scratch, has, output, skip};
use crate::server::{Launch, Server, SlowDisk, image};
use std::process::Command;

const MIB: u64 = 1 << 20;

fn serving(scratch: &Scratch, bytes: u64) -> Server {
    let image = image(scratch, bytes);
    Launch::before(scratch, &format!("file:{}", image.display())).start()
}

#[test]
fn nbdinfo_sees_what_the_volume_offers() {
    if !has("nbdinfo") {
        return;
    }
    let scratch = Scratch::new();
    let server = serving(&scratch, 8 * MIB);
    let said = output(Command::new("nbdinfo").arg(&server.uri));
    for part in
        ["newstyle-fixed", "structured", "8388608", "can_multi_conn: true", "can_trim: true"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn nbdcopy_and_qemu_img_bring_a_disk_in_and_out() {
    if !has("nbdcopy") || !has("qemu-img") {
        return;
    }
    let scratch = Scratch::new();
    let server = serving(&scratch, 16 * MIB);
    let random: Vec<u8> =
        (0..16 * MIB).map(|n| (n.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    let (input, copied) = (scratch.join("in.img"), scratch.join("out.img"));
    std::fs::write(&input, &random).expect("a file");
    output(Command::new("nbdcopy").arg(&input).arg(&server.uri));
    let mut compare = Command::new("qemu-img");
    compare.args(["compare", "-f", "raw", "-F", "raw"]).arg(&input).arg(&server.uri);
    assert!(output(&mut compare).contains("identical"));
    output(Command::new("nbdcopy").arg(&server.uri).arg(&copied));
    assert!(std::fs::read(&copied).expect("a file") == random, "the copy differs");
    assert_eq!(server.stop(), 0);
    let origin = std::fs::read(scratch.join("disk.img")).expect("a file");
    assert!(origin == random, "the origin differs after the drain");
}

#[test]
fn qemu_io_writes_misaligned_zeroes_and_discards() {
    if !has("qemu-io") {
        return;
    }
    let scratch = Scratch::new();
    let server = serving(&scratch, 8 * MIB);
    let mut script = Command::new("qemu-io");
    script.args(["-f", "raw"]);
    for command in [
        "write -P 0x5a 0 1M",
        "write -P 0x33 1000 3000",
        "read -P 0x33 1000 3000",
        "read -P 0x5a 0 1000",
        "read -P 0x5a 4000 96",
        "write -f -P 0x77 5000 100000",
        "read -P 0x77 5000 100000",
        "flush",
        "write -z 8192 8192",
        "read -P 0 8192 8192",
        "discard 512k 512k",
        "read -P 0 512k 512k",
        "write -P 0x11 8388607 1",
        "read -P 0x11 8388607 1",
    ] {
        script.args(["-c", command]);
    }
    let said = output(script.arg(&server.uri));
    assert!(!said.contains("failed") && !said.contains("Pattern"), "{said}");
}

#[test]
fn nbdsh_writes_reads_zeroes_trims_and_flushes() {
    if !has("nbdsh") {
        return;
    }
    let scratch = Scratch::new();
    let server = serving(&scratch, 8 * MIB);
    let script = "
import nbd
assert h.get_size() == 8 << 20
assert h.can_flush() and h.can_fua() and h.can_trim() and h.can_zero() and h.can_multi_conn()
assert not h.is_read_only()
h.pwrite(b'x' * 100_000, 1_234, nbd.CMD_FLAG_FUA)
assert h.pread(100_000, 1_234) == b'x' * 100_000
h.zero(50_000, 1_234)
assert h.pread(100_000, 1_234) == bytes(50_000) + b'x' * 50_000
h.trim(1 << 20, 0)
assert h.pread(1 << 20, 0) == bytes(1 << 20)
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([n]) * 4096), n * 4096) for n in range(200)]
while h.aio_in_flight() > 0:
    h.poll(-1)
assert all(h.aio_command_completed(cookie) for cookie in cookies)
h.flush()
assert all(h.pread(4096, n * 4096) == bytes([n]) * 4096 for n in range(200))
try:
    h.pread(4096, (8 << 20) - 512)
except nbd.Error:
    pass
else:
    raise AssertionError('a read beyond the end')
h.shutdown()
print('all of it')
";
    let said = output(
        Command::new("nbdsh")
            // By the Python of the system, which has the module.
            .env("PATH", "/usr/bin:/bin")
            .args(["--uri", &server.uri, "--command", script]),
    );
    assert!(said.contains("all of it"), "{said}");
    assert_eq!(server.stop(), 0);
}

/// The kernel's client; listing needs no kernel module.
#[test]
fn nbd_client_lists_the_exports() {
    let Some(nbd_client) = system_program("nbd-client") else { return };
    let scratch = Scratch::new();
    let image = image(&scratch, 8 * MIB);
    let launch = Launch::before(&scratch, &format!("file:{}", image.display()));
    let server = launch.listening("127.0.0.1:0").start();
    let address = server.uri.trim_start_matches("nbd://").trim_end_matches('/');
    let (host, port) = address.rsplit_once(':').expect("a port");
    let said = output(Command::new(nbd_client).args(["-l", host, port]));
    assert!(said.contains("Negotiation"), "{said}");
    // It says what it found and leaves; the server serves the next one.
    server.client().flush().expect("a flush");
}

/// A program that ordinary users do not have in their path.
fn system_program(name: &str) -> Option<&'static str> {
    let places = ["/usr/sbin/nbd-client", "/sbin/nbd-client"];
    let found = places.into_iter().find(|place| std::path::Path::new(place).is_file());
    if found.is_none() {
        skip(name);
    }
    found
}

/// Debian's fio has no NBD engine, so it works on the volume as a file.
#[test]
fn fio_verifies_what_it_wrote_at_any_alignment_also_after_a_kill() {
    if !has("fio") {
        return;
    }
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let image = image(&scratch, 32 * MIB);
    let Some(disk) = SlowDisk::start(&scratch, &image, 1) else { return };
    let launch = Launch::before(&scratch, &disk.uri).redo_at(scratch.join("redo"));
    let launch = launch.with(&folder.flags()).with(&["--linger", "0"]);
    let fio = |more: &[&str]| {
        let mut fio = Command::new("fio");
        fio.args(["--name=verify", "--ioengine=psync", "--rw=randwrite", "--bsrange=512-64k"]);
        fio.args(["--bs_unaligned=1", "--verify=crc32c", "--numjobs=4", "--size=8m", "--fsync=64"]);
        fio.args(["--offset_increment=8m", "--end_fsync=1", "--allow_file_create=0", "--thread"]);
        fio.arg(format!("--filename={}", folder.file().display())).args(more);
        output(fio.current_dir(scratch.join("")));
    };
    let server = launch.start();
    fio(&["--do_verify=1"]);
    server.kill();
    let server = launch.start();
    fio(&["--verify_only=1"]);
    assert_eq!(server.stop(), 0);
}

#[test]
fn sixty_four_connections_share_one_volume() {
    let scratch = Scratch::new();
    let server = serving(&scratch, 8 * MIB);
    let clients: Vec<_> = (0..64).map(|_| server.client()).collect();
    std::thread::scope(|scope| {
        for (index, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                let at = index as u64 * 65_536 + 100;
                for round in 0..20_u8 {
                    let bytes = vec![round ^ index as u8; 9_000];
                    client.write(at, &bytes, round % 5 == 0).expect("a write");
                    let mut read = vec![0; bytes.len()];
                    client.read(at, &mut read).expect("a read");
                    assert!(read == bytes, "client {index} reads its own write");
                }
            });
        }
    });
    // A flush on one connection covers the writes of all.
    clients[0].flush().expect("a flush");
    server.kill();
    let origin = format!("file:{}", scratch.join("disk.img").display());
    let server = Launch::before(&scratch, &origin).start();
    let client = server.client();
    for index in 0..64_u64 {
        let mut read = vec![0; 9_000];
        client.read(index * 65_536 + 100, &mut read).expect("a read");
        assert!(read.iter().all(|&byte| byte == 19 ^ index as u8), "client {index}");
    }
}

/// Offset, length and type of each part that nbdinfo tells of.
fn map(uri: &str, context: &str) -> Vec<(u64, u64, u64)> {
    let mut nbdinfo = Command::new("nbdinfo");
    nbdinfo.args(["--json", &format!("--map={context}"), uri]);
    let parts: serde_json::Value =
        serde_json::from_str(&output(&mut nbdinfo)).expect("it prints JSON");
    let number = |part: &serde_json::Value, field: &str| part[field].as_u64().expect("a number");
    let parts = parts.as_array().expect("a list").iter();
    parts
        .map(|part| (number(part, "offset"), number(part, "length"), number(part, "type")))
        .collect()
}

#[test]
fn nbdinfo_maps_where_the_origin_is_sparse_and_what_is_dirty() {
    if !has("nbdinfo") {
        return;
    }
    let scratch = Scratch::new();
    let image = image(&scratch, 8 * MIB);
    let file = std::fs::File::options().write(true).open(&image).expect("the image");
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 2 << 20], 2 * MIB).expect("some data");
    drop(file);
    let launch = Launch::before(&scratch, &format!("file:{}", image.display()));
    // Nothing is destaged but on demand.
    let server = launch.with(&["--when", "pressure", "-D", "1h"]).start();
    let clean = [(0, 2 * MIB, 3), (2 * MIB, 2 * MIB, 0), (4 * MIB, 4 * MIB, 3)];
    assert_eq!(map(&server.uri, "base:allocation"), clean);
    assert_eq!(map(&server.uri, "destage:dirty"), [(0, 8 * MIB, 0)]);
    let client = server.client();
    client.write(6 * MIB, &[9; 1 << 20], false).expect("a write");
    client.zero(2 * MIB, MIB, true, false).expect("a trim");
    let dirty = [
        (0, 3 * MIB, 3),
        (3 * MIB, MIB, 0),
        (4 * MIB, 2 * MIB, 3),
        (6 * MIB, MIB, 0),
        (7 * MIB, MIB, 3),
    ];
    assert_eq!(map(&server.uri, "base:allocation"), dirty);
    let marked = [
        (0, 2 * MIB, 0),
        (2 * MIB, MIB, 1),
        (3 * MIB, 3 * MIB, 0),
        (6 * MIB, MIB, 1),
        (7 * MIB, MIB, 0),
    ];
    assert_eq!(map(&server.uri, "destage:dirty"), marked);
    // A volume before a volume asks for its holes, whatever it was asked for itself.
    let other = Scratch::new();
    let front = Launch::before(&other, &server.uri).redo_at(other.join("redo"));
    let front = front.with(&["--when", "pressure", "-D", "1h"]).start();
    assert_eq!(map(&front.uri, "base:allocation"), dirty);
    front.client().write(MIB, &[9; 4096], false).expect("a write");
    let parts = map(&front.uri, "base:allocation");
    assert_eq!(parts[..3], [(0, MIB, 3), (MIB, 4096, 0), (MIB + 4096, 2 * MIB - 4096, 3)]);
    front.client().zero(MIB, 4096, true, true).expect("a trim");
    assert_eq!(map(&front.uri, "base:allocation"), dirty);
    assert_eq!(front.stop(), 0);
    server.ask(&["drain"]);
    assert_eq!(map(&server.uri, "base:allocation"), dirty, "the origin is as sparse as the volume");
    assert_eq!(map(&server.uri, "destage:dirty"), [(0, 8 * MIB, 0)]);
    assert_eq!(server.stop(), 0);
}

#[test]
fn qemu_img_keeps_a_volume_sparse_both_ways() {
    use std::os::unix::fs::MetadataExt;
    if !has("qemu-img") {
        return;
    }
    let scratch = Scratch::new();
    let server = serving(&scratch, 64 * MIB);
    let (input, copied) = (scratch.join("in.img"), scratch.join("out.img"));
    let file = std::fs::File::create(&input).expect("a file");
    file.set_len(64 * MIB).expect("it is sparse");
    std::os::unix::fs::FileExt::write_all_at(&file, &[5; 1 << 20], 40 * MIB).expect("some data");
    let convert = |arguments: &[&str]| {
        output(
            Command::new("qemu-img").args(["convert", "-f", "raw", "-O", "raw"]).args(arguments),
        );
    };
    let path = |path: &std::path::Path| path.to_str().expect("it is UTF-8").to_owned();
    convert(&["-n", "--target-is-zero", &path(&input), &server.uri]);
    // Without looking for zeros: what is a hole there, the map alone tells.
    convert(&["-S", "0", &server.uri, &path(&copied)]);
    assert!(std::fs::read(&copied).expect("a file") == std::fs::read(&input).expect("a file"));
    let mut map = Command::new("qemu-img");
    let said = output(map.args(["map", "-f", "raw", "--output=json", &server.uri]));
    let parts: serde_json::Value = serde_json::from_str(&said).expect("it prints JSON");
    let zero_at = |part: &serde_json::Value| (part["start"].as_u64(), part["zero"].as_bool());
    let parts: Vec<_> = parts.as_array().expect("a list").iter().map(zero_at).collect();
    let expected = [(0, true), (40 * MIB, false), (41 * MIB, true)];
    assert_eq!(parts, expected.map(|(start, is_zero)| (Some(start), Some(is_zero))));
    assert_eq!(server.stop(), 0);
    let allocated = std::fs::metadata(scratch.join("disk.img")).expect("the origin").blocks() * 512;
    assert!(allocated < 4 * MIB, "{allocated} bytes of the origin are allocated");
}
