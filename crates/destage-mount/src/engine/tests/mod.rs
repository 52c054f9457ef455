//! The engine against a model of a file system, through crashes at every effect, in virtual time.

mod attempts;
mod bytes;
mod claims;
mod covers;
mod crashes;
mod full;
mod lost;
mod model;
mod origin;
mod others;
mod passages;
mod programs;
mod suspicions;
mod world;
