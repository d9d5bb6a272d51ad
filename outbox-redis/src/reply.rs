//! What the answers to one pipeline say of each of its events. No I/O.

use outbox_core::Error;
use redis::{ServerError, Value};

use crate::error::{PUBLISH, Refusal, protocol};

/// What became of one event of a pipeline.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Stored under this entry id.
    Stored(String),
    /// Refused; nothing of it is stored.
    Refused(Refusal),
    /// Not stored, because the transaction was dropped for the sake of others.
    Dropped,
}

/// What became of a pipeline.
#[derive(Debug)]
pub(crate) struct Report {
    /// One for each event, in their order.
    pub(crate) verdicts: Vec<Verdict>,
    /// The refusal of MULTI or EXEC itself: it concerns all dropped events, and the connection may
    /// still be inside the transaction.
    pub(crate) transaction: Option<Refusal>,
    /// How many replicas confirmed, where that was asked; an error counts as none.
    pub(crate) replicas: Option<u32>,
}

/// Reads the answers to a pipeline of `events` XADD commands, with MULTI before and EXEC behind
/// them when `transactional`, and WAIT at the end when `wait`.
///
/// # Errors
/// `Protocol`: the answers fit no such pipeline, so each of its events is in doubt.
pub(crate) fn read(
    mut replies: Vec<Value>,
    events: usize,
    transactional: bool,
    wait: bool,
) -> Result<Report, Error> {
    let expected = events + 2 * usize::from(transactional) + usize::from(wait);
    if replies.len() != expected {
        return Err(protocol());
    }
    let replicas = wait.then(|| match replies.pop() {
        Some(Value::Int(count)) => u32::try_from(count).unwrap_or(0),
        _ => 0,
    });
    let (verdicts, transaction) = if transactional {
        read_transaction(replies)?
    } else {
        (
            replies.into_iter().map(added).collect::<Result<_, _>>()?,
            None,
        )
    };
    Ok(Report {
        verdicts,
        transaction,
        replicas,
    })
}

fn read_transaction(mut replies: Vec<Value>) -> Result<(Vec<Verdict>, Option<Refusal>), Error> {
    let exec = replies.pop().ok_or_else(protocol)?;
    let mut replies = replies.into_iter();
    let multi = match replies.next() {
        Some(Value::Okay) => None,
        Some(Value::ServerError(error)) => Some(Refusal::new(PUBLISH, &error)),
        _ => return Err(protocol()),
    };
    match exec {
        Value::Array(results) if multi.is_none() => {
            if results.len() != replies.len() || !replies.all(|reply| is_queued(&reply)) {
                return Err(protocol());
            }
            let verdicts = results.into_iter().map(added).collect::<Result<_, _>>()?;
            Ok((verdicts, None))
        }
        Value::ServerError(exec) => {
            // Without MULTI (a user who may not use it) the commands ran one by one.
            let verdicts = replies
                .map(|reply| match reply {
                    reply if is_queued(&reply) => Ok(Verdict::Dropped),
                    reply => added(reply),
                })
                .collect::<Result<Vec<_>, _>>()?;
            let refused = verdicts
                .iter()
                .any(|verdict| matches!(verdict, Verdict::Refused(_)));
            let transaction = match multi {
                Some(multi) => Some(multi),
                None if refused && is_plain_abort(&exec) => None,
                None => Some(Refusal::new(PUBLISH, &exec)),
            };
            Ok((verdicts, transaction))
        }
        _ => Err(protocol()),
    }
}

fn is_queued(reply: &Value) -> bool {
    matches!(reply, Value::SimpleString(text) if text == "QUEUED")
}

/// EXEC only repeats that a command before it was refused.
fn is_plain_abort(exec: &ServerError) -> bool {
    exec.code() == "EXECABORT"
        && !exec
            .details()
            .is_some_and(|detail| detail.contains("because of: "))
}

fn added(reply: Value) -> Result<Verdict, Error> {
    match reply {
        Value::BulkString(id) => String::from_utf8(id)
            .map(Verdict::Stored)
            .map_err(|_| protocol()),
        Value::ServerError(error) => Ok(Verdict::Refused(Refusal::new(PUBLISH, &error))),
        _ => Err(protocol()),
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::ErrorKind;

    use super::*;

    /// Answers as the server writes them.
    fn replies(lines: &[&str]) -> Vec<Value> {
        let parse = |line: &&str| redis::parse_redis_value(line.as_bytes()).unwrap();
        lines.iter().map(parse).collect()
    }

    /// One letter for each event: stored, refused, dropped.
    fn shape(report: &Report) -> String {
        let letter = |verdict: &Verdict| match verdict {
            Verdict::Stored(_) => 's',
            Verdict::Refused(_) => 'r',
            Verdict::Dropped => 'd',
        };
        report.verdicts.iter().map(letter).collect()
    }

    const OK: &str = "+OK\r\n";
    const QUEUED: &str = "+QUEUED\r\n";
    const ID: &str = "$3\r\n1-1\r\n";
    const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    const NOPERM: &str = "-NOPERM No permissions to access a key\r\n";
    const ABORT: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";

    #[test]
    fn a_transaction_that_ran() {
        let exec = "*2\r\n$3\r\n1-1\r\n-WRONGTYPE Operation against a key\r\n";
        let report = read(replies(&[OK, QUEUED, QUEUED, exec]), 2, true, false).unwrap();
        assert_eq!(shape(&report), "sr");
        assert!(report.transaction.is_none());
        assert!(matches!(&report.verdicts[0], Verdict::Stored(id) if id == "1-1"));
    }

    #[test]
    fn an_aborted_transaction_tells_the_culprit_from_the_others() {
        let report = read(
            replies(&[OK, QUEUED, NOPERM, QUEUED, ABORT]),
            3,
            true,
            false,
        )
        .unwrap();
        assert_eq!(shape(&report), "drd");
        assert!(report.transaction.is_none());
    }

    #[test]
    fn exec_itself_may_be_refused() {
        let exec = "-EXECABORT Transaction discarded because of: OOM command not allowed\r\n";
        let report = read(replies(&[OK, QUEUED, exec]), 1, true, false).unwrap();
        assert_eq!(shape(&report), "d");
        assert_eq!(
            report.transaction.unwrap().error.kind(),
            ErrorKind::OutOfSpace
        );
        // Nobody at fault, but dropped all the same.
        let report = read(replies(&[OK, QUEUED, ABORT]), 1, true, false).unwrap();
        assert_eq!(
            report.transaction.unwrap().error.kind(),
            ErrorKind::Unavailable
        );
        let exec = "-NOPERM this user has no permissions to run the 'exec' command\r\n";
        let report = read(replies(&[OK, QUEUED, exec]), 1, true, false).unwrap();
        assert_eq!(
            report.transaction.unwrap().error.kind(),
            ErrorKind::Unauthorized
        );
    }

    /// A user who may not run MULTI: each command runs alone, and is stored.
    #[test]
    fn a_refused_multi_does_not_hide_what_was_stored() {
        let multi = "-NOPERM this user has no permissions to run the 'multi' command\r\n";
        let exec = "-ERR EXEC without MULTI\r\n";
        let report = read(replies(&[multi, ID, OOM, exec]), 2, true, false).unwrap();
        assert_eq!(shape(&report), "sr");
        assert_eq!(
            report.transaction.unwrap().error.kind(),
            ErrorKind::Unauthorized
        );
    }

    #[test]
    fn single_commands_have_each_their_answer() {
        let report = read(replies(&[ID, OOM, ID]), 3, false, false).unwrap();
        assert_eq!(shape(&report), "srs");
    }

    #[test]
    fn confirmations_of_replicas_are_counted() {
        let report = read(replies(&[ID, ":2\r\n"]), 1, false, true).unwrap();
        assert_eq!(report.replicas, Some(2));
        let report = read(replies(&[ID, OOM]), 1, false, true).unwrap();
        assert_eq!(report.replicas, Some(0));
        let report = read(replies(&[ID]), 1, false, false).unwrap();
        assert_eq!(report.replicas, None);
    }

    #[test]
    fn answers_of_another_form_leave_doubt() {
        let cases: [(&[&str], usize, bool); 6] = [
            (&[ID], 2, false),
            (&[":1\r\n"], 1, false),
            (&[OK, QUEUED, "*0\r\n"], 1, true),
            (&[OK, QUEUED, "$-1\r\n"], 1, true),
            (&[OK, ID, "*1\r\n$3\r\n1-1\r\n"], 1, true),
            (&[QUEUED, QUEUED, ABORT], 1, true),
        ];
        for (lines, events, transactional) in cases {
            let error = read(replies(lines), events, transactional, false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol, "{lines:?}");
        }
    }
}
