//! Commands for a Redis server.

use std::net::SocketAddr;

use redis::FromRedisValue;

use super::{stream::connect, until};

/// Runs a command written as words.
pub(crate) async fn command<T: FromRedisValue>(url: &str, words: &str) -> T {
    let mut connection = connect(url).await.unwrap();
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query_async(&mut connection).await.unwrap()
}

/// Makes the server a replica of the one at this address, and waits until it has its data.
pub(crate) async fn follow(url: &str, primary: SocketAddr) {
    let order = format!("REPLICAOF {} {}", primary.ip(), primary.port());
    command::<()>(url, &order).await;
    until("a replica with its primary's data", async || {
        let info: String = command(url, "INFO replication").await;
        info.contains("role:slave") && info.contains("master_link_status:up")
    })
    .await;
}
