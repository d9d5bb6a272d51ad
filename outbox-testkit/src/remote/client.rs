//! The end that the test has.

use std::{
    collections::HashMap,
    process::{self, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use outbox_core::{
    AcquireRequest, Acquired, Batch, BatchToken, ClaimLimit, CleanRequest, Cleaned, DeadFilter,
    DeadGroup, DeadLetter, DeadLetters, DeadSummary, Failing, Inspect, Inspection, Lane, LaneId,
    Migrated, Page, Result, Retention, Settled, Settlement, Store,
};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    process::{Child, Command},
    sync::{mpsc, oneshot},
};
use tokio_util::codec::{FramedRead, FramedWrite};
use uuid::Uuid;

use super::{
    travel::{Travel, Wire},
    wire::{Answer, Call, Greeting, LaneCall, Request, SentLane, SentLanes, codec, read, write},
};

/// A handle that lives in another process. A call that is dropped is dropped there too. When the
/// handle and its lanes are gone, the process is killed: what a crash of its relay would be.
///
/// Every call panics when the other end is gone: the test is then red.
pub struct RemoteStore {
    link: Arc<Link>,
    name: &'static str,
    ordered: bool,
}

impl RemoteStore {
    /// Starts a program that [serves](super::serve) a store on its standard input and output.
    pub async fn start(command: process::Command) -> Self {
        let mut command = Command::from(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let program = command.kill_on_drop(true).spawn();
        let mut program = program.expect("the program that serves a store starts");
        let input = program.stdout.take().expect("its output is a pipe");
        let output = program.stdin.take().expect("its input is a pipe");
        Self::new(Some(program), input, output).await
    }

    /// Over streams to whoever serves a store.
    pub async fn over(
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self::new(None, input, output).await
    }

    async fn new(
        program: Option<Child>,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let mut answers = FramedRead::new(input, codec());
        let greeting = answers.next().await.expect(GONE).expect(GONE);
        let Greeting { name, ordered } = read(&greeting);

        let (requests, mut to_send) = mpsc::unbounded_channel::<Bytes>();
        let mut output = FramedWrite::new(output, codec());
        tokio::spawn(async move {
            while let Some(frame) = to_send.recv().await {
                // Who waits for the answer is told by the reader.
                let _ = output.send(frame).await;
            }
        });
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let told = Arc::clone(&waiting);
        tokio::spawn(async move {
            while let Some(Ok(frame)) = answers.next().await {
                let Answer(number, value) = read(&frame);
                let waiting = &mut *told.lock().unwrap();
                let caller = waiting.as_mut().and_then(|of| of.remove(&number));
                if let Some(caller) = caller {
                    // It may have been dropped this moment.
                    let _: Result<(), Value> = oneshot::Sender::send(caller, value);
                }
            }
            *told.lock().unwrap() = None;
        });
        Self {
            link: Arc::new(Link {
                numbers: AtomicU64::new(0),
                requests,
                waiting,
                _program: program,
            }),
            name: Travel::unpack(name),
            ordered,
        }
    }
}

const GONE: &str = "the process with the store ended";

/// Who waits for which answer; none when there will be no more answers.
type Waiting = Mutex<Option<HashMap<u64, oneshot::Sender<Value>>>>;

struct Link {
    numbers: AtomicU64,
    requests: mpsc::UnboundedSender<Bytes>,
    waiting: Arc<Waiting>,
    _program: Option<Child>,
}

impl Link {
    async fn ask<T: Travel>(&self, call: Call) -> Result<T> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        if let Some(waiting) = &mut *self.waiting.lock().unwrap() {
            waiting.insert(number, sender);
        }
        let asked = Asked { link: self, number };
        self.send(&Request::Call(number, call));
        let answer = answer.await.expect(GONE);
        drop(asked);
        let answer: Wire<Result<T>> =
            serde_json::from_value(answer).expect("both ends are built from one source");
        Travel::unpack(answer)
    }

    fn send(&self, request: &Request) {
        // An error means that the writer's runtime is gone, and the test with it.
        let _ = self.requests.send(write(request));
    }
}

/// A call under way; dropped before its answer, it is cancelled.
struct Asked<'a> {
    link: &'a Link,
    number: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let waiting = &mut *self.link.waiting.lock().unwrap();
        let unanswered = waiting.as_mut().and_then(|of| of.remove(&self.number));
        if unanswered.is_some() {
            self.link.send(&Request::Cancel(self.number));
        }
    }
}

#[async_trait]
impl Store for RemoteStore {
    fn name(&self) -> &'static str {
        self.name
    }

    fn ordered(&self) -> bool {
        self.ordered
    }

    async fn migrate(&self) -> Result<Migrated> {
        self.link.ask(Call::Migrate).await
    }

    async fn check(&self) -> Result<()> {
        self.link.ask(Call::Check).await
    }

    async fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Acquired> {
        let call = Call::Acquire {
            route: request.route.to_owned(),
            topics: request.topics.clone().pack(),
            worker: request.worker.clone().pack(),
            held: request.held.to_vec().pack(),
        };
        let SentLanes { lanes, surrender } = self.link.ask(call).await?;
        let lanes = lanes.into_iter().map(|lane| {
            let link = Arc::clone(&self.link);
            Arc::new(RemoteLane { link, lane }) as Arc<dyn Lane>
        });
        Ok(Acquired {
            lanes: lanes.collect(),
            surrender,
        })
    }

    async fn wait(&self, timeout: Duration) {
        let waited: Result<()> = self.link.ask(Call::Wait(timeout)).await;
        waited.expect("a wait has no errors");
    }
}

#[async_trait]
impl DeadLetters for RemoteStore {
    async fn list(&self, filter: &DeadFilter, page: Page) -> Result<Vec<DeadSummary>> {
        let call = Call::List(filter.clone().pack(), page.pack());
        self.link.ask(call).await
    }

    async fn get(&self, event_id: Uuid) -> Result<Option<DeadLetter>> {
        self.link.ask(Call::Get(event_id)).await
    }

    async fn count(&self, filter: &DeadFilter) -> Result<u64> {
        self.link.ask(Call::Count(filter.clone().pack())).await
    }

    async fn groups(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadGroup>> {
        let call = Call::Groups(filter.clone().pack(), limit);
        self.link.ask(call).await
    }

    async fn requeue(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        let call = Call::Requeue(filter.clone().pack(), limit);
        self.link.ask(call).await
    }

    async fn discard(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        let call = Call::Discard(filter.clone().pack(), limit);
        self.link.ask(call).await
    }
}

#[async_trait]
impl Inspect for RemoteStore {
    async fn inspect(&self, count_max: u32) -> Result<Inspection> {
        self.link.ask(Call::Inspect(count_max)).await
    }

    async fn failing(&self, rows_max: u32, topics_max: u32) -> Result<Failing> {
        self.link.ask(Call::Failing(rows_max, topics_max)).await
    }
}

#[async_trait]
impl Retention for RemoteStore {
    async fn clean(&self, request: &CleanRequest) -> Result<Cleaned> {
        self.link.ask(Call::Clean(request.pack())).await
    }

    async fn removable(&self, request: &CleanRequest) -> Result<Cleaned> {
        self.link.ask(Call::Removable(request.pack())).await
    }
}

struct RemoteLane {
    link: Arc<Link>,
    lane: SentLane,
}

impl RemoteLane {
    async fn ask<T: Travel>(&self, call: LaneCall) -> Result<T> {
        self.link.ask(Call::Lane(self.lane.number, call)).await
    }
}

#[async_trait]
impl Lane for RemoteLane {
    fn id(&self) -> &LaneId {
        &self.lane.id
    }

    fn lease(&self) -> Duration {
        self.lane.lease
    }

    async fn blocked(&self) -> Result<Vec<String>> {
        self.ask(LaneCall::Blocked).await
    }

    async fn claim(&self, limit: ClaimLimit) -> Result<Batch> {
        self.ask(LaneCall::Claim(limit.pack())).await
    }

    async fn settle(&self, token: BatchToken, settlements: &[Settlement]) -> Result<Settled> {
        let settlements = settlements.to_vec().pack();
        let call = LaneCall::Settle(token.pack(), settlements);
        self.ask(call).await
    }

    async fn renew(&self, tokens: &[BatchToken]) -> Result<Vec<BatchToken>> {
        let tokens = tokens.to_vec().pack();
        self.ask(LaneCall::Renew(tokens)).await
    }

    async fn release(&self) -> Result<()> {
        self.ask(LaneCall::Release).await
    }
}
