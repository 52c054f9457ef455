//! The real binary before real databases, used by real clients. Tests are named as claims.

mod clients;
mod command_line;
mod crash;
mod damage;
mod derived;
mod domains;
mod halts;
mod harness;
mod herd;
mod identity;
mod invalidation;
mod load;
mod mapped;
mod mongo;
mod origin_away;
mod parked;
mod peers;
mod policies;
mod record;
mod rows;
mod safety;
mod schema_change;
mod sessions;
mod shutdown;
mod soak;
mod status;
