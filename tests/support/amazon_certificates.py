"""Certificates as Amazon's: an authority, one that it trusts, and those of SNS."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID

START = datetime(2026, 1, 1, tzinfo=UTC)
YEARS = timedelta(days=3650)
ISSUER = "http://crt.r2m01.amazontrust.com/r2m01.cer"


class Authority:
    """An authority with its certificate: a root, or one that another authority trusts."""

    def __init__(
        self,
        name: str,
        parent: Authority | None = None,
        key: rsa.RSAPrivateKey | None = None,
        start: datetime = START,
    ) -> None:
        self.key = key or rsa.generate_private_key(65537, 2048)
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self.name, self.key, parent or self, start, YEARS)
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True,
            crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(usage, critical=True)
        self.certificate = builder.sign((parent or self).key, hashes.SHA256())

    @property
    def page(self) -> bytes:
        """Its certificate, as it is at an address of Amazon's."""
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def issue(
        self,
        key: rsa.RSAPrivateKey,
        names: Sequence[str],
        start: datetime = START,
        *,
        issuer: str | None = None,
    ) -> bytes:
        """Return the certificate of a server as PEM; `issuer` is where it says that its issuer's is."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        builder = _builder(subject, key, self, start, timedelta(days=395))
        others = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(others, critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        if issuer is not None:
            place = x509.UniformResourceIdentifier(issuer)
            access = x509.AccessDescription(AuthorityInformationAccessOID.CA_ISSUERS, place)
            builder = builder.add_extension(x509.AuthorityInformationAccess([access]), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, key: rsa.RSAPrivateKey, issuer: Authority, start: datetime, length: timedelta
) -> x509.CertificateBuilder:
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + length)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
    )
