//! Faults that other systems of this kind had, each under its name.

mod attempts_not_persisted;
mod backoff_overflow;
mod cleanup_lock;
mod clock_skew;
mod crash_holds_lock;
mod db_down_hot_loop;
mod key_blocked_forever;
mod lease_expires_slow_publish;
mod null_payload;
mod poller_takes_in_flight;
mod published_but_mark_failed;
mod redis_oom;
mod redis_readonly;
mod retry_overtakes_key;
mod row_lock_during_send;
mod shutdown_drops_in_flight;
mod unsendable_hot_loop;
