//! The command line.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use outbox_core::{DeadFilter, ErrorKind, TopicPattern};
use uuid::Uuid;

use crate::{
    commands::BenchArgs,
    config::{LogFormat, PublisherKind, Secret},
    exit::{CODES_HELP, tell},
    output::is_read,
    redact,
};

/// The shortest pause between two looks of `status --watch`.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Brings events from a database to a broker: the relay of a transactional outbox.
#[derive(Debug, Parser)]
#[command(name = "outbox", version, after_help = CODES_HELP, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes. Flags beat OUTBOX__… variables, which beat the file.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Configuration (flags beat OUTBOX__… variables, which beat the file)"
)]
pub(crate) struct GlobalArgs {
    /// The configuration file (TOML).
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "OUTBOX_CONFIG",
        hide_env_values = true
    )]
    pub(crate) config: Option<PathBuf>,
    /// The database. Arguments can be seen by other users of the machine: give a URL with a
    /// password by OUTBOX__STORE__URL or store.url_file instead.
    #[arg(long, global = true, value_name = "URL", value_parser = secret)]
    pub(crate) store_url: Option<Secret>,
    /// The schema that holds the outbox's tables.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) schema: Option<String>,
    /// How log lines on standard error look.
    #[arg(long, global = true, value_enum)]
    pub(crate) log_format: Option<LogFormat>,
    /// Which log lines are written: error, warn, info, debug, trace, or targets as in
    /// info,outbox_core=debug.
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log_level: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// See it work in a few seconds: an outbox in a SQLite file, without a server or a setting.
    Demo(DemoArgs),
    /// Bring the database's schema to this program's version.
    Migrate(MigrateArgs),
    /// Publish events until SIGTERM or SIGINT, then finish what is in flight.
    Relay(RelayArgs),
    /// Show what is waiting, in flight and dead.
    Status(StatusArgs),
    /// List, show, requeue or discard dead letters.
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Remove delivered events and dedup keys that are old, as relays do, but now.
    Purge(PurgeArgs),
    /// Write events, for trials and shell scripts.
    Enqueue(EnqueueArgs),
    /// Measure your own database and broker: write events, relay them, print rates and latencies.
    Bench(BenchArgs),
    /// Print a script that completes this program's arguments in a shell.
    Completions(CompletionsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the database, with a dead letter to try the other commands on: in this file, which must
    /// not exist yet, or in a new folder among the temporary ones. A demo that is stopped keeps none.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    #[expect(
        clippy::option_option,
        reason = "clap's form of a flag that may have a value"
    )]
    pub(crate) keep: Option<Option<PathBuf>>,
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// Print the SQL of all versions instead of running it.
    #[arg(long, conflicts_with = "check")]
    pub(crate) print: bool,
    /// Change nothing; fail when the schema is not of this program's version.
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// Where events go; told by the URL where there is one.
    #[arg(long, value_enum)]
    pub(crate) publisher: Option<PublisherKind>,
    /// The broker, as redis://host:6379/0 or amqp://host:5672/%2f. With a password: by
    /// OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL or url_file instead.
    #[arg(long, value_name = "URL", value_parser = secret)]
    pub(crate) publisher_url: Option<Secret>,
    /// Only topics that fit: a name, a prefix with * at its end, or *. May be repeated.
    #[arg(long = "topic", value_name = "PATTERN", value_parser = pattern)]
    pub(crate) topics: Vec<TopicPattern>,
    /// Serve /metrics, /healthz and /readyz here, as 127.0.0.1:9464.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<SocketAddr>,
    /// Check configuration, database and brokers, send nothing, and stop.
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Look again and again, every 2s or as told, until Ctrl-C: on a terminal in place, else one
    /// block a look, with --json one object a line.
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s", value_parser = interval)]
    pub(crate) watch: Option<Duration>,
    /// Count up to this many events of each state; a number with + means there are more.
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count_max: u32,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell.
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// List dead letters, oldest first.
    List(DeadListArgs),
    /// Show one dead letter: the event, its attempts, its error and what to do.
    Show(DeadShowArgs),
    /// Put dead letters back, as if they had never been tried.
    Requeue(DeadBulkArgs),
    /// Remove dead letters for ever.
    Discard(DeadDiscardArgs),
}

/// Which dead letters are meant. All conditions that are given must hold.
#[derive(Debug, Args)]
pub(crate) struct DeadFilterArgs {
    /// Of this topic.
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Of this key.
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Of this event type.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// With this kind of error at the last attempt, as refused or too_large.
    #[arg(long, value_parser = kind)]
    pub(crate) kind: Option<ErrorKind>,
    /// Dead for at least this long, as 30m or 2h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older_than: Option<Duration>,
}

impl DeadFilterArgs {
    /// The filter in the terms of the core.
    pub(crate) fn filter(&self, ids: &[Uuid]) -> DeadFilter {
        DeadFilter {
            ids: ids.to_vec(),
            topic: self.topic.clone(),
            key: self.key.clone(),
            event_type: self.event_type.clone(),
            error_kind: self.kind,
            dead_for: self.older_than,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DeadListArgs {
    #[command(flatten)]
    pub(crate) filter: DeadFilterArgs,
    /// Lines at the most.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    /// Go on behind this position, which the list before printed last.
    #[arg(long, value_name = "POSITION", allow_negative_numbers = true)]
    pub(crate) after: Option<i64>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DeadShowArgs {
    /// The event id.
    pub(crate) id: Uuid,
    /// Print the payload too.
    #[arg(long)]
    pub(crate) payload: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DeadBulkArgs {
    /// Event ids.
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<Uuid>,
    #[command(flatten)]
    pub(crate) filter: DeadFilterArgs,
    /// All dead letters.
    #[arg(long, conflicts_with_all = ["ids", "topic", "key", "event_type", "kind", "older_than"])]
    pub(crate) all: bool,
    /// Only say how many it would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DeadDiscardArgs {
    #[command(flatten)]
    pub(crate) bulk: DeadBulkArgs,
    /// Really remove what a filter or --all selects.
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    /// Remove what was delivered at least this long ago, as 12h; 0s: all that is delivered. Default:
    /// store.retention.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) retention: Option<Duration>,
    /// Remove dedup keys of at least this age. Default: store.dedup_retention.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) dedup_retention: Option<Duration>,
    /// Only say how many it would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Really remove them.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// One event by flags, or many as JSON lines from standard input.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("source").required(true).args(["payload", "payload_file", "tombstone", "stdin"]))]
pub(crate) struct EnqueueArgs {
    /// Where it goes.
    #[arg(long, required_unless_present = "stdin")]
    pub(crate) topic: Option<OsString>,
    /// What happened.
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "stdin")]
    pub(crate) event_type: Option<OsString>,
    /// The schema version of the type.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) event_version: u32,
    /// What orders it; default: the aggregate's id.
    #[arg(long)]
    pub(crate) key: Option<OsString>,
    /// What it happened to.
    #[arg(long, value_name = "TYPE:ID")]
    pub(crate) aggregate: Option<OsString>,
    /// A header. May be repeated.
    #[arg(long = "header", value_name = "NAME=VALUE")]
    pub(crate) headers: Vec<OsString>,
    /// Write it only once: an event with a key that is known is left out, and its id not printed.
    #[arg(long, value_name = "KEY")]
    pub(crate) dedup_key: Option<OsString>,
    /// The media type of the payload; JSON is checked unless another one is given.
    #[arg(long, default_value = "application/json", value_name = "TYPE")]
    pub(crate) content_type: OsString,
    /// Hold it back for this long, as 10m.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) deliver_after: Option<Duration>,
    /// The payload.
    #[arg(long, value_name = "TEXT")]
    pub(crate) payload: Option<OsString>,
    /// The payload is in this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) payload_file: Option<PathBuf>,
    /// No payload: a delete marker.
    #[arg(long)]
    pub(crate) tombstone: bool,
    /// Read one JSON object a line, all written in one transaction or none.
    #[arg(long, conflicts_with_all = ["topic", "event_type", "key", "aggregate", "headers", "dedup_key", "deliver_after"])]
    pub(crate) stdin: bool,
}

/// Prints help, version or what is wrong with the arguments, and says how to end.
///
/// Clap quotes what was typed, which may be a URL with a password.
pub(crate) fn explain(error: &clap::Error) -> ExitCode {
    if error.exit_code() == 0 {
        // As of every answer: a reader that has read enough is no failure.
        return match is_read(error.print()) {
            Ok(_) => ExitCode::SUCCESS,
            Err(failure) => failure.end(),
        };
    }
    tell(&redact::urls(&error.render().to_string()));
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
}

// Clap asks for functions that return a Result.
#[expect(clippy::unnecessary_wraps, reason = "the form of a value parser")]
pub(crate) fn secret(text: &str) -> Result<Secret, String> {
    Ok(Secret::new(text))
}

fn pattern(text: &str) -> Result<TopicPattern, String> {
    text.parse()
        .map_err(|error: outbox_core::Error| error.to_string())
}

fn kind(text: &str) -> Result<ErrorKind, String> {
    ErrorKind::parse(text).ok_or_else(|| {
        let known: Vec<_> = ErrorKind::ALL.iter().map(|kind| kind.as_str()).collect();
        format!("write one of: {}", known.join(", "))
    })
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    crate::config::parse_duration(text)
}

/// A pause between two looks. Without a bound, a watch would keep a database busy for nobody.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < INTERVAL_MIN {
        return Err("write at least 100ms".to_owned());
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn creds_in_log_debug_of_arguments_hides_urls() {
        let arguments = [
            "outbox",
            "relay",
            "--store-url",
            "pg://u:s3cret@h",
            "--publisher-url",
            "redis://:s3cret@h",
        ];
        let cli = Cli::try_parse_from(arguments).unwrap();
        assert!(!format!("{cli:?}").contains("s3cret"));
    }

    #[test]
    fn enqueue_needs_one_source() {
        for (arguments, fits) in [
            (&["--topic", "t", "--type", "T", "--payload", "1"][..], true),
            (&["--topic", "t", "--type", "T", "--tombstone"], true),
            (&["--stdin"], true),
            (&["--topic", "t", "--type", "T"], false),
            (&["--type", "T", "--payload", "1"], false),
            (&["--stdin", "--topic", "t"], false),
            (
                &[
                    "--topic",
                    "t",
                    "--type",
                    "T",
                    "--payload",
                    "1",
                    "--tombstone",
                ],
                false,
            ),
        ] {
            let all = ["outbox", "enqueue"].iter().chain(arguments);
            assert_eq!(Cli::try_parse_from(all).is_ok(), fits, "{arguments:?}");
        }
    }
}
