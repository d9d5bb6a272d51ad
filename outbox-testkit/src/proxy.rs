//! A TCP proxy that fails on command, to stand before any real server.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// Which way bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: requests.
    ToServer,
    /// From the server to the client: answers.
    ToClient,
}

/// What the proxy does to bytes at this moment.
#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    latency: Duration,
    stalled: [bool; 2],
    black_hole: bool,
    /// Connections of an earlier generation are cut.
    generation: u64,
}

struct Shared {
    target: Mutex<SocketAddr>,
    plan: watch::Sender<Plan>,
    /// Bytes that may still pass in each direction before everything is cut.
    budgets: Mutex<[Option<u64>; 2]>,
    bytes: [AtomicU64; 2],
    connections: AtomicU64,
    open: Mutex<JoinSet<()>>,
}

/// A TCP proxy on a loopback port of its own. Passes everything until told otherwise; every switch
/// works at once, on open connections too. Dropping it closes all of them and the port.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts to listen and to pass everything to the target.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            plan: watch::Sender::new(Plan::default()),
            budgets: Mutex::default(),
            bytes: [AtomicU64::new(0), AtomicU64::new(0)],
            connections: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let listening = Some(tokio::spawn(accept(listener, Arc::clone(&shared))));
        Ok(Self {
            address,
            shared,
            listening,
        })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections taken so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Bytes passed on so far in this direction.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.bytes[direction as usize].load(Ordering::Relaxed)
    }

    /// Ends latency, stalls, black hole and byte budgets. Connections that are cut stay cut.
    pub fn pass(&self) {
        *lock(&self.shared.budgets) = [None; 2];
        self.shared.plan.send_modify(|plan| {
            *plan = Plan {
                generation: plan.generation,
                ..Plan::default()
            };
        });
    }

    /// Delays every chunk of bytes by this much, in both directions.
    pub fn latency(&self, latency: Duration) {
        self.shared.plan.send_modify(|plan| plan.latency = latency);
    }

    /// Keeps bytes of this direction back until [`pass`](Self::pass); the connection stays open.
    pub fn stall(&self, direction: Direction) {
        let index = direction as usize;
        self.shared
            .plan
            .send_modify(|plan| plan.stalled[index] = true);
    }

    /// Swallows all bytes, as when the other machine is gone without a word: connections stay open
    /// and new ones are accepted, but nothing ever answers. Bytes swallowed are lost.
    pub fn black_hole(&self) {
        self.shared.plan.send_modify(|plan| plan.black_hole = true);
    }

    /// Closes all open connections now; new ones are accepted.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Leads new connections to another server, as a service name does after a failover; open ones
    /// stay where they are.
    pub fn retarget(&self, target: SocketAddr) {
        *lock(&self.shared.target) = target;
    }

    /// Passes so many more bytes of this direction, over all connections, then cuts all of them,
    /// once.
    pub fn cut_after(&self, direction: Direction, bytes: u64) {
        lock(&self.shared.budgets)[direction as usize] = Some(bytes);
    }

    /// Closes all connections and the port: connecting is refused by the system.
    pub async fn refuse(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
            // It ends by the abort; only then is the port closed.
            let _ = listening.await;
        }
        self.cut();
    }

    /// Listens again on the same port after [`refuse`](Self::refuse).
    ///
    /// # Errors
    /// When another program took the port meanwhile.
    pub async fn accept(&mut self) -> io::Result<()> {
        if self.listening.is_none() {
            let listener = TcpListener::bind(self.address).await?;
            self.listening = Some(tokio::spawn(accept(listener, Arc::clone(&self.shared))));
        }
        Ok(())
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
        }
        lock(&self.shared.open).abort_all();
    }
}

impl Shared {
    fn cut(&self) {
        self.plan.send_modify(|plan| plan.generation += 1);
    }

    /// Takes bytes from the direction's budget: how many may pass, and whether the cut is due.
    fn spend(&self, direction: Direction, bytes: usize) -> (usize, bool) {
        let mut budgets = lock(&self.budgets);
        let budget = &mut budgets[direction as usize];
        let Some(left) = *budget else {
            return (bytes, false);
        };
        let bytes_u64 = u64::try_from(bytes).unwrap_or(u64::MAX);
        if bytes_u64 < left {
            *budget = Some(left - bytes_u64);
            return (bytes, false);
        }
        *budget = None;
        (usize::try_from(left).unwrap_or(bytes), true)
    }
}

/// Nothing panics under these locks but a failed allocation.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let mut open = lock(&shared.open);
        while open.try_join_next().is_some() {}
        open.spawn(serve(client, Arc::clone(&shared)));
    }
}

/// One connection, until either side closes it or it is cut. An error of one side closes the other:
/// that is all that a proxy can tell it.
async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let mut plan = shared.plan.subscribe();
    let generation = plan.borrow_and_update().generation;
    let is_cut = async {
        let _ = plan.wait_for(|plan| plan.generation != generation).await;
    };
    let pass = async {
        if shared.plan.borrow().black_hole {
            swallow(client).await;
            return;
        }
        let target = *lock(&shared.target);
        let Ok(server) = TcpStream::connect(target).await else {
            return;
        };
        // Small packets go at once: a proxy must not add delays of its own.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            biased;
            () = pump(from_client, to_server, Direction::ToServer, &shared) => {}
            () = pump(from_server, to_client, Direction::ToClient, &shared) => {}
        }
    };
    tokio::select! {
        biased;
        () = is_cut => {}
        () = pass => {}
    }
}

async fn swallow(mut client: TcpStream) {
    let mut buffer = [0; 4096];
    while matches!(client.read(&mut buffer).await, Ok(1..)) {}
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    shared: &Shared,
) {
    let mut plan = shared.plan.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let now = plan
            .wait_for(|plan| !plan.stalled[direction as usize])
            .await;
        let Ok(now) = now.map(|plan| *plan) else {
            return;
        };
        if now.black_hole {
            continue;
        }
        if !now.latency.is_zero() {
            tokio::time::sleep(now.latency).await;
        }
        let (passed, cut) = shared.spend(direction, read);
        if to.write_all(&buffer[..passed]).await.is_err() {
            return;
        }
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        shared.bytes[direction as usize].fetch_add(passed, Ordering::Relaxed);
        if cut {
            // What has passed must arrive before the connection breaks.
            let _ = to.flush().await;
            shared.cut();
            return;
        }
    }
}
