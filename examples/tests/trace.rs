//! One linked trace, from the business change over database, relay and broker to the consumer: shown
//! by the spans that OpenTelemetry's SDK exports.

use std::{env, sync::Arc, time::Duration};

use opentelemetry::{
    propagation::TextMapPropagator,
    trace::{SpanKind, Status, TracerProvider as _},
};
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{InMemorySpanExporter, SdkTracerProvider, SpanData},
};
use outbox_core::{Enqueue, Event, Headers, Relay, Route, Store, trace};
use outbox_postgres::{PgConfig, PgOutbox, PgQueue};
use outbox_redis::{RedisConfig, RedisPublisher};
use outbox_testkit::eventually;
use redis::streams::StreamRangeReply;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};

const PATIENCE: Duration = Duration::from_secs(30);

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run `cargo xtask integration`"))
}

fn recorder() -> InMemorySpanExporter {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("example"));
    tracing_subscriber::registry().with(layer).init();
    exporter
}

async fn execute(url: &str, statement: String) {
    let mut db = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(&mut db)
        .await
        .unwrap();
}

/// The change and its event, in one transaction.
async fn place_order(url: &str, topic: &str, id: &str) {
    let mut db = PgConnection::connect(url).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let event = Event::new(topic, "OrderPlaced").aggregate("order", id);
    let event = event.json(&serde_json::json!({ "id": id })).unwrap();
    let outbox = PgOutbox::new("outbox").unwrap();
    outbox.enqueue(&mut tx, &event).await.unwrap();
    tx.commit().await.unwrap();
}

/// What a consumer does with an entry: it goes on in the trace of the header.
fn consume(headers: &Headers) {
    let carrier = headers
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8(value.to_vec()).unwrap();
            (name.to_owned(), value)
        })
        .collect::<std::collections::HashMap<_, _>>();
    let span = info_span!("consume", otel.kind = "consumer");
    span.set_parent(TraceContextPropagator::new().extract(&carrier))
        .unwrap();
}

fn named<'a>(spans: &'a [SpanData], name: &str) -> &'a SpanData {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next();
    assert!(found.next().is_none(), "more than one {name}: {spans:#?}");
    span.unwrap_or_else(|| panic!("no {name}: {spans:#?}"))
}

fn attribute(span: &SpanData, name: &str) -> String {
    let found = span.attributes.iter().find(|a| a.key.as_str() == name);
    found.map_or_else(|| panic!("no {name}: {span:#?}"), |a| a.value.to_string())
}

#[tokio::test]
async fn one_linked_trace_from_the_business_to_the_consumer() {
    let spans = recorder();
    let (admin, redis_url) = (
        variable("OUTBOX_TEST_POSTGRES_URL"),
        variable("OUTBOX_TEST_REDIS_URL"),
    );
    let database = format!("outbox_trace_{}", std::process::id());
    execute(&admin, format!("CREATE DATABASE {database}")).await;
    let (server, _) = admin.rsplit_once('/').unwrap();
    let url = format!("{server}/{database}");
    let topic = format!("{database}.orders");

    let store = PgQueue::connect(PgConfig::new(url.clone())).await.unwrap();
    store.migrate().await.unwrap();
    let place = place_order(&url, &topic, "4711");
    place.instrument(info_span!("place order")).await;

    let publisher = RedisPublisher::new(RedisConfig::new(redis_url.clone())).unwrap();
    let relay = Relay::builder(Arc::new(store))
        .route(Route::new("default", Arc::new(publisher)))
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    // In a span, as a service may start it: what it sends belongs to the events' traces only.
    let service = info_span!("service");
    let relay = tokio::spawn(async move { relay.run(stopped).await }.instrument(service));

    let client = redis::Client::open(redis_url).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let arrived = eventually(PATIENCE, async || {
        let mut range = redis::cmd("XRANGE");
        range.arg(&topic).arg("-").arg("+");
        let stream: StreamRangeReply = range.query_async(&mut redis).await.unwrap();
        stream.ids.into_iter().next()
    });
    let entry = arrived.await.expect("the event arrives");
    stop.cancel();
    relay.await.unwrap().unwrap();
    let headers = Headers::parse_json(&entry.get::<String>("headers").unwrap()).unwrap();
    consume(&headers);

    let spans = spans.get_finished_spans().unwrap();
    let business = named(&spans, "place order");
    let create = named(&spans, &format!("create {topic}"));
    let publish = named(&spans, "publish");
    let consume = named(&spans, "consume");
    let trace = business.span_context.trace_id();

    assert_eq!(create.span_context.trace_id(), trace);
    assert_eq!(create.parent_span_id, business.span_context.span_id());
    assert_eq!(create.span_kind, SpanKind::Producer);
    assert_eq!(trace::trace_id(&headers), Some(&*trace.to_string()));

    assert_eq!(publish.span_kind, SpanKind::Client);
    assert_ne!(
        publish.span_context.trace_id(),
        trace,
        "linked, not a child"
    );
    let links = &publish.links.links;
    assert_eq!(links.len(), 1, "{links:?}");
    assert_eq!(links[0].span_context.trace_id(), trace);
    assert_eq!(
        links[0].span_context.span_id(),
        create.span_context.span_id()
    );
    assert_eq!(publish.status, Status::Unset);
    assert_eq!(attribute(publish, "messaging.system"), "redis");
    assert_eq!(attribute(publish, "messaging.destination.name"), topic);
    assert_eq!(attribute(publish, "messaging.operation.type"), "send");
    assert_eq!(attribute(publish, "messaging.batch.message_count"), "1");

    assert_eq!(consume.span_context.trace_id(), trace);
    assert_eq!(consume.parent_span_id, create.span_context.span_id());

    let _: () = redis::cmd("DEL")
        .arg(&topic)
        .query_async(&mut redis)
        .await
        .unwrap();
    execute(&admin, format!("DROP DATABASE {database} WITH (FORCE)")).await;
}
