use super::*;
use proptest::prelude::*;

const UNITS: &[UnitId] = &[UnitId(0), UnitId(70_000)];
const SIZES: &[(UnitId, u32)] = &[(UnitId(3), 4_096), (UnitId(500), 0)];

fn every_input(policy: &Policy) -> Vec<Input<'_>> {
    let (lsn, request) = (Lsn(1 << 40), RequestId(u64::MAX));
    let write = |ack, fetch| Intent::Write { bytes: 77, ack, fetch };
    let mut inputs = vec![
        Input::Join { lsn },
        Input::Spans { lsn, domains: &[DomainId(0), DomainId(300)] },
        Input::BuildsOn { lsn, on: &[Lsn(1), Lsn(1 << 39)] },
        Input::Release { units: UNITS },
        Input::Respond { client: ClientId(9), lsn, wrote: true },
        Input::Respond { client: ClientId(9), lsn, wrote: false },
        Input::Wait { request, lsn, until: WaitFor::Committed },
        Input::Wait { request, lsn, until: WaitFor::Decided },
        Input::Wait { request, lsn, until: WaitFor::AllDecided },
        Input::Cancel { request },
        Input::Fetched { unit: UnitId(5), result: Ok(4_096), identity: u64::MAX },
        Input::Restored { units: UNITS, bytes: 4_096 },
        Input::Evicted { identity: 1 },
        Input::Invalidate { unit: UnitId(8) },
        Input::Reload { unit: UnitId(8) },
        Input::Recovered {
            lsn,
            stamp: Time(9),
            domain: DomainId(2),
            level: 4,
            units: UNITS,
            bytes: 11,
            journal_bytes: 12,
        },
        Input::RecoveredParked { lsn, units: UNITS },
        Input::Collective { units: UNITS },
        Input::Shrunk { lsn, bytes: 4_096 },
        Input::HoldParked { held: true },
        Input::HoldParked { held: false },
        Input::Unparked { lsn, units: UNITS },
        Input::RecoveredUpto { lsn },
        Input::Lacking { secured: Some(lsn) },
        Input::Lacking { secured: None },
        Input::SetPolicy(policy),
        Input::Pause,
        Input::Resume,
        Input::ResumeParking,
        Input::Drain,
        Input::Tick,
    ];
    let acks = [Ack::Policy, Ack::Origin, Ack::OriginInvalidate];
    let writes = acks.iter().flat_map(|&ack| [write(ack, false), write(ack, true)]);
    for intent in writes.chain([Intent::Read, Intent::ReadSettled]) {
        inputs.push(Input::Access { request, intent, units: UNITS });
    }
    for access in [Access::Back, Access::Through, Access::Around] {
        let (units, bytes) = (SIZES, 13);
        let domain = DomainId(1);
        inputs.push(Input::Write { domain, units, bytes, journal_bytes: 14, access });
        inputs.push(Input::Through { units, access, result: Ok(()) });
    }
    for result in FAULTS.iter().map(|&fault| Err(fault)).chain([Ok(())]) {
        inputs.push(Input::Synced { upto: lsn, result });
        inputs.push(Input::Destaged { batch: BatchId(3), result });
        inputs.push(Input::Parked { lsn, result });
        inputs.push(Input::Fetched { unit: UnitId(5), result: result.map(|()| 1), identity: 2 });
    }
    inputs
}

#[test]
fn every_input_reads_back_and_no_part_of_one_does() {
    let policy = Policy { read_priority: true, ..Policy::default() };
    for input in every_input(&policy) {
        let mut bytes = Vec::new();
        encode(&mut bytes, &input);
        let mut scratch = Scratch::default();
        let mut read = Bytes(&bytes);
        assert_eq!(decode(&mut read, &mut scratch), Some(input.clone()));
        assert!(read.0.is_empty(), "{input:?}");
        for len in 0..bytes.len() {
            let part = decode(&mut Bytes(&bytes[..len]), &mut scratch);
            assert_ne!(part, Some(input.clone()), "{len} of {}", bytes.len());
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_an_input_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        decode(&mut Bytes(&bytes), &mut Scratch::default());
    }
}
