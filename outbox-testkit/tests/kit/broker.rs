//! A broker of few lines behind a real socket, and a publisher for it that does everything right:
//! the publisher suite must pass on it, and each fault put into it must turn a test red.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{
    Capabilities, Error, ErrorKind, OrderClass, Outcome, Publisher, Result, Scope, StoredEvent,
};
use outbox_testkit::publisher_suite::{Limited, PublisherGates, PublisherHarness, Received};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Mutex as AsyncMutex,
    time::timeout,
};

type Topics = Arc<Mutex<BTreeMap<String, Vec<Received>>>>;

/// Events travel as an index into what the publisher process knows, padded to their size: the
/// socket carries as many bytes as a real one, without a wire format to get wrong.
type Registry = Arc<Mutex<Vec<StoredEvent>>>;

struct Broker {
    address: SocketAddr,
    topics: Topics,
    registry: Registry,
}

impl Broker {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let broker = Self {
            address: listener.local_addr().expect("bound"),
            topics: Topics::default(),
            registry: Registry::default(),
        };
        let (topics, registry) = (Arc::clone(&broker.topics), Arc::clone(&broker.registry));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, Arc::clone(&topics), Arc::clone(&registry)));
            }
        });
        broker
    }
}

/// Frame: index, padding length, padding. Answer: one byte, 0 for stored.
async fn serve(mut client: TcpStream, topics: Topics, registry: Registry) -> std::io::Result<()> {
    loop {
        let index = usize::try_from(client.read_u64().await?).expect("64 bits");
        let mut padding = vec![0; usize::try_from(client.read_u64().await?).expect("64 bits")];
        client.read_exact(&mut padding).await?;
        let event = registry.lock().expect("no panic")[index].clone();
        let refused = event.topic.starts_with("refuse");
        if !refused {
            let mut topics = topics.lock().expect("no panic");
            topics
                .entry(event.topic.clone())
                .or_default()
                .push(received(event));
        }
        client.write_u8(u8::from(refused)).await?;
    }
}

fn received(event: StoredEvent) -> Received {
    Received {
        id: event.id,
        key: event.key,
        payload: event.payload,
        event_type: event.event_type,
        event_version: event.event_version,
        aggregate_type: event.aggregate_type,
        aggregate_id: event.aggregate_id,
        content_type: event.content_type,
        headers: event.headers,
        created_at: event.created_at,
    }
}

struct BrokerPublisher {
    address: SocketAddr,
    registry: Registry,
    deadline: Duration,
    capabilities: Capabilities,
    connection: AsyncMutex<Option<TcpStream>>,
}

#[async_trait]
impl Publisher for BrokerPublisher {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn validate(&self, event: &StoredEvent) -> Result<()> {
        match self.capabilities.message_bytes_max {
            Some(limit) if event.byte_len() > limit => {
                let what = "too large";
                Err(Error::new(ErrorKind::TooLarge, "publish", what))
            }
            _ => Ok(()),
        }
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let error = match timeout(self.deadline, self.attempt(events, &mut outcomes)).await {
            Ok(Ok(())) => return outcomes,
            Ok(Err(error)) => error,
            Err(_) => Error::new(ErrorKind::Timeout, "publish", "no answer in time"),
        };
        while outcomes.len() < events.len() {
            outcomes.push(match error.kind() {
                ErrorKind::Unavailable => Outcome::Failed(error.copy()),
                _ => Outcome::Unknown(error.copy()),
            });
        }
        outcomes
    }

    async fn check(&self) -> Result<()> {
        TcpStream::connect(self.address)
            .await
            .map(|_| ())
            .map_err(unavailable)
    }
}

fn unavailable(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "connect", "nobody listens").source(error)
}

fn broken(error: std::io::Error) -> Error {
    Error::new(ErrorKind::ConnectionLost, "publish", "the connection broke").source(error)
}

impl BrokerPublisher {
    /// The connection is put back only when every answer was read: what was cancelled or broke is
    /// never used again.
    async fn attempt(&self, events: &[StoredEvent], outcomes: &mut Vec<Outcome>) -> Result<()> {
        let mut kept = self.connection.lock().await;
        let connection = match kept.take() {
            Some(connection) => connection,
            None => TcpStream::connect(self.address)
                .await
                .map_err(unavailable)?,
        };
        let (mut read, mut write) = connection.into_split();
        let sending = async {
            let valid = |event: &&StoredEvent| self.validate(event).is_ok();
            for event in events.iter().filter(valid) {
                write.write_all(&self.frame(event)).await.map_err(broken)?;
            }
            Ok(())
        };
        let receiving = async {
            for event in events {
                outcomes.push(match self.validate(event) {
                    Ok(()) => match read.read_u8().await.map_err(broken)? {
                        0 => Outcome::delivered(),
                        _ => Outcome::Rejected(
                            Error::new(ErrorKind::Refused, "publish", "refused")
                                .scope(Scope::Topic),
                        ),
                    },
                    Err(error) => Outcome::Rejected(error),
                });
            }
            Ok::<_, Error>(())
        };
        futures::try_join!(sending, receiving)?;
        *kept = read.reunite(write).ok();
        Ok(())
    }

    fn frame(&self, event: &StoredEvent) -> Bytes {
        let mut registry = self.registry.lock().expect("no panic");
        registry.push(event.clone());
        let index = u64::try_from(registry.len() - 1).expect("few");
        let length = event.byte_len();
        let mut frame = index.to_be_bytes().to_vec();
        frame.extend(u64::try_from(length).expect("small").to_be_bytes());
        frame.resize(16 + length, 0);
        frame.into()
    }
}

struct BrokerHarness {
    order: OrderClass,
    topics: AtomicUsize,
    broker: Broker,
}

impl BrokerHarness {
    async fn start(order: OrderClass) -> Self {
        Self {
            order,
            topics: AtomicUsize::new(0),
            broker: Broker::start().await,
        }
    }

    fn make(
        &self,
        address: SocketAddr,
        deadline: Duration,
        limit: Option<usize>,
    ) -> Box<dyn Publisher> {
        Box::new(BrokerPublisher {
            address,
            registry: Arc::clone(&self.broker.registry),
            deadline,
            capabilities: Capabilities {
                order: self.order,
                dedup_by_id: false,
                null_payload: true,
                message_bytes_max: limit,
            },
            connection: AsyncMutex::new(None),
        })
    }
}

#[async_trait]
impl PublisherHarness for BrokerHarness {
    fn gates(&self) -> PublisherGates {
        PublisherGates {
            proxy: true,
            refusing_topic: true,
            size_limit: true,
            exact_headers: true,
        }
    }

    async fn publisher(&self, via: Option<SocketAddr>, deadline: Duration) -> Box<dyn Publisher> {
        self.make(via.unwrap_or(self.broker.address), deadline, None)
    }

    fn broker(&self) -> Option<SocketAddr> {
        Some(self.broker.address)
    }

    async fn topic(&self) -> String {
        format!("topic-{}", self.topics.fetch_add(1, Ordering::Relaxed))
    }

    async fn consume(&self, topic: &str) -> Vec<Received> {
        let topics = self.broker.topics.lock().expect("no panic");
        topics.get(topic).cloned().unwrap_or_default()
    }

    async fn refusing_topic(&self) -> Option<String> {
        Some("refuse".to_owned())
    }

    async fn limited(&self) -> Option<Limited> {
        Some(Limited {
            publisher: self.make(self.broker.address, Duration::from_secs(30), Some(100_000)),
            message_len: StoredEvent::byte_len,
        })
    }
}

mod in_flight {
    use outbox_core::OrderClass;
    outbox_testkit::publisher_suite!(super::BrokerHarness::start(OrderClass::InFlight).await);
}

mod waves {
    use outbox_core::OrderClass;
    outbox_testkit::publisher_suite!(super::BrokerHarness::start(OrderClass::None).await);
}
