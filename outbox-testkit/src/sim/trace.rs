//! A run as a person reads it.

use std::{collections::BTreeMap, fmt::Write as _};

use outbox_core::Verdict;
use uuid::Uuid;

use super::scenario::Scenario;
use crate::invariants::{Fact, History, Moment};

/// Every fact in a line, in the order of time.
pub(super) fn trace(scenario: &Scenario, histories: &[History]) -> String {
    let names = Names(scenario.numbers());
    let mut lines: Vec<(Moment, usize, String)> = Vec::new();
    for (route, history) in histories.iter().enumerate() {
        for (index, (moment, fact)) in history.facts.iter().enumerate() {
            let of_all = matches!(
                fact,
                Fact::Died { .. } | Fact::Stopping { .. } | Fact::Fault(_)
            );
            if of_all && route > 0 {
                continue;
            }
            let place = if of_all {
                String::new()
            } else {
                format!("r{route} ")
            };
            lines.push((*moment, index, format!("{place}{}", names.line(fact))));
        }
    }
    // Facts of one moment stay in their route's order.
    lines.sort_by_key(|(moment, ..)| *moment);
    let mut text = String::new();
    for (moment, fact, line) in lines {
        let _ = writeln!(text, "{:>9.3} s  {fact:>5}  {line}", moment.as_secs_f64());
    }
    text
}

struct Names(BTreeMap<Uuid, usize>);

impl Names {
    fn of(&self, id: Uuid) -> String {
        match self.0.get(&id) {
            Some(number) => format!("#{number}"),
            None => id.to_string(),
        }
    }

    fn list(&self, ids: impl Iterator<Item = Uuid>) -> String {
        ids.map(|id| self.of(id)).collect::<Vec<_>>().join(" ")
    }

    fn line(&self, fact: &Fact) -> String {
        match fact {
            Fact::Committed(ids) => format!("committed {}", self.list(ids.iter().copied())),
            Fact::Landed(id) => format!("landed {}", self.of(*id)),
            Fact::Acquired { process, lane, .. } => format!("p{process} acquires {lane}"),
            Fact::Kept { process, lane, .. } => format!("p{process} keeps {lane}"),
            Fact::Claimed {
                process,
                lane,
                token,
                stream,
                events,
                unreadable,
                ..
            } => {
                let source = if *stream { "stream" } else { "parked" };
                let events = events.iter().map(|event| {
                    let (attempts, crashes) = (event.attempts, event.crashes);
                    format!("{}({attempts},{crashes})", self.of(event.id))
                });
                let rows = unreadable.iter().map(|(id, _)| self.of(*id));
                let events = events.chain(rows).collect::<Vec<_>>().join(" ");
                format!(
                    "p{process} claims from {lane}, {source}, as {}: {events}",
                    short(token.0)
                )
            }
            Fact::Renewed {
                process,
                lane,
                tokens,
                ..
            } => {
                let tokens: Vec<_> = tokens.iter().map(|token| short(token.0)).collect();
                format!("p{process} renews {lane}: {}", tokens.join(" "))
            }
            Fact::Called {
                process,
                call,
                events,
                ..
            } => {
                let events = events.iter().map(|(id, key)| {
                    format!("{}[{}]", self.of(*id), key.as_deref().unwrap_or("-"))
                });
                format!(
                    "p{process} publishes in call {call}: {}",
                    events.collect::<Vec<_>>().join(" ")
                )
            }
            Fact::Overdue { call } => format!("call {call} is not answered in time"),
            Fact::Checked { process, ok } => {
                let found = if *ok { "well" } else { "failing" };
                format!("p{process} finds the destination {found}")
            }
            Fact::Hampered { process } => format!("p{process} may be wrong about its leases"),
            Fact::Misused { process, what } => format!("p{process} breaks the contract: {what}"),
            Fact::Blocked { lane, keys } => format!("{lane} has blocked: {}", keys.join(" ")),
            Fact::Answered { call, answers, .. } => {
                let answers = answers
                    .iter()
                    .map(|(id, answer)| format!("{} {answer}", self.of(*id)));
                format!(
                    "call {call} is answered: {}",
                    answers.collect::<Vec<_>>().join(", ")
                )
            }
            Fact::Cancelled { process, call } => format!("p{process} drops call {call}"),
            Fact::Refused(id) => format!("refused before it is sent: {}", self.of(*id)),
            Fact::Settled {
                process,
                lane,
                token,
                verdicts,
                applied,
                unblocked,
                ..
            } => {
                let verdicts = verdicts
                    .iter()
                    .map(|of| format!("{} {}", self.of(of.id), verdict(&of.verdict)));
                let verdicts = verdicts.collect::<Vec<_>>().join(", ");
                format!(
                    "p{process} settles {} of {lane} ({applied}): {verdicts}; unblocked: {}",
                    short(token.0),
                    unblocked.join(" ")
                )
            }
            Fact::Surrendered { process, lane } => format!("p{process} is to give {lane} away"),
            Fact::Released { process, lane } => format!("p{process} releases {lane}"),
            Fact::Discarded(id) => format!("an operator discards {}", self.of(*id)),
            Fact::Requeued(id) => format!("an operator requeues {}", self.of(*id)),
            Fact::Died { process, point } => format!("p{process} DIES at {point}"),
            Fact::Stopping { process } => format!("p{process} is told to stop"),
            Fact::Fault(what) => format!("FAULT {what}"),
        }
    }
}

fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Done => "done".to_owned(),
        Verdict::Retry { after, .. } => format!("retry in {after:?}"),
        Verdict::Defer { after, .. } => format!("deferred for {after:?}"),
        Verdict::Hold => "held".to_owned(),
        Verdict::Return => "returned".to_owned(),
        Verdict::Dead {
            reason, hold_key, ..
        } => {
            let key = if *hold_key { ", holds its key" } else { "" };
            format!("dead ({reason}{key})")
        }
    }
}

/// Tokens of the in-memory store count up.
fn short(token: Uuid) -> String {
    format!("t{}", token.as_u64_pair().1 & 0xffff_ffff)
}
