//! A handle of the queue in a process of its own: reads its settings from its argument and answers
//! calls on its standard input. For the suites in two processes.

use std::sync::Arc;

use outbox_sqlite::{SqliteConfig, SqliteQueue};
use outbox_testkit::{block_on, remote::serve};

fn main() {
    let settings = std::env::args().nth(1).expect("settings as JSON");
    let config: SqliteConfig = serde_json::from_str(&settings).expect("settings of the store");
    block_on(async {
        let queue = SqliteQueue::connect(config).await.expect("good settings");
        let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
        let served = serve(Arc::new(queue), input, output).await;
        served.expect("whoever asks is there");
    });
}
