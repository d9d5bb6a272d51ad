//! What every private server can be told.

use std::io;

use super::{Kafka, Nats, RabbitMq, Redis};

/// A server that a test or a benchmark may kill, stop, pause and start again, whatever it is. The methods of
/// the servers themselves tell more.
pub trait Server: Send + Sync {
    /// SIGKILL. Does nothing when it does not run.
    ///
    /// # Errors
    /// When the process can't be killed or waited for.
    fn kill(&mut self) -> io::Result<()>;

    /// Stops it in good order.
    ///
    /// # Errors
    /// When it does not stop within a minute; it is killed then.
    fn stop(&mut self) -> io::Result<()>;

    /// Starts it again on the same port and data, after stopping it if it runs; waits until it serves.
    ///
    /// # Errors
    /// The server's own words, when it does not start.
    fn restart(&mut self) -> io::Result<()>;

    /// SIGSTOP: connections stay open and nothing is answered, until [`resume`](Self::resume).
    ///
    /// # Errors
    /// When the process is gone.
    fn pause(&self) -> io::Result<()>;

    /// SIGCONT.
    ///
    /// # Errors
    /// When the process is gone.
    fn resume(&self) -> io::Result<()>;
}

macro_rules! servers {
    ($($name:ident)+) => {
        $(impl Server for $name {
            fn kill(&mut self) -> io::Result<()> {
                Self::kill(self)
            }

            fn stop(&mut self) -> io::Result<()> {
                Self::stop(self)
            }

            fn restart(&mut self) -> io::Result<()> {
                Self::restart(self)
            }

            fn pause(&self) -> io::Result<()> {
                Self::pause(self)
            }

            fn resume(&self) -> io::Result<()> {
                Self::resume(self)
            }
        })+
    };
}

servers!(Kafka Nats RabbitMq Redis);
