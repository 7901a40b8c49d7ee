"""A body that blocks the event loop is told of by another thread, while it still does."""

import logging
import threading
import time
from pathlib import Path

import anyio
import pytest

from taskengine import Engine, TaskCall
from tests.bodies import add


class Ear(logging.Handler):
    """Rings when the watchdog has spoken."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.bell = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "event loop" in message:
            self.messages.append(message)
            self.bell.set()


@pytest.fixture
def ear() -> Ear:
    return Ear()


async def test_a_body_that_blocks_the_loop_is_named_with_its_place(tmp_path: Path, ear: Ear) -> None:
    def block_here() -> None:
        assert ear.bell.wait(30)

    async def blocking() -> None:
        await anyio.lowlevel.checkpoint()
        block_here()

    logger = logging.getLogger("taskengine")
    logger.addHandler(ear)
    try:
        async with Engine(tmp_path / "tasks.db", tasks=[blocking, add], loop_block_warning=0.3) as engine:
            handle = await engine.submit(TaskCall.of("blocking"))
            with anyio.fail_after(60):
                assert (await handle.wait()).ok
                assert (await (await engine.submit(add.bind(1))).wait()).ok
    finally:
        logger.removeHandler(ear)
    (message,) = ear.messages  # Once, however long it blocks.
    assert handle.id in message
    assert "blocking" in message
    assert "block_here" in message
    assert Path(__file__).name in message


async def test_a_sync_body_on_the_loop_is_named_too(tmp_path: Path, ear: Ear) -> None:
    def blocking() -> None:
        assert ear.bell.wait(30)

    logger = logging.getLogger("taskengine")
    logger.addHandler(ear)
    try:
        async with Engine(
            tmp_path / "tasks.db", tasks=[blocking], default_executor="inline", loop_block_warning=0.3
        ) as engine:
            handle = await engine.submit(TaskCall.of("blocking"))
            with anyio.fail_after(60):
                assert (await handle.wait()).ok
    finally:
        logger.removeHandler(ear)
    assert handle.id in ear.messages[0]


async def test_the_host_s_own_code_is_not_blamed_on_a_task(tmp_path: Path, ear: Ear) -> None:
    logger = logging.getLogger("taskengine")
    logger.addHandler(ear)
    try:
        async with Engine(tmp_path / "tasks.db", tasks=[_wait], loop_block_warning=0.3, shutdown_grace=0) as engine:
            handle = await engine.submit(TaskCall.of("_wait"))
            await anyio.lowlevel.checkpoint()
            assert ear.bell.wait(30)
    finally:
        logger.removeHandler(ear)
    assert handle.id not in ear.messages[0]
    assert "no task of this engine" in ear.messages[0]


async def _wait() -> None:
    await anyio.sleep(3600)


async def test_it_warns_again_when_the_loop_is_blocked_again(tmp_path: Path, ear: Ear) -> None:
    async def blocking() -> None:
        ear.bell.clear()
        assert ear.bell.wait(30)

    logger = logging.getLogger("taskengine")
    logger.addHandler(ear)
    try:
        async with Engine(tmp_path / "tasks.db", tasks=[blocking, add], loop_block_warning=0.3) as engine:
            with anyio.fail_after(90):
                for _ in range(2):
                    assert (await (await engine.submit(TaskCall.of("blocking"))).wait()).ok
                    count = len(ear.messages)
                    with anyio.move_on_after(0.3):  # The watchdog hears that the loop lives.
                        await anyio.sleep_forever()
                    assert len(ear.messages) == count
    finally:
        logger.removeHandler(ear)
    assert len(ear.messages) == 2


async def test_a_body_that_waits_does_not_block_the_loop(tmp_path: Path, ear: Ear) -> None:
    def busy() -> None:
        time.sleep(0.6)

    logger = logging.getLogger("taskengine")
    logger.addHandler(ear)
    try:
        async with Engine(tmp_path / "tasks.db", tasks=[busy], loop_block_warning=0.4) as engine:
            await (await engine.submit(TaskCall.of("busy"))).wait()
    finally:
        logger.removeHandler(ear)
    assert not any("busy" in message for message in ear.messages)
