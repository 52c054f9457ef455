//! What people do who install, watch and learn Destage: the real binary, a real browser, the documents' own commands.

#[path = "../e2e/harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests of other front ends use the rest")]
mod harness;

mod browser;
mod checking;
mod console;
mod forms;
mod monitoring;
mod progress;
mod recipes;
mod service;
mod settings;
mod shop;
mod terminal;
mod tools;
mod top;
mod typed;
mod users;
mod volumes;
