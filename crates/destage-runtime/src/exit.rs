//! Exit codes, documented once: `--help` and the manual print [`TABLE`]. A code means the same in every subcommand.

/// Everything went as asked.
pub const OK: u8 = 0;
/// A bug in Destage.
pub const BUG: u8 = 1;
/// Wrong flags, settings or arguments.
pub const USAGE: u8 = 2;
/// The origin cannot be reached.
pub const ORIGIN_UNREACHABLE: u8 = 10;
/// Another process owns the origin.
pub const FENCED: u8 = 11;
/// The drain ran out of time.
pub const DIRTY_REMAINS: u8 = 12;
/// The journal, or the cache of volumes, is damaged, locked or cannot be written.
pub const JOURNAL_UNUSABLE: u8 = 13;
/// The origin holds less than the journal knows it held, or something else.
pub const ORIGIN_WENT_BACK: u8 = 14;
/// The address to listen on, or the mount point, is taken.
pub const ADDRESS_IN_USE: u8 = 15;
/// A running server was asked something and could not be reached, or did not answer.
pub const SERVER_UNREACHABLE: u8 = 16;
/// A trace cannot be read, is damaged, or lacks what is asked of it.
pub const TRACE_UNUSABLE: u8 = 17;
/// Cached copies are damaged; nothing is lost.
pub const SLOTS_DAMAGED: u8 = 18;
/// What was asked for takes longer than `--timeout`.
pub const TIMED_OUT: u8 = 19;
/// A running server was asked for something, refused it or failed at it.
pub const REFUSED: u8 = 20;
/// What came out is not what must come out.
pub const UNEXPECTED_RESULT: u8 = 21;
/// What came out cannot be written.
pub const OUTPUT_UNWRITABLE: u8 = 22;
/// A benchmark ended early.
pub const BENCHMARK_FAILED: u8 = 23;
/// A simulation was interrupted; what it had by then is shown.
pub const INTERRUPTED: u8 = 24;

/// Every code with its meaning, in ascending order.
pub const TABLE: [(u8, &str); 18] = [
    (OK, "success"),
    (BUG, "a bug in Destage; please report it"),
    (USAGE, "wrong flags, settings or arguments; nothing was done"),
    (ORIGIN_UNREACHABLE, "the origin cannot be reached, or refused the connection"),
    (FENCED, "another process owns the origin; the journal is kept"),
    (
        DIRTY_REMAINS,
        "undestaged writes remain in the journal or cache; the next start takes them up",
    ),
    (
        JOURNAL_UNUSABLE,
        "the journal or cache is damaged, of another version, in use by another process, or out of reach",
    ),
    (
        ORIGIN_WENT_BACK,
        "the origin is not as it was left (restored, failed over, changed); the journal is kept",
    ),
    (ADDRESS_IN_USE, "the address to listen on, or the mount point, is in use or not available"),
    (SERVER_UNREACHABLE, "the running server cannot be reached at its admin port, or is too busy"),
    (
        TRACE_UNUSABLE,
        "a trace cannot be read, is damaged, of no known format, or lacks what is asked of it",
    ),
    (SLOTS_DAMAGED, "cached copies of clean blocks are damaged; nothing is lost"),
    (TIMED_OUT, "the time given by --timeout is over; what the server has begun goes on"),
    (REFUSED, "the running server refused what was asked, or failed at it; it says what was done"),
    (
        UNEXPECTED_RESULT,
        "a figure has numbers outside their bounds, or a replay differs from its recording",
    ),
    (OUTPUT_UNWRITABLE, "the result cannot be written to standard output or to its file"),
    (BENCHMARK_FAILED, "a benchmark ended before its end; nothing is to be read from its numbers"),
    (INTERRUPTED, "a simulation was interrupted; what is shown is what it had by then"),
];

/// The table as it stands in `--help`.
pub fn help() -> String {
    let mut out = String::from("Exit codes:\n");
    for (code, meaning) in TABLE {
        out.push_str(&format!("  {code:>2}  {meaning}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_all_in_the_help() {
        assert!(TABLE.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let help = help();
        for (code, meaning) in TABLE {
            assert!(help.contains(&format!("{code:>2}  {meaning}")));
        }
    }
}
