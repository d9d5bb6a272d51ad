//! I5: first sightings of a key come in commit order.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{check::KeyOrder, history::History, violation::Violation};

/// An event of a key.
struct Of {
    id: Uuid,
    /// Where it was first seen; the end of all when it was not.
    seen: usize,
    /// From how many sightings on others may be seen before it.
    passable: usize,
}

pub(super) fn overtakings(
    history: &History,
    order: KeyOrder,
    first_seen: &BTreeMap<Uuid, usize>,
    violations: &mut Vec<Violation>,
) {
    let mut keys: BTreeMap<&str, Vec<Of>> = BTreeMap::new();
    for event in &history.committed {
        let Some(key) = event.key() else { continue };
        let id = event.id();
        let skipped = order == KeyOrder::Skip && history.dead.contains(&id);
        let passable = history.passable.get(&id).copied();
        let of = Of {
            id,
            seen: first_seen.get(&id).copied().unwrap_or(usize::MAX),
            passable: passable.unwrap_or(if skipped { 0 } else { usize::MAX }),
        };
        let before = keys.entry(key).or_default();
        // The first that is wrong tells enough.
        let earlier = before.iter().find(|earlier| {
            earlier.seen > of.seen
                && earlier.passable > of.seen
                && !history.excused.contains(&(id, earlier.id))
        });
        if let Some(earlier) = earlier {
            violations.push(Violation::Overtook {
                event: id,
                earlier: earlier.id,
            });
        }
        before.push(of);
    }
}
