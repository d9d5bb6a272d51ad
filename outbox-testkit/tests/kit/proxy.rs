//! The fault proxy before an echo server.

use std::{io, net::SocketAddr, time::Duration};

use outbox_testkit::{
    eventually,
    proxy::{Direction, FaultProxy},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};

const SOON: Duration = Duration::from_secs(10);
/// Long enough to call what has not come by then absent.
const ABSENT: Duration = Duration::from_millis(200);

async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = client.into_split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    address
}

async fn proxied() -> (FaultProxy, TcpStream) {
    let proxy = FaultProxy::start(echo().await).await.unwrap();
    let client = TcpStream::connect(proxy.address()).await.unwrap();
    (proxy, client)
}

async fn there_and_back(client: &mut TcpStream, text: &str) -> io::Result<String> {
    client.write_all(text.as_bytes()).await?;
    let mut answer = vec![0; text.len()];
    let read = timeout(SOON, client.read_exact(&mut answer)).await;
    read.map_err(io::Error::other)??;
    String::from_utf8(answer).map_err(io::Error::other)
}

/// Everything until the connection ends.
async fn rest(client: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = timeout(SOON, client.read_to_end(&mut rest))
        .await
        .expect("the connection ends");
    rest
}

#[tokio::test]
async fn passes_and_counts() {
    let (proxy, mut client) = proxied().await;
    assert_eq!(there_and_back(&mut client, "hello").await.unwrap(), "hello");
    let big = "x".repeat(1_000_000);
    let (mut read, mut write) = client.split();
    let mut answer = vec![0; big.len()];
    let (sent, got) = futures::join!(
        write.write_all(big.as_bytes()),
        read.read_exact(&mut answer)
    );
    sent.unwrap();
    got.unwrap();
    assert_eq!(answer, big.as_bytes());
    assert_eq!(proxy.connections(), 1);
    assert_eq!(proxy.bytes(Direction::ToServer), 1_000_005);
    assert_eq!(proxy.bytes(Direction::ToClient), 1_000_005);
}

#[tokio::test]
async fn adds_latency_both_ways() {
    let (proxy, mut client) = proxied().await;
    proxy.latency(Duration::from_millis(100));
    let started = Instant::now();
    there_and_back(&mut client, "hello").await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn stalls_one_direction_until_passed() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (proxy, mut client) = proxied().await;
        proxy.stall(direction);
        client.write_all(b"hello").await.unwrap();
        let mut answer = [0; 5];
        let early = timeout(ABSENT, client.read_exact(&mut answer)).await;
        assert!(early.is_err(), "{direction:?} was not stalled");
        let reached_server = proxy.bytes(Direction::ToServer) == 5;
        assert_eq!(reached_server, direction == Direction::ToClient);
        proxy.pass();
        timeout(SOON, client.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&answer, b"hello");
    }
}

#[tokio::test]
async fn cuts_now_and_takes_new_connections() {
    let (proxy, mut client) = proxied().await;
    there_and_back(&mut client, "hello").await.unwrap();
    proxy.cut();
    assert_eq!(rest(&mut client).await, b"");
    let mut again = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(there_and_back(&mut again, "again").await.unwrap(), "again");
}

#[tokio::test]
async fn cuts_after_so_many_bytes_of_the_client() {
    let (proxy, mut client) = proxied().await;
    there_and_back(&mut client, "hello").await.unwrap();
    proxy.cut_after(Direction::ToServer, 3);
    client.write_all(b"abcdef").await.unwrap();
    rest(&mut client).await;
    assert_eq!(proxy.bytes(Direction::ToServer), 5 + 3);
    let mut again = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(
        there_and_back(&mut again, "cut once").await.unwrap(),
        "cut once"
    );
}

#[tokio::test]
async fn cuts_after_so_many_bytes_of_the_server() {
    let (proxy, mut client) = proxied().await;
    proxy.cut_after(Direction::ToClient, 4);
    client.write_all(b"abcdef").await.unwrap();
    assert_eq!(rest(&mut client).await, b"abcd");
    assert_eq!(
        proxy.bytes(Direction::ToServer),
        6,
        "the server had all of it"
    );
}

#[tokio::test]
async fn refuses_and_accepts_again() {
    let (mut proxy, mut client) = proxied().await;
    proxy.refuse().await;
    assert_eq!(rest(&mut client).await, b"");
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    proxy.accept().await.unwrap();
    let mut again = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(there_and_back(&mut again, "back").await.unwrap(), "back");
}

#[tokio::test]
async fn a_black_hole_swallows_and_stays_open() {
    let (proxy, mut client) = proxied().await;
    there_and_back(&mut client, "hello").await.unwrap();
    proxy.black_hole();
    let mut new = TcpStream::connect(proxy.address()).await.unwrap();
    for client in [&mut client, &mut new] {
        client.write_all(b"anyone?").await.unwrap();
        let silence = timeout(ABSENT, client.read_u8()).await;
        assert!(silence.is_err(), "something answered or closed");
    }
}

#[tokio::test]
async fn leads_new_connections_to_another_server() {
    let (proxy, mut old) = proxied().await;
    assert_eq!(there_and_back(&mut old, "one").await.unwrap(), "one");
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    proxy.retarget(silent.local_addr().unwrap());
    let _new = TcpStream::connect(proxy.address()).await.unwrap();
    timeout(SOON, silent.accept()).await.unwrap().unwrap();
    assert_eq!(there_and_back(&mut old, "two").await.unwrap(), "two");
}

#[tokio::test]
async fn dropping_it_closes_everything() {
    let (proxy, mut client) = proxied().await;
    there_and_back(&mut client, "hello").await.unwrap();
    let address = proxy.address();
    drop(proxy);
    assert_eq!(rest(&mut client).await, b"");
    let closed = eventually(SOON, async || {
        TcpStream::connect(address).await.err().map(|_| ())
    });
    assert!(closed.await.is_some(), "the port is still open");
}

#[tokio::test]
async fn a_dead_target_closes_the_client() {
    let target = FaultProxy::start(echo().await).await.unwrap().address();
    let proxy = FaultProxy::start(target).await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(rest(&mut client).await, b"");
}
