//! Requests that are simulated together, so that what each of them needs is on its way into the processor's caches before the
//! first is looked at: reading for many at once costs little more than reading for one.

use crate::blocks::{AHEAD, Block, Blocks, TooManyBlocks};
use crate::trace::{Op, Request};

/// With so many blocks a batch is full, however few the requests.
const BLOCKS_MAX: usize = 1_024;

/// Some requests in a row with their blocks.
#[derive(Debug, Default)]
pub(super) struct Batch {
    requests: Vec<(Op, u32)>,
    blocks: Vec<Block>,
}

impl Batch {
    /// Numbers the blocks of all requests and shows them as batches, up to the first with an error.
    ///
    /// # Errors
    /// [`TooManyBlocks`].
    pub(super) fn each(
        &mut self,
        requests: &[Request],
        blocks: &mut Blocks,
        mut show: impl FnMut(&Self),
    ) -> Result<(), TooManyBlocks> {
        for requests in requests.chunks(AHEAD) {
            blocks.foresee(requests);
            for request in requests {
                let before = self.blocks.len();
                if let Err(error) = blocks.append(request, &mut self.blocks) {
                    self.blocks.truncate(before);
                    self.show(&mut show);
                    return Err(error);
                }
                self.requests.push((request.op, (self.blocks.len() - before) as u32));
                self.show_full(&mut show);
            }
            self.show(&mut show);
        }
        Ok(())
    }

    /// Takes a request whose blocks are numbered.
    pub(super) fn push(&mut self, op: Op, blocks: impl Iterator<Item = Block>) {
        let before = self.blocks.len();
        self.blocks.extend(blocks);
        self.requests.push((op, (self.blocks.len() - before) as u32));
    }

    /// Shows what there is, if it is enough, and begins anew.
    pub(super) fn show_full(&mut self, show: &mut impl FnMut(&Self)) {
        if self.blocks.len() >= BLOCKS_MAX || self.requests.len() >= AHEAD {
            self.show(show);
        }
    }

    /// Shows what there is, and begins anew.
    pub(super) fn show(&mut self, show: &mut impl FnMut(&Self)) {
        show(self);
        self.requests.clear();
        self.blocks.clear();
    }

    /// The blocks of all requests.
    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Each request with its blocks.
    pub(super) fn requests(&self) -> impl Iterator<Item = (Op, &[Block])> {
        let mut rest = self.blocks.as_slice();
        self.requests.iter().map(move |&(op, count)| {
            let (blocks, others) = rest.split_at(count as usize);
            rest = others;
            (op, blocks)
        })
    }
}
