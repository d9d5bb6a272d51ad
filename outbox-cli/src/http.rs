//! `/metrics`, `/healthz` and `/readyz` of a running relay. Nothing here shows a payload or a key.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use outbox_core::{Health, metric};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::exit::Failure;

/// How often samples of histograms are folded together: they pile up in between.
const UPKEEP: Duration = Duration::from_secs(5);

/// From a broker next door (0.5 ms) to the publishers' deadline of 30 s.
const PUBLISH_SECONDS: [f64; 13] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];
/// From a wake-up within milliseconds to a backlog of a day.
const ENQUEUE_TO_PUBLISH_SECONDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0, 21_600.0, 86_400.0,
];
const BATCH_EVENTS: [f64; 9] = [1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const ATTEMPTS: [f64; 7] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0];

/// Installs the recorder of metrics. Must come before anything is measured.
pub(crate) fn record_metrics() -> Result<PrometheusHandle, Failure> {
    let buckets: [(&str, &[f64]); 4] = [
        (metric::PUBLISH_SECONDS, &PUBLISH_SECONDS),
        (
            metric::ENQUEUE_TO_PUBLISH_SECONDS,
            &ENQUEUE_TO_PUBLISH_SECONDS,
        ),
        (metric::BATCH_EVENTS, &BATCH_EVENTS),
        (metric::ATTEMPTS, &ATTEMPTS),
    ];
    let handle = buckets
        .into_iter()
        .try_fold(PrometheusBuilder::new(), |builder, (name, buckets)| {
            builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)
        })
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| Failure::failed(format!("start metrics: {error}")))?;
    metric::describe();
    Ok(handle)
}

/// A bound address, so that a port that is taken is told before the relay starts.
pub(crate) struct Server {
    listener: TcpListener,
    metrics: PrometheusHandle,
}

impl Server {
    /// Takes the port.
    pub(crate) async fn bind(
        address: SocketAddr,
        metrics: PrometheusHandle,
    ) -> Result<Self, Failure> {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            Failure::usage(format!(
                "serve HTTP: can't listen on {address}: {error} — choose another address by --http \
                 or http.listen"
            ))
        })?;
        Ok(Self { listener, metrics })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Result<SocketAddr, Failure> {
        let address = self.listener.local_addr();
        address.map_err(|error| Failure::failed(format!("serve HTTP: {error}")))
    }

    /// Serves until told to stop.
    pub(crate) async fn run(self, health: Health, stop: CancellationToken) -> Result<(), Failure> {
        let handle = self.metrics.clone();
        let upkeep = async {
            loop {
                tokio::time::sleep(UPKEEP).await;
                handle.run_upkeep();
            }
        };
        let router = router(self.metrics, health);
        let serve = axum::serve(self.listener, router).into_future();
        // Dropped when told to stop: no answer is worth a longer stop.
        tokio::select! {
            result = serve => result.map_err(|error| Failure::failed(format!("serve HTTP: {error}"))),
            () = upkeep => Ok(()),
            () = stop.cancelled() => Ok(()),
        }
    }
}

fn router(metrics: PrometheusHandle, health: Health) -> Router {
    let metrics = get(async move || {
        let form = "text/plain; version=0.0.4; charset=utf-8";
        ([(header::CONTENT_TYPE, form)], metrics.render())
    });
    Router::new()
        .route("/metrics", metrics)
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .with_state(health)
}

/// 200 when events can flow, else 503 with what is in the way.
async fn ready(State(health): State<Health>) -> impl IntoResponse {
    let is_ready = health.ready();
    let report = health.report();
    let routes: serde_json::Map<_, _> = report
        .routes
        .iter()
        .map(|(name, route)| {
            let state = json!({
                "paused": route.open,
                "lanes": route.lanes,
                "last_error": route.last_error,
            });
            (name.clone(), state)
        })
        .collect();
    let body = json!({
        "ready": is_ready,
        "started": report.started,
        "store_error": report.store_error,
        "routes": routes,
    });
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (
        status,
        [(header::CONTENT_TYPE, "application/json")],
        format!("{body}\n"),
    )
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_relay_that_has_not_started_is_alive_and_not_ready() {
        let metrics = record_metrics().unwrap();
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), metrics)
            .await
            .unwrap();
        let address = server.address().unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(server.run(Health::default(), stop.clone()));

        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let ready = get(address, "/readyz").await;
        assert!(
            ready.starts_with("HTTP/1.1 503") && ready.contains(r#""ready":false"#),
            "{ready}"
        );
        assert!(get(address, "/metrics").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/other").await.starts_with("HTTP/1.1 404"));

        let taken = Server::bind(address, PrometheusBuilder::new().build_recorder().handle()).await;
        let message = taken.err().unwrap().to_string();
        assert!(
            message.contains(&address.to_string()) && message.contains("--http"),
            "{message}"
        );

        stop.cancel();
        running.await.unwrap().unwrap();
    }
}
