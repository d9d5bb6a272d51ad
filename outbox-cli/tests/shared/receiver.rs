//! A receiver of webhooks.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex,
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
    time::Instant,
};

use axum::{Router, body::Bytes, http::HeaderMap, response::Response};

/// A request and when it came.
#[derive(Clone)]
pub(crate) struct Arrived {
    pub(crate) at: Instant,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Arrived {
    pub(crate) fn text(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }
}

/// Takes webhooks until it is dropped, which ends its connections too.
pub(crate) struct Receiver {
    address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Answers each request by its number, from 0.
    pub(crate) fn start(
        answer: impl Fn(usize, &Arrived) -> Response + Send + Sync + 'static,
    ) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), answer)
    }

    pub(crate) fn start_at(
        address: SocketAddr,
        answer: impl Fn(usize, &Arrived) -> Response + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let arrived: Arc<Mutex<Vec<Arrived>>> = Arc::default();
        let (ends, ended) = channel();
        let taken = Arc::clone(&arrived);
        let answer = Arc::new(answer);
        let router = Router::new().fallback(move |headers: HeaderMap, body: Bytes| {
            let (taken, answer) = (Arc::clone(&taken), Arc::clone(&answer));
            async move {
                let arrived = Arrived {
                    at: Instant::now(),
                    headers,
                    body,
                };
                let mut taken = taken.lock().unwrap();
                taken.push(arrived.clone());
                answer(taken.len() - 1, &arrived)
            }
        });
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.spawn(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, router).await
            });
            // Ends when the other end is dropped.
            let _ = ended.recv();
        });
        Self {
            address,
            arrived,
            ends: Some(ends),
            thread: Some(thread),
        }
    }

    pub(crate) fn end(self) -> Vec<Arrived> {
        let arrived = Arc::clone(&self.arrived);
        // Nothing is answered any more from here on.
        drop(self);
        arrived.lock().unwrap().clone()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn arrived(&self) -> Vec<Arrived> {
        self.arrived.lock().unwrap().clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        drop(self.ends.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
