//! The feature `otel`: from spans to headers, and from headers to links.

use std::collections::HashSet;

use opentelemetry::{
    Context,
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use tracing::{Span, debug_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use uuid::Uuid;

use super::{Parent, TRACEPARENT, TRACESTATE};
use crate::{headers::Headers, stored_event::StoredEvent};

/// Links of one span: what OpenTelemetry's SDK keeps by default (I8).
const LINKS_MAX: usize = 128;

/// Adds the context in which an event is made, unless its maker gave one or there is none. What
/// does not fit into `spare_bytes` is left out: an event must not fail because it is traced.
pub(crate) fn capture(headers: &mut Headers, spare_bytes: usize, topic: &str, id: Uuid) {
    let is_given = |name: &str| {
        name.eq_ignore_ascii_case(TRACEPARENT) || name.eq_ignore_ascii_case(TRACESTATE)
    };
    if headers.iter().any(|(name, _)| is_given(name)) {
        return;
    }
    let created = debug_span!(
        "create",
        otel.name = format!("create {topic}"),
        otel.kind = "producer",
        messaging.operation.name = "create",
        messaging.operation.type = "create",
        messaging.destination.name = topic,
        messaging.message.id = %id,
    );
    let Some(context) = context_of(&created) else {
        return;
    };
    let traceparent = format!(
        "00-{}-{}-{:02x}",
        context.trace_id(),
        context.span_id(),
        context.trace_flags()
    );
    let tracestate = context.trace_state().header();
    let parent_bytes = TRACEPARENT.len() + traceparent.len();
    if parent_bytes > spare_bytes {
        return;
    }
    headers.push(TRACEPARENT, traceparent);
    let state_bytes = TRACESTATE.len() + tracestate.len();
    if !tracestate.is_empty() && parent_bytes + state_bytes <= spare_bytes {
        headers.push(TRACESTATE, tracestate);
    }
}

/// The context of the span, else of the one around it.
fn context_of(created: &Span) -> Option<SpanContext> {
    let known = |context: Context| {
        let context = context.span().span_context().clone();
        context.is_valid().then_some(context)
    };
    known(created.context())
        .or_else(|| known(Span::current().context()))
        .or_else(|| known(Context::current()))
}

/// Links the span of a batch to the contexts in which its events were made, each context once.
pub(crate) fn link<'a>(span: &Span, events: impl Iterator<Item = &'a StoredEvent>) {
    if span.is_disabled() {
        return;
    }
    let mut linked = HashSet::new();
    for context in events.filter_map(|event| read(&event.headers)) {
        if linked.len() == LINKS_MAX {
            break;
        }
        if linked.insert((context.trace_id(), context.span_id())) {
            span.add_link(context);
        }
    }
}

fn read(headers: &Headers) -> Option<SpanContext> {
    let parent = Parent::of(headers)?;
    let state = headers
        .get(TRACESTATE)
        .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
    Some(SpanContext::new(
        TraceId::from_hex(parent.trace).ok()?,
        SpanId::from_hex(parent.span).ok()?,
        TraceFlags::new(u8::from_str_radix(parent.flags, 16).ok()?),
        true,
        state.unwrap_or(TraceState::NONE),
    ))
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanKind, TracerProvider as _};
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
    use tracing::info_span;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::{event::Event, limits::Limits, store::Position};

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn recorded(work: impl FnOnce()) -> Vec<opentelemetry_sdk::trace::SpanData> {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
        exporter.get_finished_spans().unwrap()
    }

    fn built(limits: Limits) -> Event {
        let event = Event::new("orders", "OrderPlaced").limits(limits);
        event.bytes("x").unwrap()
    }

    fn text<'a>(event: &'a Event, name: &str) -> Option<&'a str> {
        let value = event.headers().get(name)?;
        Some(std::str::from_utf8(value).unwrap())
    }

    #[test]
    fn an_event_carries_the_context_of_its_create_span() {
        let mut event = None;
        let spans = recorded(|| {
            event = Some(info_span!("business").in_scope(|| built(Limits::default())));
        });
        let event = event.unwrap();
        let [create, business] = &spans[..] else {
            panic!("{spans:?}")
        };
        assert_eq!(create.name, "create orders");
        assert_eq!(create.span_kind, SpanKind::Producer);
        assert_eq!(create.parent_span_id, business.span_context.span_id());
        let context = &create.span_context;
        let expected = format!("00-{}-{}-01", context.trace_id(), context.span_id());
        assert_eq!(text(&event, TRACEPARENT), Some(&*expected));
        assert_eq!(context.trace_id(), business.span_context.trace_id());
        assert_eq!(text(&event, TRACESTATE), None);
        assert_eq!(read(event.headers()).unwrap().span_id(), context.span_id());
    }

    #[test]
    fn without_a_span_the_current_context_counts_and_without_both_nothing_is_added() {
        assert!(built(Limits::default()).headers().is_empty());
        let mut headers = Headers::new();
        headers.push(TRACEPARENT, GIVEN);
        headers.push(TRACESTATE, "vendor=1");
        let context = Context::new().with_remote_span_context(read(&headers).unwrap());
        let _guard = context.attach();
        assert_eq!(built(Limits::default()).headers(), &headers);
    }

    #[test]
    fn what_the_caller_gives_wins() {
        let spans = recorded(|| {
            let _span = info_span!("business").entered();
            let event = Event::new("orders", "T").trace_context(GIVEN, None);
            let event = event.bytes("x").unwrap();
            assert_eq!(event.headers().len(), 1);
            assert_eq!(text(&event, TRACEPARENT), Some(GIVEN));
        });
        assert_eq!(spans.len(), 1, "no span without use: {spans:?}");
    }

    #[test]
    fn an_event_does_not_fail_because_it_is_traced() {
        let mut headers = Headers::new();
        headers.push(TRACEPARENT, GIVEN);
        headers.push(TRACESTATE, "vendor=1");
        let context = Context::new().with_remote_span_context(read(&headers).unwrap());
        let _guard = context.attach();
        let whole = headers.byte_len();
        let of = |header_bytes_max| {
            let limits = Limits {
                header_bytes_max,
                ..Limits::default()
            };
            built(limits).headers().len()
        };
        assert_eq!(of(whole), 2);
        assert_eq!(of(whole - 1), 1, "the state is dropped first");
        let parent = TRACEPARENT.len() + GIVEN.len();
        assert_eq!(of(parent), 1);
        assert_eq!(of(parent - 1), 0);
        let bare = Event::new("orders", "OrderPlaced")
            .trace_context("", None)
            .bytes("x")
            .unwrap();
        let limits = Limits {
            event_bytes_max: bare.byte_len(),
            ..Limits::default()
        };
        assert_eq!(built(limits).headers().len(), 0);
    }

    #[test]
    fn i8_links_are_bounded_and_each_context_is_linked_once() {
        let of = |span: usize| {
            let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{span:016x}-01");
            let event = Event::new("orders", "T").trace_context(&parent, None);
            let now = time::OffsetDateTime::UNIX_EPOCH;
            StoredEvent::from_event(&event.tombstone().unwrap(), Position(1), now)
        };
        let links = |events: &[StoredEvent]| {
            let spans = recorded(|| link(&info_span!("publish"), events.iter()));
            spans[0].links.links.len()
        };
        let many: Vec<_> = (1..=200).map(of).collect();
        assert_eq!(links(&many), LINKS_MAX);
        assert_eq!(links(&[of(1), of(2), of(1), of(0)]), 2);
    }
}
