//! The arguments of `destage-bench growth`.

use std::str::FromStr;

use clap::Args;

use crate::args::RunArgs;

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Case {
    /// Rows that are cached
    Rows,
    /// Writes that the origin has not decided
    Undecided,
    /// Connections of clients
    Connections,
    /// Tables of the origin
    Tables,
    /// Members of a sorted set
    Members,
    /// Bytes of the journal, in MiB
    Journal,
    /// Bytes of a volume, in GiB
    Volume,
}

#[derive(Debug, Args)]
pub(crate) struct GrowthArgs {
    /// Small sizes: shows that it works, not how anything grows
    #[arg(long)]
    pub(crate) quick: bool,
    /// Measure only this; may be repeated
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) cases: Vec<Case>,
    /// The largest size of a curve as CASE=COUNT, such as rows=10000000; journal in MiB, volume in GiB; may be repeated [default:
    /// rows=1000000, undecided=1000000, connections=10000, tables=2000, members=100000, journal=4096, volume=4096]
    #[arg(long, value_name = "CASE=COUNT")]
    pub(crate) largest: Vec<Largest>,
    /// Time of a run that is counted by time, seconds [default: 2, with --quick 0.2]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Seed of the streams of keys
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// The largest size of one curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Largest {
    pub(super) case: Case,
    pub(super) size: u64,
}

impl FromStr for Largest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=');
        let (name, size) = parts.ok_or_else(|| format!("{text:?} is not CASE=COUNT"))?;
        let case = <Case as clap::ValueEnum>::from_str(name, true)
            .map_err(|_| format!("there is no case {name:?}: see --cases"))?;
        let size = size.parse().map_err(|error| format!("{size:?} is no count: {error}"))?;
        if size == 0 { Err("a size is above 0".into()) } else { Ok(Self { case, size }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_largest_size_names_its_case() {
        let rows = Largest { case: Case::Rows, size: 10_000_000 };
        assert_eq!("rows=10000000".parse(), Ok(rows));
        for wrong in ["rows", "rows=", "rows=0", "rows=-1", "columns=1"] {
            assert!(wrong.parse::<Largest>().is_err(), "{wrong}");
        }
    }
}
