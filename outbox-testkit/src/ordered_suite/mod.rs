//! The suite that stores with order per key pass beside [`store_suite`](mod@crate::store_suite), with
//! the same harness.

mod relay;
pub mod tests;

/// Expands to one `#[test]` for each test of the ordered-store suite. The harness expression is
/// evaluated once for each, inside its runtime; it may await.
#[macro_export]
macro_rules! ordered_suite {
    ($harness:expr) => {
        $crate::__tests! {
            [$crate::store_suite::run], [$crate::ordered_suite::tests], $harness;
            i5_events_come_in_commit_order,
            retry_overtakes_key,
            i5_a_held_event_may_fail_too,
            i5_a_parked_head_in_flight_holds_its_followers,
            i5_held_events_are_drained_in_order,
            i7_other_keys_flow,
            i7_events_without_a_key_block_nobody,
            i5_an_empty_key_is_a_key,
            i5_a_deferred_event_blocks_its_key,
            a_parked_event_may_be_returned,
            a_return_rewinds_the_stream,
            a_scheduled_event_blocks_no_key,
            i5_a_scheduled_event_waits_for_earlier_ones,
            i5_a_scheduled_event_waits_for_the_stream,
            i2_an_event_held_behind_nothing_comes_back,
            i5_a_key_freed_while_an_event_is_in_flight,
            key_blocked_forever,
            key_blocked_forever_keys_are_the_aggregates,
            key_blocked_forever_requeue_frees_it,
            key_blocked_forever_what_waits_behind_is_held,
            i5_a_requeued_event_may_die_again,
            key_blocked_forever_discard_frees_it,
            a_key_freed_by_an_operator_is_named,
            i5_skip_lets_followers_go,
            key_blocked_forever_skip_frees_it,
            i5_a_takeover_keeps_the_holds,
            i6_the_epoch_fences,
            i6_a_lane_not_named_is_given_again,
            i5_a_dropped_batch_drops_the_next,
            i9_a_crash_with_a_parked_event_in_flight,
            i9_a_settle_clears_crashes_of_parked_events,
            release_gives_parked_events_back,
            a_repeated_settle_is_answered_as_before,
            an_idle_lane_is_kept_by_asking,
            i5_random_failures_keep_order,
        }
    };
}

#[cfg(test)]
mod list {
    /// A test that is not in the macro would never run.
    #[test]
    fn the_macro_names_every_test() {
        let sources = [
            include_str!("tests/parking.rs"),
            include_str!("tests/operators.rs"),
            include_str!("tests/takeover.rs"),
            include_str!("tests/random.rs"),
        ];
        crate::run::assert_listed(include_str!("mod.rs"), &sources);
    }
}
