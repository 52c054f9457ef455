//! Judges what concurrent clients were told: whether any order of their work explains all of it.
//!
//! Clients note what they sent and when, what they were told and when, and nothing of the server's inside. [`sessions`]
//! judges sessions of several keys, [`register`] single keys. Times are any numbers that rise for all clients alike, such as
//! nanoseconds since the start of a test. What was never answered, because the server was killed, may have taken effect or
//! not.

pub mod register;
pub mod sessions;
