//! What the settings ask to be there: an exchange, a queue, the binding of both.

use lapin::{
    Error as DriverError, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, LongString},
};
use outbox_core::{Error, Result};

use crate::{
    config::{AmqpConfig, ExchangeType, QueueType},
    error,
    open::Open,
};

/// Made on each new connection: a server that lost them gets them back.
pub(crate) struct Declarations {
    exchange: Option<(String, ExchangeType)>,
    queue: Option<(String, QueueType)>,
    binding_key: String,
}

impl Declarations {
    pub(crate) fn new(config: &AmqpConfig) -> Self {
        let exchange = config.declare_exchange.clone();
        let queue = config.declare_queue.clone();
        Self {
            exchange: exchange.map(|name| (name, config.declare_exchange_type)),
            queue: queue.map(|name| (name, config.declare_queue_type)),
            binding_key: config.declare_binding_key.clone(),
        }
    }

    /// Declares; does nothing to what is there already with the same properties.
    ///
    /// # Errors
    /// Names the setting; destination scope.
    pub(crate) async fn make(&self, open: &Open) -> Result<()> {
        if self.exchange.is_none() && self.queue.is_none() {
            return Ok(());
        }
        let channel = open
            .plain_channel()
            .await
            .map_err(|error| error::connecting(&error, ""))?;
        if let Some((name, kind)) = &self.exchange {
            let options = ExchangeDeclareOptions {
                durable: true,
                ..ExchangeDeclareOptions::default()
            };
            let kind = match kind {
                ExchangeType::Topic => ExchangeKind::Topic,
                ExchangeType::Direct => ExchangeKind::Direct,
                ExchangeType::Fanout => ExchangeKind::Fanout,
            };
            channel
                .exchange_declare(name.as_str().into(), kind, options, FieldTable::default())
                .await
                .map_err(failed("declare_exchange"))?;
        }
        if let Some((name, kind)) = &self.queue {
            let options = QueueDeclareOptions {
                durable: true,
                ..QueueDeclareOptions::default()
            };
            let mut arguments = FieldTable::default();
            let kind = LongString::from(kind.as_str());
            arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind));
            channel
                .queue_declare(name.as_str().into(), options, arguments)
                .await
                .map_err(failed("declare_queue"))?;
        }
        if let (Some((exchange, _)), Some((queue, _))) = (&self.exchange, &self.queue) {
            channel
                .queue_bind(
                    queue.as_str().into(),
                    exchange.as_str().into(),
                    self.binding_key.as_str().into(),
                    QueueBindOptions::default(),
                    FieldTable::default(),
                )
                .await
                .map_err(failed("declare_binding_key"))?;
        }
        Ok(())
    }
}

fn failed(setting: &'static str) -> impl FnOnce(DriverError) -> Error {
    move |error| error::declaring(&error, setting)
}
