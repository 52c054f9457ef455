//! The Redis serialization protocol, versions 2 and 3: requests in, replies out.

mod error;
mod parse;
mod reply;

pub use error::{Code, ReplyError};
pub use parse::{Args, Parse, Place, ProtocolError, RequestLimits, parse, resume};
pub use reply::{Protocol, Reply};
pub(crate) use reply::{TOO_LONG, count_replies, each_reply, escaped, in_v2};
