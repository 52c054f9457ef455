//! What the simulated file system is asked.

use super::*;

impl Origin for SimOrigin {
    fn root(&self) -> Key {
        key(ROOT)
    }

    fn lookup(&self, dir: &Key, name: &[u8]) -> Result<(Key, Stat)> {
        let dir = &within(dir);
        let mut state = self.state();
        state.look()?;
        let key = key(state.whose(dir, name)?);
        let stat = state.shown(&key)?;
        Ok((Key { ino: stat.ino, ..key }, stat))
    }

    fn stat(&self, file: &Key) -> Result<Stat> {
        let file = &within(file);
        let mut state = self.state();
        state.look()?;
        state.shown(file)
    }

    fn list(&self, dir: &Key) -> Result<Vec<Listed>> {
        let dir = &within(dir);
        let mut state = self.state();
        state.look()?;
        let names = state.file(dir)?.names.clone();
        let listed = names.into_iter().filter_map(|(name, ino)| {
            let stat = state.meta.get(&ino)?.stat;
            Some(Listed { name, ino: stat.ino, kind: stat.kind })
        });
        Ok(listed.collect())
    }

    fn read(&self, file: &Key, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = &within(file);
        let mut state = self.state();
        state.look()?;
        state.file(file)?;
        let empty = Vec::new();
        let bytes = state.content.get(&file.ino).map_or(&empty, |content| &content.now);
        let from = bytes.len().min(offset as usize);
        Ok(bytes[from..bytes.len().min(from + len)].to_vec())
    }

    fn read_link(&self, file: &Key) -> Result<Vec<u8>> {
        let file = &within(file);
        Ok(self.state().file(file)?.target.to_vec())
    }

    fn seek(&self, _: &Key, offset: u64, _: Seek) -> Result<u64> {
        Ok(offset)
    }

    fn space(&self) -> Result<Space> {
        let state = self.state();
        let Some(room) = state.room else { return Ok(Space::default()) };
        let available = room.saturating_sub(state.used());
        Ok(Space { blocks: room, available, block_bytes: BLOCK_BYTES as u32, ..Space::default() })
    }

    fn xattr(&self, file: &Key, name: &[u8]) -> Result<Vec<u8>> {
        let file = &within(file);
        let mut state = self.state();
        state.file(file)?.xattrs.get(name).map(|value| value.to_vec()).ok_or(Errno::NODATA)
    }

    fn xattrs(&self, file: &Key) -> Result<Vec<u8>> {
        let file = &within(file);
        let mut state = self.state();
        let names = state.file(file)?.xattrs.keys();
        Ok(names.flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    fn make(&self, dir: &Key, name: &[u8], make: &Make) -> Result<(Key, Stat)> {
        let dir = &within(dir);
        let mut state = self.state();
        state.effect()?;
        if state.file(dir)?.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        state.last_ino += 1;
        let ino = state.last_ino;
        let number = state.number(ino);
        let stat = state.stat(number, make.kind(), 0o600);
        let mut file = File::new(stat);
        if let Make::Link(target) = make {
            file.target.clone_from(target);
        }
        state.meta.insert(ino, file);
        state.file(dir)?.names.insert(name.into(), ino);
        state.forgotten.remove(&(dir.ino, name.into()));
        state.touch(dir.ino, true);
        state.changed();
        Ok((Key { ino: number, ..key(ino) }, stat))
    }

    fn write(&self, file: &Key, offset: u64, data: &[u8]) -> Result<()> {
        let file = &within(file);
        self.state().change(file, Change::Write(offset, data.to_vec()))
    }

    fn truncate(&self, file: &Key, size: u64) -> Result<()> {
        let file = &within(file);
        self.state().change(file, Change::Size(size))
    }

    fn punch(&self, file: &Key, offset: u64, len: u64) -> Result<()> {
        let file = &within(file);
        self.state().change(file, Change::Write(offset, vec![0; len as usize]))
    }

    fn sync(&self, file: &Key) -> Result<()> {
        let file = &within(file);
        let mut state = self.state();
        state.effect()?;
        state.file(file)?;
        if let Some(content) = state.content.get_mut(&file.ino) {
            content.durable.clone_from(&content.now);
            content.since.clear();
        }
        state.history = vec![state.snapshot()];
        if state.is_slow {
            state.clock += state.sync_takes;
        }
        Ok(())
    }

    fn whole_bytes(&self) -> u64 {
        WHOLE_BYTES
    }

    fn syncs_all(&self) -> bool {
        true
    }

    fn sync_all(&self) -> Result<()> {
        let mut state = self.state();
        state.effect()?;
        for content in state.content.values_mut() {
            content.durable.clone_from(&content.now);
            content.since.clear();
        }
        state.history = vec![state.snapshot()];
        Ok(())
    }

    fn set(&self, file: &Key, attributes: &Attributes) -> Result<()> {
        let file = &within(file);
        let mut state = self.state();
        state.effect()?;
        let stat = &mut state.file(file)?.stat;
        if let Some((uid, gid)) = attributes.owner {
            (stat.uid, stat.gid) = (uid, gid);
        }
        stat.mode = attributes.mode.unwrap_or(stat.mode);
        stat.atime = attributes.atime.unwrap_or(stat.atime);
        stat.mtime = attributes.mtime.unwrap_or(stat.mtime);
        state.touch(file.ino, false);
        state.changed();
        Ok(())
    }

    fn rename(
        &self,
        dir: &Key,
        name: &[u8],
        to_dir: &Key,
        to_name: &[u8],
        replace: bool,
    ) -> Result<()> {
        let (dir, to_dir) = (&within(dir), &within(to_dir));
        let mut state = self.state();
        let ino = state.whose(dir, name)?;
        let is_dir = state.meta.get(&ino).is_some_and(|file| file.stat.kind == Kind::Dir);
        if state.in_steps && !replace && !is_dir {
            let is_done = state.file(to_dir)?.names.get(to_name) == Some(&ino);
            state.half = Some((dir.ino, name.into()));
            drop(state);
            if !is_done && let Err(error) = self.link(&key(ino), to_dir, to_name) {
                self.state().half = None;
                return Err(error);
            }
            return self.unlink(dir, name);
        }
        let replaced = state.file(to_dir)?.names.get(to_name).copied();
        let replaced = replaced.filter(|there| replace && state.in_steps && *there != ino);
        if let Some(there) = replaced.filter(|there| state.meta[there].stat.nlink > 1 && !is_dir) {
            state.gap = Some((to_dir.ino, to_name.into(), there));
            drop(state);
            if let Err(error) = self.unlink(to_dir, to_name) {
                self.state().gap = None;
                return Err(error);
            }
            state = self.state();
            state.forget_others(there, to_dir, to_name);
        }
        state.effect()?;
        let there = state.file(to_dir)?.names.get(to_name).copied();
        if there == Some(ino) {
            return Ok(());
        }
        if let Some(there) = there {
            if !replace {
                return Err(Errno::EXIST);
            }
            if state.meta.get(&there).is_some_and(|file| !file.names.is_empty()) {
                return Err(Errno::NOTEMPTY);
            }
            state.lose_name(there);
            state.forget_others(there, to_dir, to_name);
        }
        state.file(dir)?.names.remove(name);
        state.file(to_dir)?.names.insert(to_name.into(), ino);
        state.forgotten.remove(&(to_dir.ino, to_name.into()));
        state.gap.take_if(|(at, gap, _)| *at == to_dir.ino && **gap == *to_name);
        state.touch(ino, false);
        state.touch(dir.ino, true);
        state.touch(to_dir.ino, true);
        state.changed();
        Ok(())
    }

    fn renames_in_steps(&self) -> bool {
        self.state().in_steps
    }

    fn link(&self, file: &Key, dir: &Key, name: &[u8]) -> Result<()> {
        let (file, dir) = (&within(file), &within(dir));
        let mut state = self.state();
        state.effect()?;
        if state.file(dir)?.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        state.file(file)?.stat.nlink += 1;
        state.file(dir)?.names.insert(name.into(), file.ino);
        state.forgotten.remove(&(dir.ino, name.into()));
        state.gap.take_if(|(at, gap, _)| *at == dir.ino && **gap == *name);
        state.touch(file.ino, false);
        state.touch(dir.ino, true);
        state.changed();
        Ok(())
    }

    fn has_name(&self, file: &Key, dir: &Key, name: &[u8]) -> Result<bool> {
        let (file, dir) = (&within(file), &within(dir));
        let mut state = self.state();
        state.look()?;
        state.forgotten.remove(&(dir.ino, name.into()));
        if state.in_steps && state.file(file).is_ok() {
            // It is given the name, and loses it.
            state.touch(file.ino, false);
            state.changed();
        }
        Ok(state.whose(dir, name) == Ok(file.ino))
    }

    fn unlink(&self, dir: &Key, name: &[u8]) -> Result<()> {
        let dir = &within(dir);
        let mut state = self.state();
        state.effect()?;
        let ino = state.whose(dir, name)?;
        if state.meta.get(&ino).is_some_and(|file| file.stat.kind == Kind::Dir) {
            return Err(Errno::ISDIR);
        }
        state.file(dir)?.names.remove(name);
        state.half.take_if(|(at, half)| *at == dir.ino && **half == *name);
        state.lose_name(ino);
        state.touch(dir.ino, true);
        state.changed();
        Ok(())
    }

    fn rmdir(&self, dir: &Key, name: &[u8]) -> Result<()> {
        let dir = &within(dir);
        let mut state = self.state();
        state.effect()?;
        let ino = *state.file(dir)?.names.get(name).ok_or(Errno::NOENT)?;
        if state.meta.get(&ino).is_some_and(|file| !file.names.is_empty()) {
            return Err(Errno::NOTEMPTY);
        }
        state.file(dir)?.names.remove(name);
        state.lose_name(ino);
        state.touch(dir.ino, true);
        state.changed();
        Ok(())
    }

    fn set_xattr(&self, file: &Key, name: &[u8], value: &[u8]) -> Result<()> {
        let file = &within(file);
        let mut state = self.state();
        state.effect()?;
        let xattrs = &mut state.file(file)?.xattrs;
        let others = xattrs.iter().filter(|(other, _)| ***other != *name);
        if others.map(|(_, value)| value.len()).sum::<usize>() + value.len() > XATTR_BYTES_MAX {
            return Err(Errno::NOSPC);
        }
        xattrs.insert(name.into(), value.into());
        state.touch(file.ino, false);
        state.changed();
        Ok(())
    }

    fn remove_xattr(&self, file: &Key, name: &[u8]) -> Result<()> {
        let file = &within(file);
        let mut state = self.state();
        state.effect()?;
        state.file(file)?.xattrs.remove(name).ok_or(Errno::NODATA)?;
        state.touch(file.ino, false);
        state.changed();
        Ok(())
    }

    fn pin(&self, file: &Key) -> Result<()> {
        let file = &within(file);
        let mut state = self.state();
        state.file(file)?;
        *state.pins.entry(file.ino).or_insert(0) += 1;
        Ok(())
    }

    fn unpin(&self, file: &Key) {
        let file = &within(file);
        let mut state = self.state();
        state.pins.remove(&file.ino);
        if state.meta.get(&file.ino).is_some_and(|file| file.stat.nlink == 0) {
            state.end(file.ino);
        }
    }
}

/// As ext4 has it, of one block.
const XATTR_BYTES_MAX: usize = 4_000;
