//! Everything the store holds, behind its one lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use outbox_core::{BatchToken, Error, ErrorKind, Result, TopicSet, WorkerId};
use uuid::Uuid;

use super::{
    lane_state::LaneState,
    mutation::Mutation,
    row::{Body, Row},
    store::MemoryOptions,
};

/// The log and the routes that read it.
#[derive(Debug)]
pub(super) struct State {
    /// The committed rows of each lane, by position.
    pub(super) log: Vec<BTreeMap<i64, Arc<Row>>>,
    pub(super) routes: BTreeMap<String, Route>,
    pub(super) migrated: bool,
    pub(super) mutation: Option<Mutation>,
    lax: bool,
    last_position: i64,
    last_token: u64,
}

/// A lane whose epoch was found valid, with what it reads.
pub(super) struct Owned<'a> {
    pub(super) lane: &'a mut LaneState,
    pub(super) log: &'a BTreeMap<i64, Arc<Row>>,
    pub(super) topics: &'a TopicSet,
}

/// A route: its own cursors over the same log.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) topics: TopicSet,
    pub(super) lanes: Vec<LaneState>,
    /// When each worker last asked for lanes.
    pub(super) asked: BTreeMap<WorkerId, Duration>,
}

impl State {
    pub(super) fn new(options: &MemoryOptions) -> Self {
        Self {
            log: vec![BTreeMap::new(); options.lanes.max(1)],
            routes: BTreeMap::new(),
            migrated: false,
            mutation: options.mutation,
            lax: options.lax,
            last_position: 0,
            last_token: 0,
        }
    }

    /// Commits rows. Positions are drawn here, under the lock, and are commit order therefore.
    pub(super) fn commit(&mut self, rows: Vec<(Body, Duration)>) {
        for (body, created) in rows {
            self.last_position += 1;
            let row = Row::new(self.last_position, body, created);
            let lane = lane_of(&row, self.log.len());
            self.log[lane].insert(row.position, Arc::new(row));
        }
    }

    pub(super) fn route(&mut self, name: &str, topics: &TopicSet) -> &mut Route {
        let (lanes, lax, mutation) = (self.log.len(), self.lax, self.mutation);
        let route = self.routes.entry(name.to_owned()).or_insert_with(|| Route {
            topics: topics.clone(),
            lanes: std::iter::repeat_with(|| LaneState::new(lax, mutation))
                .take(lanes)
                .collect(),
            asked: BTreeMap::new(),
        });
        route.topics = topics.clone();
        route
    }

    /// A token that no claim had before.
    pub(super) fn token(&mut self) -> BatchToken {
        self.last_token += 1;
        BatchToken(Uuid::from_u64_pair(0x6d65_6d6f_7279_4000, self.last_token))
    }

    /// The lane, its log and its topics, when this epoch still owns it (I6).
    pub(super) fn owned(&mut self, route: &str, index: usize, epoch: u64) -> Result<Owned<'_>> {
        let lost = || {
            Error::new(ErrorKind::LeaseLost, "use lane", "another worker has it")
                .context("route", route)
                .context("lane", index)
        };
        let unfenced = self.mutation == Some(Mutation::FenceIgnored);
        let log = self.log.get(index).ok_or_else(lost)?;
        let found = self.routes.get_mut(route).ok_or_else(lost)?;
        match found.lanes.get_mut(index) {
            Some(lane) if lane.epoch == epoch && lane.owner.is_some() || unfenced => Ok(Owned {
                lane,
                log,
                topics: &found.topics,
            }),
            _ => Err(lost()),
        }
    }

    /// A worker that gave its last lane back leaves its share to the others at once.
    pub(super) fn forget_idle(&mut self, route: &str, worker: Option<WorkerId>) {
        if let (Some(route), Some(worker)) = (self.routes.get_mut(route), worker)
            && route
                .lanes
                .iter()
                .all(|lane| lane.owner.as_ref() != Some(&worker))
        {
            route.asked.remove(&worker);
        }
    }

    /// Every lane of every route.
    pub(super) fn lanes(&self) -> impl Iterator<Item = &LaneState> {
        self.routes.values().flat_map(|route| &route.lanes)
    }

    pub(super) fn lanes_mut(&mut self) -> impl Iterator<Item = &mut LaneState> {
        self.routes.values_mut().flat_map(|route| &mut route.lanes)
    }
}

impl Route {
    /// How many lanes a worker should hold: equal shares among those that asked within a lease.
    pub(super) fn share(&self, worker: &WorkerId, now: Duration, lease: Duration) -> usize {
        let active: BTreeSet<&WorkerId> = self
            .asked
            .iter()
            .filter(|(_, asked)| now.saturating_sub(**asked) < lease)
            .map(|(worker, _)| worker)
            .collect();
        let count = active.len().max(1);
        let rank = active.iter().position(|of| *of == worker).unwrap_or(0);
        self.lanes.len() / count + usize::from(rank < self.lanes.len() % count)
    }
}

/// The lane of a key, the same for ever; events without a key are spread by position.
fn lane_of(row: &Row, lanes: usize) -> usize {
    let lanes_u64 = u64::try_from(lanes).unwrap_or(u64::MAX).max(1);
    let spread = match row.key() {
        Some(key) => fnv1a(key.as_bytes()),
        None => row.position.unsigned_abs(),
    };
    usize::try_from(spread % lanes_u64).unwrap_or_default()
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): the same in every run and version, unlike std's hasher.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
