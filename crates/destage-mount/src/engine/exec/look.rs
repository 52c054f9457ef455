//! Requests that only look: names, listings, data and holes.

use super::{Context, Done, Outcome};
use crate::ask::{Answered, Errno, Ino, Kind, Listed, Name, Seek};
use crate::engine::extents::Content;
use crate::engine::needs::Need;
use crate::engine::tree::Tree;
use std::sync::Arc;

impl Tree {
    pub(super) fn lookup(&self, context: &Context<'_>, dir: Ino, name: &Name) -> Outcome {
        let (key, stat) = self.child_there(context, dir, name)?;
        let answered = Answered::Entry(stat, super::super::generation(&key));
        Ok(Done::read(stat.ino, answered).with_entry(&key, stat.kind))
    }

    pub(super) fn read_dir(&self, context: &Context<'_>, ino: Ino) -> Outcome {
        let dots = [&b"."[..], b".."];
        let dots = dots.map(|name| Listed { name: name.into(), ino, kind: Kind::Dir });
        let names = dots.into_iter().chain(self.names(context, ino)?);
        Ok(Done::read(ino, Answered::Names(names.collect())))
    }

    /// The names in a directory, in a certain order.
    pub(super) fn names(&self, context: &Context<'_>, ino: Ino) -> Outcome<Vec<Listed>> {
        let node = self.node(ino).ok_or(Errno::STALE)?;
        if node.kind != Kind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        let is_dead = node.dead.is_some();
        let there: Arc<[Listed]> = if node.names.is_complete || is_dead {
            Arc::default()
        } else {
            let (list, asked) = context.hints.list(&node.key)?;
            let is_old = asked < node.settled;
            let list = if is_old { self.brought_up(ino, list, asked) } else { Some(list.clone()) };
            list.ok_or_else(|| Need::List(node.key.clone()))?
        };
        let is_hidden = |name: &[u8]| ino == self.root() && name == crate::OWN_FOLDER;
        let known = &node.names.known;
        let mut names: Vec<Listed> = there
            .iter()
            .filter(|listed| !known.contains_key(&listed.name) && !is_hidden(&listed.name))
            .cloned()
            .collect();
        let mut own: Vec<Listed> = known
            .iter()
            .filter_map(|(name, &(whose, _))| {
                let ino = whose?;
                Some(Listed { name: name.clone(), ino, kind: self.node(ino)?.kind })
            })
            .collect();
        // A hash map's order must not show.
        own.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        names.append(&mut own);
        Ok(names)
    }

    pub(super) fn lseek(
        &self,
        context: &Context<'_>,
        ino: Ino,
        offset: u64,
        whence: Seek,
    ) -> Outcome {
        let stat = self.stat(context, ino)?;
        if offset >= stat.size {
            return Err(Errno::NXIO.into());
        }
        let node = self.node(ino).ok_or(Errno::STALE)?;
        let found = if node.stat.is_none() {
            context.hints.seek(&node.key, offset, whence)?
        } else {
            // What the origin holds counts as data, as it may.
            let limit = node.content.limit.min(stat.size);
            let extents = &node.content.extents;
            let is_data = |from: u64| {
                if from < limit {
                    return Some((true, limit));
                }
                let range = extents.next(from)?;
                if range.start > from {
                    return Some((false, range.start));
                }
                let fragment = extents.fragments(from..range.end).into_iter().next()?;
                Some((matches!(fragment.content, Some(Content::Bytes(..))), range.end))
            };
            let wants_data = whence == Seek::Data;
            let mut at = offset;
            loop {
                match is_data(at) {
                    _ if at >= stat.size => break,
                    None => {
                        if wants_data {
                            return Err(Errno::NXIO.into());
                        }
                        break;
                    }
                    Some((is_data, _)) if is_data == wants_data => break,
                    Some((_, end)) => at = end,
                }
            }
            match whence {
                Seek::Data if at >= stat.size => return Err(Errno::NXIO.into()),
                _ => at.min(stat.size),
            }
        };
        Ok(Done::read(ino, Answered::Offset(found)))
    }
}
