//! Names of the metrics, on the `metrics` facade. Labels: store, lane, route, topic, outcome, kind,
//! scope; never a key or an id. Units stand last in each name.

macro_rules! metrics {
    ($($(#[doc = $doc:literal])* $kind:ident $name:ident = $text:literal;)*) => {
        $($(#[doc = $doc])* pub const $name: &str = $text;)*

        /// Describes every metric to the installed recorder. Call it once after installing one.
        pub fn describe() {
            $(metrics!(@ $kind $name, concat!($($doc),*).trim_start());)*
        }
    };
    (@ counter $name:ident, $doc:expr) => { ::metrics::describe_counter!($name, $doc) };
    (@ gauge $name:ident, $doc:expr) => { ::metrics::describe_gauge!($name, $doc) };
    (@ histogram $name:ident, $doc:expr) => { ::metrics::describe_histogram!($name, $doc) };
}

metrics! {
    /// Events acknowledged by the broker and written as delivered.
    counter PUBLISHED = "outbox_published_total";
    /// Outcomes that were no delivery, by kind and scope.
    counter PUBLISH_FAILURES = "outbox_publish_failures_total";
    /// Events that became dead letters, by reason.
    counter DEAD = "outbox_dead_total";
    /// Events put back for another attempt.
    counter RETRIES = "outbox_retries_total";
    /// Events whose settle found them no longer in this relay's hands.
    counter LEASES_LOST = "outbox_leases_lost_total";
    /// Events delivered although an earlier one of their key was refused after it was sent; they are delivered again behind it.
    counter ORDER_EXCEPTIONS = "outbox_order_exceptions_total";
    /// Failed calls to the store, by operation and kind.
    counter STORE_FAILURES = "outbox_store_failures_total";
    /// Delivered events that were removed from the store after their retention; those of dropped partitions are not counted.
    counter CLEANED_EVENTS = "outbox_cleaned_events_total";
    /// Dedup keys that were removed from the store after their retention.
    counter CLEANED_DEDUP_KEYS = "outbox_cleaned_dedup_keys_total";
    /// Partitions that were dropped from the store after their retention.
    counter CLEANED_PARTITIONS = "outbox_cleaned_partitions_total";
    /// Time of one step of cleaning, in seconds.
    histogram CLEAN_SECONDS = "outbox_clean_seconds";
    /// Time of one publish call, in seconds.
    histogram PUBLISH_SECONDS = "outbox_publish_seconds";
    /// Time from an event's insert to its acknowledgement, in seconds.
    histogram ENQUEUE_TO_PUBLISH_SECONDS = "outbox_enqueue_to_publish_seconds";
    /// Events in a claimed batch.
    histogram BATCH_EVENTS = "outbox_batch_events";
    /// Attempts an event needed until it was delivered or dead.
    histogram ATTEMPTS = "outbox_attempts";
    /// Events sendable now; counted up to a bound.
    gauge PENDING_EVENTS = "outbox_pending_events";
    /// How long the oldest sendable event has been due, in seconds; 0 when there is none.
    gauge OLDEST_PENDING_SECONDS = "outbox_oldest_pending_seconds";
    /// Events scheduled or waiting for a retry; counted up to a bound.
    gauge SCHEDULED_EVENTS = "outbox_scheduled_events";
    /// Events held behind an earlier one of their key; counted up to a bound.
    gauge PARKED_EVENTS = "outbox_parked_events";
    /// Dead letters; counted up to a bound.
    gauge DEAD_EVENTS = "outbox_dead_events";
    /// Keys on hold.
    gauge BLOCKED_KEYS = "outbox_blocked_keys";
    /// Lanes that this relay works.
    gauge LANES_OWNED = "outbox_lane_owned";
    /// 1 while the route's destination is paused, else 0.
    gauge ROUTE_OPEN = "outbox_route_open";
}
