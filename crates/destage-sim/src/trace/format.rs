//! The formats and their names.

use std::fmt;
use std::str::FromStr;

macro_rules! formats {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// The format of a trace.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Format {
            $($(#[$doc])* $variant,)+
        }

        impl Format {
            /// Every format.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

formats! {
    /// Comma-separated values with a header that names the columns.
    Csv = "csv",
    /// Microsoft Research Cambridge.
    Msr = "msr",
    /// Storage Performance Council, as of the UMass repository.
    Spc = "spc",
    /// The traces of Lee and others, SYSTOR 2017.
    Systor17 = "systor17",
    /// Alibaba's block traces.
    Alibaba = "alibaba",
    /// Tencent's block traces.
    Tencent = "tencent",
    /// Twitter's cache traces.
    Twitter = "twitter",
    /// VMware's virtual SCSI traces, version 1 or 2.
    Vscsi = "vscsi",
    /// The text that blkparse prints.
    Blkparse = "blkparse",
    /// The binary file that blktrace writes, merged by `blkparse -d`.
    Blktrace = "blktrace",
    /// fio's iolog, version 2 or 3.
    Fio = "fio",
    /// The `.lis` files of the ARC paper.
    Lis = "lis",
    /// DiskSim's ASCII format: times in milliseconds.
    Disksim = "disksim",
    /// The ASCII format of MQSim and SSDsim: times in nanoseconds.
    Mqsim = "mqsim",
    /// Hewlett-Packard Laboratories, SRT 1.3.
    Srt = "srt",
    /// Open CAS telemetry: the tar archive of the per-processor files.
    Octf = "octf",
    /// The binary format of libCacheSim with the time of the next access.
    OracleGeneral = "oracle-general",
    /// What `--record` of the servers wrote: a file of it, or all by the name that was given.
    Recording = "recording",
}

impl Format {
    /// All names, for messages.
    pub fn names() -> String {
        Self::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|format| format.name() == text);
        found.copied().ok_or_else(|| format!("unknown format: use {}", Self::names()))
    }
}
