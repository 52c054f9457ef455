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
