"""Certificates as text: of an authority, of its controller, of its nodes. The one module that needs `cryptography`."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sublet.runtime.identity.names import CONTROLLER, NODE

DAY = timedelta(days=1)
AUTHORITY_LIFE = 3650 * DAY
LIFE = 365 * DAY  # a lease ends long before; a peer is asked for it each time
EARLY = DAY  # clocks differ
ENCIPHERS = ("key_encipherment", "data_encipherment", "encipher_only", "decipher_only")
UNUSED = ("content_commitment", "key_agreement", *ENCIPHERS)

Signer = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]


def new_authority(unix_s: float) -> bytes:
    """Its key, and the certificate that it signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = _named("sublet")
    builder = _begin(names, names, key.public_key(), unix_s, AUTHORITY_LIFE, signs=True)
    return _key(key) + _pem(builder.sign(key, hashes.SHA256())).encode()


def new_controller(authority: bytes, unix_s: float) -> bytes:
    """A key, and what nodes know it by."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, use = x509.DNSName(CONTROLLER), ExtendedKeyUsageOID.SERVER_AUTH
    return _key(key) + _issue(authority, key.public_key(), "controller", name, use, unix_s).encode()


def new_node(authority: bytes, request: str, node_id: str, unix_s: float) -> str:
    """For the key of this request, whatever name it has there."""
    key = x509.load_pem_x509_csr(request.encode()).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not a key on an elliptic curve")  # noqa: TRY004 - input from outside, not a bug of ours
    name, use = x509.UniformResourceIdentifier(NODE + quote(node_id, safe="")), ExtendedKeyUsageOID.CLIENT_AUTH
    return _issue(authority, key, "node", name, use, unix_s)


def new_request() -> tuple[bytes, str]:
    """A key, and the request to sign it."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_named("node")).sign(key, hashes.SHA256())
    return _key(key), request.public_bytes(serialization.Encoding.PEM).decode()


def key_asked_for(request: str) -> str:
    """The digest of the key that has signed it; ValueError where none has."""
    asked = x509.load_pem_x509_csr(request.encode())
    if not asked.is_signature_valid:
        raise ValueError("it is not signed by its own key")
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(asked.public_key().public_bytes(serialization.Encoding.DER, kind)).hexdigest()


def certificate_in(text: bytes) -> str:
    """Without the key beside it."""
    return _pem(x509.load_pem_x509_certificate(text))


# ---------------------------------------------------------------------------------------------------------------------


def _issue(
    authority: bytes,
    key: ec.EllipticCurvePublicKey,
    called: str,
    name: x509.GeneralName,
    use: x509.ObjectIdentifier,
    unix_s: float,
) -> str:
    signer, by = _signer(authority)
    builder = (
        _begin(_named(called), by.subject, key, unix_s, LIFE, signs=False)
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _pem(builder.sign(signer, hashes.SHA256()))


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    unix_s: float,
    life: timedelta,
    *,
    signs: bool,
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(unix_s, UTC)
    use = {"key_cert_sign": signs, "crl_sign": signs, "digital_signature": not signs}
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + life)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(x509.KeyUsage(**use, **dict.fromkeys(UNUSED, False)), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signer(authority: bytes) -> Signer:
    key = serialization.load_pem_private_key(authority, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not a key on an elliptic curve")  # noqa: TRY004 - what is in a file, not a bug of ours
    return key, x509.load_pem_x509_certificate(authority)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
