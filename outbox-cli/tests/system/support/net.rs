//! Proxies before the servers.

use std::net::{SocketAddr, ToSocketAddrs as _};

use outbox_testkit::proxy::FaultProxy;

/// A proxy before the server of this URL, and the URL that leads through it.
pub(crate) async fn proxy(url: &str) -> (FaultProxy, String) {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (user, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let target: SocketAddr = host.to_socket_addrs().unwrap().next().unwrap();
    let proxy = FaultProxy::start(target).await.unwrap();
    let at = if user.is_empty() { "" } else { "@" };
    let through = format!("{scheme}://{user}{at}{}{path}", proxy.address());
    (proxy, through)
}
