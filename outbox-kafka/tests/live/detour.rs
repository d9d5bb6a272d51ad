//! A way to Kafka that a proxy can stand before.
//!
//! Brokers tell their clients under which address they are to be reached, so that a client leaves a
//! proxy after its first question. This forwards to a broker and writes another port into its
//! answers: `length, "127.0.0.1", port` stands in them for the broker, in every version of the
//! protocol, and keeps its length.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinHandle,
};

const HOST: &[u8] = b"127.0.0.1";

/// Forwards until it is dropped.
pub(crate) struct Detour {
    address: SocketAddr,
    told: Arc<AtomicU16>,
    forwarding: JoinHandle<()>,
}

impl Detour {
    pub(crate) async fn start(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let told = Arc::new(AtomicU16::new(address.port()));
        let tells = Arc::clone(&told);
        let forwarding = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let tells = Arc::clone(&tells);
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(broker).await else {
                        return;
                    };
                    let (mut from_client, to_client) = client.into_split();
                    let (from_server, mut to_server) = server.into_split();
                    let there = async {
                        let _ = copy(&mut from_client, &mut to_server).await;
                    };
                    let back = answers(from_server, to_client, broker.port(), &tells);
                    // Whoever ends first ends both.
                    tokio::select! {
                        () = there => {}
                        () = back => {}
                    }
                });
            }
        });
        Self {
            address,
            told,
            forwarding,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on clients are told this port.
    pub(crate) fn tell(&self, port: u16) {
        self.told.store(port, Ordering::Relaxed);
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        self.forwarding.abort();
    }
}

/// Answers come whole: a length of four bytes, then so many.
async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    broker_port: u16,
    told: &AtomicU16,
) {
    while let Ok(length) = from.read_u32().await {
        let mut answer = vec![0; length as usize];
        if from.read_exact(&mut answer).await.is_err() {
            return;
        }
        let own = [HOST, &u32::from(broker_port).to_be_bytes()].concat();
        let port = u32::from(told.load(Ordering::Relaxed)).to_be_bytes();
        let mut at = 0;
        while let Some(found) = find(&answer[at..], &own) {
            at += found + own.len();
            answer[at - port.len()..at].copy_from_slice(&port);
        }
        let mut whole = length.to_be_bytes().to_vec();
        whole.extend(answer);
        if to.write_all(&whole).await.is_err() {
            return;
        }
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}
