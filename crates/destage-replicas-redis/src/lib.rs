//! The replicated log on real servers: Valkey or Redis 6.2 and later, unmodified. [`destage_replicas::Owner`] decides; this
//! crate carries its requests to the servers by a script, asks each connection who is at its other end, and refuses servers
//! that would forget what they have accepted.

mod codec;
mod connect;
mod line;
mod live;
mod place;
mod plain;
mod said;

pub use codec::{SCRIPT, Wire};
pub use connect::{Link, Trouble};
pub use live::{LogSettings, Replicas, ServerReport};
pub use place::{PlaceError, Places};
pub use said::{Reach, Said};
