"""Certificates for tests with TLS, made by openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """PEM files of a certificate that is its own authority, for servers and for clients."""

    file: str
    key: str
    both: str


def make_certificate(folder: Path, host: str = "IP:127.0.0.1") -> Certificate:
    """One for ``host``, in openssl's words."""
    folder.mkdir(parents=True, exist_ok=True)
    file, key, both = (folder / f"{name}.pem" for name in ("certificate", "key", "both"))
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test"]
    files = ["-addext", f"subjectAltName={host}", "-keyout", str(key), "-out", str(file)]
    subprocess.run([*request, *files], check=True, capture_output=True)
    both.write_text(file.read_text() + key.read_text())
    return Certificate(str(file), str(key), str(both))
