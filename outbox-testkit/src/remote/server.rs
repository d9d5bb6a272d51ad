//! The end that has the store.

use std::{
    collections::HashMap,
    io,
    panic::resume_unwind,
    sync::{Arc, Mutex},
};

use futures::{SinkExt as _, StreamExt as _};
use outbox_core::{
    AcquireRequest, Acquired, Lane, LaneId, OutboxStore, Result, TopicSet, WorkerId,
};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::{AbortHandle, JoinSet},
};
use tokio_util::codec::{FramedRead, FramedWrite};

use super::{
    travel::Travel,
    wire::{Answer, Call, Greeting, LaneCall, Request, SentLane, SentLanes, codec, read, write},
};

/// Answers the calls of a [`RemoteStore`](super::RemoteStore) on this store until the input ends, each
/// in a task of its own. What is under way then is dropped, as in a process that dies.
///
/// # Errors
/// When one of the two streams fails. Panics when the store does.
pub async fn serve(
    store: Arc<dyn OutboxStore>,
    input: impl AsyncRead + Send + Unpin,
    output: impl AsyncWrite + Send + Unpin,
) -> io::Result<()> {
    let mut requests = FramedRead::new(input, codec());
    let mut answers = FramedWrite::new(output, codec());
    let greeting = Greeting {
        name: store.name().to_owned(),
        ordered: store.ordered(),
    };
    answers.send(write(&greeting)).await?;
    let served = Arc::new(Served {
        store,
        lanes: Mutex::default(),
    });
    let mut calls = JoinSet::new();
    let mut cancels = HashMap::<u64, AbortHandle>::new();
    loop {
        tokio::select! {
            request = requests.next() => match request.transpose()? {
                None => return Ok(()),
                Some(frame) => match read(&frame) {
                    Request::Call(number, call) => {
                        let served = Arc::clone(&served);
                        let work = async move { Answer(number, served.answer(call).await) };
                        cancels.insert(number, calls.spawn(work));
                    }
                    Request::Cancel(number) => {
                        if let Some(call) = cancels.remove(&number) {
                            call.abort();
                        }
                    }
                },
            },
            Some(ended) = calls.join_next() => match ended {
                Ok(answer) => {
                    cancels.remove(&answer.0);
                    answers.send(write(&answer)).await?;
                }
                Err(error) => if let Ok(panic) = error.try_into_panic() {
                    resume_unwind(panic);
                },
            },
        }
    }
}

struct Served {
    store: Arc<dyn OutboxStore>,
    /// All that were handed out, by their numbers.
    lanes: Mutex<Vec<Arc<dyn Lane>>>,
}

impl Served {
    async fn answer(&self, call: Call) -> Value {
        let store = &self.store;
        match call {
            Call::Migrate => value(store.migrate().await),
            Call::Check => value(store.check().await),
            Call::Acquire {
                route,
                topics,
                worker,
                held,
            } => {
                let (topics, worker) = (TopicSet::unpack(topics), WorkerId::unpack(worker));
                let held: Vec<LaneId> = Travel::unpack(held);
                let request = AcquireRequest {
                    route: &route,
                    topics: &topics,
                    worker: &worker,
                    held: &held,
                };
                let acquired = store.acquire(&request).await;
                value(acquired.map(|of| self.keep(of)))
            }
            Call::Wait(timeout) => {
                store.wait(timeout).await;
                value(Ok(()))
            }
            Call::Lane(number, call) => self.lane(number, call).await,
            Call::List(filter, page) => {
                let page = Travel::unpack(page);
                value(store.list(&Travel::unpack(filter), page).await)
            }
            Call::Get(id) => value(store.get(id).await),
            Call::Count(filter) => value(store.count(&Travel::unpack(filter)).await),
            Call::Groups(filter, limit) => {
                value(store.groups(&Travel::unpack(filter), limit).await)
            }
            Call::Requeue(filter, limit) => {
                value(store.requeue(&Travel::unpack(filter), limit).await)
            }
            Call::Discard(filter, limit) => {
                value(store.discard(&Travel::unpack(filter), limit).await)
            }
            Call::Inspect(count_max) => value(store.inspect(count_max).await),
            Call::Failing(rows_max, topics_max) => value(store.failing(rows_max, topics_max).await),
            Call::Clean(request) => value(store.clean(&Travel::unpack(request)).await),
            Call::Removable(request) => value(store.removable(&Travel::unpack(request)).await),
        }
    }

    async fn lane(&self, number: usize, call: LaneCall) -> Value {
        let lane = Arc::clone(&self.lanes.lock().unwrap()[number]);
        match call {
            LaneCall::Blocked => value(lane.blocked().await),
            LaneCall::Claim(limit) => value(lane.claim(Travel::unpack(limit)).await),
            LaneCall::Settle(token, settlements) => {
                let settlements: Vec<_> = Travel::unpack(settlements);
                value(lane.settle(Travel::unpack(token), &settlements).await)
            }
            LaneCall::Renew(tokens) => {
                let tokens: Vec<_> = Travel::unpack(tokens);
                value(lane.renew(&tokens).await)
            }
            LaneCall::Release => value(lane.release().await),
        }
    }

    fn keep(&self, acquired: Acquired) -> SentLanes {
        let mut lanes = self.lanes.lock().unwrap();
        let numbered = (lanes.len()..).zip(&acquired.lanes);
        let sent = numbered.map(|(number, lane)| SentLane {
            number,
            id: lane.id().clone(),
            lease: lane.lease(),
        });
        let sent = SentLanes {
            lanes: sent.collect(),
            surrender: acquired.surrender,
        };
        lanes.extend(acquired.lanes);
        sent
    }
}

fn value<T: Travel>(result: Result<T>) -> Value {
    serde_json::to_value(result.pack()).expect("an answer can be written as JSON")
}
