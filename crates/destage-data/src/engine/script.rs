//! Scripts: `EVAL`, `EVALSHA` and their kin, as far as they are of a part of Lua of which it is known how long it takes.
//!
//! Those by which clients hold locks and count requests are. They work upon plain keys alone, whose value is in memory as
//! long as it exists: a script is one command, and nothing of the origin is in it. A script is read each time that it is
//! sent, and performed by [`Context::perform_script`] as the commands that it calls.
//!
//! [`Context::perform_script`]: super::perform::Context::perform_script

pub(super) mod budget;
pub(super) mod call;
mod functions;
pub(super) mod kept;
mod lex;
mod numbers;
mod parse;
pub(super) mod read;
mod run;
mod syntax;
mod value;

#[cfg(test)]
mod tests;
