//! Replacement of clean units: which one leaves when memory is short.

mod ghost;
mod list;
mod s3fifo;

pub use s3fifo::S3Fifo;
