"""HTTPS to a real server on loopback, with certificates made for the test."""

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener

from taskengine.core.errors import DownstreamError
from taskengine.ports import HttpRequest
from taskengine.tasks import HttpxDownstream

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for named.test, signed by itself, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-days", "1", "-subj", "/CN=named.test", "-addext", "subjectAltName=DNS:named.test"]
    command += ["-keyout", str(path), "-out", f"{path}.crt"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@asynccontextmanager
async def serving_tls(certificate: Path, names: list[str | None]) -> AsyncIterator[int]:
    """Answer one request after the other, and note the name that the client asked for in each handshake."""

    async def answer(stream: ByteStream) -> None:
        try:
            async with stream:
                while True:
                    await stream.receive()
                    await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(SocketAttribute.local_port)
    async with TLSListener(listener, context, standard_compatible=False) as secure, anyio.create_task_group() as group:
        group.start_soon(secure.serve, answer)
        yield port
        group.cancel_scope.cancel()


async def resolve_to_loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_the_certificate_is_checked_against_the_name_though_an_address_is_dialled(certificate: Path) -> None:
    names: list[str | None] = []
    downstream = HttpxDownstream(
        allow_hosts=["127.0.0.1"],
        resolve=resolve_to_loopback,
        verify=ssl.create_default_context(cafile=certificate),
    )
    async with serving_tls(certificate, names) as port:
        for _ in range(3):
            got = await downstream.send(HttpRequest(method="POST", url=f"https://named.test:{port}/"))
            assert got.body == b"ok"
        assert names == ["named.test"]
        with pytest.raises(DownstreamError, match="no TLS with other") as caught:
            await downstream.send(HttpRequest(method="POST", url=f"https://other.test:{port}/"))
        await downstream.aclose()
    assert (caught.value.kind, caught.value.retryable) == ("connection", True)
    assert names == ["named.test", "other.test"]


async def test_an_unknown_authority_is_refused_unless_checking_is_off(certificate: Path) -> None:
    async with serving_tls(certificate, []) as port:
        request = HttpRequest(method="POST", url=f"https://named.test:{port}/")
        careful = HttpxDownstream(allow_hosts=["127.0.0.1"], resolve=resolve_to_loopback)
        with pytest.raises(DownstreamError, match="CERTIFICATE_VERIFY_FAILED"):
            await careful.send(request)
        trusting = HttpxDownstream(allow_hosts=["127.0.0.1"], resolve=resolve_to_loopback, verify=False)
        assert (await trusting.send(request)).body == b"ok"
        await trusting.aclose()
