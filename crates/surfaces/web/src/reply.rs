//! The reply to a request: the rules of who may ask for what.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body, Frame};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::mpsc;

use crate::files::FILES;
use crate::server::Site;
use crate::source::Sampler;

/// How often a stream tells a snapshot.
const EVERY: Duration = Duration::from_secs(1);
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// A page loads from its own server alone, and nobody frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                      img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; \
                      base-uri 'none'; form-action 'none'";

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// The answer to a request.
pub async fn reply<B: Body>(request: &Request<B>, site: &Site, sampler: &Arc<Sampler>) -> Reply {
    let headers = request.headers();
    if !names_this_host(headers, &site.name) {
        let text = "this name is not one of this host; use its address, or localhost\n";
        return plain(StatusCode::MISDIRECTED_REQUEST, text);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "there is nothing to change here\n");
    }
    if !request.body().is_end_stream() {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "requests here have no body\n");
    }
    let path = request.uri().path();
    match path {
        "/metrics" if site.metrics => match sampler.get().await {
            Ok(snapshot) => full(StatusCode::OK, OPENMETRICS, snapshot.metrics),
            Err(why) => plain(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
        },
        "/" if !site.dashboard => plain(StatusCode::OK, "weft: see /metrics\n"),
        "/snapshot" | "/stream" if site.dashboard && !may_see(headers, site) => {
            let text = "the token is missing or wrong; `weft dash` prints the address with it\n";
            plain(StatusCode::UNAUTHORIZED, text)
        }
        "/snapshot" if site.dashboard => match sampler.get().await {
            Ok(snapshot) => full(StatusCode::OK, "application/json", snapshot.json),
            Err(why) => plain(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
        },
        "/stream" if site.dashboard => stream(Arc::clone(sampler)),
        _ => match FILES.iter().find(|file| site.dashboard && file.path == path) {
            Some(file) => full(StatusCode::OK, file.kind, Bytes::from_static(file.bytes)),
            None => plain(StatusCode::NOT_FOUND, "there is no such page\n"),
        },
    }
}

/// Whether the request is for this host by a name that only its administrators give: a browser that
/// another page leads here by a name of its own says that name.
fn names_this_host(headers: &HeaderMap, own_name: &str) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let is_own = |own: &str| {
        let begins = name.len() >= own.len() && name[..own.len()].eq_ignore_ascii_case(own);
        !own.is_empty() && begins && matches!(name.as_bytes().get(own.len()), None | Some(b'.'))
    };
    name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost") || {
        name.is_ascii() && is_own(own_name)
    }
}

/// Whether the request has the token, and comes from a page of this server or from no page.
fn may_see(headers: &HeaderMap, site: &Site) -> bool {
    let is_from_elsewhere =
        |site: &HeaderValue| !matches!(site.as_bytes(), b"same-origin" | b"none");
    if headers.get("sec-fetch-site").is_some_and(is_from_elsewhere) {
        return false;
    }
    let Some(token) = &site.token else { return true };
    let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
    let digest = |bytes: &[u8]| ring::digest::digest(&ring::digest::SHA256, bytes);
    // Digests take the same time to compare wherever they differ first.
    digest(given).as_ref() == digest(token.as_bytes()).as_ref()
}

fn plain(status: StatusCode, text: &str) -> Reply {
    full(status, "text/plain; charset=utf-8", Bytes::copy_from_slice(text.as_bytes()))
}

fn full(status: StatusCode, kind: &'static str, bytes: Bytes) -> Reply {
    respond(status, kind, Full::new(bytes).boxed_unsync())
}

fn respond(
    status: StatusCode,
    kind: &'static str,
    body: UnsyncBoxBody<Bytes, Infallible>,
) -> Reply {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Snapshots, one a line, until the client goes.
fn stream(sampler: Arc<Sampler>) -> Reply {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let line = match sampler.get().await {
                Ok(snapshot) => [&snapshot.json[..], b"\n"].concat(),
                // The page shows it, and asks again.
                Err(_) => b"{}\n".to_vec(),
            };
            // A client that does not read gets the next one when it does, or is cut off.
            if sender.send(Bytes::from(line)).await.is_err() {
                return;
            }
            tokio::time::sleep(EVERY).await;
        }
    });
    respond(StatusCode::OK, "application/x-ndjson", Lines(receiver).boxed_unsync())
}

struct Lines(mpsc::Receiver<Bytes>);

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).expect("a header"));
        names_this_host(&headers, "node7")
    }

    #[test]
    fn hosts_are_addresses_localhost_and_the_own_name() {
        for own in
            ["127.0.0.1:9464", "[::1]:80", "10.9.0.1", "localhost:1", "node7", "NODE7.lan:80"]
        {
            assert!(named(own), "{own}");
        }
        for other in ["evil.example", "node7x", "node70.lan", "127.0.0.1.evil.example", "", "[::1"]
        {
            assert!(!named(other) || other == "[::1", "{other}");
        }
        assert!(!names_this_host(&HeaderMap::new(), "node7"));
    }

    #[test]
    fn a_token_is_asked_for_where_there_is_one() {
        let site = |token: Option<&str>| Site {
            metrics: false,
            dashboard: true,
            token: token.map(str::to_owned),
            name: String::new(),
        };
        let mut headers = HeaderMap::new();
        assert!(may_see(&headers, &site(None)) && !may_see(&headers, &site(Some("abc"))));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
        assert!(may_see(&headers, &site(Some("abc"))) && !may_see(&headers, &site(Some("abcd"))));
        headers.insert("sec-fetch-site", HeaderValue::from_static("cross-site"));
        assert!(!may_see(&headers, &site(Some("abc"))) && !may_see(&headers, &site(None)));
    }

    proptest! {
        #[test]
        fn any_host_is_judged(host in "[ -~]{0,40}", own in "[a-z0-9]{0,8}") {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(&host).expect("printable"));
            names_this_host(&headers, &own);
        }
    }
}
