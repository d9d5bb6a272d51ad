//! The simulation in the small: enough seeds for every change; `cargo xtask sim` runs more.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use outbox_testkit::sim::{Coverage, Mutation, Run, run};

const SEEDS: u64 = 2_000;
/// Within how many seeds a deliberate fault must be noticed.
const MUTATION_SEEDS: u64 = 500;

/// Runs seeds on all cores; `judge` says whether to go on.
fn each(seeds: Range<u64>, mutation: Option<Mutation>, judge: impl Fn(Run) -> bool + Sync) {
    let next = AtomicU64::new(seeds.start);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !seeds.contains(&seed) {
                        break;
                    }
                    if !judge(run(seed, mutation)) {
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// I1 to I9 through seeded histories, each of 200 events and 3 faults at least. Over all of them
/// processes die at every place of the list, and, at one place or another, with every outcome in
/// flight: not with every outcome at every place.
#[test]
fn i1_to_i9_hold_in_thousands_of_histories() {
    let failed = Mutex::new(BTreeSet::new());
    let coverage = Mutex::new(Coverage::default());
    each(0..SEEDS, None, |run| {
        coverage.lock().unwrap().add(&run.coverage);
        if let Some(failure) = run.failure {
            let replay = format!("cargo xtask sim --seed {}:\n{failure}", run.seed);
            failed.lock().unwrap().insert(replay);
        }
        failed.lock().unwrap().len() < 5
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{failed:#?}");

    let coverage = coverage.into_inner().unwrap();
    let points = coverage.points();
    for answer in Coverage::answers() {
        let deaths: u64 = points
            .iter()
            .map(|point| coverage.count(point, answer))
            .sum();
        assert!(
            deaths > 0,
            "nobody died with {answer:?} in flight:\n{coverage}"
        );
    }
    for point in Coverage::all_points() {
        assert!(
            points.contains(point),
            "nobody died at {point}:\n{coverage}"
        );
    }
}

/// A seed is a proof only if it always tells the same story.
#[test]
fn the_same_seed_tells_the_same_story() {
    let mut stories = BTreeSet::new();
    for seed in 0..12 {
        let (first, again) = (run(seed, None).trace(), run(seed, None).trace());
        assert!(first.lines().count() > 300, "seed {seed}: {first}");
        let differs = first
            .lines()
            .zip(again.lines())
            .find(|(of, other)| of != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first, again, "seed {seed}");
        stories.insert(first);
    }
    assert_eq!(stories.len(), 12);
}

/// A checker that notices nothing proves nothing: each deliberate fault of the engine or the store is
/// named by the invariant that it breaks, whatever others it breaks as well. Prints by which seed, and
/// all that were named.
#[test]
fn every_mutation_is_noticed() {
    let mut survived = Vec::new();
    for mutation in Mutation::all() {
        let by = mutation.breaks();
        let noticed = Mutex::new(None);
        let otherwise = Mutex::new(BTreeSet::<&str>::new());
        each(0..MUTATION_SEEDS, Some(mutation), |run| {
            let Some(failure) = run.failure else {
                return true;
            };
            let noticed_now = failure.invariants.contains(by);
            otherwise.lock().unwrap().extend(failure.invariants.iter());
            if noticed_now {
                noticed
                    .lock()
                    .unwrap()
                    .get_or_insert((run.seed, failure.invariants));
            }
            !noticed_now
        });
        match noticed.into_inner().unwrap() {
            Some((seed, named)) => {
                println!("{mutation}: {by} by seed {seed}, which names {named:?}");
            }
            None => survived.push((mutation.to_string(), by, otherwise.into_inner().unwrap())),
        }
    }
    assert!(
        survived.is_empty(),
        "not noticed, or by others: {survived:?}"
    );
}
