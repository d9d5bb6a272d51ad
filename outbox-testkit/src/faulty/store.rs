//! A store whose calls fail on command.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use outbox_core::{
    AcquireRequest, Acquired, Batch, BatchToken, ClaimLimit, CleanRequest, Cleaned, DeadFilter,
    DeadGroup, DeadLetter, DeadLetters, DeadSummary, Error, ErrorKind, Failing, Inspect,
    Inspection, Lane, LaneId, Migrated, OutboxStore, Page, Result, Retention, Settled, Settlement,
    Store,
};
use uuid::Uuid;

use super::script::Script;

/// The calls that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreCall {
    /// `Store::check`.
    Check,
    /// `Store::acquire`.
    Acquire,
    /// `Lane::blocked`.
    Blocked,
    /// `Lane::claim`.
    Claim,
    /// `Lane::settle`.
    Settle,
    /// `Lane::renew`.
    Renew,
    /// `Lane::release`.
    Release,
    /// `Retention::clean`.
    Clean,
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// It fails and changes nothing.
    Fail(ErrorKind),
    /// It is carried out, and its answer is lost.
    LoseAnswer(ErrorKind),
    /// It is carried out after this delay.
    Slow(Duration),
    /// It is carried out, and its answer comes after this delay.
    SlowAnswer(Duration),
    /// It never ends and changes nothing.
    Hang,
    /// It panics.
    Panic,
}

/// Wraps a store; what the script says happens to calls, on all lanes it hands out.
#[derive(Clone)]
pub struct FaultyStore {
    inner: Arc<dyn OutboxStore>,
    script: Arc<Script<StoreCall, StoreFault>>,
}

impl FaultyStore {
    /// Passes everything until the script says otherwise.
    pub fn new(inner: Arc<dyn OutboxStore>) -> Self {
        Self {
            inner,
            script: Arc::default(),
        }
    }

    /// The script, to be written while calls are made.
    pub fn script(&self) -> &Script<StoreCall, StoreFault> {
        &self.script
    }
}

/// Makes a call under its fault.
async fn run<T>(
    script: &Script<StoreCall, StoreFault>,
    call: StoreCall,
    work: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    let error = |kind| Err(Error::new(kind, "scripted fault", "as the test ordered"));
    match script.take(call) {
        None => work.await,
        Some(StoreFault::Fail(kind)) => error(kind),
        Some(StoreFault::LoseAnswer(kind)) => {
            work.await?;
            error(kind)
        }
        Some(StoreFault::Slow(delay)) => {
            tokio::time::sleep(delay).await;
            work.await
        }
        Some(StoreFault::SlowAnswer(delay)) => {
            let answer = work.await;
            tokio::time::sleep(delay).await;
            answer
        }
        Some(StoreFault::Hang) => std::future::pending().await,
        Some(StoreFault::Panic) => panic!("scripted panic in {call:?}"),
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn ordered(&self) -> bool {
        self.inner.ordered()
    }

    async fn migrate(&self) -> Result<Migrated> {
        self.inner.migrate().await
    }

    async fn check(&self) -> Result<()> {
        run(&self.script, StoreCall::Check, self.inner.check()).await
    }

    async fn check_settings(&self) -> Result<()> {
        self.inner.check_settings().await
    }

    async fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Acquired> {
        let acquire = self.inner.acquire(request);
        let mut acquired = run(&self.script, StoreCall::Acquire, acquire).await?;
        for lane in &mut acquired.lanes {
            *lane = Arc::new(FaultyLane {
                inner: Arc::clone(lane),
                script: Arc::clone(&self.script),
            });
        }
        Ok(acquired)
    }

    async fn wait(&self, timeout: Duration) {
        self.inner.wait(timeout).await;
    }
}

struct FaultyLane {
    inner: Arc<dyn Lane>,
    script: Arc<Script<StoreCall, StoreFault>>,
}

#[async_trait]
impl Lane for FaultyLane {
    fn id(&self) -> &LaneId {
        self.inner.id()
    }

    fn lease(&self) -> Duration {
        self.inner.lease()
    }

    async fn blocked(&self) -> Result<Vec<String>> {
        run(&self.script, StoreCall::Blocked, self.inner.blocked()).await
    }

    async fn claim(&self, limit: ClaimLimit) -> Result<Batch> {
        run(&self.script, StoreCall::Claim, self.inner.claim(limit)).await
    }

    async fn settle(&self, token: BatchToken, settlements: &[Settlement]) -> Result<Settled> {
        run(
            &self.script,
            StoreCall::Settle,
            self.inner.settle(token, settlements),
        )
        .await
    }

    async fn renew(&self, tokens: &[BatchToken]) -> Result<Vec<BatchToken>> {
        run(&self.script, StoreCall::Renew, self.inner.renew(tokens)).await
    }

    async fn release(&self) -> Result<()> {
        run(&self.script, StoreCall::Release, self.inner.release()).await
    }
}

#[async_trait]
impl DeadLetters for FaultyStore {
    async fn list(&self, filter: &DeadFilter, page: Page) -> Result<Vec<DeadSummary>> {
        self.inner.list(filter, page).await
    }

    async fn get(&self, event_id: Uuid) -> Result<Option<DeadLetter>> {
        self.inner.get(event_id).await
    }

    async fn count(&self, filter: &DeadFilter) -> Result<u64> {
        self.inner.count(filter).await
    }

    async fn groups(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadGroup>> {
        self.inner.groups(filter, limit).await
    }

    async fn requeue(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        self.inner.requeue(filter, limit).await
    }

    async fn discard(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        self.inner.discard(filter, limit).await
    }
}

#[async_trait]
impl Inspect for FaultyStore {
    async fn inspect(&self, count_max: u32) -> Result<Inspection> {
        self.inner.inspect(count_max).await
    }

    async fn failing(&self, rows_max: u32, topics_max: u32) -> Result<Failing> {
        self.inner.failing(rows_max, topics_max).await
    }
}

#[async_trait]
impl Retention for FaultyStore {
    async fn clean(&self, request: &CleanRequest) -> Result<Cleaned> {
        run(&self.script, StoreCall::Clean, self.inner.clean(request)).await
    }

    async fn removable(&self, request: &CleanRequest) -> Result<Cleaned> {
        self.inner.removable(request).await
    }
}
