//! Trees of files: a model of what POSIX says of one, a load of many clients that keep books of what they did, and the check of
//! what is there after a crash against the books.

mod books;
mod load;
mod seen;
#[cfg(test)]
mod tests;
mod tree;

pub use books::{Books, Found, across};
pub use load::{Client, Ended};
pub use seen::{Seen, look};
pub use tree::{Change, Content, Entry, Tree, bytes};
