//! The relay's spans, exported by OTLP where OpenTelemetry's standard variables name a collector.

use std::{
    env,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use opentelemetry::{Key, trace::TracerProvider as _};
use opentelemetry_otlp::SpanExporter as Otlp;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use tracing::{info, level_filters::LevelFilter, warn};
use tracing_subscriber::{Layer as _, filter::filter_fn};

use crate::{exit::Failure, logging::Tap, redact};

/// Either one switches the export on.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
];

/// The last spans may take this long at the end of the relay.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// The export at work, on a thread of its own with a bounded queue: the relay never waits for it.
/// Ends when dropped.
pub(crate) struct Spans(SdkTracerProvider);

impl Spans {
    /// Starts it where an endpoint is set. Nothing is sent yet.
    pub(crate) fn start() -> Result<Option<Self>, Failure> {
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        if !ENDPOINTS.into_iter().any(is_set) {
            return Ok(None);
        }
        #[cfg(all(feature = "http", feature = "tls"))]
        choose_tls();
        let exporter = Otlp::builder().with_http().build().map_err(|error| {
            let text = redact::urls(&error.to_string());
            Failure::usage(format!(
                "export spans: {text} — see the variables OTEL_EXPORTER_OTLP_*; only http/protobuf is spoken"
            ))
        })?;
        let exporter = Told {
            exporter,
            is_failing: AtomicBool::new(false),
        };
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource());
        Ok(Some(Self(provider.build())))
    }

    /// What feeds it: the spans that the engine makes for it, whatever the level of the log lines is;
    /// not those for debugging, of which an idle relay makes some at every poll.
    pub(crate) fn tap(&self) -> Tap {
        let is_ours = filter_fn(|it| {
            let is_span = it.is_span() && it.fields().field("otel.kind").is_some();
            is_span && it.target().starts_with("outbox_core")
        });
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("outbox"))
            .with_filter(is_ours.with_max_level_hint(LevelFilter::DEBUG))
            .boxed()
    }
}

impl Drop for Spans {
    /// Sends what is left, for a limited time; what a collector does not take by then is lost.
    fn drop(&mut self) {
        // The failure itself was told when the export failed.
        let _ = self.0.shutdown_with_timeout(FLUSH_MAX);
    }
}

/// The publisher of webhooks builds the HTTP client, which the exporter shares, with a TLS that has no
/// cryptography of its own; without a choice it panics.
#[cfg(all(feature = "http", feature = "tls"))]
fn choose_tls() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread has just done the same.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
}

/// The environment's attributes; the service is called `outbox` unless they name it.
fn resource() -> Resource {
    const NAME: Key = Key::from_static_str("service.name");
    let given = Resource::builder().build();
    let is_named = given
        .get(&NAME)
        .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    if is_named {
        return given;
    }
    Resource::builder().with_service_name("outbox").build()
}

/// Tells when the export begins to fail and when it works again, not each failure (I8).
#[derive(Debug)]
struct Told<E> {
    exporter: E,
    is_failing: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for Told<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        if self.is_failing.swap(result.is_err(), Relaxed) != result.is_err() {
            match &result {
                Ok(()) => info!("spans are exported again"),
                Err(error) => {
                    let error = redact::urls(&error.to_string());
                    warn!(
                        error,
                        "spans can't be exported; until they can, they are dropped"
                    );
                }
            }
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
