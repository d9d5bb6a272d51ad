//! Loopback ports for servers that tests start, stop and start again.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io,
    net::{SocketAddr, TcpListener},
};

use rand::RngExt as _;

/// Below the ports that systems give to outgoing connections (Linux from 32768, others from
/// 49152): one of those could take the port while the server is down.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// A loopback port that nothing listens on, kept from other tests of this machine until it is
/// dropped, also while the server on it is down: whoever holds it holds the lock of a file.
#[derive(Debug)]
pub struct Port {
    number: u16,
    #[expect(dead_code, reason = "the lock ends with the file")]
    held: File,
}

impl Port {
    /// Takes one.
    ///
    /// # Errors
    /// When none of the range is free, or the files of the locks can't be made in the system's
    /// temporary folder.
    pub fn take() -> io::Result<Self> {
        let user = rustix::process::getuid().as_raw();
        let folder = std::env::temp_dir().join(format!("outbox-ports-{user}"));
        std::fs::create_dir_all(&folder)?;
        let count = RANGE.end - RANGE.start;
        let first = rand::rng().random_range(0..count);
        for step in 0..count {
            let number = RANGE.start + (first + step) % count;
            // The file stays: removing it would let two tests lock different files of one name.
            let held = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(folder.join(number.to_string()))?;
            let locked = match held.try_lock() {
                Ok(()) => true,
                Err(std::fs::TryLockError::WouldBlock) => false,
                Err(std::fs::TryLockError::Error(error)) => return Err(error),
            };
            if locked && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Ok(Self { number, held });
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("no free loopback port in {RANGE:?}"),
        ))
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Where a server on it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.number))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}
