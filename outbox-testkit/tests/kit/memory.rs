//! The reference store passes the store suites. They use every store through `Arc<dyn OutboxStore>`.

mod store {
    outbox_testkit::store_suite!(outbox_testkit::memory::MemoryHarness);
}

mod ordered {
    outbox_testkit::ordered_suite!(outbox_testkit::memory::MemoryHarness);
}
