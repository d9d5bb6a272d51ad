//! On a real server, in the test's own runtime.

mod answers;
mod outages;
mod suite;
#[cfg(feature = "tls")]
mod tls;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse as _, Response},
    serve::Listener,
};
use outbox_core::{Event, Position, StoredEvent};
use time::OffsetDateTime;
use tokio::net::TcpListener;

use super::{config::HttpConfig, publisher::HttpPublisher};
use crate::config::Secret;

/// A request as it arrived.
#[derive(Debug, Clone)]
struct Arrived {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Arrived {
    /// A header's text.
    fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// A header that the publisher wrote, read as docs.md tells.
    fn decoded(&self, name: &str) -> Option<String> {
        let text = percent_encoding::percent_decode_str(self.text(name)?);
        Some(text.decode_utf8().unwrap().into_owned())
    }
}

/// What to do with a request.
enum Reply {
    /// Answer so, after it was stored unless it is no success.
    Status(u16),
    With(Response),
    /// Never.
    Hang,
    /// The handler panics, which cuts the connection.
    Cut,
}

type Script = dyn Fn(&Arrived) -> Reply + Send + Sync;

/// A webhook's receiver; ends with the test's runtime.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    script: Arc<Script>,
}

impl Server {
    async fn start(script: impl Fn(&Arrived) -> Reply + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), script)
    }

    fn on<L: Listener<Addr = SocketAddr>>(
        listener: L,
        script: impl Fn(&Arrived) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let server = Self {
            address: listener.local_addr().unwrap(),
            arrived: Arc::default(),
            script: Arc::new(script),
        };
        let router = Router::new().fallback(take).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    /// Stores everything.
    async fn willing() -> Self {
        Self::start(|_| Reply::Status(204)).await
    }

    fn arrived(&self) -> MutexGuard<'_, Vec<Arrived>> {
        self.arrived.lock().unwrap()
    }

    fn publisher(&self) -> HttpPublisher {
        configured(&self.url(), |_| ())
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }
}

async fn take(State(server): State<Server>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await;
    let Ok(body) = body else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let arrived = Arrived {
        method: head.method,
        path: head.uri.to_string(),
        headers: head.headers,
        body,
    };
    let reply = (server.script)(&arrived);
    if matches!(reply, Reply::Status(200..=299)) {
        server.arrived().push(arrived);
    }
    match reply {
        Reply::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Reply::With(response) => response,
        Reply::Hang => std::future::pending().await,
        Reply::Cut => panic!("as the test says: this cuts the connection"),
    }
}

fn configured(url: &str, set: impl FnOnce(&mut HttpConfig)) -> HttpPublisher {
    let mut config = HttpConfig::new(Secret::new(url));
    set(&mut config);
    HttpPublisher::new(&config).unwrap()
}

/// A publisher that does not wait long.
fn hasty(server: &Server) -> HttpPublisher {
    configured(&server.url(), |config| {
        config.publish_timeout = Duration::from_millis(600);
    })
}

/// An event of a key of its own.
fn event(key: &str) -> StoredEvent {
    let event = Event::new("orders", "Placed").key(key);
    let event = event.bytes(format!("payload of {key}")).unwrap();
    StoredEvent::from_event(&event, Position(1), OffsetDateTime::now_utc())
}

fn events(count: usize) -> Vec<StoredEvent> {
    (0..count).map(|n| event(&format!("k{n}"))).collect()
}
