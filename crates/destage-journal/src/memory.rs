//! A disk that is none: for a journal whose records are durable elsewhere.

use crate::disk::{Disk, DiskFile};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

type Bytes = Arc<RwLock<Vec<u8>>>;

/// Files in memory. Clones share them; they are gone with the last one.
#[derive(Clone, Debug, Default)]
pub struct MemDisk {
    files: Arc<Mutex<BTreeMap<String, Bytes>>>,
}

#[derive(Debug)]
struct MemFile(Bytes);

impl MemDisk {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<String, Bytes>) -> T) -> T {
        work(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Disk for MemDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.with(|files| files.keys().cloned().collect()))
    }

    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn DiskFile>> {
        self.with(|files| {
            if !files.contains_key(name) && !create {
                return Err(io::ErrorKind::NotFound.into());
            }
            let bytes = files.entry(name.to_owned()).or_default();
            Ok(Box::new(MemFile(bytes.clone())) as Box<dyn DiskFile>)
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.with(|files| {
            let bytes = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
            files.insert(to.to_owned(), bytes);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.with(|files| {
            files.remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }
}

impl MemFile {
    fn change<T>(&self, work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        work(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl DiskFile for MemFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.read().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }

    fn again(&self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(Self(self.0.clone())))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(|file| {
            let (start, end) = (offset as usize, offset as usize + bytes.len());
            if file.len() < end {
                file.resize(end, 0);
            }
            file[start..end].copy_from_slice(bytes);
        });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.change(|file| {
            file.resize(bytes as usize, 0);
            file.shrink_to_fit();
        });
        Ok(())
    }
}
