//! A receiver of webhooks.

use std::io;

use async_trait::async_trait;
use axum::{http::StatusCode, response::IntoResponse as _};
use outbox_testkit::{Port, invariants::Sighting, servers::Server};

use super::{Broker, sighting};
use crate::receiver::{Arrived, Receiver};

pub(super) struct Hooks {
    port: Port,
    receiver: Option<Receiver>,
    /// What earlier receivers took.
    before: Vec<Arrived>,
}

impl Hooks {
    pub(super) fn start() -> Self {
        let mut hooks = Self {
            port: Port::take().unwrap(),
            receiver: None,
            before: vec![],
        };
        hooks.restart().unwrap();
        hooks
    }
}

#[async_trait]
impl Broker for Hooks {
    fn name(&self) -> &'static str {
        "http"
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.port.address())
    }

    async fn prepare(&mut self, _topic: &str) {}

    async fn read(&mut self, topic: &str) -> Vec<Sighting> {
        let now = self.receiver.as_ref().map(Receiver::arrived);
        let all = self.before.iter().chain(now.iter().flatten());
        all.map(|arrived| {
            sighting(topic, Some(arrived.body.clone()), |name| {
                let value = arrived.headers.get(name)?;
                Some(value.to_str().unwrap().to_owned())
            })
        })
        .collect()
    }

    fn server(&mut self) -> &mut dyn Server {
        self
    }
}

impl Server for Hooks {
    fn kill(&mut self) -> io::Result<()> {
        if let Some(receiver) = self.receiver.take() {
            self.before.extend(receiver.end());
        }
        Ok(())
    }

    fn stop(&mut self) -> io::Result<()> {
        self.kill()
    }

    fn restart(&mut self) -> io::Result<()> {
        self.kill()?;
        let receiver = Receiver::start_at(self.port.address(), |_, _| {
            StatusCode::NO_CONTENT.into_response()
        });
        self.receiver = Some(receiver);
        Ok(())
    }
    fn pause(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn resume(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
