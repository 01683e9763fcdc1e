"""What the environment says of the server, and how to reach it."""

from __future__ import annotations

import os


def server() -> str:
    """RECON_SERVER, or this machine's usual port."""
    return os.environ.get("RECON_SERVER", "127.0.0.1:7070")


def tls() -> tuple[str, str, str, bool, str, str]:
    """Files of the certificate, its key and the CA, whether plain text may go to other machines, a file with a token, and
    one of revoked certificates; empty for none."""
    value = os.environ.get
    return (value("RECON_TLS_CERT", ""), value("RECON_TLS_KEY", ""), value("RECON_TLS_CA", ""),
            value("RECON_INSECURE", "").lower() in ("1", "true", "yes"), value("RECON_TOKEN_FILE", ""),
            value("RECON_TLS_CRL", ""))


def stall_seconds() -> float:
    """After which whoever waits for a call that matches by name says so."""
    return float(os.environ.get("RECON_STALL_SECONDS", "60"))
