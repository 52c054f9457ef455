use super::*;

#[test]
fn what_comes_in_the_warm_up_fills_the_cache_and_is_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut roomy = policy();
    roomy.limits.cache_bytes_max = 1_000 * u64::from(BLOCK);
    let part = recorded(folder.path(), roomy, 5_000, 1 << 30).remove(0);
    let run = |warmup: Span| {
        let mut watched = Watched::new(warmup);
        let took = replay(&part, &mut watched).unwrap().duration();
        let (load, run) = watched.into_run();
        let modelled = what_if(&load, Policy::clone).expect("something was recorded");
        (took, run.expect("something was recorded"), modelled)
    };
    let (took, all, all_modelled) = run(Span::ZERO);
    let (_, late, late_modelled) = run(Span(took.0 / 2));
    let share = |part: u64, of: u64| part as f64 / of as f64;
    for (part, of) in [
        (late.reads.as_ref().unwrap().count, all.reads.as_ref().unwrap().count),
        (late.writes.as_ref().unwrap().count, all.writes.as_ref().unwrap().count),
        (late.tally.origin_writes, all.tally.origin_writes),
        (late_modelled.reads.answered, all_modelled.reads.answered),
        (late_modelled.writes.answered, all_modelled.writes.answered),
        (late_modelled.tally.origin_writes, all_modelled.tally.origin_writes),
    ] {
        assert!((0.4..0.6).contains(&share(part, of)), "{part} of {of}");
    }
    // The first half read all there is, and what was asked then was answered.
    for (late, all) in [(&late.tally, &all.tally), (&late_modelled.tally, &all_modelled.tally)] {
        assert!(share(late.fetches, all.fetches) < 0.1, "{} {}", late.fetches, all.fetches);
    }
    assert!(late_modelled.reads.mean < all_modelled.reads.mean / 2.0, "{late_modelled:?}");
    assert_eq!(late_modelled.unanswered, all_modelled.unanswered);
    // Where all is warm-up, nothing is counted.
    let (_, none, none_modelled) = run(Span(took.0 * 2));
    assert!(none.reads.is_none() && none.tally.origin_writes == 0);
    assert_eq!((none_modelled.reads.answered, none_modelled.tally.writes), (0, 0));
}

/// Tells a core and who watches it.
fn tell(watched: &mut Watched, core: &mut Core, now: Time, input: Input<'_>) {
    watched.input(now, &input, core);
    core.handle(now, input);
    while let Some(effect) = core.poll_effect() {
        watched.effect(now, &effect, core);
    }
}

#[test]
fn the_parts_of_a_read_are_answered_together_and_what_has_no_answer_disturbs_none() {
    let at = |ms| Time::from_secs(1) + Span::from_millis(ms);
    let mut core = Core::new(at(0), policy());
    let mut watched = Watched::new(Span::ZERO);
    watched.note_subject("block v");
    let mut tell = |now, input: Input<'_>| tell(&mut watched, &mut core, now, input);
    let mut number = 0;
    let mut part = |answer| {
        number += 1;
        destage_record::part_of(ClientId(answer), number)
    };
    let read = |request, unit| Input::Access { request, intent: Intent::Read, units: unit };
    let answer = |client| Input::Respond { client: ClientId(client), lsn: Lsn(0), wrote: false };
    let fetched =
        |unit: u32| Input::Fetched { unit: UnitId(unit), result: Ok(BLOCK), identity: unit.into() };
    tell(at(0), read(part(7), &[UnitId(1)]));
    tell(at(1), read(part(7), &[UnitId(2)]));
    tell(at(10), fetched(1));
    // One that went past the cache.
    tell(at(11), answer(8));
    tell(at(30), fetched(2));
    tell(at(30), answer(7));
    // One that only brings a block into the cache.
    tell(at(31), read(part(9), &[UnitId(1)]));
    for client in 10..50 {
        tell(at(u64::from(client) * 10), read(part(client), &[UnitId(2)]));
        tell(at(u64::from(client) * 10), answer(client));
    }
    let (load, run) = watched.into_run();
    let reads = run.and_then(|run| run.reads).expect("they are told");
    assert_eq!((reads.count, reads.max), (41, 0.030));
    assert!((reads.mean - 0.030 / 41.0).abs() < 1e-9, "{}", reads.mean);
    // In the model, too, two parts are one; what has no answer is done like all others.
    let modelled = what_if(&load, Policy::clone).expect("something was recorded");
    assert_eq!((modelled.reads.answered, modelled.unanswered), (42, 0));
}

#[test]
fn a_read_of_a_volume_takes_as_long_as_it_did_once_all_of_it_is_there() {
    let at = |ms| Time::from_secs(1) + Span::from_millis(ms);
    let mut core = Core::new(at(0), policy());
    let mut watched = Watched::new(Span::ZERO);
    watched.note_subject("block v");
    let mut tell = |now, input: Input<'_>| tell(&mut watched, &mut core, now, input);
    let part = |answer| destage_record::part_of(ClientId(answer), answer.into());
    let read =
        |client, unit| Input::Access { request: part(client), intent: Intent::Read, units: unit };
    let answer = |client| Input::Respond { client: ClientId(client), lsn: Lsn(0), wrote: false };
    let fetched =
        |unit: u32| Input::Fetched { unit: UnitId(unit), result: Ok(BLOCK), identity: unit.into() };
    // A miss: 10 ms at the origin, 2 more until the client has it. Two hits, of 1 and 5 ms, the second one while the first
    // block is read once more and a third one comes.
    tell(at(0), read(1, &[UnitId(1)]));
    tell(at(10), fetched(1));
    tell(at(12), answer(1));
    tell(at(20), read(2, &[UnitId(1)]));
    tell(at(21), answer(2));
    tell(at(30), read(3, &[UnitId(1)]));
    tell(at(31), read(4, &[UnitId(2)]));
    tell(at(35), answer(3));
    tell(at(51), fetched(2));
    tell(at(51), answer(4));
    tell(at(90), Input::Tick);
    let (load, run) = watched.into_run();
    let recorded = run.and_then(|run| run.reads).expect("they are told");
    let near = |ours: f64, theirs: f64| assert!((ours - theirs).abs() < 1e-9, "{ours} {theirs}");
    near(recorded.mean, (0.012 + 0.001 + 0.005 + 0.020) / 4.0);
    let modelled = what_if(&load, Policy::clone).expect("something was recorded");
    near(modelled.reads.mean, recorded.mean);
    near(modelled.reads.max, recorded.max);
    // Without a cache each read is a miss, and takes as long as one did.
    let none = what_if(&load, |policy| {
        let mut policy = policy.clone();
        policy.limits.cache_bytes_max = 1;
        policy
    });
    let none = none.expect("something was recorded");
    assert_eq!((none.reads.answered, none.tally.fetches), (4, 4));
    assert!(none.reads.mean > 0.012, "{:?}", none.reads);
}

#[test]
fn who_waits_for_an_answer_asks_sooner_where_it_comes_sooner() {
    let began = Time::from_secs(1);
    let ms = Span::from_millis;
    let mut policy = policy();
    // Neither of the two blocks that are read by turns stays.
    policy.limits.cache_bytes_max = 1;
    policy.when = When::Periodic { every: ms(100) };
    let mut core = Core::new(began, policy);
    let mut watched = Watched::new(Span::ZERO);
    watched.note_subject("block v");
    let (mut now, mut batches, mut written) = (began, 0_u64, 0);
    // Each round asks for something, and lets 1 ms pass.
    for step in 0..200_u32 {
        let is_write = |round: u32| round % 4 == 3;
        let ask = |core: &mut Core, watched: &mut Watched, now, input: Input<'_>| {
            watched.input(now, &input, core);
            core.handle(now, input);
        };
        let (round, intent) =
            (step / 2, Intent::Write { bytes: BLOCK, ack: Ack::Policy, fetch: false });
        let request = destage_record::part_of(ClientId(round), round.into());
        let (intent, unit) =
            if is_write(round) { (intent, UnitId(9)) } else { (Intent::Read, UnitId(round % 2)) };
        if step % 2 == 1 {
            now = now + ms(1);
            ask(&mut core, &mut watched, now, Input::Tick);
        } else {
            let access = Input::Access { request, intent, units: &[unit] };
            ask(&mut core, &mut watched, now, access);
        }
        while let Some(effect) = core.poll_effect() {
            watched.effect(now, &effect, &core);
            let mut tell = |now, input: Input<'_>| ask(&mut core, &mut watched, now, input);
            match effect {
                Effect::Execute { request, access, observed } => {
                    let round = destage_record::answer_of(request);
                    let (client, wrote) = (ClientId(round), is_write(round));
                    let mut lsn = observed;
                    if wrote {
                        let units = &[(UnitId(9), BLOCK)];
                        let (domain, bytes, journal_bytes) = (DomainId(0), BLOCK, BLOCK);
                        tell(now, Input::Write { domain, units, bytes, journal_bytes, access });
                        written += 1;
                        lsn = Lsn(written);
                    }
                    tell(now, Input::Respond { client, lsn, wrote });
                }
                Effect::Fetch { unit } => {
                    now = now + ms(10);
                    let identity = u64::from(unit.0);
                    tell(now, Input::Fetched { unit, result: Ok(BLOCK), identity });
                }
                Effect::Sync { upto } => tell(now, Input::Synced { upto, result: Ok(()) }),
                Effect::Evict { unit } => tell(now, Input::Evicted { identity: unit.0.into() }),
                Effect::Destage { batch, .. } => {
                    batches += 1;
                    tell(now, Input::Destaged { batch, result: Ok(()) });
                }
                _ => {}
            }
        }
    }
    let (load, _) = watched.into_run();
    let again = what_if(&load, Policy::clone).expect("something was recorded");
    assert!(batches >= 6 && again.tally.batches.abs_diff(batches) <= 1, "{batches} {again:?}");
    // With room for both, the same requests take a fraction of the time: fewer ages of 100 ms pass.
    let roomy = what_if(&load, |policy| {
        let mut policy = policy.clone();
        policy.limits.cache_bytes_max = 1 << 20;
        policy
    });
    let roomy = roomy.expect("something was recorded").tally;
    assert_eq!((roomy.fetches, roomy.writes), (2, 25));
    assert!(roomy.batches <= 3, "{roomy:?}");
}

#[test]
fn what_the_driver_reads_for_itself_is_no_answer_and_what_goes_through_is_one() {
    let at = |ms| Time::from_secs(1) + Span::from_millis(ms);
    let mut through = policy();
    through.acknowledge = destage_core::Acknowledge::Origin;
    let mut core = Core::new(at(0), through);
    let mut watched = Watched::new(Span::ZERO);
    watched.note_subject("block v");
    let mut tell = |now, input: Input<'_>| tell(&mut watched, &mut core, now, input);
    let mut number = 0;
    let mut part = |answer| {
        number += 1;
        destage_record::part_of(ClientId(answer), number)
    };
    let fetched =
        |unit: u32| Input::Fetched { unit: UnitId(unit), result: Ok(BLOCK), identity: unit.into() };
    let read = |request, units| Input::Access { request, intent: Intent::Read, units };
    let answer = |client| Input::Respond { client: ClientId(client), lsn: Lsn(0), wrote: false };
    // The ends of two writes, a second apart, and a read of a client.
    tell(at(0), read(part(0), &[UnitId(1)]));
    tell(at(10), fetched(1));
    tell(at(500), read(part(1), &[UnitId(2)]));
    tell(at(510), fetched(2));
    tell(at(510), answer(1));
    tell(at(1_000), read(part(0), &[UnitId(3)]));
    tell(at(1_010), fetched(3));
    // A write that goes to the origin without a group, and what follows it.
    let intent = Intent::Write { bytes: BLOCK, ack: Ack::Policy, fetch: false };
    tell(at(1_100), Input::Access { request: part(2), intent, units: &[UnitId(9)] });
    let units = &[(UnitId(9), BLOCK)];
    let access = Access::Through;
    tell(at(1_120), Input::Through { units, access, result: Ok(()) });
    tell(at(1_121), read(part(3), &[UnitId(2)]));
    tell(at(1_121), answer(3));
    let (load, run) = watched.into_run();
    let modelled = what_if(&load, Policy::clone).expect("something was recorded");
    let recorded = run.and_then(|run| run.reads).expect("they are told");
    assert_eq!((recorded.count, modelled.reads.answered, modelled.unanswered), (2, 2, 0));
    assert!((modelled.reads.max - 0.010).abs() < 1e-9, "{:?}", modelled.reads);
    let cause = load.causes.last().copied().flatten().expect("it followed something");
    assert_eq!(
        (cause.gap, load.arrivals[cause.arrival as usize].0),
        (Span::from_millis(1), at(1_100))
    );
}
