//! What is known of the brokers' topics: whether they are there, and how large an event may be.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outbox_core::Result;
use rdkafka::{
    admin::{AdminClient, AdminOptions, ResourceSpecifier},
    client::DefaultClientContext,
    error::KafkaError,
    metadata::MetadataTopic,
    producer::Producer as _,
    types::RDKafkaErrorCode as Code,
};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::spawn_blocking,
    time::{Instant, timeout},
};
use tracing::debug;

use crate::{
    config::KafkaConfig,
    context::Listener,
    error::{self, CONNECT},
    lease::{Native, make, retire},
    properties::{self, Batching},
};

/// `max.message.bytes` unless somebody changed it.
const MESSAGE_BYTES_DEFAULT: usize = 1_048_588;
/// More topics than this are not remembered at once.
const TOPICS_MAX: usize = 10_000;

/// Asks the brokers before events are handed over. What librdkafka is handed, it keeps until the
/// end of the call; an event whose topic or whose brokers are not there must fail sooner, and
/// without doubt.
pub(crate) struct Cluster {
    config: Arc<KafkaConfig>,
    secrets: Arc<[String]>,
    /// Held while it is asked, so that many calls ask only once.
    asker: tokio::sync::Mutex<Option<Arc<Native>>>,
    known: Mutex<Known>,
    batch_bytes: AtomicUsize,
}

#[derive(Default)]
struct Known {
    /// Topics that were there and of which nothing bad was heard since.
    present: HashSet<String>,
    limits: HashMap<String, usize>,
}

impl Cluster {
    pub(crate) fn new(config: Arc<KafkaConfig>, secrets: Arc<[String]>) -> Self {
        Self {
            batch_bytes: AtomicUsize::new(config.batch_bytes_max),
            config,
            secrets,
            asker: tokio::sync::Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// The largest event for a topic, as far as it is known.
    pub(crate) fn message_bytes_max(&self, topic: &str) -> usize {
        self.config.message_bytes_max.unwrap_or_else(|| {
            let known = self.known();
            known
                .limits
                .get(topic)
                .copied()
                .unwrap_or(MESSAGE_BYTES_DEFAULT)
        })
    }

    /// The same for topics that nothing is known of.
    pub(crate) fn message_bytes_usual(&self) -> usize {
        self.config
            .message_bytes_max
            .unwrap_or(MESSAGE_BYTES_DEFAULT)
    }

    /// How producers batch now: no batch may be over the limit of any topic seen.
    pub(crate) fn batching(&self) -> Batching {
        Batching::Bytes(self.batch_bytes.load(Ordering::Relaxed))
    }

    /// Makes sure that the topics are there; asks only for those that are not known to be. Returns
    /// the others with the reason.
    ///
    /// # Errors
    /// Nobody answered in time.
    pub(crate) async fn prepare(
        &self,
        topics: &BTreeSet<&str>,
        stop: Instant,
    ) -> Result<BTreeMap<String, Code>> {
        if self.missing(topics).is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut held = self.asker.lock().await;
        // Another call may have asked meanwhile.
        let missing = self.missing(topics);
        if missing.is_empty() {
            return Ok(BTreeMap::new());
        }
        let native = if let Some(native) = &*held {
            Arc::clone(native)
        } else {
            let made = Arc::new(self.client().await?);
            Arc::clone(held.insert(made))
        };
        let left = stop.saturating_duration_since(Instant::now());
        let patience = self.config.connect_timeout.min(left);
        let asked_for = missing.clone();
        let asked = question(&native, move |native| {
            refusals(native, &asked_for, patience)
        });
        let refused = asked.await?;
        let present: Vec<String> = missing
            .into_iter()
            .filter(|topic| !refused.contains_key(topic))
            .collect();
        // Not to know them costs a refusal at worst, so that they get a part of the time only.
        let left = stop.saturating_duration_since(Instant::now());
        self.learn_limits(&present, patience.min(left / 4)).await;
        let mut known = self.known();
        if known.present.len() + present.len() > TOPICS_MAX {
            known.present.clear();
            known.limits.clear();
        }
        known.present.extend(present);
        Ok(refused)
    }

    /// A client that only asks.
    async fn client(&self) -> Result<Native> {
        let listener = Listener::new(Arc::clone(&self.secrets));
        make(properties::client(&self.config), listener).await
    }

    /// Whether anybody answers, by a new connection.
    pub(crate) async fn probe(&self) -> Result<()> {
        let native = Arc::new(self.client().await?);
        let patience = self.config.connect_timeout;
        let asked = question(&native, move |native| {
            let id = native.client().fetch_cluster_id(patience);
            id.map(drop).ok_or(Code::OperationTimedOut)
        });
        let answer = asked.await;
        end(native);
        answer
    }

    fn missing(&self, topics: &BTreeSet<&str>) -> Vec<String> {
        let known = self.known();
        let missing = topics
            .iter()
            .filter(|topic| !known.present.contains(**topic));
        missing.map(ToString::to_string).collect()
    }

    /// Reads the limits of topics, where that is permitted.
    async fn learn_limits(&self, topics: &[String], patience: Duration) {
        if topics.is_empty() {
            return;
        }
        let limits = match describe(&self.config, topics, patience).await {
            Ok(limits) => limits,
            Err(error) => {
                debug!(%error, "the topics' limits are not known");
                return;
            }
        };
        if let Some(least) = limits.values().min() {
            self.batch_bytes
                .fetch_min((*least).max(1), Ordering::Relaxed);
        }
        self.known().limits.extend(limits);
    }

    /// Asks for this topic again before the next event of it.
    pub(crate) fn forget(&self, topic: &str) {
        self.known().present.remove(topic);
    }

    /// Asks for every topic again: the brokers may be gone.
    pub(crate) fn forget_all(&self) {
        self.known().present.clear();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the client that asks.
    pub(crate) fn close(&self) {
        if let Ok(mut held) = self.asker.try_lock()
            && let Some(native) = held.take()
        {
            end(native);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.close();
    }
}

fn end(native: Arc<Native>) {
    // A question under way keeps it, and ends it on its own thread.
    if let Some(native) = Arc::into_inner(native) {
        drop(retire(native));
    }
}

/// Asks off the runtime, since librdkafka's questions block. Ends sooner when each broker was tried
/// in vain: librdkafka itself goes on trying to the end of the time.
async fn question<T: Send + 'static>(
    native: &Arc<Native>,
    ask: impl FnOnce(&Native) -> Result<T, Code> + Send + 'static,
) -> Result<T> {
    let listener = native.client().context();
    // What was complained about before has nothing to do with this question.
    listener.take_complaint();
    let asking = Arc::clone(native);
    let asked = spawn_blocking(move || {
        let answer = ask(&asking);
        end(asking);
        answer
    });
    let answer = tokio::select! {
        biased;
        answer = asked => answer.map_err(|_| error::internal("the question was dropped"))?,
        () = listener.all_down() => Err(Code::AllBrokersDown),
    };
    answer.map_err(|code| error::asking(code, listener.take_complaint().as_ref()))
}

/// Asks for each topic by itself: one that may not be seen must not hide the others.
fn refusals(
    native: &Native,
    topics: &[String],
    patience: Duration,
) -> Result<BTreeMap<String, Code>, Code> {
    let until = std::time::Instant::now() + patience;
    let mut refused = BTreeMap::new();
    for topic in topics {
        let left = until.saturating_duration_since(std::time::Instant::now());
        let metadata = native
            .client()
            .fetch_metadata(Some(topic), left)
            .map_err(|error| error.rdkafka_error_code().unwrap_or(Code::Unknown))?;
        let entry = metadata.topics().iter().find(|entry| entry.name() == topic);
        let code = match entry.map(MetadataTopic::error) {
            Some(None) => continue,
            Some(Some(code)) => code.into(),
            None => Code::UnknownTopicOrPartition,
        };
        refused.insert(topic.clone(), code);
    }
    Ok(refused)
}

/// `max.message.bytes` of each topic of which it may be read.
async fn describe(
    config: &KafkaConfig,
    topics: &[String],
    patience: Duration,
) -> Result<HashMap<String, usize>> {
    let properties = properties::client(config);
    let topics = topics.to_vec();
    let (sender, receiver) = oneshot::channel();
    let runtime = Handle::current();
    // Its end blocks too, and nobody needs to wait for it.
    spawn_blocking(move || {
        let made: Result<AdminClient<DefaultClientContext>, KafkaError> = properties.create();
        let Ok(admin) = made else { return };
        let names: Vec<_> = topics.iter().map(|t| ResourceSpecifier::Topic(t)).collect();
        let options = AdminOptions::new().request_timeout(Some(patience));
        let answer = runtime.block_on(admin.describe_configs(&names, &options));
        let limits = answer.map(|resources| {
            let limit = |resource: &rdkafka::admin::ConfigResource| {
                let entry = resource.get("max.message.bytes")?;
                entry.value.as_ref()?.parse::<usize>().ok()
            };
            let answers = topics.iter().cloned().zip(&resources);
            answers
                .filter_map(|(topic, resource)| Some((topic, limit(resource.as_ref().ok()?)?)))
                .collect::<HashMap<_, _>>()
        });
        let _ = sender.send(limits);
    });
    match timeout(patience, receiver).await {
        Ok(Ok(Ok(limits))) => Ok(limits),
        Ok(Ok(Err(error))) => {
            let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
            Err(error::asking(code, None))
        }
        Ok(Err(_)) | Err(_) => Err(error::timeout(CONNECT)),
    }
}
