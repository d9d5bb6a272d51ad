//! Topics of Kafka, by its own tools.

use async_trait::async_trait;
use outbox_testkit::{
    invariants::Sighting,
    servers::{Kafka, Server},
};
use tokio::task::block_in_place;

use super::{Broker, sighting};

pub(super) struct Topics(pub(super) Kafka);

impl Topics {
    fn tool(&self, class: &str, arguments: &[&str]) -> String {
        let class = format!("org.apache.kafka.tools.{class}");
        block_in_place(|| Kafka::ask(&self.0.bootstrap(), &class, arguments).unwrap())
    }
}

#[async_trait]
impl Broker for Topics {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn url(&self) -> String {
        format!("kafka://{}", self.0.bootstrap())
    }

    async fn prepare(&mut self, topic: &str) {
        let new = ["--create", "--topic", topic, "--partitions", "3"];
        self.tool("TopicCommand", &new);
    }

    async fn read(&mut self, topic: &str) -> Vec<Sighting> {
        // The consumer ends when nothing comes for so long.
        let read = ["--topic", topic, "--from-beginning", "--timeout-ms", "5000"];
        let shown = ["--formatter-property", "print.headers=true"];
        let key = ["--formatter-property", "print.key=true"];
        let arguments = [&read[..], &shown, &key].concat();
        let text = self.tool("consumer.ConsoleConsumer", &arguments);
        let record = |line: &str| {
            let mut fields = line.splitn(3, '\t');
            let (headers, key) = (fields.next().unwrap(), fields.next().unwrap());
            let payload = fields.next().unwrap().to_owned();
            sighting(topic, Some(payload.into()), |name| {
                if name == "outbox-key" {
                    return Some(key.to_owned());
                }
                let mut headers = headers.split(',').map(|h| h.split_once(':').unwrap());
                let (_, value) = headers.find(|(its, _)| *its == name)?;
                Some(value.to_owned())
            })
        };
        // The tool tells on standard output too why it ended.
        let records = text.lines().filter(|line| line.contains('\t'));
        records.map(record).collect()
    }

    fn server(&mut self) -> &mut dyn Server {
        &mut self.0
    }
}
