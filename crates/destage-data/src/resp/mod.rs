//! The Redis serialization protocol, versions 2 and 3: requests in, replies out.

mod parse;
mod reply;

pub use parse::{Args, Parse, ProtocolError, RequestLimits, parse};
pub use reply::{Protocol, Reply};
pub(crate) use reply::{count_replies, in_v2};
