//! TLS 1.3 between daemons, with raw public keys (RFC 7250) in place of certificates.
//!
//! Any key is accepted here: [`crate::session`] asks for the proof of the fabric key, and
//! [`crate::machine`] decides by the identity.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::{default_provider, sign::any_eddsa_type};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName, Error,
    PeerMisbehaved, ServerConfig, ServerConnection, SignatureScheme, version::TLS13,
};

use crate::identity::{Identity, OwnIdentity};
use crate::key::Role;

/// The protocol's name in the handshake. A server of something else does not have it.
const ALPN: &[u8] = b"weft-fabric";
/// The bytes before an Ed25519 key in its `SubjectPublicKeyInfo` (RFC 8410).
const ED25519_HEAD: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The settings of TLS for all connections of a daemon.
#[derive(Clone, Debug)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// The settings of the node with this key pair.
    ///
    /// # Errors
    /// The library of TLS does not take them.
    pub fn new(own: &OwnIdentity) -> Result<Self, Error> {
        Self::of_protocol(own, ALPN)
    }

    /// The settings for another protocol between ends that prove the same kind of key.
    ///
    /// # Errors
    /// The library of TLS does not take them.
    pub fn of_protocol(own: &OwnIdentity, protocol: &[u8]) -> Result<Self, Error> {
        let provider = Arc::new(default_provider());
        let verifier = Arc::new(AnyKey { algorithms: provider.signature_verification_algorithms });
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(own.document()))?;
        let public = key.public_key().ok_or(Error::General("no public key".to_owned()))?;
        let shown = vec![CertificateDer::from(public.to_vec())];
        let shown = Arc::new(CertifiedKey::new(shown, key));
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                Arc::clone(&shown),
            )));
        client.alpn_protocols = vec![protocol.to_vec()];
        client.enable_sni = false;
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(shown)));
        server.alpn_protocols = vec![protocol.to_vec()];
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// A new connection, of which this end has a role.
    ///
    /// # Errors
    /// The library of TLS refuses.
    pub fn connection(&self, role: Role) -> Result<Connection, Error> {
        let mut connection = match role {
            Role::Dialer => {
                let name = ServerName::try_from("weft.invalid")
                    .map_err(|_| Error::General("no name".to_owned()))?;
                ClientConnection::new(Arc::clone(&self.client), name).map(Connection::from)
            }
            Role::Listener => ServerConnection::new(Arc::clone(&self.server)).map(Connection::from),
        }?;
        // The caller takes all output after each write, and bounds it there.
        connection.set_buffer_limit(None);
        Ok(connection)
    }
}

/// The identity that the other end of a connection proved; `None` before its handshake is over.
#[must_use]
pub fn identity_of(connection: &Connection) -> Option<Identity> {
    let [shown] = connection.peer_certificates()? else { return None };
    let key = shown.as_ref().strip_prefix(&ED25519_HEAD)?;
    key.try_into().ok().map(Identity)
}

/// Whether the other end speaks the protocol of the fabric.
pub(crate) fn is_ours(connection: &Connection) -> bool {
    connection.alpn_protocol() == Some(ALPN)
}

/// Accepts every Ed25519 key whose owner has the private half.
#[derive(Debug)]
struct AnyKey {
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyKey {
    fn verify(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

/// TLS 1.2 is not offered, so a peer that signs for it breaks the protocol.
const NOT_OFFERED: Error =
    Error::PeerMisbehaved(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme);

/// The methods that the traits of both sides have in common: signatures of TLS 1.3 by raw keys.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(NOT_OFFERED)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verify(message, shown, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}
