//! Where an event of a route is kept: for a checker that compares it with what was to be written.

use outbox_core::Position;

use super::{parked::ParkedState, store::MemoryStore};
use crate::invariants::{Place, Standing};

impl MemoryStore {
    /// How an event stands in a route, whatever its lane.
    pub fn standing(&self, route: &str, position: Position) -> Standing {
        let state = self.lock();
        let nowhere = Standing {
            place: Place::Nowhere,
            attempts: 0,
        };
        let lane = state
            .log
            .iter()
            .position(|log| log.contains_key(&position.0));
        let (Some(index), Some(route)) = (lane, state.routes.get(route)) else {
            return nowhere;
        };
        let lane = &route.lanes[index];
        if let Some(parked) = lane.parked.get(position.0) {
            return Standing {
                place: match parked.state {
                    ParkedState::Retry { due } | ParkedState::Scheduled { due } => {
                        Place::Waiting(due)
                    }
                    ParkedState::Held => Place::Held,
                    ParkedState::Dead {
                        reason, hold_key, ..
                    } => Place::Dead(reason, hold_key),
                },
                attempts: parked.attempts,
            };
        }
        let place = if lane.delivered.contains_key(&position.0) {
            Place::Delivered
        } else if lane.settled < position.0 {
            Place::Stream
        } else {
            Place::Nowhere
        };
        Standing { place, ..nowhere }
    }
}
