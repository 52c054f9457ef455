//! The region keeps what the journal relies on, whenever the power goes.

use super::super::Sizing;
use super::*;
use destage_journal::DirDisk;
use destage_testkit::SimDisk;
use destage_testkit::disk::{Count, Random};
use std::cell::Cell;

thread_local! {
    /// The negative control: names and lengths become durable before the bytes that they cover.
    pub(super) static NO_SYNC_BEFORE_SWITCH: Cell<bool> = const { Cell::new(false) };
}

const SEED: u32 = 7;
const SEGMENT: u64 = 64 << 10;

fn geometry() -> Geometry {
    let sizing =
        Sizing { total_bytes: 1 << 20, log_bytes: Some(8 * SEGMENT), segment_bytes: Some(SEGMENT) };
    Geometry::plan(&sizing).unwrap()
}

fn medium(disk: &SimDisk) -> Medium {
    Medium::new(disk.open("cache", false).unwrap())
}

/// A device full of what was there before.
fn formatted() -> SimDisk {
    let disk = SimDisk::new();
    disk.edit("cache", |bytes| bytes.resize(1 << 20, 0xEE));
    RegionDisk::format(&medium(&disk), &geometry(), SEED).unwrap();
    medium(&disk).sync().unwrap();
    disk
}

fn open(disk: &SimDisk) -> RegionDisk {
    let medium = medium(disk);
    // As the cache device does.
    medium.sync().unwrap();
    RegionDisk::open(medium, geometry(), SEED).unwrap()
}

fn contents(disk: &dyn Disk, name: &str) -> Vec<u8> {
    let file = disk.open(name, false).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize + 10];
    let n = file.read_at(0, &mut bytes).unwrap();
    assert_eq!(n as u64, file.len().unwrap());
    bytes.truncate(n);
    bytes
}

/// One body for every implementation of the trait.
fn behaves_as_a_directory(disk: &dyn Disk) {
    let names = || {
        let mut names = disk.list().unwrap();
        names.retain(|name| name != "lock");
        names.sort();
        names
    };
    assert_eq!(disk.open("a", false).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.remove("a").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.rename("a", "b").unwrap_err().kind(), io::ErrorKind::NotFound);
    let file = disk.open("a", true).unwrap();
    assert!(file.is_empty().unwrap() && disk.exists("a").unwrap());
    file.write_at(1_000, b"tail").unwrap();
    let mut expected = vec![0; 1_004];
    expected[1_000..].copy_from_slice(b"tail");
    assert_eq!(contents(disk, "a"), expected);
    file.write_at(998, b"over").unwrap();
    assert_eq!(&contents(disk, "a")[996..], b"\0\0overil");
    file.set_len(999).unwrap();
    file.set_len(1_010).unwrap();
    assert_eq!(&contents(disk, "a")[996..], b"\0\0o\0\0\0\0\0\0\0\0\0\0\0");
    let mut none = [0; 4];
    assert_eq!(file.read_at(5_000, &mut none).unwrap(), 0);
    file.sync_data().unwrap();
    disk.sync_dir().unwrap();
    disk.open("b", true).unwrap().write_at(0, b"other").unwrap();
    disk.rename("a", "b").unwrap();
    assert_eq!(names(), ["b"]);
    assert_eq!(contents(disk, "b").len(), 1_010, "the replaced file is gone");
    disk.open("b", true).unwrap();
    assert_eq!(contents(disk, "b").len(), 1_010, "opening truncates nothing");
    disk.remove("b").unwrap();
    assert!(names().is_empty() && !disk.exists("b").unwrap());
    assert_eq!(file.len().unwrap(), 1_010, "a handle outlives the name");
    disk.sync_dir().unwrap();
}

#[test]
fn every_disk_behaves_as_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    behaves_as_a_directory(&DirDisk::open(folder.path().join("journal")).unwrap());
    behaves_as_a_directory(&SimDisk::new());
    behaves_as_a_directory(&open(&formatted()));
}

#[test]
fn extents_run_out_and_come_back() {
    let disk = open(&formatted());
    for n in 0..8 {
        disk.open(&format!("file {n}"), true).unwrap().set_len(SEGMENT).unwrap();
    }
    assert_eq!(disk.free_extents(), 0);
    assert_eq!(disk.open("one more", true).unwrap_err().kind(), io::ErrorKind::StorageFull);
    let held = disk.open("file 3", false).unwrap();
    disk.remove("file 3").unwrap();
    disk.remove("file 5").unwrap();
    disk.open("one more", true).unwrap().write_at(0, b"new").unwrap();
    assert_eq!(contents(&disk, "one more"), b"new", "nothing of the removed file shows");
    let full = disk.open("two more", true).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull, "a handle holds the extent");
    drop(held);
    disk.open("two more", true).unwrap();
}

#[test]
fn what_does_not_fit_is_refused() {
    let disk = open(&formatted());
    let file = disk.open("a", true).unwrap();
    let too_large = [
        file.write_at(SEGMENT - 1, b"xy").unwrap_err(),
        file.write_at(u64::MAX, b"x").unwrap_err(),
        file.set_len(SEGMENT + 1).unwrap_err(),
    ];
    assert!(too_large.iter().all(|e| e.kind() == io::ErrorKind::FileTooLarge));
    disk.open(&"n".repeat(48), true).unwrap();
    let long = disk.open(&"n".repeat(49), true).unwrap_err();
    assert_eq!(long.kind(), io::ErrorKind::InvalidFilename);
    assert_eq!(disk.rename("a", "").unwrap_err().kind(), io::ErrorKind::InvalidFilename);
    assert!(disk.exists("a").unwrap());
}

#[test]
fn one_damaged_table_is_survived_and_two_are_refused() {
    let disk = formatted();
    let region = open(&disk);
    region.open("a", true).unwrap().write_at(0, b"x").unwrap();
    region.sync_dir().unwrap();
    region.remove("a").unwrap();
    region.sync_dir().unwrap();
    // Generation 4, the removal, is in the first copy; generation 3 in the second.
    let damage = |copy: usize| {
        disk.edit("cache", |bytes| bytes[geometry().name_table(copy).start as usize + 9] ^= 1);
    };
    damage(0);
    assert_eq!(contents(&open(&disk), "a"), b"x");
    damage(1);
    let refused = RegionDisk::open(medium(&disk), geometry(), SEED).unwrap_err();
    assert!(refused.to_string().contains("name table"), "{refused}");
    let other = RegionDisk::open(medium(&formatted()), geometry(), SEED + 1).unwrap_err();
    assert!(matches!(other, CacheError::Damaged(_)), "tables of another cache do not fit");
}

/// What may and must be in the region after a crash.
#[derive(Default)]
struct Model {
    /// Each file ever made, by the number that its sectors begin with.
    files: Vec<FileModel>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    /// Names as they were at any moment since the last sync: the region has one table, so each of them at once or none.
    possible_names: Vec<BTreeMap<String, usize>>,
}

#[derive(Clone, Default)]
struct FileModel {
    now: Vec<u8>,
    synced: Option<Vec<u8>>,
    /// Sectors changed since the last sync.
    changed: bool,
}

struct Run {
    disk: SimDisk,
    random: Random,
    model: Model,
}

impl Run {
    /// Works until the power goes; false if it did not.
    fn work(&mut self, steps: usize) -> bool {
        let region = open(&self.disk);
        for _ in 0..steps {
            if self.step(&region).is_err() {
                return true;
            }
        }
        false
    }

    fn step(&mut self, region: &RegionDisk) -> io::Result<()> {
        let name = format!("file {}", self.random.below(4));
        let other = format!("file {}", self.random.below(4));
        match self.random.below(7) {
            0 | 1 => self.write(region, &name)?,
            2 if self.model.names.contains_key(&name) && name != other => {
                let id = self.model.names.remove(&name).unwrap();
                self.model.names.insert(other.clone(), id);
                self.model.possible_names.push(self.model.names.clone());
                region.rename(&name, &other)?;
            }
            3 if self.model.names.contains_key(&name) => {
                self.model.names.remove(&name);
                self.model.possible_names.push(self.model.names.clone());
                region.remove(&name)?;
            }
            4 => {
                region.sync_dir()?;
                self.model.synced_names = self.model.names.clone();
                self.model.possible_names.clear();
            }
            _ => self.sync(region, &name)?,
        }
        Ok(())
    }

    fn write(&mut self, region: &RegionDisk, name: &str) -> io::Result<()> {
        let id = match self.model.names.get(name) {
            Some(&id) => id,
            None => {
                self.model.files.push(FileModel::default());
                self.model.names.insert(name.to_owned(), self.model.files.len() - 1);
                self.model.possible_names.push(self.model.names.clone());
                self.model.files.len() - 1
            }
        };
        let sectors = 1 + self.random.below(4);
        let at = self.random.below(12) * 512;
        let bytes = vec![id as u8 + 1; sectors * 512];
        let file = &mut self.model.files[id];
        file.changed = true;
        if file.now.len() < at + bytes.len() {
            file.now.resize(at + bytes.len(), 0);
        }
        file.now[at..at + bytes.len()].copy_from_slice(&bytes);
        region.open(name, true)?.write_at(at as u64, &bytes)
    }

    fn sync(&mut self, region: &RegionDisk, name: &str) -> io::Result<()> {
        let Some(&id) = self.model.names.get(name) else { return Ok(()) };
        region.open(name, false)?.sync_data()?;
        let file = &mut self.model.files[id];
        file.synced = Some(file.now.clone());
        file.changed = false;
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let region = open(&self.disk);
        let names = region.list().unwrap();
        let possible = self.model.possible_names.iter().chain([&self.model.synced_names]);
        let model = possible.clone().find(|m| m.keys().eq(names.iter()) && self.fits(&region, m));
        model.map(drop).ok_or_else(|| format!("{names:?} are not the files of any moment"))
    }

    /// Whether every file under these names has bytes that it may have.
    fn fits(&self, region: &RegionDisk, names: &BTreeMap<String, usize>) -> bool {
        names.iter().all(|(name, &id)| {
            let (found, file) = (contents(region, name), &self.model.files[id]);
            let own = |byte: &u8| *byte == 0 || *byte == id as u8 + 1;
            let kept = match &file.synced {
                Some(synced) if !file.changed => found == *synced,
                // Written since: never shorter, and never zeros where there were bytes.
                Some(synced) => {
                    found.len() >= synced.len()
                        && synced.iter().zip(&found).all(|(old, new)| *old == 0 || old == new)
                }
                None => true,
            };
            found.iter().all(own) && kept
        })
    }
}

fn crash_at(at: u64, seed: u64) -> Result<bool, String> {
    let mut run = Run { disk: formatted(), random: Random(seed), model: Model::default() };
    run.disk.power_off_after(at);
    let struck = run.work(60);
    run.disk.crash(at * 131 + seed);
    run.check().map_err(|why| format!("power lost at operation {at}, seed {seed}: {why}"))?;
    Ok(struck)
}

fn crash_everywhere(seeds: u64) -> Result<u64, String> {
    let mut crashes = 0;
    for seed in 0..seeds {
        // The first operation is the sync of opening.
        for at in 2.. {
            if !crash_at(at, seed)? {
                break;
            }
            crashes += 1;
        }
    }
    Ok(crashes)
}

#[test]
fn names_and_bytes_are_those_of_some_moment_wherever_the_power_goes() {
    let crashes = crash_everywhere(12).unwrap();
    assert!(crashes > 500, "{crashes}");
}

#[test]
fn without_the_sync_before_the_switch_the_same_test_fails() {
    NO_SYNC_BEFORE_SWITCH.set(true);
    let failed = crash_everywhere(12);
    NO_SYNC_BEFORE_SWITCH.set(false);
    failed.unwrap_err();
}

#[test]
fn a_failed_sync_ends_all_writing() {
    let disk = formatted();
    let region = open(&disk);
    let (a, b) = (region.open("a", true).unwrap(), region.open("b", true).unwrap());
    a.write_at(0, b"a").unwrap();
    b.write_at(0, b"b").unwrap();
    disk.fail_after(Count::Syncs, 1, io::ErrorKind::Other);
    a.sync_data().unwrap_err();
    // The failure may have been of b's bytes, and the medium would report success from now on.
    b.sync_data().unwrap_err();
    region.sync_dir().unwrap_err();
    b.write_at(0, b"c").unwrap_err();
}
