"""The wire between parent and child: frames, and messages of a fixed shape."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine import FailureKind
from taskengine.executors.process.frames import (
    Answer,
    BrokenFrame,
    Extend,
    FrameBuffer,
    FromChild,
    Line,
    Quit,
    Raised,
    Returned,
    Said,
    Wishes,
    encode,
    frame_limit,
    read_from_child,
    read_to_child,
)

texts = st.text(st.characters(codec="utf-8"))
from_child = st.one_of(
    st.builds(Said, texts),
    st.builds(Line, st.integers(0, 50), texts),
    st.builds(Returned, texts),
    st.builds(Extend, *[st.floats(0, 1e9)] * 3),
    st.builds(
        Raised,
        kind=st.sampled_from(FailureKind),
        type_name=texts,
        message=texts,
        leaves=st.lists(st.lists(texts)),
        retryable=st.none() | st.booleans(),
    ),
)


@given(st.lists(from_child), st.data())
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(
    messages: list[FromChild], data: st.DataObject
) -> None:
    stream = b"".join(map(encode, messages))
    buffer, found, place = FrameBuffer(), [], 0
    while place < len(stream):
        size = data.draw(st.integers(1, len(stream) - place))
        buffer.feed(stream[place : place + size])
        place += size
        while (payload := buffer.take(10**6)) is not None:
            found.append(read_from_child(payload))
    assert found == messages
    assert len(buffer) == 0


@given(st.binary())
def test_whatever_comes_in_is_a_message_or_a_broken_frame(stream: bytes) -> None:
    buffer = FrameBuffer()
    buffer.feed(stream)
    try:
        while (payload := buffer.take(1000)) is not None:
            read_from_child(payload)
    except BrokenFrame:
        pass


def test_words_to_the_child_come_out_as_they_went_in() -> None:
    for message in (Wishes(True, False, "why"), Answer(path="/a"), Answer(seconds=1.5), Answer(problem="no"), Quit()):
        assert read_to_child(encode(message)[4:]) == message


def test_a_frame_beyond_the_limit_is_refused_when_it_is_announced() -> None:
    buffer = FrameBuffer()
    buffer.feed(struct.pack(">I", 101))
    assert buffer.take() is None
    with pytest.raises(BrokenFrame, match="101 bytes"):
        buffer.take(100)


def test_text_where_a_frame_should_be_is_beyond_every_usual_limit() -> None:
    buffer = FrameBuffer()
    buffer.feed(b"    spaces")
    with pytest.raises(BrokenFrame):
        buffer.take(frame_limit(64 * 1024 * 1024, 1024 * 1024))


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[]", b"\xff", b'{"type":"said"}', b'{"type":"start"}', b"[" * 100_000, b'{"type":1}']
)
def test_what_is_no_message_is_a_broken_frame(payload: bytes) -> None:
    with pytest.raises(BrokenFrame):
        read_from_child(payload)


def test_the_longest_result_and_the_longest_error_fit_into_the_limit() -> None:
    limit = frame_limit(1000, 1000)
    assert len(encode(Returned('"' * 1000))) <= limit
    text = "\x01" * 1000
    raised = Raised(kind=FailureKind.EXCEPTION, type_name="E", message=text, traceback=text, leaves=[[text]])
    assert len(encode(raised)) <= limit
