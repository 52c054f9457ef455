//! Giving files up that others may change from now on.

use super::Front;
use crate::ask::Ino;
use crate::engine::node::Node;
use crate::origin::Key;
use destage_tokens::{FileId, Root};
use hashbrown::HashMap;

/// Files at the origin that are kept open there before they are given up: whether that could be done.
#[derive(Debug, Default)]
pub(crate) struct Kept(Vec<(Key, bool)>);

impl Kept {
    /// Has the origin keep them open, which may take long.
    pub(crate) fn pin(files: Vec<Key>, pin: impl Fn(&Key) -> bool) -> Self {
        Self(files.into_iter().map(|file| (file.clone(), pin(&file))).collect())
    }
}

impl Front {
    /// Files that a token covers and programs have open: they stay readable once others may delete them, so the origin is to
    /// keep them open. Nobody waits for that under the lock of this engine.
    pub(crate) fn to_be_kept(&self, root: &Root, covered: &[FileId]) -> Vec<Key> {
        let inos = self.given_up(root, covered);
        let nodes = inos.into_iter().filter_map(|ino| self.tree.node(ino));
        nodes.filter(|node| is_to_be_kept(node)).map(|node| node.key.clone()).collect()
    }

    /// Files that others may change from now on: nothing is known of them any more, and those that are open stay readable. What
    /// another token covers is not given up: requests under that one may have changed it again. False, and nothing is done, if
    /// something else has changed that has to be waited for, or something was opened since it was asked what is to be kept.
    pub(crate) fn give_up(&mut self, root: &Root, covered: &[FileId], kept: Kept) -> bool {
        let inos = self.given_up(root, covered);
        let mut kept: HashMap<Ino, (Key, bool)> =
            kept.0.into_iter().map(|(key, is_kept)| (key.ino, (key, is_kept))).collect();
        let is_done = !inos.iter().any(|&ino| {
            let is_new = |node: &Node| is_to_be_kept(node) && !kept.contains_key(&ino);
            self.tree.is_unsent(ino) || self.tree.node(ino).is_some_and(is_new)
        });
        if is_done {
            self.tree.forget_clean(&inos);
            for ino in inos {
                let node = self.tree.node_mut(ino).filter(|node| is_to_be_kept(node));
                if let Some(node) = node
                    && let Some((_, is_kept)) = kept.remove(&ino)
                {
                    // What is gone already cannot be kept.
                    node.is_pinned = is_kept;
                }
            }
        }
        // Others were closed meanwhile, or are kept for something else.
        let unused = kept.into_values().filter(|(_, is_kept)| *is_kept);
        unused.for_each(|(key, _)| self.origin.unpin(&key));
        is_done
    }

    fn given_up(&self, root: &Root, covered: &[FileId]) -> Vec<Ino> {
        let (mut inos, _) = self.tree.covered(root, covered);
        if let Some(covers) = &self.covers {
            // Nobody gets a token and changes something by it in between: that takes this engine.
            inos.retain(|&ino| {
                self.tree.node(ino).is_some_and(|node| !covers.stays(&node.key.handle, root))
            });
        }
        inos
    }
}

fn is_to_be_kept(node: &Node) -> bool {
    node.opens > 0 && !node.is_pinned && node.dead.is_none()
}
