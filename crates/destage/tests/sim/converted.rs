//! What `sim convert` keeps of a trace, and what it leaves out.

use super::{destage, json, stdout, write};
use destage_core::{Core, Input, Policy, Time};
use destage_record::{Asked, RecordSettings, RecordedCore, What};
use std::path::Path;

/// A key-value trace, of a read, a write, a delete and a read again.
const OBJECTS: &str = "time_us,op,key,size_bytes\n0,F,,0\n10,W,row:1,300\n20,R,row:2,5000\n30,R,row:1,300\n40,F,,0\n\
                       50,D,row:1,0\n60,R,row:1,300\n";

#[test]
fn a_trace_of_objects_keeps_its_keys_apart_and_is_read_again() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let trace = write(folder.path(), "objects.csv", OBJECTS.as_bytes());
    let convert = |trace: &str, flags: &[&str]| {
        stdout(&destage(&[&["sim", "convert", "--trace", trace], flags].concat()))
    };
    let text = convert(&trace, &[]);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0].join(","), "time_ns,op,key,size_bytes,host,thread");
    assert_eq!(lines[1].join(","), "0,F,,0,0,0");
    assert_eq!(lines[2][..2], ["10000", "W"]);
    // The same key for the same object, whatever is done with it, and another one for another.
    assert!(lines[2][2] == lines[4][2] && lines[2][2] == lines[6][2], "{text}");
    assert!(lines[2][2] != lines[3][2] && lines[3][3] == "5000", "{text}");
    let run = |trace: &str, flags: &[&str]| {
        let run = ["sim", "run", "--trace", trace, "--flash", "1M", "--format", "json"];
        let row = json(&destage(&[&run[..], flags].concat()))[0].clone();
        assert_eq!(row["distinct_blocks"], 2, "{row}");
        (row["reads"].clone(), row["writes"].clone(), row["discarded_blocks"].clone())
    };
    let original = run(&trace, &[]);
    assert_eq!((&original.0["requests"], &original.0["request_hits"]), (&3.into(), &1.into()));
    let copy = write(folder.path(), "copy.csv", text.as_bytes());
    assert_eq!(run(&copy, &[]), original);
    let inspect = |trace: &str| {
        let mut contents =
            json(&destage(&["sim", "inspect", "--trace", trace, "--format", "json"]));
        contents["trace"] = "any".into();
        contents
    };
    assert_eq!(inspect(&copy), inspect(&trace));
    // By columns that are called otherwise.
    let foreign = text.replacen("time_ns,op,key,size_bytes", "When,What,Which,Len", 1);
    let foreign = write(folder.path(), "foreign.csv", foreign.as_bytes());
    let columns = "time_ns=When,op=What,key=Which,size_bytes=Len";
    assert_eq!(run(&foreign, &["--trace-columns", columns]), original);
    // libCacheSim's format is of objects as well: it gets as many of them, and gives them back.
    let binary = destage(&["sim", "convert", "--trace", &copy, "--to", "oracle-general"]).stdout;
    assert_eq!(binary.len(), 4 * 24);
    let binary = write(folder.path(), "objects.oracleGeneral", &binary);
    let back = convert(&binary, &["--trace-format", "oracle-general"]);
    let keys = |text: &str| {
        let fields = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
        let with_keys = fields.filter(|fields| ["R", "W"].contains(&fields[1]));
        with_keys.map(|fields| fields[2].to_owned()).collect::<Vec<_>>()
    };
    let (back, was) = (keys(&back), keys(&text));
    assert_eq!(back.len(), 4);
    for (first, second) in [(0, 1), (0, 2), (1, 2), (0, 3)] {
        assert_eq!(back[first] == back[second], was[first] == was[second], "{back:?} {was:?}");
    }
    // Of flushes alone there is nothing that has a key.
    let flushes = convert(&trace, &["--op", "flush"]);
    assert!(flushes.starts_with("time_ns,op,device,") && flushes.lines().count() == 3, "{flushes}");
}

#[test]
fn devices_are_chosen_by_name_or_number_and_an_unknown_one_is_told_which_there_are() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = |name: &str, text: &str| write(folder.path(), name, text.as_bytes());
    let csv = file(
        "named.csv",
        "op,device,offset_bytes,size_bytes\nW,sdb,0,512\nR,sda,512,512\nF,,0,0\nW,7,1024,512\nR,sda,1536,512\n",
    );
    let msr = file(
        "hosts.msr",
        "128166372003061629,usr,0,Read,7014609920,24576,41286\n128166372016382155,src,1,Write,1317441536,8192,1963\n",
    );
    let blkparse =
        file("parsed.txt", "8,0 3 1 0.1 697 Q W 223490 + 8 [a]\n259,1 3 2 0.2 697 Q R 8 + 8 [a]\n");
    let plain = file("plain.csv", super::TRACE);
    let convert = |trace: &str, device: &str| {
        destage(&["sim", "convert", "--trace", trace, "--device", device])
    };
    let offsets = |trace: &str, device: &str| -> Vec<String> {
        let text = stdout(&convert(trace, device));
        let lines = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
        let ranges = lines.filter(|fields| fields[1] != "F");
        ranges.map(|fields| fields[3].to_owned()).collect()
    };
    assert_eq!(offsets(&csv, "sda"), ["512", "1536"]);
    assert_eq!(offsets(&csv, "1"), ["512", "1536"]);
    assert_eq!(offsets(&csv, "sdb,=7"), ["0", "1024"]);
    assert_eq!(offsets(&csv, "0,sda"), ["0", "512", "1536"]);
    assert_eq!(offsets(&msr, "usr:0"), ["7014609920"]);
    assert_eq!(offsets(&msr, "src:1"), ["1317441536"]);
    assert_eq!(offsets(&blkparse, "259:1"), ["4096"]);
    assert_eq!(offsets(&plain, "0").len(), 7);
    for (trace, device, part) in [
        (&csv, "sdc", "has no device 'sdc': it has sdb (0), sda (1), 7 (2)"),
        (&csv, "sda,sdc", "has no device 'sdc'"),
        (&csv, "7", "a name that is a number is --device =7"),
        (&msr, "usr", "it has usr:0 (0), src:1 (1)"),
        (&plain, "sda", "has no device 'sda': it has 0"),
    ] {
        let refused = convert(trace, device);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{device}: {said}");
        assert!(said.contains(part), "{device}: {said}");
        // What is written before the trace ends are the devices that there are.
        assert_eq!(refused.stdout.is_empty(), device != "sda,sdc", "{device}");
    }
    // A recording has the name of its volume.
    let volume = recorded(folder.path(), "block volume mail");
    assert_eq!(offsets(&volume, "mail"), ["4096"]);
    let refused = convert(&volume, "post");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("it has mail (0)"), "{refused:?}");
    // Objects are on no device.
    let objects = file("objects.csv", OBJECTS);
    let refused = convert(&objects, "sda");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("it has none"), "{refused:?}");
    let binary = ["sim", "convert", "--trace", &csv, "--to", "oracle-general", "--device"];
    assert_eq!(destage(&[&binary[..], &["sda"]].concat()).stdout.len(), 2 * 24);
    assert_eq!(destage(&[&binary[..], &["sdc"]].concat()).status.code(), Some(2));
}

/// A recording of one read, of this subject; its name.
pub(super) fn recorded(folder: &Path, subject: &str) -> String {
    let (path, bytes_max) = (folder.join("run"), RecordSettings::BYTES_MIN);
    let mut core = RecordedCore::from(Core::new(Time::ZERO, Policy::default()));
    let settings = RecordSettings { path: path.clone(), bytes_max, is_anonymous: false };
    core.record(&settings, env!("CARGO_PKG_VERSION"), subject).expect("it can be recorded");
    let now = Time::from_secs(1);
    core.ask(now, Asked { what: What::Read, offset: 4_096, bytes: 512 });
    core.handle(now, Input::Tick);
    path.to_str().expect("the path is text").to_owned()
}
