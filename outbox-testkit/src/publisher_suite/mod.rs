//! The suite that every publisher passes on its real broker, with and without the fault proxy.

mod bench;
mod harness;
pub mod tests;

pub use bench::{PublisherBench, run};
pub use harness::{Limited, PublisherGates, PublisherHarness, Received};

/// Expands to one `#[test]` for each test of the publisher suite. The harness expression is evaluated
/// once for each, inside its runtime; it may await.
#[macro_export]
macro_rules! publisher_suite {
    ($harness:expr) => {
        $crate::__tests! {
            [$crate::publisher_suite::run], [$crate::publisher_suite::tests], $harness;
            i3_delivered_is_stored,
            an_empty_batch_is_no_work,
            a_batch_may_have_several_topics,
            i5_order_of_a_key,
            i8_a_backlog_in_batches,
            i8_a_batch_of_many_bytes,
            concurrent_publishes_get_their_own_answers,
            a_cancelled_publish_harms_nobody,
            shutdown_drops_in_flight,
            closing_idle_ends_at_once,
            null_payload,
            number_fidelity,
            nul_in_jsonb,
            i10_every_field_arrives,
            i10_headers_arrive,
            i4_copies_are_equal,
            published_but_mark_failed,
            oversize_payload,
            unsendable_hot_loop,
            hostile_topic_names,
            a_stalled_server_ends_at_the_deadline,
            a_black_hole_ends_at_the_deadline,
            a_refused_connection_recovers_by_itself,
            a_cut_before_the_server_stored,
            a_cut_after_the_server_stored,
            i5_order_survives_cuts,
            a_slow_server_is_no_failure,
            a_check_of_a_working_broker_passes,
        }
    };
}

#[cfg(test)]
mod list {
    /// A test that is not in the macro would never run.
    #[test]
    fn the_macro_names_every_test() {
        let sources = [
            include_str!("tests/delivery.rs"),
            include_str!("tests/fidelity.rs"),
            include_str!("tests/refusals.rs"),
            include_str!("tests/faults.rs"),
        ];
        crate::run::assert_listed(include_str!("mod.rs"), &sources);
    }
}
