//! Extended attributes.

use super::content::later;
use super::{Context, Done, Outcome};
use crate::ask::{Answered, Errno, Ino, Name, Stat, XattrMode};
use crate::engine::record::Record;
use crate::engine::tree::Tree;

impl Tree {
    pub(super) fn set_xattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        name: &Name,
        value: &[u8],
        mode: XattrMode,
    ) -> Outcome {
        let is_there = self.xattr(context, ino, name)?.is_some();
        match mode {
            XattrMode::Create if is_there => return Err(Errno::EXIST.into()),
            XattrMode::Replace if !is_there => return Err(Errno::NODATA.into()),
            _ => {}
        }
        // What the origin would refuse is refused now, when somebody hears of it.
        let kind = self.node(ino).ok_or(Errno::STALE)?.kind;
        context.hints.xattr_tried(kind, name, value)?;
        self.change_xattr(context, ino, name, Some(value))
    }

    pub(super) fn remove_xattr(&self, context: &Context<'_>, ino: Ino, name: &Name) -> Outcome {
        self.xattr(context, ino, name)?.ok_or(Errno::NODATA)?;
        self.change_xattr(context, ino, name, None)
    }

    fn change_xattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        name: &Name,
        value: Option<&[u8]>,
    ) -> Outcome {
        let key = self.key(ino)?.clone();
        let before = self.stat(context, ino)?;
        let after = Stat { ctime: later(before.ctime, context.now), ..before };
        let mut records = Vec::with_capacity(3);
        self.describe(&key, &before, after, &mut records);
        records.push(Record::Xattr { ino, name: name.clone(), value: value.map(Into::into) });
        Ok(Done::changed(ino, Answered::Done, records))
    }

    pub(super) fn xattr(
        &self,
        context: &Context<'_>,
        ino: Ino,
        name: &Name,
    ) -> Outcome<Option<Vec<u8>>> {
        if is_acl(name) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let node = self.node(ino).ok_or(Errno::STALE)?;
        if let Some((value, _)) = node.xattrs.get(name) {
            return Ok(value.as_ref().map(|value| value.to_vec()));
        }
        if node.staged.is_some() {
            return Ok(None);
        }
        match context.hints.xattr(&node.key, name, node.settled)? {
            Ok(value) => Ok(Some(value)),
            Err(Errno::NODATA) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn xattrs(&self, context: &Context<'_>, ino: Ino) -> Outcome<Vec<u8>> {
        let node = self.node(ino).ok_or(Errno::STALE)?;
        let there =
            if node.staged.is_some() { Vec::new() } else { context.hints.xattrs(&node.key)? };
        let mut names = Vec::with_capacity(there.len());
        let is_shown = |name: &[u8]| !name.is_empty() && !node.xattrs.contains_key(name);
        for name in there.split(|&byte| byte == 0).filter(|name| is_shown(name) && !is_acl(name)) {
            names.extend_from_slice(name);
            names.push(0);
        }
        for (name, _) in node.xattrs.iter().filter(|(_, (value, _))| value.is_some()) {
            names.extend_from_slice(name);
            names.push(0);
        }
        Ok(names)
    }
}

/// Access control lists would have to be checked by whoever serves the files.
fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}
