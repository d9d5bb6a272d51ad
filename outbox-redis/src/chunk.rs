//! A part of a batch: as much as goes to the server in one piece.

use redis::{Cmd, Pipeline};

/// The commands of some events of a batch, and which events they are.
///
/// The driver's own transactions are not used: they take an error reply to MULTI for the one of a
/// command before the first (an index below zero), and their answer to an aborted EXEC hides which
/// commands were not refused.
pub(crate) struct Chunk {
    pipeline: Pipeline,
    events: Vec<usize>,
    bytes: usize,
    transactional: bool,
}

impl Chunk {
    /// A chunk without events.
    pub(crate) fn new(transactional: bool) -> Self {
        let mut pipeline = Pipeline::new();
        if transactional {
            pipeline.cmd("MULTI");
        }
        Self {
            pipeline,
            events: Vec::new(),
            bytes: 0,
            transactional,
        }
    }

    /// Whether one more event of this size fits; an empty chunk takes any.
    pub(crate) fn has_room(&self, bytes: usize, events_max: usize, bytes_max: usize) -> bool {
        self.events.is_empty()
            || (self.events.len() < events_max && self.bytes.saturating_add(bytes) <= bytes_max)
    }

    /// Adds the command of the event at this place of the batch.
    pub(crate) fn push(&mut self, event: usize, command: Cmd, bytes: usize) {
        self.pipeline.add_command(command);
        self.events.push(event);
        self.bytes += bytes;
    }

    /// The places of its events in the batch, in their order.
    pub(crate) fn events(&self) -> &[usize] {
        &self.events
    }

    /// Ends the chunk; what is returned is to be sent.
    pub(crate) fn finish(&mut self, wait: Option<Cmd>) -> &Pipeline {
        if self.transactional {
            self.pipeline.cmd("EXEC");
        }
        if let Some(wait) = wait {
            self.pipeline.add_command(wait);
        }
        &self.pipeline
    }

    /// A new chunk with those events of a finished one for which `keep` says so.
    pub(crate) fn only(&self, keep: impl Fn(usize) -> bool) -> Self {
        let mut chunk = Self::new(self.transactional);
        let commands = self
            .pipeline
            .cmd_iter()
            .skip(usize::from(self.transactional));
        for (event, command) in self.events.iter().zip(commands) {
            if keep(*event) {
                chunk.push(*event, command.clone(), 0);
            }
        }
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(transactional: bool) -> Chunk {
        let mut chunk = Chunk::new(transactional);
        for event in [3, 5, 6] {
            chunk.push(event, redis::cmd("XADD").arg(event).take(), 10);
        }
        chunk
    }

    fn packed(names: &[&str]) -> Vec<u8> {
        let mut pipeline = Pipeline::new();
        for name in names {
            let mut words = name.split(' ');
            let mut command = redis::cmd(words.next().unwrap());
            words.for_each(|word| {
                command.arg(word);
            });
            pipeline.add_command(command);
        }
        pipeline.get_packed_pipeline()
    }

    #[test]
    fn a_rest_keeps_its_commands_and_order() {
        let mut whole = chunk(true);
        let sent = whole.finish(Some(redis::cmd("WAIT"))).get_packed_pipeline();
        let names = ["MULTI", "XADD 3", "XADD 5", "XADD 6", "EXEC", "WAIT"];
        assert_eq!(sent, packed(&names));
        let mut rest = whole.only(|event| event != 5);
        assert_eq!(rest.events(), [3, 6]);
        let sent = rest.finish(None).get_packed_pipeline();
        assert_eq!(sent, packed(&["MULTI", "XADD 3", "XADD 6", "EXEC"]));
        assert!(whole.only(|_| false).events().is_empty());

        let mut plain = chunk(false);
        let sent = plain.finish(None).get_packed_pipeline();
        assert_eq!(sent, packed(&["XADD 3", "XADD 5", "XADD 6"]));
        assert_eq!(plain.only(|event| event == 6).events(), [6]);
    }

    #[test]
    fn bounds_hold_but_one_event_always_fits() {
        let chunk = chunk(true);
        assert!(chunk.has_room(10, 4, 40));
        assert!(!chunk.has_room(10, 3, 40));
        assert!(!chunk.has_room(11, 4, 40));
        assert!(Chunk::new(true).has_room(usize::MAX, 1, 1));
    }
}
