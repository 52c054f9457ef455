//! The Redis serialization protocol, versions 2 and 3: requests in, replies out.

mod parse;
mod reply;

pub use parse::{Args, Parse, ProtocolError, RequestLimits, parse};
pub(crate) use reply::count_replies;
pub use reply::{Protocol, Reply};
