//! Real servers, killed and restarted.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use outbox_testkit::{
    Port,
    servers::{FakeClock, Nats, Postgres, RabbitMq, Redis},
};

fn connect(address: std::net::SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

/// One inline command of Redis and the beginning of its answer.
fn ask(redis: &Redis, command: &str, wait: Duration) -> std::io::Result<String> {
    let mut stream = connect(redis.address())?;
    stream.set_read_timeout(Some(wait))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = [0; 256];
    let read = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..read]).trim().to_owned())
}

const WAIT: Duration = Duration::from_secs(5);

#[test]
fn redis_keeps_what_it_acknowledged_through_a_kill() {
    let mut redis = Redis::start().unwrap();
    let url = redis.url();
    assert_eq!(ask(&redis, "SET a 1", WAIT).unwrap(), "+OK");
    redis.kill().unwrap();
    assert!(connect(redis.address()).is_err(), "it is dead");
    redis.restart().unwrap();
    assert_eq!(redis.url(), url);
    assert_eq!(ask(&redis, "GET a", WAIT).unwrap(), "$1\r\n1");
    redis.stop().unwrap();
    assert!(connect(redis.address()).is_err(), "it is stopped");
    redis.restart().unwrap();
    assert_eq!(ask(&redis, "GET a", WAIT).unwrap(), "$1\r\n1");
}

#[test]
fn a_paused_redis_is_silent_until_resumed() {
    let redis = Redis::start().unwrap();
    redis.pause().unwrap();
    let silence = ask(&redis, "PING", Duration::from_millis(300)).unwrap_err();
    assert!(
        matches!(
            silence.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
        ),
        "{silence}"
    );
    redis.resume().unwrap();
    assert_eq!(ask(&redis, "PING", WAIT).unwrap(), "+PONG");
}

#[test]
fn redis_takes_arguments_and_tells_its_own_words() {
    let redis = Redis::start_with(&["--maxmemory", "5mb"]).unwrap();
    assert!(
        ask(&redis, "CONFIG GET maxmemory", WAIT)
            .unwrap()
            .contains("5242880")
    );
    let error = Redis::start_with(&["--no-such-setting", "1"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("no-such-setting"), "{error}");
}

#[test]
fn redis_is_not_waited_for_when_a_test_wants_to_see_it_load() {
    let mut redis = Redis::start_with(&["--appendonly", "no"]).unwrap();
    for key in 0..50 {
        let set = format!("SET key{key} {}", "x".repeat(2_000));
        assert_eq!(ask(&redis, &set, WAIT).unwrap(), "+OK");
    }
    assert_eq!(ask(&redis, "SAVE", WAIT).unwrap(), "+OK");
    // 50 keys at 20 ms each: ready after a second.
    let arguments = ["--appendonly", "no", "--key-load-delay", "20000"];
    redis.restart_unready(&arguments).unwrap();
    let not_ready = ask(&redis, "PING", WAIT).map_or(true, |answer| answer != "+PONG");
    assert!(not_ready, "it was waited for");
    redis.restart().unwrap();
    assert_eq!(ask(&redis, "EXISTS key49", WAIT).unwrap(), ":1");
    let kept = ask(&redis, "CONFIG GET key-load-delay", WAIT).unwrap();
    assert!(kept.contains("20000"), "{kept}");
}

#[test]
fn a_dropped_redis_leaves_nothing_behind() {
    let redis = Redis::start().unwrap();
    let (address, log) = (redis.address(), redis.log());
    assert!(log.exists());
    drop(redis);
    assert!(connect(address).is_err());
    assert!(!log.exists());
}

/// Begins a session of the superuser; gives the stream once the server is ready for a query.
fn session(postgres: &Postgres) -> std::io::Result<TcpStream> {
    let mut stream = connect(postgres.address())?;
    let mut packet = 196_608_u32.to_be_bytes().to_vec();
    packet.extend(b"user\0postgres\0database\0postgres\0\0");
    let length = u32::try_from(packet.len() + 4).unwrap();
    stream.write_all(&[length.to_be_bytes().as_slice(), &packet].concat())?;
    until_ready(&mut stream)?;
    Ok(stream)
}

/// Reads messages until ReadyForQuery; gives their bytes as text.
fn until_ready(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut text = String::new();
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        stream.read_exact(&mut body)?;
        text.push_str(&String::from_utf8_lossy(&body));
        if head[0] == b'Z' {
            return Ok(text);
        }
    }
}

fn query(stream: &mut TcpStream, sql: &str) -> std::io::Result<String> {
    let length = u32::try_from(sql.len() + 5).unwrap();
    let message = [
        b"Q".as_slice(),
        &length.to_be_bytes(),
        sql.as_bytes(),
        b"\0",
    ]
    .concat();
    stream.write_all(&message)?;
    until_ready(stream)
}

#[test]
fn postgres_keeps_what_it_committed_through_kills() {
    let mut postgres = Postgres::start_with(&[("max_connections", "17")]).unwrap();
    let url = postgres.url();
    let mut first = session(&postgres).unwrap();
    query(&mut first, "CREATE TABLE kept (n int)").unwrap();
    assert!(
        query(&mut first, "SHOW max_connections")
            .unwrap()
            .contains("17")
    );
    for n in 0..3 {
        let mut session_now = session(&postgres).unwrap();
        query(&mut session_now, &format!("INSERT INTO kept VALUES ({n})")).unwrap();
        postgres.kill().unwrap();
        assert!(session(&postgres).is_err(), "it is dead");
        assert!(
            query(&mut session_now, "SELECT 1").is_err(),
            "its sessions are dead too"
        );
        postgres.restart().unwrap();
    }
    assert_eq!(postgres.url(), url);
    let mut last = session(&postgres).unwrap();
    assert!(
        query(&mut last, "SELECT 'rows=' || count(*) FROM kept")
            .unwrap()
            .contains("rows=3")
    );
    postgres.stop().unwrap();
    assert!(session(&postgres).is_err(), "it is stopped");
    postgres.restart().unwrap();
    session(&postgres).unwrap();
}

#[test]
fn a_paused_postgres_is_silent_until_resumed() {
    let postgres = Postgres::start().unwrap();
    let mut open = session(&postgres).unwrap();
    postgres.pause().unwrap();
    open.set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    assert!(
        query(&mut open, "SELECT 1").is_err(),
        "a paused session answered"
    );
    postgres.resume().unwrap();
    open.set_read_timeout(Some(WAIT)).unwrap();
    until_ready(&mut open).unwrap();
    query(&mut open, "SELECT 1").unwrap();
}

#[test]
fn a_dropped_postgres_leaves_nothing_behind() {
    let postgres = Postgres::start().unwrap();
    let (address, log) = (postgres.address(), postgres.log());
    let mut open = session(&postgres).unwrap();
    drop(postgres);
    assert!(connect(address).is_err());
    assert!(query(&mut open, "SELECT 1").is_err());
    assert!(!log.exists());
}

#[test]
fn postgres_tells_its_own_words() {
    let error = Postgres::start_with(&[("no_such_setting", "1")])
        .unwrap_err()
        .to_string();
    assert!(error.contains("no_such_setting"), "{error}");
}

#[test]
fn a_postgres_follows_its_clock_back_and_forth() {
    const NOW: &str = "SELECT 'at=' || extract(epoch FROM clock_timestamp())::bigint || ';'";
    let clock = FakeClock::ahead(time::Duration::hours(1)).unwrap();
    let mut postgres = Postgres::start_under(&clock).unwrap();
    // Seconds that the server is ahead of this process.
    let ahead = |session: &mut TcpStream| {
        let answer = query(session, NOW).unwrap();
        let rest = answer.split_once("at=").unwrap().1;
        let at: i64 = rest.split_once(';').unwrap().0.parse().unwrap();
        at - time::OffsetDateTime::now_utc().unix_timestamp()
    };
    let mut before = session(&postgres).unwrap();
    let near = |seconds: i64, expected: i64| (seconds - expected).abs() <= 2;
    assert!(near(ahead(&mut before), 3600));
    clock.step_to(time::Duration::hours(-1)).unwrap();
    assert!(near(ahead(&mut before), -3600), "an open session");
    assert!(near(ahead(&mut session(&postgres).unwrap()), -3600));
    postgres.kill().unwrap();
    postgres.restart().unwrap();
    assert!(near(ahead(&mut session(&postgres).unwrap()), -3600));
    assert!(near(
        ahead(&mut session(&Postgres::start().unwrap()).unwrap()),
        0
    ));
}

#[test]
fn a_clock_leaves_nothing_behind_of_a_killed_process() {
    let clock = FakeClock::ahead(time::Duration::hours(-1)).unwrap();
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .envs(clock.environment())
        .spawn()
        .unwrap();
    let shared = format!("/dev/shm/faketime_shm_{}", child.id());
    let made = outbox_testkit::block_on(outbox_testkit::eventually(WAIT, async || {
        std::path::Path::new(&shared).exists().then_some(())
    }));
    assert!(made.is_some(), "the library is at work");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(clock);
    assert!(!std::path::Path::new(&shared).exists());
}

/// Another test may not take the port of a server that is down.
#[test]
fn a_port_is_held_until_it_is_dropped() {
    let held = Port::take().unwrap();
    drop(TcpListener::bind(held.address()).unwrap());
    let path = std::env::temp_dir().join(format!(
        "outbox-ports-{}/{held}",
        rustix::process::getuid().as_raw()
    ));
    let lock = std::fs::File::open(path).unwrap();
    assert!(lock.try_lock().is_err(), "held");
    drop(held);
    lock.try_lock().unwrap();
}

/// The first bytes that a NATS server sends to who connects.
fn greeting(nats: &Nats, wait: Duration) -> std::io::Result<String> {
    let mut stream = connect(nats.address())?;
    stream.set_read_timeout(Some(wait))?;
    let mut answer = [0; 256];
    let read = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
}

#[test]
fn nats_is_killed_paused_and_comes_back_with_other_settings() {
    let mut nats = Nats::start().unwrap();
    let url = nats.url();
    assert!(greeting(&nats, WAIT).unwrap().starts_with("INFO {"));
    nats.pause().unwrap();
    greeting(&nats, Duration::from_millis(300)).unwrap_err();
    nats.resume().unwrap();
    assert!(greeting(&nats, WAIT).unwrap().contains("outbox-test"));
    nats.kill().unwrap();
    assert!(connect(nats.address()).is_err(), "it is dead");
    nats.restart_with("server_name: another").unwrap();
    assert_eq!(nats.url(), url);
    assert!(greeting(&nats, WAIT).unwrap().contains("another"));
    let error = nats.restart_with("no_such_setting: 1").unwrap_err();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

/// The answer to the header of the protocol begins a session.
fn begins_a_session(server: &RabbitMq) -> std::io::Result<bool> {
    let mut stream = connect(server.address())?;
    stream.write_all(b"AMQP\0\0\x09\x01")?;
    let mut answer = [0; 1];
    stream.read_exact(&mut answer)?;
    Ok(answer == [1])
}

/// One test, for a start takes 10 seconds.
#[test]
fn rabbitmq_survives_kills_and_leaves_nothing_behind() {
    let mut server = RabbitMq::start_with(&[("frame_max", "8192")]).unwrap();
    let (url, log) = (server.url(), server.log());
    assert!(begins_a_session(&server).unwrap());
    let told = server.ctl(&["environment"]).unwrap();
    assert!(told.contains("{frame_max,8192}"), "{told}");
    assert!(server.ctl(&["no_such_command"]).is_err());
    let add_user = ["add_user", "kept", "secret"];
    server.ctl(&add_user).unwrap();

    server.pause().unwrap();
    let silence = begins_a_session(&server).unwrap_err();
    assert!(
        matches!(
            silence.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
        ),
        "{silence}"
    );
    server.resume().unwrap();
    assert!(begins_a_session(&server).unwrap());

    server.kill().unwrap();
    assert!(connect(server.address()).is_err(), "it is dead");
    server.restart().unwrap();
    assert_eq!(server.url(), url);
    let users = server.ctl(&["list_users"]).unwrap();
    assert!(users.contains("kept"), "{users}");

    let node = url.trim_start_matches("amqp://127.0.0.1:");
    let node = format!("outbox-{}@localhost", node.trim_end_matches("/%2f"));
    assert!(!processes_of(&node).is_empty());
    let address = server.address();
    drop(server);
    assert!(connect(address).is_err());
    assert!(!log.exists());
    assert_eq!(processes_of(&node), [0_u32; 0]);
}

/// Living processes with this text in their environment: the node and its table of names.
fn processes_of(text: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let of = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let is_zombie = stat.rsplit_once(')')?.1.trim_start().starts_with('Z');
        let environment = String::from_utf8_lossy(&environment);
        (environment.contains(text) && !is_zombie).then_some(pid)
    };
    entries.filter_map(of).collect()
}
