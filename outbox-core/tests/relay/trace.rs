//! The span of a batch.

use std::{sync::Arc, time::Duration};

use opentelemetry::trace::{Status, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use outbox_core::{ErrorKind, OrderClass, Outcome};
use tokio::time::sleep;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::script::{Script, commit, error, one_lane, quick_policy, run};

#[tokio::test(start_paused = true)]
async fn a_batch_that_fails_shows_in_its_span() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));

    let store = one_lane();
    commit(&store, &[("t", "k", "1")]);
    let publisher = Arc::new(Script::new(OrderClass::InFlight, |_| {
        Outcome::Failed(error(ErrorKind::TooLarge))
    }));
    let relay = run(&store, &publisher, quick_policy());
    sleep(Duration::from_secs(60)).await;
    relay.stop().await;

    let spans = exporter.get_finished_spans().unwrap();
    let of_batches: Vec<_> = spans.iter().filter(|s| s.name == "publish").collect();
    let [failed] = of_batches[..] else {
        panic!("{of_batches:?}")
    };
    assert!(matches!(failed.status, Status::Error { .. }), "{failed:?}");
    let kind = failed
        .attributes
        .iter()
        .find(|a| a.key.as_str() == "error.type");
    assert_eq!(kind.unwrap().value.as_str(), "too_large");
}
