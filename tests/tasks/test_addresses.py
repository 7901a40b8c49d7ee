import ipaddress

import anyio
import pytest
from anyio.abc import ByteStream

from taskengine.core.errors import DownstreamError, InvalidOption
from taskengine.ports import HttpRequest
from taskengine.tasks.addresses import AddressGuard, AddressNotAllowed, parse_address, why_denied
from taskengine.tasks.downstream import HttpxDownstream


def _words(text: str) -> list[str]:
    return text.split()


INTERNAL = _words("""
    0.0.0.0 0.1.2.3 10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 127.0.0.1 127.255.255.254 169.254.169.254
    172.16.0.0 172.31.255.255 192.0.0.8 192.0.0.9 192.0.0.170 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1
    192.168.0.1 192.175.48.1 198.18.0.0 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1
    255.255.255.255 :: ::1 ::2 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:a9fe:a9fe
    ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b:1::1 100::1 2001::1 2001:10::1 2001:20::1 2001:2::1 2001:db8::1
    2002:7f00:1:: 2620:4f:8000::1 3fff::1 5f00::1 4000::1 8000::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 febf::1
    fec0::1 ff02::1
""")

PUBLIC = _words("""
    1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 169.253.255.255
    169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.167.255.255 192.169.0.0 198.17.255.255
    198.20.0.0 223.255.255.255 2001:200::1 2606:4700::1111 2a00:1450::1 2003::1 ::ffff:8.8.8.8
""")


@pytest.mark.parametrize("text", INTERNAL)
def test_an_address_that_is_not_global_unicast_is_denied(text: str) -> None:
    address = parse_address(text)
    assert address is not None
    assert why_denied(address)


@pytest.mark.parametrize("text", PUBLIC)
def test_a_global_unicast_address_is_allowed(text: str) -> None:
    address = parse_address(text)
    assert address is not None
    assert why_denied(address) is None


@pytest.mark.parametrize("entry", ["", "a b", "h:0", "h:99999", "h:x", "10.0.0.1/8", "[::1", "http://h/", "::1:80:x"])
def test_a_malformed_exception_is_refused(entry: str) -> None:
    with pytest.raises(InvalidOption, match="allow_hosts"):
        AddressGuard([entry])


def test_one_text_instead_of_a_list_is_refused() -> None:
    with pytest.raises(InvalidOption, match="list"):
        AddressGuard("127.0.0.1")


class Resolver:
    """Answers from a list, one entry a look-up, and counts."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("allowed", "host", "port", "address", "passes"),
    [
        ("127.0.0.1", "127.0.0.1", 80, "127.0.0.1", True),
        ("127.0.0.1", "localhost", 80, "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", 80, "127.0.0.2", False),
        ("127.0.0.1:81", "127.0.0.1", 81, "127.0.0.1", True),
        ("127.0.0.1:81", "127.0.0.1", 80, "127.0.0.1", False),
        ("127.0.0.0/8", "127.9.9.9", 80, "127.9.9.9", True),
        ("127.0.0.1", "::ffff:127.0.0.1", 80, "::ffff:127.0.0.1", True),
        ("::1", "::1", 80, "::1", True),
        ("[::1]:81", "::1", 81, "::1", True),
        ("[::1]:81", "::1", 80, "::1", False),
        ("fd00::/8", "h", 80, "fd12::1", True),
        ("Db.Internal", "db.internal", 80, "10.0.0.1", True),
        ("db.internal.", "db.internal", 80, "10.0.0.1", True),
        ("db.internal", "db.internal.", 80, "10.0.0.1", True),
        ("db.internal:81", "db.internal", 80, "10.0.0.1", False),
        ("db.internal", "x.db.internal", 80, "10.0.0.1", False),
        ("bücher.internal", "xn--bcher-kva.internal", 80, "10.0.0.1", True),
    ],
)
async def test_an_exception_allows_what_it_names_and_no_more(
    allowed: str, host: str, port: int, address: str, passes: bool
) -> None:
    guard = AddressGuard([allowed], Resolver([address]))
    if passes:
        (found,) = await guard.addresses(host, port)
        assert ipaddress.ip_address(found) == parse_address(address)
    else:
        with pytest.raises(AddressNotAllowed):
            await guard.addresses(host, port)


async def test_every_address_of_a_name_must_pass() -> None:
    guard = AddressGuard(resolve=Resolver(["8.8.8.8", "1.1.1.1"], ["8.8.8.8", "10.0.0.1"], ["nonsense"], []))
    assert await guard.addresses("h", 80) == ["8.8.8.8", "1.1.1.1"]
    with pytest.raises(AddressNotAllowed, match=r"10\.0\.0\.1"):
        await guard.addresses("h", 80)
    with pytest.raises(AddressNotAllowed, match="not an IP address"):
        await guard.addresses("h", 80)
    with pytest.raises(OSError, match="no address"):
        await guard.addresses("h", 80)


class RecordingDial:
    """Notes who would have been dialled, and dials nobody."""

    def __init__(self) -> None:
        self.dialled: list[tuple[str, int]] = []

    async def __call__(self, address: str, port: int) -> ByteStream:
        self.dialled.append((address, port))
        raise ConnectionRefusedError(111, "refused by the test")


@pytest.mark.parametrize(
    "host",
    _words(
        "2130706433 0x7f000001 0x7f.1 017700000001 127.1 127.0.0.1. localhost 127.0.0.1 [::1] [::ffff:127.0.0.1] "
        "[::ffff:7f00:1] 0 0.0.0.0 １２７.0.0.1"
    ),
)
async def test_odd_spellings_of_loopback_are_judged_by_their_address(host: str) -> None:
    dial = RecordingDial()
    downstream = HttpxDownstream(dial=dial)
    with pytest.raises(DownstreamError):
        await downstream.send(HttpRequest(method="POST", url=f"http://{host}:1/"))
    assert dial.dialled == []


async def test_a_name_that_turns_internal_is_refused_at_the_next_attempt_and_each_attempt_asks_once() -> None:
    dial = RecordingDial()
    resolve = Resolver(["8.8.8.8"], ["127.0.0.1"])
    downstream = HttpxDownstream(resolve=resolve, dial=dial)
    request = HttpRequest(method="POST", url="http://rebind.test/")
    with pytest.raises(DownstreamError, match="refused by the test"):
        await downstream.send(request)
    with pytest.raises(AddressNotAllowed) as caught:
        await downstream.send(request)
    assert (caught.value.kind, caught.value.retryable) == ("exception", False)
    assert resolve.asked == [("rebind.test", 80)] * 2
    assert dial.dialled == [("8.8.8.8", 80)]


async def test_addresses_are_tried_in_turn_until_one_answers() -> None:
    dial = RecordingDial()
    downstream = HttpxDownstream(resolve=Resolver(["2606:4700::1", "8.8.8.8"]), dial=dial)
    with pytest.raises(DownstreamError, match="refused by the test"):
        await downstream.send(HttpRequest(method="POST", url="http://two.test:81/"))
    assert dial.dialled == [("2606:4700::1", 81), ("8.8.8.8", 81)]


async def test_an_address_that_never_answers_does_not_keep_the_next_one_from_being_tried() -> None:
    ended: list[str] = []

    async def dial(address: str, port: int) -> ByteStream:
        if address == "8.8.8.8":
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(address)
        return ClosedByPeer([])

    downstream = HttpxDownstream(resolve=Resolver(["8.8.8.8", "1.1.1.1"]), dial=dial)
    with pytest.raises(DownstreamError, match="disconnected"):
        await downstream.send(HttpRequest(method="POST", url="http://two.test/"))
    assert ended == ["8.8.8.8"]


class ClosedByPeer(ByteStream):
    """Takes everything, answers nothing, and then it is over."""

    def __init__(self, sent: list[bytes]) -> None:
        self.sent = sent

    async def send(self, item: bytes) -> None:
        self.sent.append(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        raise anyio.EndOfStream

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.sent.append(b"closed")


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_name_is_kept_for_host_and_tls_though_the_address_is_dialled(scheme: str) -> None:
    sent: list[bytes] = []
    dialled: list[str] = []

    async def dial(address: str, port: int) -> ByteStream:
        dialled.append(address)
        return ClosedByPeer(sent)

    downstream = HttpxDownstream(resolve=Resolver(["8.8.8.8"]), dial=dial)
    with pytest.raises(DownstreamError) as caught:
        await downstream.send(HttpRequest(method="POST", url=f"{scheme}://named.test/"))
    assert (caught.value.kind, caught.value.retryable) == ("connection", True)
    assert dialled == ["8.8.8.8"]
    assert b"named.test" in b"".join(sent)
    assert sent[-1] == b"closed"


async def test_a_name_that_cannot_be_found_is_a_retryable_connection_failure() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    with pytest.raises(DownstreamError, match=r"cannot find gone\.test: Name or service") as caught:
        await HttpxDownstream(resolve=resolve).send(HttpRequest(method="POST", url="http://gone.test/"))
    assert (caught.value.kind, caught.value.retryable) == ("connection", True)


async def test_a_slow_look_up_counts_against_the_deadline() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await anyio.sleep_forever()
        raise AssertionError

    with pytest.raises(DownstreamError) as caught:
        await HttpxDownstream(resolve=resolve).send(HttpRequest(method="POST", url="http://slow.test/", timeout=0.05))
    assert caught.value.kind == "timeout_attempt"
