//! What librdkafka tells beside its answers: log lines, complaints, delivery reports.

use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    error::KafkaError,
    message::Message as _,
    producer::{DeliveryResult, ProducerContext},
    types::RDKafkaErrorCode as Code,
};
use tokio::sync::{Notify, mpsc};
use tracing::debug;

use crate::wire::Place;

/// What became of one record.
pub(crate) struct Answer {
    /// The event's place in its batch.
    pub(crate) index: usize,
    pub(crate) result: Result<Place, Code>,
}

/// Travels with a record through librdkafka, back with its delivery report.
pub(crate) struct Ticket {
    pub(crate) index: usize,
    pub(crate) answers: mpsc::UnboundedSender<Answer>,
}

/// Listens to one client of librdkafka, on that client's thread.
pub(crate) struct Listener {
    secrets: Arc<[String]>,
    complaint: Mutex<Option<(Code, String)>>,
    all_down: Notify,
}

impl Listener {
    pub(crate) fn new(secrets: Arc<[String]>) -> Self {
        Self {
            secrets,
            complaint: Mutex::default(),
            all_down: Notify::new(),
        }
    }

    /// What it complained about last, since it was asked last.
    pub(crate) fn take_complaint(&self) -> Option<(Code, String)> {
        self.lock().take()
    }

    /// Ends when each broker that is known was tried in vain, after this is called.
    pub(crate) async fn all_down(&self) {
        self.all_down.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Code, String)>> {
        self.complaint
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// I15: a server or proxy in between may repeat what it was sent.
    fn without_secrets<'t>(&self, text: &'t str) -> &'t str {
        if self.secrets.iter().any(|secret| text.contains(secret)) {
            "(withheld: it repeats a password)"
        } else {
            text
        }
    }
}

impl ClientContext for Listener {
    /// The relay tells of outages, once; librdkafka of each connection that fails (I8).
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        debug!(
            ?level,
            facility,
            "librdkafka: {}",
            self.without_secrets(text)
        );
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        let reason = self.without_secrets(reason).to_owned();
        debug!(?code, "librdkafka complains: {reason}");
        let mut complaint = self.lock();
        // Follows every other complaint and tells less.
        if code != Code::AllBrokersDown || complaint.is_none() {
            *complaint = Some((code, reason));
        }
        drop(complaint);
        if code == Code::AllBrokersDown {
            self.all_down.notify_waiters();
        }
    }
}

impl ProducerContext for Listener {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, report: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let result = match report {
            Ok(message) => Ok(Place {
                partition: message.partition(),
                offset: message.offset(),
            }),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        let index = ticket.index;
        // A call that was dropped does not listen any more.
        let _ = ticket.answers.send(Answer { index, result });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_complaint_that_tells_more_is_kept() {
        let listener = Listener::new(Arc::new([]));
        let complain = |code, text| listener.error(KafkaError::Global(code), text);
        assert_eq!(listener.take_complaint(), None);
        complain(Code::AllBrokersDown, "1/1 brokers are down");
        complain(Code::BrokerTransportFailure, "refused");
        complain(Code::AllBrokersDown, "1/1 brokers are down");
        let complaint = listener.take_complaint();
        assert_eq!(
            complaint,
            Some((Code::BrokerTransportFailure, "refused".to_owned()))
        );
        assert_eq!(listener.take_complaint(), None);
    }

    #[test]
    fn i15_a_log_line_that_repeats_a_password_is_withheld() {
        let listener = Listener::new(Arc::new(["p@ss:w/ord%21".to_owned()]));
        let lines = outbox_testkit::log::Lines::default();
        let guard = lines.follow_at(tracing::Level::TRACE);
        for text in ["no user with p@ss:w/ord%21", "no broker"] {
            listener.log(RDKafkaLogLevel::Error, "FAIL", text);
            listener.error(KafkaError::Global(Code::Authentication), text);
        }
        drop(guard);
        assert_eq!(lines.with("no broker").len(), 2, "{}", lines.text());
        assert_eq!(lines.with("p@ss"), [""; 0]);
    }

    #[test]
    fn i15_a_reason_that_repeats_a_password_is_withheld() {
        let listener = Listener::new(Arc::new(["p@ss:w/ord%21".to_owned()]));
        let error = KafkaError::Global(Code::Authentication);
        listener.error(error, "no user with p@ss:w/ord%21");
        let (code, text) = listener.take_complaint().unwrap();
        assert_eq!(code, Code::Authentication);
        assert!(!text.contains("p@ss"), "{text}");
    }
}
