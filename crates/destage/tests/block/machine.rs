//! A whole machine, emulated in software, that boots from a volume, reads it and writes to it by its firmware.

use crate::harness::{PATIENCE, Scratch, eventually, has};
use crate::history::BLOCK;
use crate::server::{Launch, image, text};
use std::path::Path;
use std::process::{Command, Stdio};

/// The program in the disk's first sector. It reads the second sector, writes it to the third, sends its text to the serial
/// port, and ends the machine with 0x10, or with 0x20 if the disk failed.
#[rustfmt::skip]
const BOOT: &[u8] = &[
    0x31, 0xC0,             // xor ax, ax
    0x8E, 0xD8,             // mov ds, ax
    0x8E, 0xC0,             // mov es, ax
    0x8E, 0xD0,             // mov ss, ax
    0xBC, 0x00, 0x7C,       // mov sp, 0x7C00
    0xFC,                   // cld
    0xBB, 0x00, 0x80,       // mov bx, 0x8000
    0xB6, 0x00,             // mov dh, 0; dl is the disk, from the firmware
    0xB9, 0x02, 0x00,       // mov cx, 2; cylinder 0, the second sector
    0xB8, 0x01, 0x02,       // mov ax, 0x0201; read one sector
    0xCD, 0x13,             // int 0x13
    0x72, 0x1C,             // jc failed
    0xB9, 0x03, 0x00,       // mov cx, 3
    0xB8, 0x01, 0x03,       // mov ax, 0x0301; write one sector
    0xCD, 0x13,             // int 0x13
    0x72, 0x12,             // jc failed
    0xBE, 0x00, 0x80,       // mov si, 0x8000
    0xAC,                   // next: lodsb
    0x84, 0xC0,             // test al, al
    0x74, 0x06,             // jz done
    0xBA, 0xF8, 0x03,       // mov dx, 0x3F8
    0xEE,                   // out dx, al
    0xEB, 0xF5,             // jmp next
    0xB0, 0x10,             // done: mov al, 0x10
    0xEB, 0x02,             // jmp end
    0xB0, 0x20,             // failed: mov al, 0x20
    0xE6, 0xF4,             // end: out 0xF4, al
    0xF4,                   // hlt
];
const SECTOR: usize = 512;
const MESSAGE: &[u8] = b"a machine read this from its disk\n";
/// The port turns n into the exit code 2 n + 1.
const ENDED_WELL: i32 = 0x10 * 2 + 1;

/// A disk to boot from.
fn disk() -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    bytes[..BOOT.len()].copy_from_slice(BOOT);
    bytes[SECTOR - 2..SECTOR].copy_from_slice(&[0x55, 0xAA]);
    bytes[SECTOR..SECTOR + MESSAGE.len()].copy_from_slice(MESSAGE);
    bytes
}

/// Runs the machine to its end; its exit code, and what it sent to its serial port.
fn boot(uri: &str, serial: &Path) -> (i32, String) {
    let mut machine = Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg", "-m", "32", "-display", "none", "-monitor", "none", "-no-reboot"])
        .args(["-nodefaults", "-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"])
        .args(["-drive", &format!("file={uri},format=raw,if=ide,cache=writethrough")])
        .arg("-serial")
        .arg(format!("file:{}", serial.display()))
        .stdin(Stdio::null())
        .spawn()
        .expect("qemu starts");
    let mut code = None;
    let what = "the machine ends";
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually(what, PATIENCE * 2, || {
            code = machine.try_wait().expect("it is our child");
            code.is_some()
        });
    }));
    if ended.is_err() {
        let _ = machine.kill();
        let _ = machine.wait();
        panic!("not in time: {what}");
    }
    let said = text(&std::fs::read(serial).unwrap_or_default());
    (code.and_then(|status| status.code()).unwrap_or(-1), said)
}

#[test]
fn a_machine_boots_from_a_volume_and_writes_to_it() {
    if !has("qemu-system-x86_64") {
        return;
    }
    let scratch = Scratch::new();
    let image = image(&scratch, 8 << 20);
    let launch = Launch::before(&scratch, &format!("file:{}", image.display()));
    let server = launch.start();
    server.client().write(0, &disk(), true).expect("a write");
    let (code, said) = boot(&server.uri, &scratch.join("serial.txt"));
    assert_eq!((code, said.as_bytes()), (ENDED_WELL, MESSAGE));
    // It wrote through its own cache, so what it wrote survives.
    server.kill();
    let server = launch.start();
    let mut third = vec![0; SECTOR];
    server.client().read(2 * SECTOR as u64, &mut third).expect("a read");
    assert_eq!(&third[..MESSAGE.len()], MESSAGE);
    assert_eq!(server.stop(), 0);
    assert_eq!(&std::fs::read(&image).expect("a file")[2 * SECTOR..3 * SECTOR], &third[..]);
}
