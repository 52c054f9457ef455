//! What a host is told.

use crate::{Controls, HostId};
use destage_core::Span;

/// What a host is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Who it is.
    pub host: HostId,
    /// How long its lease lasts at the store.
    pub lease: Span,
    /// How much earlier it counts it as ended: more than clocks can differ over a lease.
    pub margin: Span,
    /// How often it renews it.
    pub renew_every: Span,
    /// How long it waits before it tries again what has failed.
    pub retry_after: Span,
    /// Tokens above which it gives some back unasked.
    pub tokens_max: usize,
    /// What is broken on purpose.
    pub controls: Controls,
}
