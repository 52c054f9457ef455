//! SQLite, a file for each test; and the plans of batches, which are tried on it.

mod fixture;
mod plan;
mod plan_oracle;
mod reading;
mod speed;
mod writing;
