//! Identifiers that drivers and core exchange.

use serde::{Deserialize, Serialize};

/// A cached item (a row, an extent, a page range), as a dense handle that the driver assigns and reuses after
/// [`crate::Effect::Evict`]. Dense handles let the core keep its state in arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub struct UnitId(pub u32);

/// The sequence number of a write group, dense from 1; also its place in the journal. 0 stands before all groups.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Deserialize, Serialize,
)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Before every group.
    pub const ZERO: Self = Self(0);

    /// The number after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A client's request that waits for the core's decision. Chosen by the driver; unique while it is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub struct RequestId(pub u64);

/// A connection, whose replies leave in order. Chosen by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub struct ClientId(pub u32);

/// An ordering domain (queue): its groups reach the origin in commit order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Deserialize, Serialize,
)]
pub struct DomainId(pub u16);

/// A batch of groups on its way to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub struct BatchId(pub u64);
