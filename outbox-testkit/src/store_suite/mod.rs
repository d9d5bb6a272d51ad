//! The suite that every store passes, each test named after the invariant it proves.
//!
//! Implement [`StoreHarness`] and instantiate the suite inside a module of a test binary:
//!
//! ```text
//! mod memory {
//!     outbox_testkit::store_suite!(MemoryHarness::default());
//! }
//! ```

pub(crate) mod bench;
mod harness;
pub mod tests;

pub use bench::{StoreBench, run};
pub use harness::{Outbox, StoreGates, StoreHarness, StoreOptions, Writer};

/// Expands to one `#[test]` for each test of the store suite. The harness expression is evaluated
/// once for each, inside its runtime; it may await.
#[macro_export]
macro_rules! store_suite {
    ($harness:expr) => {
        $crate::__tests! {
            [$crate::store_suite::run], [$crate::store_suite::tests], $harness;
            i1_committed_only,
            i2_late_commits_are_not_skipped,
            i2_a_big_transaction_arrives_whole,
            i13_writers_wait_for_nobody,
            a_dedup_key_is_written_once,
            a_dedup_key_is_its_transactions,
            a_dedup_key_waits_for_the_first_writer,
            batches_with_dedup_keys_do_not_deadlock,
            i8_claim_respects_event_limit,
            i8_claim_respects_byte_limit,
            i8_first_event_is_returned_whatever_its_size,
            a_batch_in_flight_is_in_no_other_claim,
            poller_takes_in_flight,
            claim_and_settle_overlap,
            a_route_takes_its_topics_only,
            lanes_spread_over_workers,
            crash_holds_lock,
            lease_expires_slow_publish,
            i6_late_settle_changes_nothing,
            i6_late_renew_is_told,
            i9_attempts_are_counted_before_the_work,
            i9_crash_suspects_are_isolated,
            i9_a_settle_clears_crashes,
            release_gives_back_at_once,
            i6_a_released_batch_can_not_be_settled,
            a_cancelled_claim_recovers_after_its_lease,
            i12_a_retry_is_never_early,
            i12_deliver_after_is_never_early,
            backoff_overflow,
            attempts_are_given_back_by_defer_and_return,
            verdicts_of_one_batch_may_differ,
            settling_twice_changes_nothing,
            i2_done_is_final,
            i10_every_field_comes_out_as_it_went_in,
            number_fidelity,
            nul_in_jsonb,
            i4_same_id_and_bytes_on_redelivery,
            i12_created_at_is_the_inserts,
            i2_dead_letters_are_visible_with_their_reason,
            dead_letters_are_filtered,
            dead_letters_are_paged,
            requeue_starts_anew,
            i2_a_requeued_event_may_die_again,
            discard_is_for_ever,
            operators_touch_dead_letters_only,
            i2_unreadable_rows_become_dead_letters,
            migrating_again_changes_nothing,
            inspect_tells_where_events_are,
            inspect_tells_the_oldest,
            i8_inspect_counts_are_bounded,
            failing_topics_are_told_with_their_last_failure,
            i8_failing_topics_are_bounded,
            waiting_ends,
            row_lock_during_send,
            cleaning_takes_delivered_events_only,
            i12_cleaning_counts_the_age_from_the_delivery,
            i8_a_cleaning_step_is_bounded,
            dedup_keys_are_forgotten_when_old,
            cleanup_lock,
        }
    };
}

#[cfg(test)]
mod list {
    /// A test that is not in the macro would never run.
    #[test]
    fn the_macro_names_every_test() {
        let sources = [
            include_str!("tests/claims.rs"),
            include_str!("tests/dead_letters.rs"),
            include_str!("tests/dedup.rs"),
            include_str!("tests/failing.rs"),
            include_str!("tests/fidelity.rs"),
            include_str!("tests/leases.rs"),
            include_str!("tests/operations.rs"),
            include_str!("tests/retention.rs"),
            include_str!("tests/transactions.rs"),
            include_str!("tests/verdicts.rs"),
        ];
        crate::run::assert_listed(include_str!("mod.rs"), &sources);
    }
}
