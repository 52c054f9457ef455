//! Bursts with a flush after each write, against write-through: what write-back is for.

use crate::Result;
use crate::block::bench::{BlockBench, Comparison, Disk, POLICIES, Sizes, Volume};
use crate::figure::{Run, Target};
use crate::fio::{Job, Until};

const GROUP: &str =
    "Bursts: random writes of 4 KiB with a flush after each, depth 1, against write-through";

pub(super) fn run(bench: &mut BlockBench) -> Result<()> {
    let burst = bench.options.burst.min(128 << 20);
    for (profile, target) in [("raid", Target::ratio(20.0)), ("flash", Target::NONE)] {
        let sizes = Sizes::of(bench.options.region, burst);
        let mut volume = Volume::start(bench, Disk::new(profile), sizes, "journaled")?;
        volume.lay_out(bench)?;
        let volume = std::cell::RefCell::new(volume);
        let random = bench.random("randwrite");
        let until = Until { bytes_max: Some(burst), ..random.until };
        let job = Job { flush_every: 1, until, ..random };
        let side = |policy: &'static str| {
            let volume = &volume;
            move |bench: &mut BlockBench| -> Result<Run> {
                let mut volume = volume.borrow_mut();
                volume.rest_with(&[policy])?;
                volume.burst(bench, &job)
            }
        };
        let [mut through, mut back, mut ordered, mut journaled] = POLICIES.map(side);
        let comparisons = [1, 2, 3].map(|ours| Comparison {
            group: GROUP,
            case: format!("{}, disk {profile}", POLICIES[ours]),
            peer: "write-through, the same disk".into(),
            ours,
            theirs: 0,
            target,
        });
        bench.rounds(
            &format!("bursts, {profile}"),
            comparisons.into(),
            [&mut through, &mut back, &mut ordered, &mut journaled],
        );
    }
    Ok(())
}
