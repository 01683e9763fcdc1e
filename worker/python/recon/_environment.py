"""What the environment says of the server, and how to reach it."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any


def loopback(port: int) -> str:
    """HOST:PORT of this machine for its own processes: 127.0.0.1, or [::1] where the machine has no IPv4."""
    try:
        with socket.socket(socket.AF_INET) as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError:
        return f"[::1]:{port}"
    return f"127.0.0.1:{port}"


def server() -> str:
    """RECON_SERVER, or this machine's usual port."""
    return os.environ.get("RECON_SERVER") or loopback(7070)


def say_whose_job(core: Any, settings: Any, seed: str = "") -> None:
    """A line for whoever has joined others at the usual port without having named a server: another script's job may be
    there. ``seed``: what of this script's start does not count then."""
    others = core.job()["workers"] - 1
    if others < 1 or "server" in settings or os.environ.get("RECON_SERVER"):
        return
    print(f"recon: {core.name} has joined a job with {others} other worker{'s' if others > 1 else ''} at {loopback(7070)}, where "
          f"a server is looked for if nobody names one. Its parameters and its order of samples count, not this script's"
          f"{seed}. If it is another script's job, start a server on another port and set RECON_SERVER", file=sys.stderr,
          flush=True)


def tls() -> tuple[str, str, str, bool, str, str]:
    """Files of the certificate, its key and the CA, whether plain text may go to other machines, a file with a token, and
    one of revoked certificates; empty for none. RECON_TOKEN, the token itself, is read where no file is named (CallerFor)."""
    value = os.environ.get
    return (value("RECON_TLS_CERT", ""), value("RECON_TLS_KEY", ""), value("RECON_TLS_CA", ""),
            value("RECON_INSECURE", "").lower() in ("1", "true", "yes"), value("RECON_TOKEN_FILE", ""),
            value("RECON_TLS_CRL", ""))


def stall_seconds() -> float:
    """After which whoever waits for a call that matches by name says so."""
    return float(os.environ.get("RECON_STALL_SECONDS", "60"))
