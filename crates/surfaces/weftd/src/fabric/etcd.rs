//! The thread that asks etcd: it sends the requests of [`weft_membership::Etcd`] by HTTP, and
//! tells the machine the answers.
//!
//! # Invariants
//! - A request ends after [`ANSWER_WITHIN`], so the thread does some seconds after the fabric.
//! - Neither of the two locks is held while a request is under way, nor one while the other is.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use weft_membership::{ANSWER_BYTES_MAX, Etcd, EtcdConfig, EtcdUser, Lead, Request, Roster};
use weft_options::Options;

use super::Shared;
use super::state::read_private;

/// How long a connection to an endpoint may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long an answer may take. An endpoint without a leader does not answer for longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The etcd by which hosts join.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// The URLs of its endpoints.
    endpoints: Vec<String>,
    user: Option<EtcdUser>,
    /// The certificates of those who sign for the endpoints.
    roots: Vec<Certificate<'static>>,
    own: Option<ClientCert>,
}

impl EtcdSettings {
    /// The etcd that the options name; `None` if there is none.
    ///
    /// # Errors
    /// An option is missing, or a file cannot be used.
    pub fn read(options: &Options) -> anyhow::Result<Option<Self>> {
        let endpoints = options.fabric_etcd();
        if endpoints.is_empty() {
            return Ok(None);
        }
        let is_secure = endpoints.iter().any(|url| url.starts_with("https:"));
        let roots = match options.fabric_etcd_ca() {
            Some(path) => {
                let bytes = std::fs::read(path)
                    .with_context(|| format!("fabric.etcd_ca: {path} cannot be read"))?;
                certificates(path, &bytes)?
            }
            None if is_secure => bail!(
                "fabric.etcd has https, and fabric.etcd_ca is not set; set it to the file with the \
                 certificates of those who sign for etcd's endpoints"
            ),
            None => Vec::new(),
        };
        let own = match (options.fabric_etcd_cert(), options.fabric_etcd_key()) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(own_certificate(certificate, key)?),
            (Some(_), None) => {
                bail!("fabric.etcd_cert is set, and fabric.etcd_key is not; set both")
            }
            (None, Some(_)) => {
                bail!("fabric.etcd_key is set, and fabric.etcd_cert is not; set both")
            }
        };
        let user = match (options.fabric_etcd_user(), options.fabric_etcd_password()) {
            (None, None) => None,
            (Some(name), Some(path)) => {
                let password = String::from_utf8(private("fabric.etcd_password", path)?)
                    .with_context(|| format!("fabric.etcd_password: {path} is no text"))?;
                let password = password.trim_end_matches(['\r', '\n']).to_owned();
                Some(EtcdUser { name: name.to_owned(), password })
            }
            (Some(_), None) => {
                bail!("fabric.etcd_user is set, and fabric.etcd_password is not; set both")
            }
            (None, Some(_)) => {
                bail!("fabric.etcd_password is set, and fabric.etcd_user is not; set both")
            }
        };
        Ok(Some(Self { endpoints, user, roots, own }))
    }

    /// The client of a daemon of this fabric.
    pub(super) fn client(self, fabric: &str, incarnation: u64) -> anyhow::Result<EtcdClient> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let lacks_certificate = self.own.is_none();
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::Specific(Arc::new(self.roots)))
            .client_cert(self.own)
            .build();
        let config = ureq::Agent::config_builder()
            .tls_config(tls)
            .timeout_connect(Some(CONNECT_WITHIN))
            .timeout_global(Some(ANSWER_WITHIN))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .build();
        let (fabric, endpoints) = (fabric.to_owned(), self.endpoints);
        let etcd = Etcd::new(EtcdConfig { endpoints, user: self.user, fabric, incarnation });
        let (etcd, changed) = (Mutex::new(etcd), Condvar::new());
        Ok(EtcdClient { agent: config.new_agent(), etcd, changed, lacks_certificate })
    }
}

fn certificates(path: &str, bytes: &[u8]) -> anyhow::Result<Vec<Certificate<'static>>> {
    let items = parse_pem(bytes).filter_map(Result::ok);
    let certificates = items.filter_map(|item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    ensure!(!certificates.is_empty(), "{path} has no certificate (PEM)");
    Ok(certificates)
}

fn own_certificate(certificate: &str, key: &str) -> anyhow::Result<ClientCert> {
    let bytes = std::fs::read(certificate)
        .with_context(|| format!("fabric.etcd_cert: {certificate} cannot be read"))?;
    let chain = certificates(certificate, &bytes)?;
    let key_bytes = private("fabric.etcd_key", key)?;
    let key = PrivateKey::from_pem(&key_bytes)
        .with_context(|| format!("fabric.etcd_key: {key} has no private key (PEM)"))?;
    Ok(ClientCert::new_with_certs(&chain, key))
}

/// The bytes of a file that only its owner can read.
fn private(option: &str, path: &str) -> anyhow::Result<Vec<u8>> {
    let bytes = read_private(Path::new(path)).with_context(|| option.to_owned())?;
    bytes.with_context(|| format!("{option} names {path}, which is not there"))
}

/// The connection to etcd, which the thread of the fabric and its own one share.
#[derive(Debug)]
pub struct EtcdClient {
    agent: ureq::Agent,
    etcd: Mutex<Etcd>,
    /// Something was proposed, or the fabric is over.
    changed: Condvar,
    /// This host shows no certificate.
    lacks_certificate: bool,
}

impl EtcdClient {
    fn lock(&self) -> MutexGuard<'_, Etcd> {
        self.etcd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a table there next.
    pub fn propose(&self, table: Roster, version: u64) {
        self.lock().propose(table, version);
        self.wake();
    }

    /// The lease by which this daemon manages the fabric.
    pub fn lead(&self) -> Option<Lead> {
        self.lock().lead()
    }

    /// Lets the thread look around.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    fn send(&self, request: &Request) -> Result<(u16, Vec<u8>), String> {
        let text = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => {
                let seconds = ANSWER_WITHIN.as_secs();
                format!("no answer within {seconds} s; etcd may be without a leader")
            }
            // The endpoint ends the connection, and its reason may be lost.
            ureq::Error::Io(error)
                if self.lacks_certificate && request.url.starts_with("https:") =>
            {
                format!("{error}; if etcd asks for a certificate, set fabric.etcd_cert")
            }
            other => other.to_string(),
        };
        let mut post = self.agent.post(&request.url).content_type("application/json");
        if let Some(token) = &request.authorization {
            post = post.header("Authorization", token);
        }
        let answer = post.send(&request.body).map_err(text)?;
        let status = answer.status().as_u16();
        let body = answer.into_body().into_with_config().limit(ANSWER_BYTES_MAX);
        Ok((status, body.read_to_vec().map_err(text)?))
    }
}

/// Starts the thread that asks etcd until the fabric is over.
///
/// # Errors
/// There is no thread.
pub(super) fn start(
    client: Arc<EtcdClient>,
    shared: Arc<Shared>,
    started: Instant,
) -> anyhow::Result<()> {
    let thread = std::thread::Builder::new().name("weft-fabric-etcd".to_owned());
    thread.spawn(move || run(&client, &shared, started)).context("no thread for etcd").map(drop)
}

fn run(client: &EtcdClient, shared: &Shared, started: Instant) {
    while !shared.is_over.load(Ordering::Acquire) {
        let number = shared.lock().present_as();
        let mut etcd = client.lock();
        let Some(request) = etcd.request(number, started.elapsed()) else {
            let left = etcd.wakes_at().saturating_sub(started.elapsed());
            drop(client.changed.wait_timeout(etcd, left));
            continue;
        };
        drop(etcd);
        let answer = client.send(&request);
        let answer = answer.as_ref().map(|(status, body)| (*status, &body[..]));
        let news = client.lock().answered(answer.map_err(Clone::clone), started.elapsed());
        if let Some(news) = news {
            shared.lock().directory_says(news, started.elapsed());
            shared.changed.notify_all();
            shared.wake();
        }
    }
}
