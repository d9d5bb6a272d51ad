//! Topics of Kafka, by its own tools.

use std::io;

use async_trait::async_trait;
use outbox_testkit::{invariants::Sighting, servers::Kafka};
use tokio::task::block_in_place;

use super::{Broker, sighting};

pub(super) struct Topics(pub(super) Kafka);

impl Topics {
    fn tool(&self, class: &str, arguments: &[&str]) -> String {
        let mut tool = Kafka::tool(&format!("org.apache.kafka.tools.{class}")).unwrap();
        tool.args(["--bootstrap-server", &self.0.bootstrap()]);
        let output = block_in_place(|| tool.args(arguments).output().unwrap());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
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

    fn kill(&mut self) -> io::Result<()> {
        self.0.kill()
    }

    fn stop(&mut self) -> io::Result<()> {
        self.0.stop()
    }

    fn restart(&mut self) -> io::Result<()> {
        self.0.restart()
    }
}
