//! The relay's spans by OTLP: to a collector, and to none.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::Instant,
};

use crate::support::{PATIENCE, Place, Running, redis_url, wait};

const DONE: &str = "SELECT count(*) FROM outbox.queue WHERE status = 'done'";
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// How a link begins in protobuf: field 1, 16 bytes of trace id; field 2, 8 bytes of span id.
const LINK: &[u8] = b"\x0a\x10\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36\
    \x12\x08\x00\xf0\x67\xaa\x0b\xa9\x02\xb7";

/// The first line and the body of a request.
type Request = (String, Vec<u8>);

/// The parts of a collector that an exporter sees: takes requests and answers each with one status.
struct Collector {
    endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Collector {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serve(stream.unwrap(), status, &taken);
            }
        });
        Self { endpoint, requests }
    }

    fn got(&self, part: &[u8]) -> bool {
        let requests = self.requests.lock().unwrap();
        let mut bodies = requests.iter().map(|(_, body)| body);
        bodies.any(|body| body.windows(part.len()).any(|window| window == part))
    }
}

/// Requests of one connection, until the exporter closes it.
fn serve(stream: TcpStream, status: &str, taken: &Mutex<Vec<Request>>) {
    let mut answers = stream.try_clone().unwrap();
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.parse().unwrap())
        });
        let mut body = vec![0; length.expect("the length of the body")];
        stream.read_exact(&mut body).unwrap();
        let line = head.lines().next().unwrap().to_owned();
        taken.lock().unwrap().push((line, body));
        write!(answers, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
    }
}

fn relay(place: &Place, endpoint: &str) -> Running {
    let mut command = place.command(&["relay"]);
    command
        .env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", redis_url())
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("OTEL_BSP_SCHEDULE_DELAY", "20")
        // The exporter's own limit must not be what ends a wait.
        .env("OTEL_EXPORTER_OTLP_TIMEOUT", "600000");
    Running::start(command)
}

fn enqueue(place: &Place, topic: &str) {
    let header = format!("traceparent={TRACEPARENT}");
    let flags = ["--topic", topic, "--type", "T", "--payload", "1"];
    let mut arguments = vec!["enqueue", "--header", &header];
    arguments.extend(flags);
    place.outbox(&arguments).success();
}

#[test]
fn a_span_with_a_link_reaches_the_collector() {
    let place = Place::migrated();
    enqueue(&place, &place.topic("t"));
    let collector = Collector::start("200 OK");
    let relay = relay(&place, &collector.endpoint);
    place.wait_for(DONE, 1);
    wait("the span", || collector.got(LINK));
    relay.stop();
    for part in ["publish", "service.name", "outbox", "messaging.system"] {
        assert!(collector.got(part.as_bytes()), "no {part}");
    }
    assert!(!collector.got(b"claim"), "polls make no spans for it");
    let requests = collector.requests.lock().unwrap();
    assert_eq!(requests[0].0, "POST /v1/traces HTTP/1.1");
}

#[test]
fn the_last_spans_are_flushed_at_the_end() {
    let place = Place::migrated();
    enqueue(&place, &place.topic("t"));
    let collector = Collector::start("200 OK");
    let mut command = place.command(&["relay"]);
    command
        .env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", redis_url())
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint)
        .env("OTEL_BSP_SCHEDULE_DELAY", "600000");
    let relay = Running::start(command);
    place.wait_for(DONE, 1);
    assert!(!collector.got(LINK), "not yet");
    relay.stop();
    assert!(collector.got(LINK));
}

#[test]
fn i8_a_collector_that_refuses_costs_one_line_and_no_event() {
    let place = Place::migrated();
    let collector = Collector::start("400 Bad Request");
    let endpoint = collector.endpoint.replace("//", "//user:secret@");
    let relay = relay(&place, &endpoint);
    for round in 1..=4 {
        enqueue(&place, &place.topic("t"));
        place.wait_for(DONE, round);
        let refused = usize::try_from(round).unwrap();
        wait("one more refusal", || {
            collector.requests.lock().unwrap().len() >= refused
        });
    }
    let log = relay.stop();
    assert_eq!(log.matches("spans can't be exported").count(), 1, "{log}");
    assert!(!log.contains("secret"), "{log}");
}

#[test]
fn a_collector_that_hangs_holds_up_no_event_and_the_end_for_a_limited_time() {
    let place = Place::migrated();
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    deaf.set_nonblocking(true).unwrap();
    let relay = relay(&place, &format!("http://{}", deaf.local_addr().unwrap()));
    enqueue(&place, &place.topic("t"));
    // It stays open, and nobody ever reads from it.
    let mut held = None;
    wait("an export", || {
        held = held.take().or_else(|| deaf.accept().ok());
        held.is_some()
    });
    let start = Instant::now();
    enqueue(&place, &place.topic("t"));
    place.wait_for(DONE, 2);
    relay.stop();
    assert!(start.elapsed() < PATIENCE / 3, "{:?}", start.elapsed());
}
