"""TLS for listeners: what a broker shows its clients, and what it wants to see of them."""

import ssl
from typing import NoReturn

from semel.config import Settings


def server_context(settings: Settings) -> ssl.SSLContext:
    """The certificate of this broker from its files. ValueError says which file is missing or wrong."""
    if not settings.ssl_certificate_location:
        raise ValueError("a listener with ssl:// needs the setting ssl.certificate.location, a PEM file")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(
            settings.ssl_certificate_location, settings.ssl_key_location or None, _no_password
        )
    except OSError as error:
        raise ValueError(
            f"ssl.certificate.location {settings.ssl_certificate_location} and its key do not go together: "
            f"{error}"
        ) from None
    if settings.ssl_ca_location:
        try:
            context.load_verify_locations(settings.ssl_ca_location)
        except OSError as error:
            reason = f"ssl.ca.location {settings.ssl_ca_location} has no certificates: {error}"
            raise ValueError(reason) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> NoReturn:
    """Without this, OpenSSL would ask the terminal."""
    raise ValueError("the key of ssl.key.location is encrypted; store it without a password, readable by us")
