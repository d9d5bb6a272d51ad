//! Bulk changes of dead letters: filters, steps, signals.

use std::{cmp::Reverse, collections::BTreeMap};

use rustix::process::Signal;

use crate::support::{Place, Running, shows_a_bar};

const COUNT: u64 = 2500;
const DEAD: &str = "SELECT count(*) FROM outbox.queue WHERE status = 'failed'";
const PENDING: &str = "SELECT count(*) FROM outbox.queue WHERE status = 'pending'";

/// 2,500 dead letters: the number of each says its topic, type, key, kind and age.
fn with_dead() -> Place {
    let place = Place::migrated();
    place.sql(
        "INSERT INTO outbox.queue
             (topic, event_type, key, error_kind, status, dead_reason, attempts, payload, processed_at)
         SELECT 't' || n % 2, 'T' || n % 3, 'k' || n % 5,
             CASE WHEN n % 7 = 0 THEN 'refused' ELSE 'too_large' END,
             'failed', 'rejected', 3, '{}',
             clock_timestamp() - CASE WHEN n % 11 = 0 THEN interval '2 hours' ELSE interval '0' END
         FROM generate_series(0, 2499) AS n ORDER BY n",
    );
    place
}

/// A flag, and the letters that it selects.
type Part = ([&'static str; 2], fn(u64) -> bool);

const PARTS: [Part; 5] = [
    (["--topic", "t1"], |n| n % 2 == 1),
    (["--type", "T2"], |n| n % 3 == 2),
    (["--key", "k3"], |n| n % 5 == 3),
    (["--kind", "refused"], |n| n.is_multiple_of(7)),
    (["--older-than", "1h"], |n| n.is_multiple_of(11)),
];

/// Every set of these parts: their flags, and the letters that they select together.
fn selections() -> impl Iterator<Item = (Vec<&'static str>, Vec<u64>)> {
    (1_u32..1 << PARTS.len()).map(|set| {
        let chosen = (0..PARTS.len()).filter(|part| set & 1 << part != 0);
        let chosen: Vec<_> = chosen.map(|part| PARTS[part]).collect();
        let fits = (0..COUNT).filter(|n| chosen.iter().all(|(_, fits)| fits(*n)));
        let letters = fits.collect();
        let flags = chosen.iter().flat_map(|(flags, _)| *flags);
        (flags.collect(), letters)
    })
}

/// Count, topic, type and kind of each group that these letters make, the largest first.
fn groups(letters: &[u64]) -> Vec<[String; 4]> {
    let mut counts = BTreeMap::<_, u64>::new();
    for n in letters {
        let kind = if n.is_multiple_of(7) {
            "refused"
        } else {
            "too_large"
        };
        *counts.entry((n % 2, n % 3, kind)).or_default() += 1;
    }
    let mut groups: Vec<_> = counts.into_iter().collect();
    groups.sort_by_key(|(_, count)| Reverse(*count));
    let row = |((topic, event_type, kind), count): ((u64, u64, &str), u64)| {
        let (topic, event_type) = (format!("t{topic}"), format!("T{event_type}"));
        [count.to_string(), topic, event_type, kind.to_owned()]
    };
    groups.into_iter().map(row).collect()
}

#[test]
fn each_filter_selects_alone_and_with_every_other() {
    let place = with_dead();
    for (flags, letters) in selections() {
        let count = letters.len();
        let all = [&["dead", "requeue", "--dry-run"], &flags[..]].concat();
        let plan = place.outbox(&all).success();
        assert!(
            plan.starts_with(&format!("{count} would be requeued\n")),
            "{flags:?}: {plan}"
        );
        // A group a line, below the count and the heading.
        let told = plan.lines().skip(2);
        let told: Vec<Vec<_>> = told.map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(told, groups(&letters), "{flags:?}: {plan}");
    }
    assert_eq!(place.number(DEAD), 2500, "a dry run changed something");

    let flags = ["--topic", "t1", "--kind", "too_large"];
    let expected = (0..COUNT).filter(|n| n % 2 == 1 && n % 7 != 0).count();
    let done = place.outbox(&[&["dead", "requeue"], &flags[..]].concat());
    assert_eq!(done.success(), format!("{expected} requeued\n"));
    let others = "status = 'failed' AND topic = 't1' AND error_kind = 'too_large'
                  OR status = 'pending' AND (topic <> 't1' OR error_kind <> 'too_large')";
    let wrong = format!("SELECT count(*) FROM outbox.queue WHERE {others}");
    assert_eq!(place.number(&wrong), 0);
    assert_eq!(place.number(PENDING), i64::try_from(expected).unwrap());
}

#[test]
fn a_dry_run_lists_the_largest_groups_and_counts_the_others() {
    let place = Place::migrated();
    // 60 types of one letter each, and two more of the last.
    place.sql(
        "INSERT INTO outbox.queue (topic, event_type, status, dead_reason, payload, processed_at)
         SELECT 't', 'T' || least(n, 59), 'failed', 'rejected', '{}', clock_timestamp()
         FROM generate_series(0, 61) AS n",
    );
    let plan = place
        .outbox(&["dead", "discard", "--all", "--dry-run"])
        .success();
    let lines: Vec<_> = plan.lines().collect();
    assert_eq!(lines[0], "62 would be discarded");
    let largest: Vec<_> = lines[2].split_whitespace().collect();
    assert_eq!(largest, ["3", "t", "T59", "-"]);
    assert_eq!(lines.len(), 2 + 50 + 1, "{plan}");
    assert_eq!(lines[52], "and 10 of other topics, types or kinds");
    assert_eq!(place.number(DEAD), 62);
}

/// Makes the change of the 1,500th letter wait while there is a row in `gate`.
fn with_gate(place: &Place) {
    place.sql(
        "CREATE TABLE gate AS SELECT 1;
         CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             WHILE EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP;
             RETURN coalesce(NEW, OLD);
         END $$;
         CREATE TRIGGER gate BEFORE UPDATE OR DELETE ON outbox.queue
             FOR EACH ROW WHEN (OLD.id = 1500) EXECUTE FUNCTION wait_at_gate();",
    );
}

fn wait_at_gate(place: &Place) {
    place.wait_for(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event = 'PgSleep'",
        1,
    );
}

#[test]
fn a_signal_ends_it_after_its_step_and_the_next_run_goes_on() {
    for (change, done, left) in [
        (&["dead", "requeue", "--all"][..], "requeued", "2000"),
        (&["dead", "discard", "--all", "--yes"], "discarded", "0"),
    ] {
        let place = with_dead();
        with_gate(&place);
        let running = Running::start(place.command(change));
        wait_at_gate(&place);
        assert_eq!(place.number(DEAD), 1500, "each step commits by itself");
        running.signal(Signal::INT);
        running.wait_for_log("stopping: the step under way is finished");
        place.sql("DELETE FROM gate");
        let (code, log) = running.end();
        assert_eq!(code, Some(130), "{log}");
        assert!(
            log.contains(&format!("2000 were {done} — the same command")),
            "{log}"
        );
        assert_eq!(place.number(DEAD), 500);
        assert_eq!(place.number(PENDING).to_string(), left);
        assert_eq!(place.outbox(change).success(), format!("500 {done}\n"));
        assert_eq!(place.number(DEAD), 0);
    }
}

#[test]
fn a_second_signal_does_not_wait_and_a_failure_tells_what_was_done() {
    let place = with_dead();
    with_gate(&place);
    let running = Running::start(place.command(&["dead", "requeue", "--all"]));
    wait_at_gate(&place);
    running.signal(Signal::TERM);
    running.wait_for_log("stopping");
    running.signal(Signal::TERM);
    let (code, log) = running.end();
    assert_eq!(code, Some(130), "{log}");
    assert!(
        log.contains("1000 were requeued, and perhaps 1000 more"),
        "{log}"
    );
    // The server goes on with what it was given; the gate ends that too.
    place.sql("DELETE FROM gate");
    place.wait_for(DEAD, 500);

    place.sql(
        "UPDATE outbox.queue SET status = 'failed', dead_reason = 'rejected';
         INSERT INTO gate VALUES (1);",
    );
    let running = Running::start(place.command(&["dead", "requeue", "--all"]));
    wait_at_gate(&place);
    place.let_in(false);
    let (code, log) = running.end();
    place.let_in(true);
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("1000 of 2500 were requeued before"), "{log}");
    assert_eq!(place.number(DEAD), 1500);
}

#[test]
fn what_dies_again_meanwhile_is_not_taken_in_place_of_others() {
    let place = with_dead();
    // As a relay beside it would, only faster: each is dead again as soon as it was put back.
    place.sql(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             NEW.status := 'failed'; NEW.crashes := OLD.crashes + 1;
             NEW.processed_at := clock_timestamp();
             RETURN NEW;
         END $$;
         CREATE TRIGGER die BEFORE UPDATE ON outbox.queue
             FOR EACH ROW WHEN (NEW.status = 'pending') EXECUTE FUNCTION die();",
    );
    let done = place.outbox(&["dead", "requeue", "--all"]).success();
    assert_eq!(done, "2500 requeued\n");
    let once = "SELECT count(*) FROM outbox.queue WHERE crashes = 1";
    assert_eq!(place.number(once), 2500, "each of them once");
}

#[test]
fn a_terminal_gets_a_progress_bar_and_a_pipe_none() {
    let place = with_dead();
    let command = place.command(&["dead", "requeue", "--all"]);
    shows_a_bar(command, |text| text.contains("/2,500"));

    let ended = place.outbox(&["dead", "discard", "--all", "--yes"]);
    assert_eq!(ended.stderr, "");
}
