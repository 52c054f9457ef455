//! `destage sim generate`: loads as traces.

use crate::error::CliError;
use crate::values::{bytes, interval};
use destage_runtime::progress::Progress;
use destage_runtime::units::{Bytes, Interval};
use destage_sim::blocks::BLOCK_BYTES;
use destage_sim::generate::{Generate, Load, Ycsb};
use std::io::{self, BufWriter, IsTerminal};

/// So many requests are generated between two looks at the progress.
const SHOWN_EVERY: u64 = 4_096;

/// Flags of `sim generate`.
#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// The load.
    #[arg(value_enum, value_name = "LOAD")]
    load: Kind,

    /// How many requests.
    #[arg(long, default_value = "100000", value_name = "N")]
    requests: u64,

    /// Time from one request to the next, 0 to 1h. Default: 1ms; for mogul 17.103ms, which gives its rates.
    #[arg(long, value_parser = |s: &str| interval(s, "0", "1h"), value_name = "TIME")]
    interval: Option<Interval>,

    /// Hosts that issue the requests.
    #[arg(long, default_value = "1", value_name = "N")]
    hosts: u16,

    /// Threads of each host.
    #[arg(long, default_value = "8", value_name = "N")]
    threads: u16,

    /// working-set: its size.
    #[arg(long, default_value = "1G", value_parser = |s: &str| bytes(s, "4K", "16T"), value_name = "SIZE")]
    working_set: Bytes,

    /// working-set: the size of the file system that it lies in.
    #[arg(long, default_value = "1T", value_parser = |s: &str| bytes(s, "4K", "1024T"), value_name = "SIZE")]
    file_system: Bytes,

    /// working-set: the size of the regions that it consists of.
    #[arg(long, default_value = "1M", value_parser = |s: &str| bytes(s, "4K", "1T"), value_name = "SIZE")]
    region: Bytes,

    /// working-set: how unevenly regions are used: 1 is evenly, more is a preference for some, up to 16.
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u8).range(1..=16), value_name = "N")]
    skew: u8,

    /// working-set: requests that go anywhere in the file system, in percent.
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    outside: u8,

    /// working-set: how unevenly those go: over the file system, its half, its quarter and so on, up to so many times halved.
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u8).range(0..=40), value_name = "N")]
    outside_halvings: u8,

    /// Writes, in percent. Default: 30 for working-set, 35 for mogul.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    writes: Option<u8>,

    /// working-set: blocks of 4 KiB of a request, on average.
    #[arg(long, default_value = "4", value_name = "N")]
    request_blocks: u64,

    /// ycsb: records of 1 KiB.
    #[arg(long, default_value = "1000000", value_name = "N")]
    records: u64,

    /// mogul: the file that is read.
    #[arg(long, default_value = "34M", value_parser = |s: &str| bytes(s, "4K", "16T"), value_name = "SIZE")]
    read_file: Bytes,

    /// mogul: the file that is written from end to end, again and again.
    #[arg(long, default_value = "4912K", value_parser = |s: &str| bytes(s, "4K", "16T"), value_name = "SIZE")]
    write_file: Bytes,

    /// tpcc: warehouses, about 190 MiB each with room for new orders.
    #[arg(long, default_value = "10", value_name = "N")]
    warehouses: u64,

    /// postmark, file-server, mail-server: files at the start. Default: 500, 10000 and 1000, as the benchmarks have it.
    #[arg(long, value_name = "N")]
    files: Option<u64>,

    /// The seed; the same one gives the same trace.
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,
}

/// The loads.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    /// The statistical traces of "Flash caching on the storage client".
    WorkingSet,
    /// YCSB: half reads, half updates.
    YcsbA,
    /// YCSB: 95 % reads.
    YcsbB,
    /// YCSB: reads only.
    YcsbC,
    /// YCSB: reads and read-modify-writes.
    YcsbF,
    /// The reader and the writer of "A better update policy".
    Mogul,
    /// The pages of TPC-C's transactions, and their log.
    Tpcc,
    /// PostMark: small files, created, read, appended to and deleted.
    Postmark,
    /// Filebench's file server: whole files, appends.
    FileServer,
    /// Filebench's mail server: messages, each synced.
    MailServer,
}

/// Writes the trace to stdout, in the simulator's own format.
pub(crate) fn run(args: &GenerateArgs) -> Result<(), CliError> {
    let blocks = |size: Bytes| size.get() / u64::from(BLOCK_BYTES);
    let ycsb = |workload| Load::Ycsb { workload, records: args.records };
    let load = match args.load {
        Kind::WorkingSet => Load::WorkingSet {
            set_blocks: blocks(args.working_set),
            all_blocks: blocks(args.file_system),
            region_blocks: blocks(args.region),
            skew: args.skew,
            outside_percent: args.outside,
            outside_halvings: args.outside_halvings,
            write_percent: args.writes.unwrap_or(30),
            request_blocks: args.request_blocks,
        },
        Kind::YcsbA => ycsb(Ycsb::A),
        Kind::YcsbB => ycsb(Ycsb::B),
        Kind::YcsbC => ycsb(Ycsb::C),
        Kind::YcsbF => ycsb(Ycsb::F),
        Kind::Mogul => Load::Mogul {
            read_blocks: blocks(args.read_file),
            write_blocks: blocks(args.write_file),
            write_percent: args.writes.unwrap_or(35),
        },
        Kind::Tpcc => Load::Tpcc { warehouses: args.warehouses },
        Kind::Postmark => Load::PostMark { files: args.files.unwrap_or(500) },
        Kind::FileServer => Load::FileServer { files: args.files.unwrap_or(10_000) },
        Kind::MailServer => Load::MailServer { files: args.files.unwrap_or(1_000) },
    };
    let interval = args.interval.map_or_else(|| load.interval(), Interval::span);
    let generate = Generate {
        load,
        requests: args.requests,
        interval,
        hosts: args.hosts,
        threads: args.threads,
        seed: args.seed,
    };
    generate.requests().map(drop).map_err(CliError::usage)?;
    let out = io::stdout();
    // On a terminal the requests themselves show how far it is.
    let mut bar = (!out.is_terminal()).then(|| Progress::new("generating requests", args.requests));
    let written = generate.write_with(BufWriter::new(out.lock()), |requests| {
        if let Some(bar) = &mut bar
            && requests.is_multiple_of(SHOWN_EVERY)
        {
            bar.set(requests);
        }
    });
    if let Some(bar) = bar {
        bar.finish();
    }
    match written {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(CliError::unwritable(format!("failed to write the trace: {error}"))),
        Ok(()) => Ok(()),
    }
}
