//! What goes between the two ends: a greeting, then calls and their answers, each a frame of JSON.

use std::time::Duration;

use bytes::Bytes;
use outbox_core::{
    BatchToken, ClaimLimit, CleanRequest, DeadFilter, LaneId, Page, Settlement, TopicSet, WorkerId,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio_util::codec::LengthDelimitedCodec;
use uuid::Uuid;

use super::travel::{Travel, Wire, by_fields};

/// No frame is longer: a batch of the engine's greatest in base64.
const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What the serving end says first.
#[derive(Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) name: String,
    pub(super) ordered: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) enum Request {
    Call(u64, Call),
    /// Its caller was dropped.
    Cancel(u64),
}

/// To the call of this number, whose method says what the value is.
#[derive(Serialize, Deserialize)]
pub(super) struct Answer(pub(super) u64, pub(super) Value);

#[derive(Serialize, Deserialize)]
pub(super) enum Call {
    Migrate,
    Check,
    Acquire {
        route: String,
        topics: Wire<TopicSet>,
        worker: Wire<WorkerId>,
        held: Wire<Vec<LaneId>>,
    },
    Wait(Duration),
    Lane(usize, LaneCall),
    List(Wire<DeadFilter>, Wire<Page>),
    Get(Uuid),
    Count(Wire<DeadFilter>),
    Groups(Wire<DeadFilter>, u32),
    Requeue(Wire<DeadFilter>, u32),
    Discard(Wire<DeadFilter>, u32),
    Inspect(u32),
    Failing(u32, u32),
    Clean(Wire<CleanRequest>),
    Removable(Wire<CleanRequest>),
}

#[derive(Serialize, Deserialize)]
pub(super) enum LaneCall {
    Blocked,
    Claim(Wire<ClaimLimit>),
    Settle(Wire<BatchToken>, Wire<Vec<Settlement>>),
    Renew(Wire<Vec<BatchToken>>),
    Release,
}

/// A lane that was handed out: its number among those of the handle.
pub(super) struct SentLane {
    pub(super) number: usize,
    pub(super) id: LaneId,
    pub(super) lease: Duration,
}

/// `Acquired`, whose lanes stay where they are.
pub(super) struct SentLanes {
    pub(super) lanes: Vec<SentLane>,
    pub(super) surrender: Vec<LaneId>,
}

by_fields! {
    SentLane { number: usize, id: LaneId, lease: Duration }
    SentLanes { lanes: Vec<SentLane>, surrender: Vec<LaneId> }
}

pub(super) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .max_frame_length(FRAME_BYTES_MAX)
        .new_codec()
}

pub(super) fn write(message: &impl Serialize) -> Bytes {
    let text = serde_json::to_vec(message);
    text.expect("a message can be written as JSON").into()
}

pub(super) fn read<T: DeserializeOwned>(frame: &[u8]) -> T {
    serde_json::from_slice(frame).expect("both ends are built from one source")
}
