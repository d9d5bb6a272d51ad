//! The steps of the demo.

use std::{sync::Arc, time::Duration};

use outbox_core::{
    DeadFilter, DeadLetters, Inspect as _, Inspection, Page, Relay, RetryPolicy, Route, Store as _,
    TopicPattern,
};
use outbox_sqlite::{SqliteConfig, SqliteQueue};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    super::dead::list_text,
    check::check,
    consumer::Consumer,
    next,
    place::Place,
    shop::{Counts, Order, Shop, TOPIC},
    teller::{Mark, Teller},
};
use crate::exit::Failure;

/// How failing events are tried here: quickly, so that a reader can wait for the last attempt.
const POLICY: RetryPolicy = RetryPolicy {
    base: Duration::from_millis(400),
    factor: 2,
    cap: Duration::from_millis(1_200),
    attempts_max: 3,
    crashes_max: 5,
    topic_patience: Duration::from_secs(60),
    on_dead: outbox_core::OnDead::HoldKey,
};

/// How long the relay may take for a step, which takes it less than three seconds.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Rows counted at the most; there are about a dozen.
const COUNT_MAX: u32 = 100;

const fn order(id: i64, customer: &'static str, total: i64) -> Order<'static> {
    Order {
        id,
        customer,
        total,
    }
}

const FIRST: [Order<'_>; 6] = [
    order(1, "ada", 30),
    order(2, "grace", 12),
    order(3, "ada", 45),
    order(4, "linus", 20),
    order(5, "grace", 8),
    order(6, "ada", 15),
];
const ROLLED_BACK: Order<'_> = order(7, "linus", 99);
const ANSWER_LOST: Order<'_> = order(8, "linus", 25);
const POISONED: [Order<'_>; 5] = [
    order(9, "ada", 0),
    order(10, "ada", 18),
    order(11, "grace", 40),
    order(12, "ada", 7),
    order(13, "linus", 32),
];
const LEFT: [Order<'_>; 2] = [order(14, "grace", -12), order(15, "grace", 21)];

/// Who plays in it.
struct Stage<'a> {
    teller: &'a Teller,
    shop: Shop,
    queue: SqliteQueue,
    consumer: Arc<Consumer>,
}

/// Tells all of it. Dropped before its end, it leaves the file to its owner.
pub(super) async fn tell(place: &Place, keep: bool, teller: &Teller) -> Result<(), Failure> {
    teller.say(&format!(
        "A service writes orders, a relay sends their events to a consumer that prints them.\n\
         All of it runs here and now, on the SQLite file {}\n",
        place.file()
    ));
    let mut config = SqliteConfig::new(place.url());
    // One lane: the same text at every run.
    config.lanes = 1;
    let queue = SqliteQueue::connect(config).await?;
    queue.migrate().await?;
    let mut stage = Stage {
        teller,
        shop: Shop::open(place.file()).await?,
        queue,
        consumer: Arc::new(Consumer::new(teller.clone())),
    };
    stage.write().await?;
    stage.roll_back().await?;

    let topic: TopicPattern = TOPIC.parse()?;
    let relay = Relay::builder(Arc::new(stage.queue.clone()))
        .route(Route::new("demo", Arc::clone(&stage.consumer) as _).policy(topic, POLICY))
        .build()?;
    let stop = CancellationToken::new();
    let relaying = async { relay.run(stop.clone()).await.map_err(Failure::from) };
    let telling = async {
        stage.relay().await?;
        stage.lose_an_answer().await?;
        stage.poison().await?;
        stage.bury().await?;
        stage.repair().await?;
        stage.check().await?;
        if keep {
            stage.leave_one().await?;
        }
        stop.cancel();
        stage.shop.close().await
    };
    tokio::try_join!(relaying, telling)?;
    teller.say(&next::commands(keep.then(|| place.url())));
    Ok(())
}

impl Stage<'_> {
    async fn write(&mut self) -> Result<(), Failure> {
        self.teller
            .step(
                "1. Orders are written, each with its event in the same transaction",
                "Two separate writes, to the database and to a broker, lose or invent messages when \
                 something\nfails between them. One transaction can't: order and event are both there, \
                 or neither.",
            )
            .await;
        for order in FIRST {
            self.shop.write(&[order]).await?;
            let text = format!(
                "order {:>2} of {}, total {}",
                order.id, order.customer, order.total
            );
            self.teller.fact(Mark::Plain, "committed", &text);
        }
        self.count().await
    }

    async fn roll_back(&mut self) -> Result<(), Failure> {
        self.teller
            .step(
                "2. An order is rolled back",
                "The payment fails, so the service rolls back. The event goes with the order: nobody \
                 will hear\nof an order that never was.",
            )
            .await;
        self.shop.write_and_roll_back(ROLLED_BACK).await?;
        let text = format!("order {:>2} of {}", ROLLED_BACK.id, ROLLED_BACK.customer);
        self.teller.fact(Mark::Odd, "undone", &text);
        self.count().await
    }

    async fn relay(&mut self) -> Result<(), Failure> {
        self.teller
            .step(
                "3. The relay starts",
                "It reads committed events and sends them. Events of one key, here the customer, arrive \
                 in the\norder of their commits; different keys do not wait for each other.",
            )
            .await;
        self.all_delivered().await
    }

    async fn lose_an_answer(&mut self) -> Result<(), Failure> {
        self.teller
            .step(
                "4. An answer gets lost, and the event comes twice",
                "The relay can't know whether the event arrived, so it sends it again: at least once, \
                 never\nnot at all. The copy has the same event id, by which the consumer drops it.",
            )
            .await;
        self.consumer.lose_answer(ANSWER_LOST.id);
        self.shop.write(&[ANSWER_LOST]).await?;
        self.all_delivered().await
    }

    async fn poison(&mut self) -> Result<(), Failure> {
        self.teller
            .step(
                "5. A poisoned event: the consumer fails on it",
                "Five more orders. The first, order 9 of ada, is free of charge, which the consumer can't \
                 handle.\nIt is tried again after random pauses, below a limit that grows. ada's next \
                 orders 10 and 12\nwait behind it, so that they stay in order; those of grace and linus flow.",
            )
            .await;
        self.shop.write(&POISONED).await?;
        self.until("bury the poisoned event", |state| {
            state.dead.value == 1 && nothing_moves(state)
        })
        .await
    }

    async fn bury(&mut self) -> Result<(), Failure> {
        self.teller
            .step(
                "6. It is a dead letter now, and its key is on hold",
                "It was the last attempt. The event is not lost: it waits, with its reason, until an operator \
                 puts\nit back or discards it. This is what `outbox dead list` prints:",
            )
            .await;
        let page = Page {
            after: None,
            limit: COUNT_MAX,
        };
        let dead = self.queue.list(&DeadFilter::default(), page).await?;
        let list = list_text(&dead, COUNT_MAX);
        for line in list.lines() {
            self.teller.say(&format!("  {line}\n"));
        }
        let state = self.queue.inspect(COUNT_MAX).await?;
        let text = format!(
            "{} dead, {} held behind it, keys on hold: {}",
            state.dead, state.held, state.blocked_keys
        );
        self.teller.fact(Mark::Plain, "status", &text);
        Ok(())
    }

    async fn repair(&mut self) -> Result<(), Failure> {
        self.teller
            .step(
                "7. The consumer is repaired, and the dead letter put back",
                "As `outbox dead requeue` does. The event goes first, then those that waited behind it: \
                 order holds\nthrough failure and repair.",
            )
            .await;
        self.consumer.repair();
        let count = self
            .queue
            .requeue(&DeadFilter::default(), COUNT_MAX)
            .await?;
        self.teller
            .fact(Mark::Plain, "requeued", &format!("{count} dead letter"));
        self.all_delivered().await
    }

    async fn check(&mut self) -> Result<(), Failure> {
        self.teller
            .step(
                "8. What was received is compared with what was committed",
                "Each committed order once, each customer's in order, and nothing else.",
            )
            .await;
        let committed = self.shop.committed().await?;
        let (handled, dropped) = self.consumer.received();
        check(&committed, &handled).map_err(|fault| {
            Failure::failed(format!(
                "demo: {fault} — a defect of this program: report it with what was printed"
            ))
        })?;
        let text = format!(
            "{} orders committed, {} handled, copies dropped: {dropped}, of order {} nothing",
            committed.len(),
            handled.len(),
            ROLLED_BACK.id
        );
        self.teller.fact(Mark::Good, "checked", &text);
        self.teller.say("  Nothing lost, nothing invented.\n");
        Ok(())
    }

    async fn leave_one(&mut self) -> Result<(), Failure> {
        self.teller
            .step(
                "9. One more dead letter, left for you",
                "So that the commands below have something to show.",
            )
            .await;
        self.shop.write(&LEFT).await?;
        self.until("bury the last event", |state| {
            state.dead.value == 1 && nothing_moves(state)
        })
        .await
    }

    async fn count(&mut self) -> Result<(), Failure> {
        let Counts { orders, events } = self.shop.counts().await?;
        let text = format!("{orders} orders in their table, {events} events in the outbox");
        self.teller.fact(Mark::Plain, "counted", &text);
        Ok(())
    }

    async fn all_delivered(&self) -> Result<(), Failure> {
        self.until("deliver its events", |state| {
            state.dead.value + state.held.value == 0 && nothing_moves(state)
        })
        .await
    }

    /// Waits for a state of the outbox.
    async fn until(
        &self,
        what: &str,
        reached: impl Fn(&Inspection) -> bool,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.queue.inspect(COUNT_MAX).await?;
            if reached(&state) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Failure::failed(format!(
                    "demo: the relay did not {what} within {} s — a defect, or a machine that is \
                     very busy: try again",
                    PATIENCE.as_secs()
                )));
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Nothing is to be sent now or later.
fn nothing_moves(state: &Inspection) -> bool {
    state.pending.value + state.in_flight.value + state.scheduled.value == 0
}
