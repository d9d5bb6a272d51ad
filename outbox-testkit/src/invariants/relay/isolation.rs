//! I7: nobody waits for a key or a topic that is not its own.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::{super::facts::Fact, Judge};

impl Judge<'_> {
    /// I7: nobody waits for a key or a topic that is not its own.
    pub(super) fn isolation(&mut self) {
        let Some(wait_max) = self.history.rules.innocent_wait_max else {
            return;
        };
        let failed = || self.events.iter().filter(|(_, of)| of.failed);
        let mut keys: BTreeSet<String> = failed().filter_map(|(_, of)| of.key.clone()).collect();
        keys.extend(self.history.rules.unreadable_keys.iter().cloned());
        let innocent = |id: &Uuid| {
            let of = self.events.get(id);
            let key = of.and_then(|of| of.key.as_ref());
            let topic = self.topics.get(id);
            !self.history.passable.contains_key(id)
                && of.is_some_and(|of| !of.failed)
                && key.is_none_or(|key| !keys.contains(key))
                && topic.is_some_and(|topic| !self.topics_failed.contains(topic))
        };
        let mut seen = BTreeSet::new();
        let mut late = Vec::new();
        for (index, (moment, fact)) in self.history.facts.iter().enumerate() {
            let Fact::Landed(id) = fact else { continue };
            let committed = self.events.get(id).and_then(|of| of.committed_at);
            if let (true, true, Some(committed)) = (seen.insert(*id), innocent(id), committed)
                && *moment > committed + wait_max
            {
                late.push((
                    index,
                    format!(
                        "{id} waited {:?} for others",
                        moment.saturating_sub(committed)
                    ),
                ));
            }
        }
        for (fact, what) in late {
            self.fact = fact;
            self.broken("I7", what);
        }
    }
}
