"""Check at startup that the object store is usable: the bucket exists and accepts the credentials.

Without this, a broker with wrong settings starts, and the first large commit fails.
"""

import logging
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from semel.store.contract import StoreMisconfigured
from semel.store.worker import Worker

log = logging.getLogger("semel.store")

RETRY: Final[Any] = {"max_retries": 1, "retry_timeout": timedelta(seconds=5)}
REQUEST_TIMEOUT: Final = "5s"
_REFUSED: Final = re.compile(r"status code: 4(?!08|29)\d\d [^:]*")
"""The object store refuses this request for good: a 4xx status other than 408 and 429."""
_REASON: Final = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")
_MACHINE_CREDENTIALS: Final = "169.254.169.254"
"""Where the client of an object store asks for its machine's credentials, if the environment has none."""


def client_options(timeout: str, given: Mapping[str, Any]) -> Any:
    """Return options of an HTTP client: a timeout, plain HTTP if the environment allows it, and ``given``.

    Client options that are passed to ``obstore`` replace all that it finds in the environment.
    """
    allows_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes")
    return {"timeout": timeout, **({"allow_http": True} if allows_http else {}), **given}


async def check_access(address: str, **options: Any) -> None:
    """List objects at an address. StoreMisconfigured if that is refused. No answer is only logged.

    ``options`` are those of ``Objects.open``.
    """
    worker = Worker("object-access")
    try:
        await worker.run(_check, address, options)
    finally:
        worker.stop()


def _check(address: str, options: dict[str, Any]) -> None:
    if "://" not in address:
        raise StoreMisconfigured(
            f"{address} is not an address: use s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY"
        )
    if address.startswith("file:"):
        if host := urlsplit(address).netloc:
            raise StoreMisconfigured(
                f"{address} has {host} for a host: a directory has three slashes, as in file:///srv/semel"
            )
        directory = Path(unquote(urlsplit(address).path))
        if not directory.is_dir():
            raise StoreMisconfigured(f"{directory} is not a directory: create or mount it on every broker")
        return
    options = {"retry_config": RETRY, **options}
    options["client_options"] = client_options(REQUEST_TIMEOUT, options.get("client_options", {}))
    try:
        store = from_url(address, **options)
    except (BaseError, ValueError) as error:
        raise StoreMisconfigured(f"{address} cannot be used: {_first_line(error)}") from None
    try:
        next(iter(obstore.list(store, chunk_size=1)), None)
    except BaseError as error:
        text = str(error)
        if _MACHINE_CREDENTIALS in text:
            raise StoreMisconfigured(
                f"{address} cannot be used: there are no credentials in the environment"
                " (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
            ) from None
        if refused := _REFUSED.search(text):
            said = _REASON.search(text)
            reason = ": ".join(said.groups()) if said else refused.group().removeprefix("status code: ")
            raise StoreMisconfigured(
                f"{address} cannot be used: {reason}. Check the bucket and the credentials"
            ) from None
        log.warning(
            "%s does not answer; large commits are refused until it does: %s", address, _first_line(error)
        )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
